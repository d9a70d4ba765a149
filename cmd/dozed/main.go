// Command dozed is the platform: it serves the control API, runs sandboxes,
// and routes requests to them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
)

// version is set when a release is built.
var version = "dev"

// A command is one thing that dozed does.
type command struct {
	name, args, text string
	run              func(ctx context.Context, args []string) error
}

// commands is all of them.
var commands []command

func init() { //nolint:gochecknoinits // the table refers to functions that print the table
	commands = []command{
		{"all", "--data DIR --listen ADDR …", "serve everything in one process: control API, sandboxes, edge, egress rules; SIGUSR2 ends it for a successor as soon as no request is under way", all},
		{"destroy", "[--data DIR] [--all] [--yes]", "end all sandboxes of a data directory and remove what they have on this host; its records and checkpoints stay", destroy},
		{"doctor", "[--apply [--only CHECK]] [--data DIR]", "say in plain words what this host lacks; --apply changes kernel settings to what it advises, and says how to undo it", examine},
		{"image", "build|ls [--data DIR] [NAME …]", "make or list images", images},
		{"config", "check|print [--config FILE]", "check a configuration, or print the one in force", configure},
		{keepCommand, "--socket FILE", "keep the address of a dozed that is killed or replaced; dozed starts it by itself", keep},
		{"version", "", "print the version", printVersion},
	}
}

func main() {
	ctx, stop := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() { // for as long as the process
		<-signals
		stop(nil)
	}()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "dozed:", err)
		os.Exit(1)
	}
}

// run finds the command and runs it.
func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		usage(os.Stderr)
		return errors.New("which command?")
	}
	switch args[0] {
	case "-h", "-help", "--help", "help":
		usage(os.Stdout)
		return nil
	}
	for _, c := range commands {
		if c.name == args[0] {
			err := c.run(ctx, args[1:])
			if errors.Is(err, flag.ErrHelp) {
				return nil
			}
			return err
		}
	}
	usage(os.Stderr)
	return fmt.Errorf("there is no command %q", args[0])
}

func usage(w io.Writer) {
	fmt.Fprint(w, "dozed runs sandboxes that sleep.\n\nUsage:\n")
	for _, c := range commands {
		fmt.Fprintln(w, strings.TrimRight(fmt.Sprintf("  dozed %-8s %s", c.name, c.args), " "))
		fmt.Fprintln(w, "      "+c.text)
	}
	fmt.Fprint(w, "\nEvery command has --help. Every flag can be set as an environment variable:\n--pause-after is DOZED_PAUSE_AFTER.\n")
}

// help prints a command with its flags.
func help(w io.Writer, name string, flags *flag.FlagSet) {
	for _, c := range commands {
		if c.name == strings.Fields(name)[0] {
			fmt.Fprintf(w, "%s\n    %s\n\n", strings.TrimRight("dozed "+c.name+" "+c.args, " "), c.text)
		}
	}
	printFlags(w, flags)
}

// printFlags prints flags as people write them, with what they are set to by
// default.
func printFlags(w io.Writer, flags *flag.FlagSet) {
	flags.VisitAll(func(f *flag.Flag) {
		value, text := flag.UnquoteUsage(f)
		if f.DefValue != "" && f.DefValue != "false" {
			text += " (default " + f.DefValue + ")"
		}
		fmt.Fprintln(w, strings.TrimRight("  --"+f.Name+" "+value, " "))
		fmt.Fprintln(w, "      "+text)
	})
}

func printVersion(_ context.Context, args []string) error {
	flags := quiet("version")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			help(os.Stdout, "version", flags)
		}
		return err
	}
	fmt.Println("dozed", version)
	if info, ok := debug.ReadBuildInfo(); ok {
		fmt.Println(info.GoVersion)
	}
	return nil
}
