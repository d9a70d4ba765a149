package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dozehq/doze"
)

const (
	// suggestDistance is how many letters of a word may be wrong at most, and
	// suggestLetters of how many one may.
	suggestDistance = 2
	suggestLetters  = 2
	// suggestMax is how many words a mistake is answered with.
	suggestMax = 3
)

// suggest asks whether a word was meant to be one of those known. It is empty if none is
// near. cobra knows how to compare words.
func suggest(word string, known []string) string {
	words := &cobra.Command{SuggestionsMinimumDistance: min(suggestDistance, len(word)/suggestLetters)}
	for _, k := range known {
		if k == word {
			return "" // that is not the mistake
		}
		words.AddCommand(&cobra.Command{Use: k, Run: func(*cobra.Command, []string) {}})
	}
	near := words.SuggestionsFor(word)
	if word == "" || len(near) == 0 {
		return ""
	}
	return fmt.Sprintf("; did you mean %s?", strings.Join(near[:min(len(near), suggestMax)], " or "))
}

// suggestCommand is suggest for the name of a command below another one.
func suggestCommand(cmd *cobra.Command, word string) string {
	var known []string
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			known = append(append(known, sub.Name()), sub.Aliases...)
		}
	}
	return suggest(word, known)
}

// suggestFlag adds the nearest flag to the error of an unknown one.
func suggestFlag(cmd *cobra.Command, err error) error {
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok {
		return err
	}
	var known []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { known = append(known, "--"+f.Name) })
	return fmt.Errorf("%w%s", err, suggest("--"+unknown.GetSpecifiedName(), known))
}

// suggestName adds the nearest name to the error of a command whose first argument names
// something that is not there.
func (a *app) suggestName(ctx context.Context, cmd *cobra.Command, err error) string {
	all := a.listers[cmd]
	if e, ok := errors.AsType[*doze.Error](err); !ok || e.Kind != doze.NotFound || all == nil {
		return ""
	}
	known := a.namesLike(ctx, all, "", nil)
	for _, name := range cmd.Flags().Args() {
		if text := suggest(name, known); text != "" {
			return text
		}
	}
	return ""
}
