package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/dozehq/doze/client"
)

func (a *app) user() *cobra.Command {
	cmd := &cobra.Command{
		Use: "user", Aliases: []string{"users"}, Short: "List users and control who may create workspaces (operators only)",
		Args: cobra.ArbitraryArgs, RunE: group,
	}
	list := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List the users of all workspaces", Args: takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			all, err := c.Users(cmd.Context())
			if err != nil {
				return err
			}
			rows := [][]string{{"ID", "EMAIL", "CREATES WORKSPACES"}}
			for _, u := range all {
				may := "no"
				if u.WorkspaceCreator {
					may = "yes"
				}
				rows = append(rows, []string{u.Sub, u.Email, may})
			}
			return a.show(all, rows)
		},
	}
	right := func(use, short string, may bool) *cobra.Command {
		return &cobra.Command{
			Use: use, Short: short, Args: takes(1, -1),
			RunE: func(cmd *cobra.Command, args []string) error {
				return a.each(cmd.Context(), args, func(ctx context.Context, c *client.Client, user string) error {
					_, err := c.SetWorkspaceCreator(ctx, user, may)
					return err
				})
			},
		}
	}
	cmd.AddCommand(list, right("allow USER…", "Let users create workspaces", true), right("deny USER…", "Stop users from creating workspaces", false))
	return cmd
}
