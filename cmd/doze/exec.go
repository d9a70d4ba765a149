package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
)

// stopTimeout bounds the attempt to stop a command that nobody waits for any
// more.
const stopTimeout = 5 * time.Second

func (a *app) exec() *cobra.Command {
	var (
		run     client.Command
		envs    []string
		detach  bool
		timeout time.Duration
	)
	cmd := &cobra.Command{
		Use:   "exec NAME -- COMMAND [ARGUMENT…]",
		Short: "Run a command in a sandbox",
		Long: `Run a command in a sandbox. doze prints its output as it arrives and exits with
its exit code, or with 128 plus the signal that ended it. A single argument is
shell text. Several arguments are one command and are passed unchanged. An
interrupt stops the command.

The command gets standard input if that is a file or a pipe. Use </dev/null in a
loop that reads its own input. For interactive commands, use doze sandbox shell.
A detached command has no input.`,
		Example: "  doze sandbox exec web -- 'ls /tmp | wc -l'\n  doze sandbox exec web -w /app -e CI=1 -- npm test\n  doze sandbox exec web -- tar -x -C /app <app.tar",
		Args:    takes(2, -1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if run.Env, err = a.envMap(envs); err != nil {
				return err
			}
			switch {
			case timeout < 0 || timeout > 0 && timeout < time.Second:
				return usagef("--timeout must be at least 1s")
			case detach && timeout > 0 && !run.KeepAlive:
				return usagef("--timeout of a detached command needs --keep-alive")
			}
			if run.KeepAlive {
				seconds := int(timeout / time.Second) // 0: no end
				run.Timeout = &seconds
			}
			run.Command = shellText(args[1:])
			agent, err := a.enter(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if detach {
				return a.detached(cmd.Context(), agent, run)
			}
			return a.attached(cmd.Context(), agent, run, timeout)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&run.WorkingDir, "workdir", "w", "", "working `directory`")
	f.StringArrayVarP(&envs, "env", "e", nil, "environment variable, `NAME[=value]`; without =value, copied from your shell; repeatable")
	f.BoolVarP(&detach, "detach", "d", false, "print the process name and return at once")
	f.BoolVar(&run.KeepAlive, "keep-alive", false, "keep the sandbox awake while the command runs")
	f.DurationVar(&timeout, "timeout", 0, "stop the command after this `time`, such as 90s or 10m")
	return cmd
}

// shellText makes the text for a shell. One argument is that already.
func shellText(args []string) string {
	if len(args) == 1 {
		return args[0]
	}
	quoted := make([]string, len(args))
	for i, s := range args {
		quoted[i] = quote(s)
	}
	return strings.Join(quoted, " ")
}

// plain are the characters that no shell touches.
const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:,@%+"

func quote(s string) string {
	if s != "" && strings.Trim(s, plain) == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

func (a *app) detached(ctx context.Context, agent *client.Agent, run client.Command) error {
	p, err := agent.Start(ctx, run)
	switch {
	case err != nil:
		return err
	case a.whole():
		return a.printWhole(p)
	default:
		return copyOut(a.out, printable(p.Name)+"\n")
	}
}

// errTooLong is the cause of the end of a command that reached its timeout, and of the
// error that says so.
var errTooLong = errors.New("the command reached its timeout")

// timeoutError is errTooLong in the words of a user.
type timeoutError time.Duration

func (d timeoutError) Error() string {
	return fmt.Sprintf("the command ran for longer than %v and was stopped", time.Duration(d))
}

func (d timeoutError) Unwrap() error { return errTooLong }

// attached runs a command to its end, or to ours.
func (a *app) attached(ctx context.Context, agent *client.Agent, run client.Command, timeout time.Duration) error {
	run.Name = "exec-" + strings.ToLower(rand.Text()) // to stop it by
	run.Input = a.input()
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, timeout, errTooLong)
		defer cancel()
	}
	p, err := agent.Run(ctx, run, a.print)
	if ctx.Err() != nil {
		err = a.stop(context.WithoutCancel(ctx), agent, run.Name, context.Cause(ctx), timeout)
	} else if half, ok := errors.AsType[*client.InputError](err); ok {
		// To it, a part would look like the whole.
		err = a.stop(ctx, agent, run.Name, fmt.Errorf("the command was stopped: %w", half), timeout)
	}
	if err != nil {
		return err
	}
	if a.whole() {
		if err := a.printWhole(p); err != nil {
			return err
		}
	}
	return a.exit(p)
}

// input is what a command gets to read: all but what somebody types, who would
// miss the terminal around it.
func (a *app) input() io.Reader {
	if f, ok := a.in.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return nil
	}
	return a.in
}

// exit returns how a command ended, as a shell would.
func (a *app) exit(p client.Process) error {
	switch {
	case p.ExitCode == 0:
		return nil
	case p.ExitCode < 0 && p.Signal > 0 && p.Signal < exitSignal:
		a.say(fmt.Sprintf("doze: the command was ended by signal %d%s\n", p.Signal, signalName(p.Signal)))
		return exitError(exitSignal + p.Signal)
	case p.ExitCode < 0: // the agent of an older platform does not say which
		a.say("doze: the command was ended by a signal\n")
	}
	return exitError(max(p.ExitCode&0xff, exitFailed)) // what a process can exit with
}

// signals are the usual ones as sandboxes number them, whatever system this is.
var signals = map[int]string{
	1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL",
	11: "SIGSEGV", 13: "SIGPIPE", 14: "SIGALRM", 15: "SIGTERM",
}

func signalName(n int) string {
	if name, ok := signals[n]; ok {
		return ", " + name
	}
	return ""
}

// print passes output on, unless the answer is printed whole at the end.
func (a *app) print(from client.Channel, data string) error {
	switch {
	case a.whole():
		return nil
	case from == client.Stdout:
		return copyOut(a.out, data)
	default:
		return copyOut(a.err, data)
	}
}

// stop ends a command that we gave up on, and returns why.
func (a *app) stop(ctx context.Context, agent *client.Agent, name string, why error, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	_, err := agent.Stop(ctx, name)
	if doze.Public(err).Kind == doze.NotFound {
		err = nil // it ended just now
	}
	if errors.Is(why, errTooLong) {
		why = timeoutError(timeout)
	}
	if err != nil {
		return fmt.Errorf("the command may still run: %w", err)
	}
	return why
}
