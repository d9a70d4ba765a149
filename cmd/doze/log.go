package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
)

const (
	// followEvery is how often --follow asks for new lines.
	followEvery = time.Second
	// logLines is how many lines there are without --lines.
	logLines = 100
)

func (a *app) logs() *cobra.Command {
	var (
		f            client.LogFilter
		since, until string
		severity     string
		follow       bool
	)
	cmd := &cobra.Command{
		Use: "logs NAME [PROCESS]", Short: "Print the log of a sandbox, or the output of a process", Args: takes(1, 2),
		Long: fmt.Sprintf(`Print what the processes of a sandbox wrote and what the platform says about it,
oldest first. The platform stores both for some time, also after a sandbox ended.
No sandbox is woken.

With PROCESS, print the output of one process as the sandbox has it. It wakes the
sandbox. --since and the flags that select lines are for the stored log only.
At most %d lines are printed without --follow.`, doze.LogLinesMax),
		Example: "  doze sandbox logs web --follow\n  doze sandbox logs web --since 1h --severity ERROR\n  doze sandbox logs web build",
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if follow && a.whole() {
				return usagef("--follow prints no JSON")
			}
			if len(args) == 2 {
				for _, name := range []string{"since", "until", "severity", "search", "process", "type", "lines"} {
					if cmd.Flags().Changed(name) {
						return usagef("--%s is for the stored log: leave out PROCESS, and use --process to select one", name)
					}
				}
				return a.outputOf(cmd.Context(), args[0], args[1], follow)
			}
			if f.Limit < 1 || f.Limit > doze.LogLinesMax {
				return usagef("--lines must be 1 to %d", doze.LogLinesMax)
			}
			now := a.now()
			if f.Since, err = auditMoment("since", since, now); err != nil {
				return err
			}
			if f.Until, err = auditMoment("until", until, now); err != nil {
				return err
			}
			if severity != "" {
				f.Severities = strings.Split(severity, ",")
			}
			return a.storedLog(cmd.Context(), args[0], f, follow)
		},
	}
	flags := cmd.Flags()
	flags.BoolVarP(&follow, "follow", "f", false, "print new lines as they come, until you interrupt it or the process ends")
	flags.StringVar(&since, "since", "", "start at this `time`: a moment such as 2026-01-31T12:00:00Z, or a time before now such as 24h")
	flags.StringVar(&until, "until", "", "stop before this `time`, in the same forms")
	flags.StringVar(&severity, "severity", "", "show only these comma-separated `severities`: INFO, WARNING or ERROR. stderr is ERROR")
	flags.StringVar(&f.Search, "search", "", "show only lines with this `text`, in any case")
	flags.StringVar(&f.Process, "process", "", "show only lines of processes with this `name`")
	flags.StringVar(&f.Type, "type", "", "show only lines of this `type`: process or event")
	flags.IntVarP(&f.Limit, "lines", "n", logLines, "show at most this `number` of lines, the newest ones")
	return cmd
}

// storedLog prints what the platform has stored of a sandbox.
func (a *app) storedLog(ctx context.Context, name string, f client.LogFilter, follow bool) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	log, err := c.Log(ctx, name, f)
	if err != nil {
		return err
	}
	if len(log.Lines) == 0 {
		if err := checkLogged(ctx, c, name); err != nil {
			return err
		}
	}
	slices.Reverse(log.Lines)
	if a.whole() {
		return a.printWhole(log.Lines)
	}
	if err := a.printLog(log.Lines); err != nil || !follow {
		return err
	}
	// What comes after the newest line that was printed. Its time has no more than
	// milliseconds here: what is printed already is skipped.
	printed := map[doze.LogLine]bool{}
	f.OldestFirst, f.Limit = true, doze.LogLinesMax
	if n := len(log.Lines); n > 0 {
		f.Since = log.Lines[n-1].Timestamp.Time
		for _, l := range log.Lines {
			printed[l] = true
		}
	}
	for {
		log, err := c.Log(ctx, name, f)
		if err != nil {
			return err
		}
		fresh := slices.DeleteFunc(log.Lines, func(l doze.LogLine) bool { return printed[l] })
		if err := a.printLog(fresh); err != nil {
			return err
		}
		if f.Cursor = log.Next; log.Total > 0 {
			clear(printed) // the cursor is behind them
		}
		if log.Total == doze.LogLinesMax {
			continue
		}
		select {
		case <-time.After(followEvery):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// checkLogged returns the error of the server for a name that neither a sandbox nor a stored
// line has. A key that may only read logs gets none.
func checkLogged(ctx context.Context, c *client.Client, name string) error {
	_, unknown := c.Sandbox(ctx, name)
	if doze.Public(unknown).Kind != doze.NotFound {
		return nil
	}
	if log, err := c.Log(ctx, name, client.LogFilter{Limit: 1}); err != nil || len(log.Lines) > 0 {
		return err
	}
	return unknown
}

// printLog prints lines with their time and where they are from.
func (a *app) printLog(lines []doze.LogLine) error {
	for _, l := range lines {
		from := "platform"
		if l.Process != "" {
			from = l.Process
		}
		text := fmt.Sprintf("%s %-7s %s: %s\n", l.Timestamp.UTC().Format(time.RFC3339), l.Severity, printable(from), printable(l.Message))
		if err := copyOut(a.out, text); err != nil {
			return err
		}
	}
	return nil
}

// outputOf prints the output of a process as its sandbox has it.
func (a *app) outputOf(ctx context.Context, name, process string, follow bool) error {
	agent, err := a.enter(ctx, name)
	if err != nil {
		return err
	}
	if follow {
		return agent.Follow(ctx, process, a.print)
	}
	l, err := agent.Logs(ctx, process)
	if err != nil {
		return err
	}
	if a.whole() {
		return a.printWhole(l)
	}
	if err := copyOut(a.out, l.Stdout); err != nil {
		return err
	}
	return copyOut(a.err, l.Stderr)
}
