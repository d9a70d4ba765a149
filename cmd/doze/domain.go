package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
)

func (a *app) domain() *cobra.Command {
	cmd := &cobra.Command{
		Use: "domain", Aliases: []string{"domains"}, Short: "Serve previews on your own domains",
		Args: cobra.ArbitraryArgs, RunE: group,
	}
	create := &cobra.Command{
		Use: "add DOMAIN", Short: "Add a domain and print the DNS records to create", Args: takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			d, err := c.CreateDomain(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			rows := [][]string{{"TYPE", "NAME", "VALUE"}}
			for name, value := range d.Spec.TXTRecords {
				rows = append(rows, []string{"TXT", name, value})
			}
			for _, name := range d.Spec.AlternativeNames {
				if d.Spec.CNAMERecords != "" {
					rows = append(rows, []string{"CNAME", name, d.Spec.CNAMERecords})
				}
			}
			if d.Spec.VerificationError != "" {
				defer a.say(d.Spec.VerificationError + "\n")
			}
			return a.show(d, rows)
		},
	}
	verify := &cobra.Command{
		Use: "verify DOMAIN", Short: "Check the DNS records of a domain", Args: takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			d, err := c.VerifyDomain(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			err = a.show(d, domainRows(d))
			if d.Spec.Status != doze.DomainVerified {
				err = errors.Join(err, errors.New("the domain is not verified: "+d.Spec.VerificationError))
			}
			return err
		},
	}
	list := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List domains", Args: takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			all, err := c.Domains(cmd.Context())
			if err != nil {
				return err
			}
			return a.show(all, domainRows(all...))
		},
	}
	remove := &cobra.Command{
		Use: "rm DOMAIN…", Aliases: []string{"delete"}, Short: "Remove domains", Args: takes(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.each(cmd.Context(), args, func(ctx context.Context, c *client.Client, name string) error { return c.DeleteDomain(ctx, name) })
		},
	}
	cmd.AddCommand(create, verify, list, remove, a.share(), a.unshare(), a.shares(), a.fallback())
	return cmd
}

func (a *app) share() *cobra.Command {
	return &cobra.Command{
		Use: "share DOMAIN WORKSPACE|" + doze.DomainEverybody, Short: "Let other workspaces serve previews on a domain", Args: takes(2, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			d, err := c.ShareDomain(cmd.Context(), args[0], args[1])
			if err != nil {
				return err
			}
			return a.show(d, domainRows(d))
		},
	}
}

func (a *app) unshare() *cobra.Command {
	return &cobra.Command{
		Use: "unshare DOMAIN WORKSPACE|" + doze.DomainEverybody, Short: "Stop sharing a domain", Args: takes(2, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			return c.UnshareDomain(cmd.Context(), args[0], args[1])
		},
	}
}

func (a *app) shares() *cobra.Command {
	return &cobra.Command{
		Use: "shares DOMAIN", Short: "List the workspaces that a domain is shared with", Args: takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			all, err := c.DomainShares(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			rows := [][]string{{"WORKSPACE", "STATUS"}}
			for _, s := range all {
				rows = append(rows, []string{s.Workspace, s.Status})
			}
			return a.show(all, rows)
		},
	}
}

func (a *app) fallback() *cobra.Command {
	return &cobra.Command{
		Use: "fallback DOMAIN [LABEL]", Short: "Set the preview for unknown names below a domain, or none", Args: takes(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			label := ""
			if len(args) == 2 {
				label = args[1]
			}
			d, err := c.SetFallback(cmd.Context(), args[0], label)
			if err != nil {
				return err
			}
			return a.show(d, domainRows(d))
		},
	}
}

func domainRows(all ...doze.CustomDomain) [][]string {
	rows := [][]string{{"DOMAIN", "STATUS", "VERIFIED", "PROBLEM"}}
	for _, d := range all {
		rows = append(rows, []string{d.Metadata.Name, d.Spec.Status, moment(d.Spec.LastVerifiedAt), d.Spec.VerificationError})
	}
	return rows
}
