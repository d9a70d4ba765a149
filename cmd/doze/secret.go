package main

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
)

func (a *app) secret() *cobra.Command {
	cmd := &cobra.Command{
		Use: "secret", Aliases: []string{"secrets"}, Short: "Store secrets for environment variables of sandboxes",
		Args: cobra.ArbitraryArgs, RunE: group,
	}
	set := &cobra.Command{
		Use: "set NAME KEY=VALUE…", Short: "Replace the values of a secret",
		Long: `Replace the values of a secret. Keys that you do not give are removed.

KEY without a value is read from the variable KEY of your shell, so that other
users of this host cannot see it in the arguments.`,
		Example: "  doze secret set db PASSWORD", Args: takes(2, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			data, err := a.secretValues("KEY", args[1:])
			if err != nil {
				return err
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			s, err := c.SetSecret(cmd.Context(), doze.Secret{Metadata: doze.Metadata{Name: args[0]}, Data: data})
			if err != nil {
				return err
			}
			return a.show(s, secretRows(s))
		},
	}
	list := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List secrets, without their values", Args: takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			all, err := c.Secrets(cmd.Context())
			if err != nil {
				return err
			}
			return a.show(all, secretRows(all...))
		},
	}
	remove := &cobra.Command{
		Use: "rm NAME…", Aliases: []string{"delete"}, Short: "Delete secrets", Args: takes(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.each(cmd.Context(), args, func(ctx context.Context, c *client.Client, name string) error { return c.DeleteSecret(ctx, name) })
		},
	}
	cmd.AddCommand(set, list, remove)
	return cmd
}

// variable reads NAME=value, or NAME of a variable that is copied from the caller. One
// that is unset or empty there is an error: nobody wants such a value by mistake.
func (a *app) variable(what, s string) (name, value string, err error) {
	name, value, ok := strings.Cut(s, "=")
	if !ok {
		value = a.getenv(name)
	}
	if name == "" || !ok && value == "" {
		return "", "", usagef("%s must be NAME=value, or NAME of a variable that is set here, not %q", what, s)
	}
	return name, value, nil
}

// secretValues reads NAME=value and NAME arguments.
func (a *app) secretValues(what string, in []string) (map[string]string, error) {
	out := map[string]string{}
	for _, s := range in {
		name, value, err := a.variable(what, s)
		if err != nil {
			return nil, err
		}
		out[name] = value
	}
	return out, nil
}

func secretRows(all ...doze.Secret) [][]string {
	rows := [][]string{{"NAME", "KEYS", "UPDATED"}}
	for _, s := range all {
		rows = append(rows, []string{s.Metadata.Name, strings.Join(slices.Sorted(maps.Keys(s.Data)), ","), moment(s.Metadata.UpdatedAt)})
	}
	return rows
}
