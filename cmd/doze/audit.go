package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
)

// auditLines is how many lines are listed, if nobody says how many.
const auditLines = 50

func (a *app) audit() *cobra.Command {
	var f client.AuditFilter
	var since, until string
	var denied bool
	most := auditLines
	filter := func() (_ client.AuditFilter, err error) {
		now := time.Now()
		if f.Since, err = auditMoment("since", since, now); err != nil {
			return f, err
		}
		if f.Until, err = auditMoment("until", until, now); err != nil {
			return f, err
		}
		if denied {
			f.Outcome = doze.AuditDenied
		}
		return f, nil
	}
	cmd := &cobra.Command{
		Use: "audit", Short: "Show the audit log: changes and denied requests (admins only)", Args: takes(0, 0),
		Example: "  doze audit --since 24h --action sandboxes.delete\n  doze audit --platform --denied\n  doze audit export --since 2026-01-01T00:00:00Z > audit.ndjson",
		RunE: func(cmd *cobra.Command, _ []string) error {
			f, err := filter()
			if err != nil {
				return err
			}
			if most < 1 {
				return usagef("--lines must be at least 1")
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			lines := []doze.AuditLine{}
			rows := [][]string{{"TIME", "ACTOR", "ACTION", "OBJECT", "OUTCOME", "SOURCE"}}
			for l, err := range c.Audit(cmd.Context(), f) {
				if err != nil {
					return err
				}
				lines, rows = append(lines, l), append(rows, auditRow(l))
				if len(lines) == most {
					break
				}
			}
			return a.show(lines, rows)
		},
	}
	export := &cobra.Command{
		Use: "export", Short: "Write the audit log as lines of JSON, oldest first", Args: takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			f, err := filter()
			if err != nil {
				return err
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			return c.ExportAudit(cmd.Context(), f, a.out)
		},
	}
	flags := cmd.PersistentFlags()
	flags.StringVar(&since, "since", "", "only since this `time`: RFC 3339, or a duration before now such as 24h")
	flags.StringVar(&until, "until", "", "only until this `time`")
	flags.StringVar(&f.Actor, "actor", "", "only requests of this user or service account, by its `id`")
	flags.StringVar(&f.Action, "action", "", "only this `action`, such as sandboxes.create")
	flags.StringVar(&f.Object, "object", "", "only requests about the object of this `name`")
	flags.StringVar(&f.Source, "source", "", "only requests from this `address`")
	flags.BoolVar(&denied, "denied", false, "only requests that were denied")
	flags.BoolVar(&f.Platform, "platform", false, "show lines that belong to no workspace, such as failed logins (operators only)")
	cmd.Flags().IntVar(&most, "lines", most, "show at most this `number` of lines")
	cmd.AddCommand(export)
	return cmd
}

// auditMoment reads a moment, or how long ago it was.
func auditMoment(flag, text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if d, err := doze.ParseDuration(text); err == nil {
		return now.Add(-d), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return at, usagef("--%s must be a moment such as 2026-01-31T12:00:00Z, or a time before now such as 24h, not %q", flag, text)
	}
	return at, nil
}

func auditRow(l doze.AuditLine) []string {
	actor := l.Actor.Sub
	if actor == "" {
		actor = l.Actor.Type
	}
	outcome := l.Outcome
	if l.Error != "" {
		outcome += " (" + l.Error + ")"
	}
	if l.Count > 1 {
		outcome += fmt.Sprintf(" ×%d", l.Count)
	}
	return []string{moment(l.Time), actor, l.Action, l.Object.Name, outcome, l.Source}
}
