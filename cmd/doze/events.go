package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/dozehq/doze"
)

func (a *app) events() *cobra.Command {
	var follow bool
	cmd := &cobra.Command{
		Use: "events NAME", Short: "Print the events of a sandbox, oldest first", Args: takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if follow && a.whole() {
				return usagef("--follow prints no %s", a.format)
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			s, err := c.Sandbox(cmd.Context(), args[0])
			if err != nil || !follow {
				if err != nil {
					return err
				}
				return a.show(append([]doze.Event{}, s.Events...), eventRows(s.Events))
			}
			ticker := time.NewTicker(followEvery)
			defer ticker.Stop()
			for seen := map[doze.Event]bool{}; ; {
				for _, e := range s.Events {
					if seen[e] {
						continue
					}
					seen[e] = true
					if err := copyOut(a.out, e.Time.UTC().Format(time.RFC3339)+"  "+printable(e.Type+"  "+e.Status+"  "+e.Message)+"\n"); err != nil {
						return err
					}
				}
				if s.Status == doze.Terminated.Status() {
					return nil
				}
				select {
				case <-cmd.Context().Done():
					return nil
				case <-ticker.C:
				}
				if s, err = c.Sandbox(cmd.Context(), args[0]); doze.Public(err).Kind == doze.NotFound && err != nil {
					return nil // it has ended, and its record too
				}
				if err != nil {
					return err
				}
			}
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "print new events until the sandbox ends")
	return cmd
}

func eventRows(all []doze.Event) [][]string {
	rows := [][]string{{"TIME", "TYPE", "STATUS", "REVISION", "MESSAGE"}}
	for _, e := range all {
		rows = append(rows, []string{moment(e.Time), e.Type, e.Status, e.Revision, e.Message})
	}
	return rows
}
