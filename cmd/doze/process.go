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
