package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dozehq/doze"
)

func (a *app) trace() *cobra.Command {
	return &cobra.Command{
		Use: "trace NAME", Short: "Show how long the stages of a wake or create took", Args: takes(1, 1),
		Long: fmt.Sprintf(`Show the stages of the last wakes and of the create of a sandbox, newest first.

WAITED is the time in milliseconds until the sandbox got the request. The stage
"answer" follows: the sandbox's own time to the first byte of its answer. A stage
in parentheses is part of the one before it. The server has the last %d traces in
memory. A restart of the server deletes them.`, doze.TracesMax),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			all, err := c.Traces(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.show(all, traceRows(all))
		},
	}
}

func traceRows(all []doze.Trace) [][]string {
	rows := [][]string{{"STARTED", "KIND", "FROM", "STATUS", "WAITED", "STAGES"}}
	for _, t := range all {
		stages := stageList(t.Stages)
		if t.Error != "" {
			stages += ": " + t.Error
		}
		rows = append(rows, []string{moment(t.StartedAt), t.Kind, t.From, t.Status, millis(t.WaitedUs), stages})
	}
	return rows
}

// stageList is stages in their order, with what is within one behind it in
// parentheses.
func stageList(stages []doze.TraceStage) string {
	var list []string
	for i, s := range stages {
		if s.Within != "" {
			continue
		}
		text := s.Name + " " + millis(s.TookUs)
		var parts []string
		for _, in := range stages[i:] {
			if in.Within == s.Name && in.StartUs <= s.StartUs+s.TookUs {
				parts = append(parts, in.Name+" "+millis(in.TookUs))
			}
		}
		if len(parts) > 0 {
			text += " (" + strings.Join(parts, ", ") + ")"
		}
		list = append(list, text)
	}
	return strings.Join(list, ", ")
}

// millis is a time in milliseconds.
func millis(us int64) string { return fmt.Sprintf("%d.%02d", us/1000, us%1000/10) }
