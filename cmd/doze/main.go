// Command doze is the command line of Doze. It calls the public APIs, and
// knows nothing that another client could not know.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	context.AfterFunc(ctx, stop) // the second interrupt ends us at once
	a := app{in: os.Stdin, out: os.Stdout, err: os.Stderr, getenv: os.Getenv, now: time.Now}
	if dir, err := os.UserConfigDir(); err == nil {
		a.config = filepath.Join(dir, "doze", "config.json")
	}
	os.Exit(a.run(ctx, os.Args[1:]))
}

// app is everything a command may touch.
type app struct {
	in       io.Reader
	out, err io.Writer
	getenv   func(string) string
	config   string // path of the configuration; empty if this host has no place for it
	format   string // how answers are printed
	now      func() time.Time
	listers  map[*cobra.Command]lister // what the arguments of a command name
}

// exitError is the error of a command that ran to its end in a sandbox.
type exitError int

func (c exitError) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

// usageError is a mistake in the command line itself.
type usageError struct{ error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// run executes one command line and returns its exit code.
func (a *app) run(ctx context.Context, args []string) int {
	root := a.root()
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return 0
	}
	if code, ok := errors.AsType[exitError](err); ok {
		return int(code)
	}
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		return exitInterrupted
	}
	text := strings.Join(strings.Fields(printable(err.Error()+a.suggestRemedy(ctx, cmd, err))), " ")
	_, usage := errors.AsType[usageError](err)
	if a.whole() {
		a.sayWhole(err, text, usage)
		return exitCode(err)
	}
	if usage {
		text += "; see --help"
	}
	if e, ok := errors.AsType[*doze.Error](err); ok && e.Kind == doze.Unauthenticated {
		text += " (doze login stores a key)"
	}
	a.say("doze: " + text + "\n")
	return exitCode(err)
}

// The groups of commands in the help.
const (
	sandboxGroup = "sandboxes"
	otherGroup   = "others"
)

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "doze",
		Short:         "Sandboxes that sleep when idle",
		SilenceErrors: true, SilenceUsage: true,
		Args: cobra.ArbitraryArgs, RunE: group,
	}
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return usageError{suggestFlag(cmd, inWords(err))} })
	root.PersistentFlags().StringVarP(&a.format, "output", "o", formatTable, "output format: `"+strings.Join(formats, "|")+"`")
	root.PersistentPreRunE = func(*cobra.Command, []string) error { return checkFormat(a.format) }
	root.AddGroup(&cobra.Group{ID: sandboxGroup, Title: "Sandboxes:"}, &cobra.Group{ID: otherGroup, Title: "Everything else:"})
	short := a.forSandboxes()
	a.complete("NAME", sandboxNames, short...)
	for _, cmd := range short {
		cmd.GroupID = sandboxGroup
	}
	others := []*cobra.Command{
		a.login(), a.logout(), a.whoami(), a.workspace(), a.sandbox(), a.snapshot(), a.fork(), a.volume(), a.drive(), a.network(), a.vpc(), a.gateway(), a.ip(),
		a.preview(), a.domain(), a.image(), a.build(), a.schedule(), a.secret(), a.key(), a.user(), a.node(), a.quota(), a.audit(), a.version(),
	}
	for _, cmd := range others {
		cmd.GroupID = otherGroup
	}
	root.AddCommand(short...)
	root.AddCommand(others...)
	root.AddCommand(exitHelp())
	root.SetHelpCommandGroupID(otherGroup)
	strictHelp(root)
	root.SetCompletionCommandGroupID(otherGroup)
	a.watchable(root)
	completeWords(root, "output", formats...)
	return root
}

// inWords says of a flag that has no number what it has, and not which function
// could not read it.
func inWords(err error) error {
	if wrong, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		if _, number := errors.AsType[*strconv.NumError](err); number {
			return fmt.Errorf("--%s must be a number, not %q", wrong.GetFlag().Name, wrong.GetValue())
		}
	}
	return err
}

// warn says which warnings a sandbox has that it did not have before.
func (a *app) warn(before, now doze.Sandbox) {
	for _, e := range now.Events {
		if e.Type == doze.EventNotice && strings.HasPrefix(e.Message, doze.WarningPrefix) && !slices.Contains(before.Events, e) {
			a.say(e.Message + "\n")
		}
	}
}

// say tells the user something. Nothing can be done if that fails.
func (a *app) say(text string) { _, _ = io.WriteString(a.err, text) }

// group is what a command does that only has others below it.
func group(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("%s has no command %q%s", cmd.CommandPath(), args[0], suggestCommand(cmd, args[0]))
	}
	return cmd.Help()
}

// strictHelp gives root a help command that refuses unknown topics.
func strictHelp(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	for _, help := range root.Commands() {
		if help.Name() != "help" {
			continue
		}
		help.Run = nil
		help.RunE = func(_ *cobra.Command, args []string) error {
			cmd, rest, err := root.Find(args)
			switch {
			case err != nil:
				return usageError{err}
			case len(rest) > 0:
				return usagef("%s has no help about %q%s", cmd.CommandPath(), rest[0], suggestCommand(cmd, rest[0]))
			}
			cmd.InitDefaultHelpFlag() // it is part of the text
			return cmd.Help()
		}
	}
}

// takes checks the number of arguments. Most below 0 means any number.
func takes(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return usagef("%s needs %s", cmd.CommandPath(), strings.Join(missing(cmd, len(args)), " and "))
		case most >= 0 && len(args) > most:
			return usagef("%s has too many arguments", cmd.CommandPath())
		}
		return nil
	}
}

// missing are the arguments that a command needs besides the first n, as its usage line
// names them.
func missing(cmd *cobra.Command, n int) (names []string) {
	for _, word := range strings.Fields(cmd.Use)[1:] {
		optional := strings.HasPrefix(word, "[") && strings.HasSuffix(word, "]")
		if word != "--" && !optional {
			names = append(names, strings.TrimSuffix(word, "…"))
		}
	}
	return names[min(n, len(names)):]
}

// connect returns a client as the configuration says.
func (a *app) connect() (*client.Client, error) {
	s, err := a.settings()
	if err != nil {
		return nil, err
	}
	if s.Address == "" || s.Key == "" {
		return nil, errors.New("no server is configured: run doze login, or set DOZE_ADDRESS and DOZE_KEY")
	}
	return client.New(s.config())
}

// enter returns the inside of a sandbox.
func (a *app) enter(ctx context.Context, name string) (*client.Agent, error) {
	c, err := a.connect()
	if err != nil {
		return nil, err
	}
	s, err := c.Sandbox(ctx, name)
	if err != nil {
		return nil, err
	}
	return c.Agent(s)
}
