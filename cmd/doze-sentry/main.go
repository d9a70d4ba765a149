// Command doze-sentry is the launcher that runs beside the sandboxes of a node,
// and, by the name it is started under, gVisor's own processes. It is the only
// binary that links gVisor.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"

	"gvisor.dev/gvisor/runsc/cli/maincli"
	"gvisor.dev/gvisor/runsc/version"

	"github.com/dozehq/doze/internal/lease"
	"github.com/dozehq/doze/internal/machine/gvisor/launcher"
	_ "github.com/dozehq/doze/internal/machine/gvisor/launcher/early" // before gVisor
	"github.com/dozehq/doze/internal/machine/gvisor/launcher/filters"
	"github.com/dozehq/doze/internal/machine/gvisor/launcher/tune"
	"github.com/dozehq/doze/internal/machine/hostproc"
)

func init() { //nolint:gochecknoinits // only here is it certain that we are on the main thread
	// gVisor takes the main thread's namespaces for the process's own: no
	// goroutine may ever change them there.
	runtime.LockOSThread()
}

func main() {
	switch name := os.Args[0]; {
	case name == "runsc-sandbox":
		engine(tune.Sandbox, filters.RegisterBoot, launcher.DenyTun, launcher.WatchNetworks, launcher.GuardFirst, launcher.BoundProcesses)
	case name == "runsc-gofer":
		engine(filters.RegisterGofer)
	case strings.HasPrefix(name, "runsc") || name == "/proc/self/exe":
		engine()
	default:
		if err := launch(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, "doze-sentry:", err)
			os.Exit(1)
		}
	}
}

// engine becomes a process of gVisor.
func engine(prepare ...func()) {
	runtime.UnlockOSThread() // gVisor has its own ideas about threads
	launcher.CloseFDs(os.Args)
	os.Args = launcher.Size(os.Args)
	for _, do := range prepare {
		do()
	}
	maincli.Main()
}

// launch serves a node until it is told to stop. The sandboxes live on.
func launch(args []string) error {
	flags := flag.NewFlagSet("doze-sentry", flag.ContinueOnError)
	var o launcher.Options
	flags.StringVar(&o.Run, "run", "/run/doze", "directory of the run state")
	flags.StringVar(&o.Cgroup, "cgroup", "doze", "parent of the cgroups")
	// A dozed of an earlier release calls it by this name.
	flags.DurationVar(&o.PauseLimit, "flip-limit", 0, "when a pause or a resume counts as hanging; 0 is the default")
	flags.Int64Var(&o.Processes, "processes", launcher.ProcessesMost, "how many processes a machine may have, if that is fewer than the default")
	flags.StringVar(&o.Platform, "platform", "", "how system calls are intercepted: a name of gVisor's; empty is the default")
	socket := flags.String("socket", "/run/doze/launcher.sock", "unix socket to listen on")
	show := flags.Bool("version", false, "print the engine's version and exit")
	measured := flags.String("measure", "", "print what a system call takes on this platform, and exit")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *show {
		fmt.Println(version.Version())
		return nil
	}
	if *measured != "" {
		took, err := launcher.Measure(*measured)
		if err != nil {
			return err
		}
		fmt.Println(took)
		return nil
	}
	// Our own log keeps its file: the launcher turns the standard streams over
	// to the sandboxes.
	log, err := syscall.Dup(int(os.Stderr.Fd()))
	if err != nil {
		return fmt.Errorf("keep the log: %w", err)
	}
	syscall.CloseOnExec(log)
	o.Log = os.NewFile(uintptr(log), "log")
	slog.SetDefault(slog.New(slog.NewJSONHandler(o.Log, nil)))

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	signal.Ignore(syscall.SIGHUP)
	l, err := launcher.Open(ctx, o)
	if err != nil {
		return err
	}
	// A node that was stopped cannot stop its sandboxes.
	var guard sync.WaitGroup
	guard.Go(func() {
		lease.Guard(ctx, lease.FileOf(filepath.Dir(o.Run)), func(ctx context.Context) error { return hostproc.Freeze(ctx, o.Cgroup, true) })
	})
	defer guard.Wait()
	return l.Serve(ctx, *socket)
}
