package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dozehq/doze"
)

// usual is the value of a quota that gives it its default back.
const usual = "default"

func (a *app) quota() *cobra.Command {
	cmd := &cobra.Command{
		Use: "quota", Aliases: []string{"quotas"}, Short: "Show and set the quotas of workspaces",
		Args: cobra.ArbitraryArgs, RunE: group,
	}
	list := &cobra.Command{
		Use: "ls [WORKSPACE]", Aliases: []string{"list"}, Short: "List quotas and their usage", Args: takes(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			all, err := c.Quotas(cmd.Context(), strings.Join(args, ""))
			if err != nil {
				return err
			}
			return a.showQuotas(all)
		},
	}
	set := &cobra.Command{
		Use: "set WORKSPACE NAME=LIMIT…", Short: "Set the quotas of a workspace (operators only)",
		Example: "  doze quota set team sandboxes=100 diskMb=50000\n  doze quota set team sandboxes=" + usual, Args: takes(2, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			limits, err := parseQuotas(args[1:])
			if err != nil {
				return err
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			all, err := c.SetQuotas(cmd.Context(), args[0], limits)
			if err != nil {
				return err
			}
			return a.showQuotas(all)
		},
	}
	cmd.AddCommand(list, set)
	return cmd
}

// parseQuotas reads NAME=LIMIT arguments. The server knows the names.
func parseQuotas(args []string) (map[string]*int64, error) {
	limits := map[string]*int64{}
	for _, arg := range args {
		name, value, ok := strings.Cut(arg, "=")
		n, err := strconv.ParseInt(value, 10, 64)
		switch {
		case ok && name != "" && value == usual:
			limits[name] = nil
		case !ok || name == "" || err != nil:
			return nil, doze.Errorf(doze.Invalid, "%q must be a quota and its limit, such as sandboxes=100 or sandboxes=%s", arg, usual)
		default:
			limits[name] = &n
		}
	}
	return limits, nil
}

func (a *app) showQuotas(all []doze.QuotaStatus) error {
	rows := [][]string{{"NAME", "USED", "LIMIT", "UNIT"}}
	for _, q := range all {
		rows = append(rows, []string{q.Name, fmt.Sprint(q.Used), fmt.Sprint(q.Limit), q.Unit})
	}
	return a.show(all, rows)
}
