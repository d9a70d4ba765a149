package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/dozehq/doze/internal/settings"
)

// load reads the settings of a command, and returns the rest of its arguments. Extra
// adds the flags that only this command has.
func load(name string, args []string, extra ...func(*flag.FlagSet)) (settings.Settings, []string, error) {
	flags := dozed.Flags(name)
	for _, add := range extra {
		add(flags)
	}
	s, err := settings.Load(flags, args)
	if errors.Is(err, flag.ErrHelp) {
		dozed.Help(os.Stdout, settings.Own(flags))
	}
	return s, flags.Args(), err
}

// loadAll is load for a command that takes no arguments but flags.
func loadAll(name string, args []string, extra ...func(*flag.FlagSet)) (settings.Settings, error) {
	s, rest, err := load(name, args, extra...)
	if err == nil && len(rest) > 0 {
		err = fmt.Errorf("dozed %s takes no argument %q; see dozed %s --help", name, rest[0], name)
	}
	return s, err
}

// task is what a command does with a data directory.
type task interface {
	Bind(flags *flag.FlagSet)
	Do(ctx context.Context, s settings.Settings) error
}

// on returns the command that does a task.
func on(name string, t task) func(context.Context, []string) error {
	return func(ctx context.Context, args []string) error {
		s, err := loadAll(name, args, t.Bind)
		if err != nil {
			return err
		}
		return t.Do(ctx, s)
	}
}

// loadFor is load for a command that does several things: the first argument
// says which. Help is there for each, and for the command without one.
func loadFor(name string, args []string, things ...string) (s settings.Settings, do string, rest []string, err error) {
	if len(args) > 0 && slices.Contains(things, args[0]) {
		s, rest, err = load(name+" "+args[0], args[1:])
		return s, args[0], rest, err
	}
	if _, _, err := load(name, args); errors.Is(err, flag.ErrHelp) {
		return s, "", nil, err
	}
	return s, "", nil, fmt.Errorf("dozed %s does one of: %s; see dozed %s --help", name, strings.Join(things, ", "), name)
}

// configure checks or prints the settings in force.
func configure(_ context.Context, args []string) error {
	s, do, _, err := loadFor("config", args, "check", "print")
	if err != nil {
		return err
	}
	if do == "print" {
		out := json.NewEncoder(os.Stdout)
		out.SetIndent("", "  ")
		if err := out.Encode(s.Shown()); err != nil {
			return err
		}
	}
	if err := s.Validate(); err != nil {
		return err
	}
	if do == "check" {
		fmt.Println("the configuration is good")
	}
	return nil
}
