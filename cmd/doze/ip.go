package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
)

func (a *app) ip() *cobra.Command {
	cmd := &cobra.Command{
		Use: "ip", Aliases: []string{"ips", "egressip"}, Short: "Manage dedicated egress addresses",
		Args: cobra.ArbitraryArgs, RunE: group,
	}
	remove := &cobra.Command{
		Use: "rm IP…", Aliases: []string{"delete"}, Short: "Release addresses",
		Long: `Release addresses. Another workspace may get them next, so remove them from other
parties' allowlists first. The last address of a gateway in use cannot be
released. To change the address of a gateway, create a second egress IP in it,
update the allowlists, and delete the first.`,
		Args: takes(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.each(cmd.Context(), args, func(ctx context.Context, c *client.Client, name string) error {
				ip, err := egressIPs.one(ctx, c, "ip", name)
				if err != nil {
					return err
				}
				return c.DeleteEgressIP(ctx, ip)
			})
		},
	}
	cmd.AddCommand(a.createIP(), a.listNetworks("List egress IPs and their addresses", egressIPs, ipRows), remove)
	a.complete("IP", egressIPs.names, cmd.Commands()...)
	a.complete("GATEWAY", gateways.names, cmd.Commands()...)
	return cmd
}

func (a *app) createIP() *cobra.Command {
	return &cobra.Command{
		Use: "create GATEWAY NAME", Short: "Allocate an address for a gateway and print it",
		Example: "  doze gateway create office\n  doze ip create office office-1\n  doze network set web --gateway office",
		Args:    takes(2, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			g, err := gateways.one(cmd.Context(), c, "gateway", args[0])
			if err != nil {
				return err
			}
			ip, err := c.CreateEgressIP(cmd.Context(), g, args[1])
			if err != nil {
				return err
			}
			return a.show(ip, ipRows(ip))
		},
	}
}

func ipRows(all ...doze.NetworkResource) [][]string {
	rows := [][]string{{"NAME", "GATEWAY", "ADDRESS", "STATUS", "PROBLEM"}}
	for _, ip := range all {
		problem := ""
		if n := len(ip.Events); n > 0 && ip.Spec.PublicIP == "" {
			problem = ip.Events[n-1].Message
		}
		rows = append(rows, []string{ip.Metadata.Name, ip.Metadata.GatewayName, ip.Spec.PublicIP, ip.Status, problem})
	}
	return rows
}
