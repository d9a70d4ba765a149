package main

import (
	"context"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dozehq/doze/client"
)

const (
	// completeTimeout is how long a shell waits for us after a tab.
	completeTimeout = 2 * time.Second
	// completionsMax is more than anybody reads.
	completionsMax = 200
)

// lister returns the names of all things of a kind. It ends after the first
// error.
type lister func(context.Context, *client.Client) iter.Seq2[string, error]

func sandboxNames(ctx context.Context, c *client.Client) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for s, err := range c.Sandboxes(ctx, client.Filter{}) {
			if !yield(s.Metadata.Name, err) {
				return
			}
		}
	}
}

// complete has a shell complete names where the arguments of a command begin
// with a word for them. That is the first argument or, if it takes many, any.
func (a *app) complete(word string, all lister, commands ...*cobra.Command) {
	for _, cmd := range commands {
		_, arguments, _ := strings.Cut(cmd.Use, " ")
		if !strings.HasPrefix(arguments, word) {
			continue
		}
		if a.listers == nil {
			a.listers = map[*cobra.Command]lister{}
		}
		a.listers[cmd] = all
		many := strings.HasPrefix(arguments, word+"…")
		cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 && !many {
				return nil, cobra.ShellCompDirectiveDefault
			}
			return a.namesLike(cmd.Context(), all, begun, args), cobra.ShellCompDirectiveNoFileComp
		}
	}
}

// completeFlag has a shell complete the value of a flag.
func (a *app) completeFlag(cmd *cobra.Command, flag string, all lister) {
	err := cmd.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
		return a.namesLike(cmd.Context(), all, begun, nil), cobra.ShellCompDirectiveNoFileComp
	})
	if err != nil {
		panic(err) // there is no such flag
	}
}

// completeWords has a shell complete the value of a flag that is one of some words.
func completeWords(cmd *cobra.Command, flag string, words ...string) {
	if err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // there is no such flag
	}
}

// completePlace is that for a place in a sandbox or here.
func (a *app) completePlace(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
	if strings.ContainsAny(begun, ":/") {
		return nil, cobra.ShellCompDirectiveDefault
	}
	names := a.namesLike(cmd.Context(), sandboxNames, begun, nil)
	for i := range names {
		names[i] += ":"
	}
	return names, cobra.ShellCompDirectiveNoSpace
}

// namesLike are names that begin so, without those that are there already.
// Whatever goes wrong, a tab is no place to say so.
func (a *app) namesLike(ctx context.Context, all lister, begun string, but []string) (names []string) {
	c, err := a.connect()
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, completeTimeout)
	defer cancel()
	for name, err := range all(ctx, c) {
		if err != nil || len(names) == completionsMax {
			break
		}
		if name = printable(name); strings.HasPrefix(name, begun) && !slices.Contains(but, name) {
			names = append(names, name)
		}
	}
	return names
}
