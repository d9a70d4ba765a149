// Command dozed is the platform: it serves the control API, runs sandboxes,
// and routes requests to them. This package is wiring: each part is a package of
// its own.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/dozehq/doze/internal/command"
	"github.com/dozehq/doze/internal/handover"
)

// version is set when a release is built.
var version = "dev"

// dozed is all commands.
var dozed = command.Program{
	Name:  "dozed",
	Intro: "dozed runs sandboxes that sleep.",
	Outro: "Every command has --help. Every flag can be set as an environment variable:\n--pause-after is DOZED_PAUSE_AFTER.",
}

func init() { //nolint:gochecknoinits // the table refers to functions that print the table
	dozed.Commands = []command.Command{
		{Name: "all", Args: "--data DIR --listen ADDR …", Text: "serve everything in one process: control API, sandboxes, edge, egress rules; SIGUSR2 ends it for a successor as soon as no request is under way", Run: all},
		{Name: "control", Args: "--data DIR --control-listen ADDR …", Text: "serve the control API and its records alone, for dozed node and dozed edge", Run: serveControl},
		{Name: "node", Args: "--data DIR --control URL …", Text: "run sandboxes alone, as dozed control orders", Run: serveNode},
		{Name: "edge", Args: "--data DIR --control URL --listen ADDR …", Text: "let callers in alone: to sandboxes on dozed node, and to the API of dozed control", Run: serveEdge},
		{Name: "certificates", Args: "[--data DIR] [--fleet-keys DIR]", Text: "make the certificates by which dozed control, dozed node and dozed edge know each other", Run: certificates},
		{Name: "destroy", Args: "[--data DIR] [--all] [--yes]", Text: "end all sandboxes of a data directory and remove what they have on this host; its records and checkpoints stay", Run: destroy},
		{Name: "doctor", Args: "[--apply [--only CHECK]] [--data DIR]", Text: "say in plain words what this host lacks; --apply changes kernel settings to what it advises, and says how to undo it", Run: examine},
		{Name: "image", Args: "build|ls [--data DIR] [NAME …]", Text: "make or list images", Run: images},
		{Name: "config", Args: "check|print [--config FILE]", Text: "check a configuration, or print the one in force", Run: configure},
		{Name: handover.Command, Old: handover.OldCommand, Args: "--socket FILE", Text: "keep the address of a dozed that is killed or replaced; dozed starts it by itself", Run: handOver},
		{Name: "version", Text: "print the version", Run: printVersion},
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
	if err := dozed.Run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "dozed:", err)
		os.Exit(1)
	}
}

func printVersion(_ context.Context, args []string) error {
	if err := dozed.Parse(dozed.Flags("version"), args); err != nil {
		return err
	}
	fmt.Println("dozed", version)
	if info, ok := debug.ReadBuildInfo(); ok {
		fmt.Println(info.GoVersion)
	}
	return nil
}

// handOver is what a dozed leaves behind for the next one. The flag says to others
// whose it is; the socket itself is inherited.
func handOver(ctx context.Context, args []string) error {
	flags := dozed.Flags(handover.Command)
	flags.String("socket", "", "unix socket `file`, by which the next dozed gets the address")
	if err := dozed.Parse(flags, args); err != nil {
		return err
	}
	return handover.Serve(ctx, handover.Given())
}
