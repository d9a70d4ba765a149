// Package command runs the command of a program that its arguments name, and
// prints its help. It knows no command.
package command

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// A Command is one thing that a program does.
type Command struct {
	Name, Args, Text string
	Old              string // what an earlier version called it; it works, and no help names it
	Run              func(ctx context.Context, args []string) error
}

// Program is a table of commands.
type Program struct {
	Name         string
	Intro, Outro string // what its help says before and after the commands
	Commands     []Command
}

// Run finds the command and runs it. A call of help is no error.
func (p Program) Run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		p.Usage(os.Stderr)
		return errors.New("which command?")
	}
	switch args[0] {
	case "-h", "-help", "--help", "help":
		p.Usage(os.Stdout)
		return nil
	}
	i := slices.IndexFunc(p.Commands, func(c Command) bool { return args[0] == c.Name || args[0] == c.Old && c.Old != "" })
	if i < 0 {
		p.Usage(os.Stderr)
		return fmt.Errorf("there is no command %q", args[0])
	}
	if err := p.Commands[i].Run(ctx, args[1:]); !errors.Is(err, flag.ErrHelp) {
		return err
	}
	return nil
}

// Usage prints all commands.
func (p Program) Usage(w io.Writer) {
	fmt.Fprint(w, p.Intro+"\n\nUsage:\n")
	for _, c := range p.Commands {
		fmt.Fprintln(w, strings.TrimRight(fmt.Sprintf("  %s %-8s %s", p.Name, c.Name, c.Args), " "))
		fmt.Fprintln(w, "      "+c.Text)
	}
	fmt.Fprint(w, "\n"+p.Outro+"\n")
}

// Help prints the command that flags belong to, and the flags.
func (p Program) Help(w io.Writer, flags *flag.FlagSet) {
	name, _, _ := strings.Cut(strings.TrimPrefix(flags.Name(), p.Name+" "), " ")
	for _, c := range p.Commands {
		if c.Name == name {
			fmt.Fprintf(w, "%s\n    %s\n\n", strings.TrimRight(p.Name+" "+c.Name+" "+c.Args, " "), c.Text)
		}
	}
	PrintFlags(w, flags)
}

// Flags returns flags of a command. Their mistakes are printed once, by main. The
// name is that of the command, and of what it does of several things.
func (p Program) Flags(name string) *flag.FlagSet {
	flags := flag.NewFlagSet(p.Name+" "+name, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	return flags
}

// Parse reads the arguments of a command that has these flags alone. It prints the
// help that they call for.
func (p Program) Parse(flags *flag.FlagSet, args []string) error {
	err := flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		p.Help(os.Stdout, flags)
	}
	return err
}

// PrintFlags prints flags as people write them, with what they are set to by
// default.
func PrintFlags(w io.Writer, flags *flag.FlagSet) {
	flags.VisitAll(func(f *flag.Flag) {
		value, text := flag.UnquoteUsage(f)
		if f.DefValue != "" && f.DefValue != "false" {
			text += " (default " + f.DefValue + ")"
		}
		fmt.Fprintln(w, strings.TrimRight("  --"+f.Name+" "+value, " "))
		fmt.Fprintln(w, "      "+text)
	})
}
