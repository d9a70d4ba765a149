package main

import (
	"strconv"

	"github.com/spf13/cobra"
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
				rows = append(rows, []string{p.PID, p.Name, p.Status, code, p.StartedAt, p.Command})
			}
			return a.table(rows)
		},
	}
}

func (a *app) logs() *cobra.Command {
	var follow bool
	cmd := &cobra.Command{
		Use: "logs NAME PROCESS", Short: "Print the output of a process", Args: takes(2, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if follow && a.whole() {
				return usagef("--follow prints no JSON")
			}
			agent, err := a.enter(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if follow {
				return agent.Follow(cmd.Context(), args[1], a.print)
			}
			l, err := agent.Logs(cmd.Context(), args[1])
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
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "follow the output until the process ends")
	return cmd
}
