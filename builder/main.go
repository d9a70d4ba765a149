// Command doze-builder builds images inside a builder machine: BuildKit as a library, for
// the node of the machine, which asks by package buildapi.
//
// It mounts a file system in memory for its cache, and serves until SIGTERM. A process that is
// started after it goes on with the same cache. As "doze-builder step" it is the first process
// of a step of a Dockerfile.
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
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/dozehq/doze/internal/buildapi"
	"golang.org/x/sys/unix"

	"github.com/dozehq/doze/builder/engine"
	"github.com/dozehq/doze/builder/serve"
	"github.com/dozehq/doze/builder/step"
)

// version is set at link time.
var version = "dev"

// enteredVariable says that the process has a mount namespace of its own.
const enteredVariable = "DOZE_BUILDER_ENTERED"

// options are the flags.
type options struct {
	dir    string
	diskMB int64
	listen string
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == step.Command {
		os.Exit(step.Main())
	}
	os.Exit(command(os.Args[1:]))
}

// command runs the program with its arguments, and returns its exit code.
func command(args []string) int {
	var o options
	flags := flag.NewFlagSet("doze-builder", flag.ContinueOnError)
	show := flags.Bool("version", false, "print the version")
	flags.StringVar(&o.dir, "dir", "/b", "`directory` of the cache; a mount of many layers names it for each, so it is short")
	flags.Int64Var(&o.diskMB, "disk-mb", 0, "mount a file system in memory of so many `megabytes` there; 0 uses the directory as it is")
	flags.StringVar(&o.listen, "listen", ":"+strconv.Itoa(buildapi.Port), "`address` for the node; unix:PATH is a socket")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	case *show:
		fmt.Println(version)
		return 0
	}
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	if err := run(o, log); err != nil {
		log.Error("the builder has ended", "err", err)
		return 1
	}
	return 0
}

// run serves until a signal.
func run(o options, log *slog.Logger) error {
	if os.Getenv(enteredVariable) == "" {
		return enter(o) // it starts this program again
	}
	token := os.Getenv(buildapi.TokenVariable)
	if token == "" {
		return fmt.Errorf("%s is not set: the node sets it", buildapi.TokenVariable)
	}
	// What BuildKit mounts is below the directory, and nothing that it starts has the token.
	temporary := filepath.Join(o.dir, "tmp")
	if err := errors.Join(os.Unsetenv(buildapi.TokenVariable), os.Unsetenv(enteredVariable), os.Setenv("TMPDIR", temporary),
		os.RemoveAll(temporary), os.MkdirAll(temporary, 0o700)); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	program, err := os.Executable()
	if err != nil {
		return err
	}
	e, err := engine.Open(ctx, engine.Config{Dir: o.dir, Program: []string{program, step.Command}, Log: log})
	if err != nil {
		return err
	}
	s, err := serve.New(serve.Config{Engine: e, Dir: filepath.Join(o.dir, "contexts"), Token: token, Log: log})
	if err != nil {
		return errors.Join(err, e.Close())
	}
	network, address := "tcp", o.listen
	if path, ok := strings.CutPrefix(o.listen, "unix:"); ok {
		network, address = "unix", path
		_ = os.Remove(path) // of a process before
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, network, address)
	if err != nil {
		return errors.Join(err, e.Close())
	}
	log.Info("serving", "address", listener.Addr().String(), "version", version)
	return errors.Join(s.Run(ctx, listener), e.Close())
}

// enter mounts the file system of the cache in the machine, where it outlasts this process. Then
// it starts this program again in a mount namespace of its own. So whatever BuildKit mounts
// ends with the process.
func enter(o options) error {
	if err := os.MkdirAll(o.dir, 0o700); err != nil {
		return err
	}
	mounted, err := isMount(o.dir)
	if err != nil {
		return err
	}
	if o.diskMB > 0 && !mounted {
		if err := unix.Mount("tmpfs", o.dir, "tmpfs", 0, fmt.Sprintf("size=%dm,mode=0700", o.diskMB)); err != nil {
			return fmt.Errorf("mount the cache: %w", err)
		}
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	runtime.LockOSThread() // the namespace is that of the thread, until exec
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make a mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	env := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, enteredVariable+"=") })
	return syscall.Exec(program, os.Args, append(env, enteredVariable+"=1")) //nolint:gosec // it is this program
}

// isMount reports whether something is mounted at a directory.
func isMount(dir string) (bool, error) {
	var at, above unix.Stat_t
	if err := unix.Stat(dir, &at); err != nil {
		return false, err
	}
	if err := unix.Stat(filepath.Dir(dir), &above); err != nil {
		return false, err
	}
	return at.Dev != above.Dev, nil
}
