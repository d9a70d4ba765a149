// Command doze-agent is the first process of every sandbox (PID 1). It serves
// the sandbox API; package agent says how.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/dozehq/doze/internal/agent"
	"github.com/dozehq/doze/internal/agent/drive"
	"github.com/dozehq/doze/internal/agent/sshd"
)

// version is set by the linker: -ldflags "-X main.version=…".
var version = "dev"

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "doze-agent:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	flags := flag.NewFlagSet("doze-agent", flag.ContinueOnError)
	listen := flags.String("listen", ":8080", "serve the sandbox API on this `address`")
	name := flags.String("hostname", "", "give the system this `name` and exit")
	mount := flags.String("mount", "", "mount the drive that was prepared with this `id` on the path that is the argument, and exit")
	unmount := flags.Bool("unmount", false, "unmount the drive on the path that is the argument, and exit")
	stale := flags.Bool("stale", false, "with -unmount: nobody serves it any more")
	ssh := flags.Bool(sshd.Flag, false, "serve SSH to the client at the standard input")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return nil
	} else if err != nil {
		return err
	}
	switch {
	case *ssh:
		return sshd.Main(os.Environ())
	case *name != "":
		return syscall.Sethostname([]byte(*name))
	case *mount != "":
		return drive.Mount(*mount, flags.Arg(0))
	case *unmount:
		return drive.Unmount(flags.Arg(0), *stale)
	}
	slog.SetDefault(slog.New(slog.NewJSONHandler(os.Stdout, nil)))
	ctx, init := context.Background(), os.Getpid() == 1
	if init {
		agent.Shield()
	} else {
		var stop context.CancelFunc
		ctx, stop = signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
		defer stop()
	}

	agent.Prepare("/", os.Environ())
	a := agent.New(agent.Config{
		Version: version,
		Env:     os.Environ(),
		Root:    "/",
		Init:    init,
	})
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", *listen)
	if err != nil {
		return fmt.Errorf("serve the sandbox API: %w", err)
	}
	return a.Run(ctx, ln)
}
