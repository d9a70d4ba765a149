package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"doze/client"
)

const (
	// completeTimeout is how long a shell waits for us after a tab.
	completeTimeout = 2 * time.Second
	// completionsMax is more than anybody reads.
	completionsMax = 200
)

// complete has a shell complete the names of sandboxes where a command takes
// some: as its first argument or, if it takes many, as any.
func (a *app) complete(commands ...*cobra.Command) {
	for _, cmd := range commands {
		_, arguments, _ := strings.Cut(cmd.Use, " ")
		if !strings.HasPrefix(arguments, "NAME") {
			continue
		}
		many := strings.HasPrefix(arguments, "NAME…")
		cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 && !many {
				return nil, cobra.ShellCompDirectiveDefault
			}
			return a.namesLike(cmd.Context(), begun, args), cobra.ShellCompDirectiveNoFileComp
		}
	}
}

// completePlace is that for a place in a sandbox or here.
func (a *app) completePlace(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
	if strings.ContainsAny(begun, ":/") {
		return nil, cobra.ShellCompDirectiveDefault
	}
	names := a.namesLike(cmd.Context(), begun, nil)
	for i := range names {
		names[i] += ":"
	}
	return names, cobra.ShellCompDirectiveNoSpace
}

// namesLike are names of sandboxes that begin so, without those that are there
// already. Whatever goes wrong, a tab is no place to say so.
func (a *app) namesLike(ctx context.Context, begun string, but []string) (names []string) {
	c, err := a.connect()
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, completeTimeout)
	defer cancel()
	for s, err := range c.Sandboxes(ctx, client.Filter{}) {
		if err != nil || len(names) == completionsMax {
			break
		}
		if name := printable(s.Metadata.Name); strings.HasPrefix(name, begun) && !slices.Contains(but, name) {
			names = append(names, name)
		}
	}
	return names
}
