package main

import (
	"context"
	"iter"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
)

func (a *app) schedule() *cobra.Command {
	cmd := &cobra.Command{
		Use: "schedule", Aliases: []string{"schedules"}, Short: "Run commands in sandboxes on a schedule",
		Args: cobra.ArbitraryArgs, RunE: group,
	}
	runs := &cobra.Command{
		Use: "runs [SANDBOX]", Short: "List the runs of schedules, newest first", Args: takes(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return listOf(cmd.Context(), a, args, (*client.Client).Executions, executionRows)
		},
	}
	list := &cobra.Command{
		Use: "ls [SANDBOX]", Aliases: []string{"list"}, Short: "List schedules, newest first", Args: takes(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return listOf(cmd.Context(), a, args, (*client.Client).Schedules, scheduleRows)
		},
	}
	remove := &cobra.Command{
		Use: "rm SANDBOX ID…", Aliases: []string{"delete"}, Short: "Delete schedules; running commands go on", Args: takes(2, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.each(cmd.Context(), args[1:], func(ctx context.Context, c *client.Client, id string) error {
				return c.DeleteSchedule(ctx, args[0], id)
			})
		},
	}
	cmd.AddCommand(a.createSchedule(), list, runs, remove)
	a.complete("SANDBOX", sandboxNames, cmd.Commands()...)
	return cmd
}

// listOf prints a list of a sandbox, or of all.
func listOf[T any](ctx context.Context, a *app, args []string, read func(*client.Client, context.Context, string) iter.Seq2[T, error], rows func(...T) [][]string) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	all := []T{} // [] in JSON
	for one, err := range read(c, ctx, strings.Join(args, "")) {
		if err != nil {
			return err
		}
		all = append(all, one)
	}
	return a.show(all, rows(all...))
}

func (a *app) createSchedule() *cobra.Command {
	var (
		s       doze.Schedule
		envs    []string
		cron    string
		at, in  string
		sleeps  bool
		timeout time.Duration
	)
	cmd := &cobra.Command{
		Use: "create SANDBOX -- COMMAND [ARGUMENT…]", Short: "Schedule a command: once or repeatedly",
		Example: "  doze schedule create web --cron '0 3 * * *' -- ./backup.sh\n  doze schedule create web --in 2h -- 'curl -s localhost:3000/tick'",
		Args:    takes(2, -1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			for kind, value := range map[string]string{doze.ScheduleCron: cron, doze.ScheduleAt: at, doze.ScheduleSleep: in} {
				if value == "" {
					continue
				}
				if s.Type != "" {
					return usagef("choose one of --cron, --at and --in")
				}
				s.Type, s.Value = kind, value
			}
			if s.Type == "" {
				return usagef("say when with --cron, --at or --in")
			}
			if s.Input.Env, err = a.envMap(envs); err != nil {
				return err
			}
			if timeout < 0 || timeout > 0 && timeout < time.Second {
				return usagef("--timeout must be 0, or at least 1s")
			}
			s.Input.Command = shellText(args[1:])
			s.Input.KeepAlive, s.Input.Timeout = new(!sleeps), new(int(timeout/time.Second))
			c, err := a.connect()
			if err != nil {
				return err
			}
			made, err := c.CreateSchedule(cmd.Context(), args[0], s)
			if err != nil {
				return err
			}
			return a.show(made, scheduleRows(made))
		},
	}
	f := cmd.Flags()
	f.StringVar(&cron, "cron", "", "times in UTC: `minute hour day month weekday`, as in crontab(5)")
	f.StringVar(&at, "at", "", "once, at this `time`, such as 2026-01-31T12:00:00Z")
	f.StringVar(&in, "in", "", "once, after this `time`, such as 30m or 2h")
	f.StringVar(&s.ID, "id", "", "`id` of the schedule (default: generated)")
	f.StringVarP(&s.Input.WorkingDir, "workdir", "w", "", "working `directory`")
	f.StringArrayVarP(&envs, "env", "e", nil, "environment variable, `NAME[=value]`; without =value, copied from your shell; repeatable")
	f.BoolVar(&sleeps, "sleep", false, "let the sandbox sleep while the command runs")
	f.DurationVar(&timeout, "timeout", doze.RunTimeoutDefault*time.Second, "end the command after this `time`; 0: never")
	return cmd
}

func scheduleRows(all ...doze.Schedule) [][]string {
	rows := [][]string{{"SANDBOX", "ID", "TYPE", "WHEN", "COMMAND", "CREATED"}}
	for _, s := range all {
		rows = append(rows, []string{s.Sandbox, s.ID, s.Type, s.Value, s.Input.Command, moment(s.CreatedAt)})
	}
	return rows
}

func executionRows(all ...doze.Execution) [][]string {
	rows := [][]string{{"SANDBOX", "SCHEDULE", "STARTED", "STATUS", "CODE", "PROCESS", "ERROR"}}
	for _, e := range all {
		rows = append(rows, []string{e.Sandbox, e.ScheduleID, moment(e.ExecutedAt), string(e.Status), strconv.Itoa(e.StatusCode), e.ProcessName, e.Error})
	}
	return rows
}
