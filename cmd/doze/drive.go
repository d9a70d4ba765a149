package main

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
)

func (a *app) drive() *cobra.Command {
	cmd := &cobra.Command{
		Use: "drive", Aliases: []string{"drives"}, Short: "Manage drives: directories shared by sandboxes",
		Args: cobra.ArbitraryArgs, RunE: group,
	}
	cmd.AddCommand(a.createDrive(), a.listDrives(), a.removeDrive(), a.mountDrive(), a.listMounts(), a.unmountDrive())
	a.complete("SANDBOX", sandboxNames, cmd.Commands()...)
	return cmd
}

func (a *app) createDrive() *cobra.Command {
	return &cobra.Command{
		Use: "create NAME", Short: "Create a drive", Args: takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			d, err := c.CreateDrive(cmd.Context(), doze.Drive{Metadata: doze.Metadata{Name: args[0]}})
			if err != nil {
				return err
			}
			return a.show(d, driveRows(d))
		},
	}
}

func (a *app) listDrives() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List drives, newest first", Args: takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			all := []doze.Drive{} // [] in JSON
			for d, err := range c.Drives(cmd.Context()) {
				if err != nil {
					return err
				}
				all = append(all, d)
			}
			return a.show(all, driveRows(all...))
		},
	}
}

func driveRows(all ...doze.Drive) [][]string {
	rows := [][]string{{"NAME", "PERMISSIONS", "BUCKET", "CREATED"}}
	for _, d := range all {
		var rules []string
		for _, p := range d.Spec.Permissions {
			rules = append(rules, string(p.Mode)+":"+p.Path)
		}
		rows = append(rows, []string{d.Metadata.Name, strings.Join(rules, ","), d.State.S3URL, moment(d.Metadata.CreatedAt)})
	}
	return rows
}

func (a *app) removeDrive() *cobra.Command {
	return &cobra.Command{
		Use: "rm NAME…", Aliases: []string{"delete"}, Short: "Delete drives with all their files", Args: takes(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.each(cmd.Context(), args, func(ctx context.Context, c *client.Client, name string) error { return c.DeleteDrive(ctx, name) })
		},
	}
}

func (a *app) mountDrive() *cobra.Command {
	var m doze.DriveMount
	cmd := &cobra.Command{
		Use: "mount SANDBOX DRIVE PATH", Short: "Mount a drive in a sandbox (wakes it)",
		Example: "  doze drive mount web shared /mnt/shared\n  doze drive mount web shared /assets --part /web/assets --read-only",
		Args:    takes(3, 3),
		RunE: func(cmd *cobra.Command, args []string) error {
			agent, err := a.enter(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			m.Drive, m.MountPath = args[1], args[2]
			got, err := agent.MountDrive(cmd.Context(), m)
			if err != nil {
				return err
			}
			return a.show(got, mountRows(got))
		},
	}
	cmd.Flags().StringVar(&m.DrivePath, "part", "/", "mount this `directory` of the drive")
	cmd.Flags().BoolVar(&m.ReadOnly, "read-only", false, "mount read-only")
	return cmd
}

func (a *app) listMounts() *cobra.Command {
	return &cobra.Command{
		Use: "mounts SANDBOX", Short: "List the drives of a sandbox (does not wake it)", Args: takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			agent, err := a.enter(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			all, err := agent.DriveMounts(cmd.Context())
			if err != nil {
				return err
			}
			return a.show(all, mountRows(all...))
		},
	}
}

func mountRows(all ...doze.DriveMount) [][]string {
	rows := [][]string{{"PATH", "DRIVE", "PART", "READ-ONLY"}}
	for _, m := range all {
		readOnly := "no"
		if m.ReadOnly {
			readOnly = "yes"
		}
		rows = append(rows, []string{m.MountPath, m.Drive, m.DrivePath, readOnly})
	}
	return rows
}

func (a *app) unmountDrive() *cobra.Command {
	return &cobra.Command{
		Use: "unmount SANDBOX PATH", Short: "Unmount a drive that no process uses", Args: takes(2, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			agent, err := a.enter(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return agent.UnmountDrive(cmd.Context(), args[1])
		},
	}
}
