package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
)

func (a *app) processes() *cobra.Command {
	return &cobra.Command{
		Use: "ps NAME", Short: "List the processes of a sandbox", Args: takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			agent, err := a.enter(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			all, err := agent.Processes(cmd.Context())
			if err != nil {
				return err
			}
			if a.whole() {
				return a.printWhole(all)
			}
			rows := [][]string{{"PID", "NAME", "STATUS", "EXIT", "STARTED", "COMMAND"}}
			for _, p := range all {
				code := strconv.Itoa(p.ExitCode)
				if p.Status == "running" {
					code = ""
				}
				rows = append(rows, []string{p.PID, p.Name, p.Status, code, began(p), p.Command})
			}
			return a.table(rows)
		},
	}
}

// began is the cell of when a process began.
func began(p client.Process) string {
	at, err := http.ParseTime(p.StartedAt)
	if err != nil {
		return p.StartedAt
	}
	return moment(doze.Time{Time: at})
}

// signalKill and signalTerm are the signals that a process in a sandbox can be ended with.
const (
	signalKill = "KILL"
	signalTerm = "TERM"
)

func (a *app) kill() *cobra.Command {
	name := signalKill
	cmd := &cobra.Command{
		Use: "kill NAME PROCESS…", Short: "End processes of a sandbox, by their names or ids, and their children",
		Example: "  doze kill web server\n  doze kill web 17 --signal TERM", Args: takes(2, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			end := map[string]func(*client.Agent, context.Context, string) (client.Done, error){signalKill: (*client.Agent).Kill, signalTerm: (*client.Agent).Stop}[name]
			if end == nil {
				return usagef("--signal must be %s or %s, not %q", signalKill, signalTerm, name)
			}
			agent, err := a.enter(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			var errs []error
			for _, id := range args[1:] {
				if _, err := end(agent, cmd.Context(), id); err != nil {
					errs = append(errs, fmt.Errorf("%s: %w", id, err))
				} else if !a.whole() {
					errs = append(errs, copyOut(a.out, printable(id)+"\n"))
				}
			}
			return errors.Join(errs...)
		},
	}
	cmd.Flags().StringVarP(&name, "signal", "s", name, "`KILL|TERM`: end them at once, or ask them to end")
	completeWords(cmd, "signal", signalKill, signalTerm)
	return cmd
}
