package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
)

// packPoll is the pause between looks at a sandbox that is being archived or
// unarchived.
const packPoll = 500 * time.Millisecond

func (a *app) snapshot() *cobra.Command {
	cmd := &cobra.Command{
		Use: "snapshot", Aliases: []string{"snapshots"}, Short: "Capture sandboxes with memory, processes and files",
		Args: cobra.ArbitraryArgs, RunE: group,
	}
	cmd.AddCommand(a.createSnapshot(), a.listSnapshots(), a.restoreSnapshot(), a.removeSnapshot())
	a.complete("SANDBOX", sandboxNames, cmd.Commands()...)
	return cmd
}

func (a *app) createSnapshot() *cobra.Command {
	return &cobra.Command{
		Use: "create SANDBOX [NAME]", Short: "Take a snapshot (does not wake the sandbox)", Args: takes(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			name := ""
			if len(args) == 2 {
				name = args[1]
			}
			n, err := c.CreateSnapshot(cmd.Context(), args[0], name)
			if err != nil {
				return err
			}
			return a.show(n, snapshotRows(n))
		},
	}
}

func (a *app) listSnapshots() *cobra.Command {
	return &cobra.Command{
		Use: "ls [SANDBOX]", Aliases: []string{"list"}, Short: "List snapshots, newest first", Args: takes(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			if len(args) == 1 {
				all, err := c.SnapshotsOf(cmd.Context(), args[0])
				if err != nil {
					return err
				}
				return a.show(all, snapshotRows(all...))
			}
			all := []doze.Snapshot{} // [] in JSON
			for n, err := range c.Snapshots(cmd.Context()) {
				if err != nil {
					return err
				}
				all = append(all, n)
			}
			return a.show(all, snapshotRows(all...))
		},
	}
}

func snapshotRows(all ...doze.Snapshot) [][]string {
	rows := [][]string{{"ID", "NAME", "SANDBOX", "STATUS", "MEMORY", "MB", "CREATED"}}
	for _, n := range all {
		source := n.SandboxName
		if n.Source.Deleted {
			source += " (deleted)"
		}
		rows = append(rows, []string{
			n.ID, n.Name, source, string(n.Status), strconv.Itoa(int(n.Spec.Memory)), strconv.FormatInt(n.Bytes>>20, 10), moment(n.CreatedAt),
		})
	}
	return rows
}

func (a *app) restoreSnapshot() *cobra.Command {
	return &cobra.Command{
		Use: "restore SANDBOX SNAPSHOT", Short: "Roll a sandbox back to a snapshot; later changes are lost", Args: takes(2, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			if _, err := c.Restore(cmd.Context(), args[0], args[1]); err != nil {
				return err
			}
			return a.printNamed(cmd.Context(), c, args[0])
		},
	}
}

func (a *app) removeSnapshot() *cobra.Command {
	return &cobra.Command{
		Use: "rm SNAPSHOT…", Aliases: []string{"delete"}, Short: "Delete snapshots; their copies stay", Args: takes(1, -1),
		Long: "Delete snapshots by their ids or names. If one of them is unknown, none is\ndeleted. Their copies stay.",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			for _, snapshot := range args {
				if _, err := c.Snapshot(cmd.Context(), snapshot); err != nil {
					return fmt.Errorf("no snapshot was deleted: %w", nameError{snapshot, err})
				}
			}
			return a.each(cmd.Context(), args, func(ctx context.Context, c *client.Client, snapshot string) error {
				return c.DeleteSnapshot(ctx, snapshot)
			})
		},
	}
}

func (a *app) fork() *cobra.Command {
	var envs []string
	var snapshot string
	cmd := &cobra.Command{
		Use:     "fork [SANDBOX] NAME",
		Short:   "Fork a running sandbox or a snapshot",
		Example: "  doze fork web web-2 --env A=b\n  doze fork --snapshot x7kq2mfd5tzl3vbn6cra web-2",
		Args:    takes(1, 2),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			f := doze.ForkRequest{TargetName: args[len(args)-1], TargetType: doze.KindSandbox, SnapshotID: snapshot}
			if len(args) == 1 && snapshot == "" {
				return usagef("name the sandbox to fork, or a snapshot with --snapshot")
			}
			if f.Envs, err = a.envs(envs); err != nil {
				return err
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			if len(args) == 1 {
				_, err = c.ForkSnapshot(cmd.Context(), snapshot, f)
			} else {
				_, err = c.Fork(cmd.Context(), args[0], f)
			}
			if err != nil {
				return err
			}
			return a.printNamed(cmd.Context(), c, f.TargetName)
		},
	}
	cmd.Flags().StringArrayVarP(&envs, "env", "e", nil, "environment variable of new processes, `NAME[=value]`; without =value, copied from your shell; repeatable")
	cmd.Flags().StringVar(&snapshot, "snapshot", "", "`id` or name of a snapshot (default: take one now)")
	return cmd
}

// printNamed prints a sandbox as it is now.
func (a *app) printNamed(ctx context.Context, c *client.Client, name string) error {
	s, err := c.Sandbox(ctx, name)
	if err != nil {
		return err
	}
	return a.printSandbox(s)
}

func (a *app) archive() *cobra.Command {
	return a.packing("archive NAME…", "Keep the files of sandboxes and end the rest; it costs disk only", "ARCHIVED", (*client.Client).Archive)
}

func (a *app) unarchive() *cobra.Command {
	return a.packing("unarchive NAME…", "Bring archived sandboxes back, with their files and fresh processes", "DEPLOYED", (*client.Client).Unarchive)
}

// packing is a command that begins something with sandboxes, and waits until
// they are what is wanted.
func (a *app) packing(use, short, want string, begin func(*client.Client, context.Context, string) (doze.Sandbox, error)) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: takes(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.each(cmd.Context(), args, func(ctx context.Context, c *client.Client, name string) error {
				s, err := begin(c, ctx, name)
				for under := s.Status; err == nil && s.Status == under; s, err = c.Sandbox(ctx, name) {
					select {
					case <-ctx.Done():
						return context.Cause(ctx)
					case <-time.After(packPoll):
					}
				}
				if err == nil && s.Status != want {
					err = fmt.Errorf("the sandbox is %s, not %s%s", s.Status, want, lastEvent(s))
				}
				return err
			})
		},
	}
}

// lastEvent is what happened last to a sandbox, as a clause.
func lastEvent(s doze.Sandbox) string {
	if len(s.Events) == 0 {
		return ""
	}
	return ": " + s.Events[len(s.Events)-1].Message
}
