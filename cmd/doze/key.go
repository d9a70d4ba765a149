package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/dozehq/doze/client"
)

// each calls fn for every name, and says which are done.
func (a *app) each(ctx context.Context, names []string, fn func(context.Context, *client.Client, string) error) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range names {
		if err := fn(ctx, c, name); err != nil {
			errs = append(errs, nameError{name, err})
			continue
		}
		if !a.whole() {
			errs = append(errs, copyOut(a.out, name+"\n"))
		}
	}
	return errors.Join(errs...)
}

func (a *app) key() *cobra.Command {
	cmd := &cobra.Command{
		Use: "key", Aliases: []string{"keys"}, Short: "Create, list and delete API keys",
		Args: cobra.ArbitraryArgs, RunE: group,
	}
	var life string
	var scopes []string
	create := &cobra.Command{
		Use: "create NAME", Short: "Create a key and print it once",
		Example: "  doze key create ci --expires 30d --scope sandboxes:create --scope sandboxes:control", Args: takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			k, err := c.CreateKey(cmd.Context(), args[0], life, scopes)
			if err != nil {
				return err
			}
			if a.whole() {
				return a.printWhole(k)
			}
			return copyOut(a.out, k.Key+"\n")
		},
	}
	create.Flags().StringVar(&life, "expires", "", "`lifetime`, such as 24h or 30d (default: unlimited)")
	create.Flags().StringArrayVar(&scopes, "scope", nil, "scope, such as sandboxes:get; repeatable (default: all of yours)")
	list := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List keys", Args: takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			all, err := c.Keys(cmd.Context())
			if err != nil {
				return err
			}
			rows := [][]string{{"ID", "NAME", "OWNER", "EXPIRES", "LAST USED", "CREATED"}}
			for _, k := range all {
				rows = append(rows, []string{k.ID, k.Name, k.Sub, k.ExpiresIn, moment(k.LastUsedAt), moment(k.CreatedAt)})
			}
			return a.show(all, rows)
		},
	}
	remove := &cobra.Command{
		Use: "rm ID…", Aliases: []string{"delete"}, Short: "Revoke and delete keys", Args: takes(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.each(cmd.Context(), args, func(ctx context.Context, c *client.Client, id string) error { return c.DeleteKey(ctx, id) })
		},
	}
	cmd.AddCommand(create, list, remove)
	return cmd
}
