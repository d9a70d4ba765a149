package main

import (
	"context"
	"fmt"
	"iter"

	"github.com/spf13/cobra"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
)

func (a *app) vpc() *cobra.Command {
	cmd := &cobra.Command{
		Use: "vpc", Aliases: []string{"vpcs"}, Short: "Manage isolated networks",
		Long: `Manage isolated networks. Sandboxes in the same VPC and subnet reach each other.
All others are isolated. Every workspace has the VPC ` + doze.DefaultVPC + `.`,
		Example: "  doze vpc create lab\n  doze sandbox create db --vpc lab --subnet backend\n  doze sandbox create web --vpc lab --subnet backend",
		Args:    cobra.ArbitraryArgs, RunE: group,
	}
	create := &cobra.Command{
		Use: "create NAME", Short: "Create a VPC; put sandboxes in it with doze sandbox create --vpc", Args: takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			v, err := c.CreateVPC(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.show(v, vpcRows(v))
		},
	}
	remove := &cobra.Command{
		Use: "rm VPC…", Aliases: []string{"delete"}, Short: "Delete empty VPCs", Args: takes(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.each(cmd.Context(), args, func(ctx context.Context, c *client.Client, name string) error { return c.DeleteVPC(ctx, name) })
		},
	}
	cmd.AddCommand(create, a.listNetworks("List VPCs", vpcs, vpcRows), remove)
	a.complete("VPC", vpcs.names, cmd.Commands()...)
	return cmd
}

func vpcRows(all ...doze.NetworkResource) [][]string {
	rows := [][]string{{"NAME", "CREATED"}}
	for _, v := range all {
		rows = append(rows, []string{v.Metadata.Name, moment(v.Metadata.CreatedAt)})
	}
	return rows
}

// networksOf reads all resources of a kind.
type networksOf func(*client.Client, context.Context) ([]doze.NetworkResource, error)

var (
	vpcs      networksOf = (*client.Client).VPCs
	gateways  networksOf = (*client.Client).Gateways
	egressIPs networksOf = (*client.Client).EgressIPs
)

// one is the resource that has a name, which what says the kind of.
func (read networksOf) one(ctx context.Context, c *client.Client, what, name string) (doze.NetworkMetadata, error) {
	all, err := read(c, ctx)
	for _, n := range all {
		if n.Metadata.Name == name {
			return n.Metadata, nil
		}
	}
	if err == nil {
		err = fmt.Errorf("no such %s: %q; list them with doze %[1]s ls, or create it with doze %[1]s create", what, name)
	}
	return doze.NetworkMetadata{}, err
}

// names is the [lister] of them.
func (read networksOf) names(ctx context.Context, c *client.Client) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		all, err := read(c, ctx)
		if err != nil {
			yield("", err)
			return
		}
		for _, n := range all {
			if !yield(n.Metadata.Name, nil) {
				return
			}
		}
	}
}

func (a *app) listNetworks(short string, read networksOf, rows func(...doze.NetworkResource) [][]string) *cobra.Command {
	return &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: short, Args: takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			all, err := read(c, cmd.Context())
			if err != nil {
				return err
			}
			return a.show(all, rows(all...))
		},
	}
}
