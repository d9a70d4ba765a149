package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/dozehq/doze/client"
)

func (a *app) sleep() *cobra.Command {
	var deep bool
	cmd := &cobra.Command{
		Use: "sleep NAME…", Short: "Put sandboxes that nobody uses to sleep now; the next request wakes them",
		Long: `Put sandboxes that nobody uses to sleep now. The next request wakes them. A
sandbox with a request under way, or with a process that keeps it awake, is
refused. A process that computes is no reason to stay awake.`,
		Args: takes(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.each(cmd.Context(), args, func(ctx context.Context, c *client.Client, name string) error {
				_, err := c.Sleep(ctx, name, deep)
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&deep, "disk", false, "move their memory to disk, and give it back to the host")
	return cmd
}

func (a *app) wake() *cobra.Command {
	return &cobra.Command{
		Use: "wake NAME…", Short: "Wake sandboxes", Args: takes(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.each(cmd.Context(), args, func(ctx context.Context, c *client.Client, name string) error {
				_, err := c.Wake(ctx, name)
				return err
			})
		},
	}
}
