package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
		if sub.IsAvailableCommand() || sub.IsAdditionalHelpTopicCommand() {
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

// nameError is an error about one of several things that a command names.
type nameError struct {
	name string
	error
}

func (e nameError) Error() string { return e.name + ": " + e.error.Error() }

func (e nameError) Unwrap() error { return e.error }

// suggestRemedy adds what helps to the error of a command: the nearest name if it names
// something that is not there, or how to enable a sandbox. No suggestion is a name that
// the command has too: rm may have deleted it.
func (a *app) suggestRemedy(ctx context.Context, cmd *cobra.Command, err error) string {
	if isDisabled(err) {
		return "; enable it with: doze update NAME --enable"
	}
	all := a.listers[cmd]
	if e, ok := errors.AsType[*doze.Error](err); !ok || e.Kind != doze.NotFound || all == nil {
		return ""
	}
	named := cmd.Flags().Args()
	wrong := named
	if e, ok := errors.AsType[nameError](err); ok {
		wrong = []string{e.name}
	}
	known := a.namesLike(ctx, all, "", nil)
	others := slices.DeleteFunc(slices.Clone(known), func(name string) bool { return slices.Contains(named, name) })
	for _, name := range wrong {
		if slices.Contains(known, name) {
			continue // that is not the mistake
		}
		if text := suggest(name, others); text != "" {
			return text
		}
	}
	return ""
}
