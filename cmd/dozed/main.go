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

	"github.com/dozehq/doze/internal/backup"
	"github.com/dozehq/doze/internal/command"
	"github.com/dozehq/doze/internal/handover"
	"github.com/dozehq/doze/internal/instance"
)

// version is set when a release is built.
var version = "dev"

// dozed is all commands.
var dozed = command.Program{
	Name:  "dozed",
	Intro: "dozed runs sandboxes that sleep.",
	Outro: "Every command has --help. Every flag has an environment variable:\n--pause-after is DOZED_PAUSE_AFTER.",
}

func init() { //nolint:gochecknoinits // the table refers to functions that print the table
	dozed.Commands = []command.Command{
		{Name: "all", Args: "--data DIR --listen ADDR …", Text: "serve everything in one process. SIGUSR2 drains requests and exits, so that a new version can start", Run: all},
		{Name: "control", Args: "--data DIR --control-listen ADDR …", Text: "serve the control API and its records, for dozed node and dozed edge", Run: serveControl},
		{Name: "node", Args: "--data DIR --control URL …", Text: "run sandboxes for dozed control", Run: serveNode},
		{Name: "edge", Args: "--data DIR --control URL --listen ADDR …", Text: "accept requests: to sandboxes on dozed node, and to the API of dozed control", Run: serveEdge},
		{Name: "certificates", Args: "[--data DIR] [--fleet-keys DIR]", Text: "create the certificates for mutual TLS between the roles", Run: on("certificates", &instance.Certificates{Out: os.Stdout})},
		{Name: "destroy", Args: "[--data DIR] [--all] [--yes]", Text: "stop all sandboxes of a data directory and clean up this host. Records and checkpoints stay, unless you pass --all", Run: on("destroy", &instance.Destruction{In: os.Stdin, Out: os.Stdout})},
		{Name: "backup", Args: "--data DIR --to FILE|- [--passphrase-file FILE]", Text: "save records, keys, images, volumes and sandboxes, also those that are awake, while dozed all runs. Of dozed control, save records and keys", Run: on("backup", &backup.Backup{Version: version, Out: os.Stdout, Err: os.Stderr})},
		{Name: "restore", Args: "--data DIR --from FILE|- [--passphrase-file FILE] | --mark", Text: "make an empty data directory that of a backup, or say with --mark that PostgreSQL restored the records", Run: on("restore", &backup.Restore{In: os.Stdin, Err: os.Stderr})},
		{Name: "migrate", Args: "--data DIR --to URL|sqlite [--bucket URL --remote-credentials FILE]", Text: "move the records to a PostgreSQL database, or back into the data directory, while dozed is stopped", Run: on("migrate", &instance.Migration{Out: os.Stdout})},
		{Name: "doctor", Args: "[--apply [--only CHECK]] [--data DIR]", Text: "check this host. --apply changes kernel settings as advised, and prints how to undo it", Run: examine},
		{Name: "image", Args: "build|ls [--data DIR] [NAME …]", Text: "build or list images", Run: images},
		{Name: "config", Args: "check|print [--config FILE]", Text: "check or print the configuration", Run: configure},
		{Name: handover.Command, Old: handover.OldCommand, Args: "--socket FILE", Text: "hold the listening socket while dozed is replaced or restarted (internal)", Run: handOver},
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
	flags.String("socket", "", "unix socket `file` for the next dozed")
	if err := dozed.Parse(flags, args); err != nil {
		return err
	}
	return handover.Serve(ctx, handover.Given())
}
