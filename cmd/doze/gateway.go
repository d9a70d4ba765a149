package main

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
)

func (a *app) gateway() *cobra.Command {
	cmd := &cobra.Command{
		Use: "gateway", Aliases: []string{"gateways", "egressgateway"}, Short: "Manage egress gateways with dedicated addresses",
		Long: `Manage egress gateways. A gateway gives its sandboxes a dedicated source address.
Its egress IPs come from the operator's pool (dozed --egress-pool). Sandboxes use
the oldest one.`,
		Example: "  doze gateway create office\n  doze ip create office office-1\n  doze network set web --gateway office",
		Args:    cobra.ArbitraryArgs, RunE: group,
	}
	remove := &cobra.Command{
		Use: "rm GATEWAY…", Aliases: []string{"delete"}, Short: "Delete gateways without egress IPs", Args: takes(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.each(cmd.Context(), args, func(ctx context.Context, c *client.Client, name string) error {
				g, err := gateways.one(ctx, c, "gateway", name)
				if err != nil {
					return err
				}
				return c.DeleteGateway(ctx, g)
			})
		},
	}
	cmd.AddCommand(a.createGateway(), a.listGateways(), remove)
	a.complete("GATEWAY", gateways.names, cmd.Commands()...)
	return cmd
}

func (a *app) createGateway() *cobra.Command {
	var vpc string
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Create a gateway; add an address with doze ip create", Args: takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			g, err := c.CreateGateway(cmd.Context(), vpc, args[0])
			if err != nil {
				return err
			}
			return a.show(g, gatewayRows(nil, g))
		},
	}
	cmd.Flags().StringVar(&vpc, "vpc", doze.DefaultVPC, "`VPC` of the gateway; sandboxes use gateways of "+doze.DefaultVPC+" only")
	a.completeFlag(cmd, "vpc", vpcs.names)
	return cmd
}

func (a *app) listGateways() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List gateways and the sandboxes that use them", Args: takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			all, err := c.Gateways(cmd.Context())
			if err != nil {
				return err
			}
			usage, err := c.GatewayUsage(cmd.Context())
			if err != nil {
				return err
			}
			return a.show(all, gatewayRows(usage, all...))
		},
	}
}

// gatewayRows are gateways with the sandboxes that use each.
func gatewayRows(usage map[string][]string, all ...doze.NetworkResource) [][]string {
	rows := [][]string{{"NAME", "VPC", "USED BY", "CREATED"}}
	for _, g := range all {
		rows = append(rows, []string{g.Metadata.Name, g.Metadata.VPCName, strings.Join(usage[g.Metadata.Name], ","), moment(g.Metadata.CreatedAt)})
	}
	return rows
}
