package main

import (
	"context"
	"errors"
	"io/fs"
	"iter"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
)

func (a *app) workspace() *cobra.Command {
	cmd := &cobra.Command{
		Use: "workspace", Aliases: []string{"workspaces"}, Short: "List, create, choose and delete workspaces",
		Args: cobra.ArbitraryArgs, RunE: group,
	}
	list := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List the workspaces that you may enter", Args: takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := a.settings()
			if err != nil {
				return err
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			all, err := c.Workspaces(cmd.Context())
			if err != nil {
				return err
			}
			return a.show(all, workspaceRows(s.Workspace, all...))
		},
	}
	create := &cobra.Command{
		Use: "create NAME", Short: "Create a workspace", Args: takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			w, err := c.CreateWorkspace(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.show(w, workspaceRows("", w))
		},
	}
	use := &cobra.Command{
		Use: "use NAME", Short: "Choose the workspace of the commands that follow", Args: takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if a.getenv("DOZE_WORKSPACE") != "" {
				return errors.New("DOZE_WORKSPACE is set and overrides what is stored: change or unset it")
			}
			s, err := a.settings()
			if err != nil {
				return err
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			all, err := c.Workspaces(cmd.Context())
			if err != nil {
				return err
			}
			if s.Workspace, err = choose(all, args[0]); err != nil {
				return err
			}
			return a.save(s)
		},
	}
	remove := &cobra.Command{
		Use: "rm NAME…", Aliases: []string{"delete"}, Short: "Delete workspaces that have nothing in them", Args: takes(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.each(cmd.Context(), args, func(ctx context.Context, c *client.Client, name string) error {
				return c.DeleteWorkspace(ctx, name)
			})
		},
	}
	cmd.AddCommand(list, create, use, remove)
	a.complete("NAME", workspaceNames, use, remove)
	return cmd
}

func workspaceNames(ctx context.Context, c *client.Client) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		all, err := c.Workspaces(ctx)
		if err != nil {
			yield("", err)
			return
		}
		for _, w := range all {
			if !yield(w.Name, nil) {
				return
			}
		}
	}
}

func workspaceRows(used string, all ...doze.Workspace) [][]string {
	rows := [][]string{{"NAME", "IN USE", "DISPLAY NAME", "CREATED", extra + "ID", extra + "CREATED BY"}}
	for _, w := range all {
		mark := ""
		if w.Name == used {
			mark = "yes"
		}
		rows = append(rows, []string{w.Name, mark, w.DisplayName, moment(w.CreatedAt), w.ID, w.CreatedBy})
	}
	return rows
}

func (a *app) logout() *cobra.Command {
	return &cobra.Command{
		Use: "logout", Short: "Remove the stored address and key", Args: takes(0, 0),
		RunE: func(*cobra.Command, []string) error {
			err := os.Remove(a.config)
			if errors.Is(err, fs.ErrNotExist) || a.config == "" {
				return errors.New("nothing is stored")
			}
			if err == nil && a.getenv("DOZE_KEY") != "" {
				a.say("DOZE_KEY is still set\n")
			}
			return err
		},
	}
}

// identity is what whoami prints.
type identity struct {
	doze.Caller

	Address string `json:"address"`
	Source  string `json:"source"` // of the key
}

func (a *app) whoami() *cobra.Command {
	return &cobra.Command{
		Use: "whoami", Short: "Show whose key this is, what it may do, and where it comes from", Args: takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := a.settings()
			if err != nil {
				return err
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			is := identity{Address: s.Address, Source: a.config}
			if a.getenv("DOZE_KEY") != "" {
				is.Source = "DOZE_KEY"
			}
			if is.Caller, err = c.Whoami(cmd.Context()); err != nil {
				return err
			}
			return a.show(is, [][]string{
				{"NAME", "TYPE", "WORKSPACE", "ROLE", "SCOPES", "ADDRESS", "KEY FROM"},
				{is.Sub, is.Type, is.Workspace, is.Role, strings.Join(is.Scopes, ","), is.Address, is.Source},
			})
		},
	}
}
