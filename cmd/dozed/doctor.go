package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/disk"
	"github.com/dozehq/doze/internal/doctor"
	"github.com/dozehq/doze/internal/handover"
	"github.com/dozehq/doze/internal/host"
	"github.com/dozehq/doze/internal/space"
	"github.com/dozehq/doze/internal/swap"
)

// beside returns the path of another binary of ours: next to this one.
func beside(name string) string {
	self, err := os.Executable()
	if err != nil {
		return name
	}
	return filepath.Join(filepath.Dir(self), name)
}

// examined is what doctor looks at.
func examined(ctx context.Context, c config) doctor.Host {
	pool, _ := doze.ParseAddressPool(c.EgressPool) // what is wrong with it, config check says
	return doctor.Host{
		Data: c.Data, Binaries: []string{beside("doze-sentry"), beside("doze-agent")},
		Pool: pool, Link: c.EgressLink, Swap: c.expectedSwap(ctx),
	}
}

// expectedSwap is the swap that a start would get, or that the last one got. It
// makes nothing, and the data directory need not be there.
func (c config) expectedSwap(ctx context.Context) swap.Plan {
	choice, err := swap.Parse(c.Swap)
	if err != nil {
		return swap.Plan{Kind: swap.Off, Why: err.Error()}
	}
	memory, err := host.TotalMemory()
	if err != nil {
		return swap.Plan{Kind: swap.Off, Why: err.Error()}
	}
	dir := c.Data
	for dir != filepath.Dir(dir) {
		if _, err := os.Stat(dir); err == nil {
			break
		}
		dir = filepath.Dir(dir)
	}
	var free space.State
	if d, err := space.Open(dir, c.diskOptions()); err == nil {
		free, _ = d.State() // what cannot be measured leaves no room
	}
	facts, err := swap.Examine(ctx, c.memory().SwapOptions(c.Data, memory, free))
	if err != nil {
		return swap.Plan{Kind: swap.Off, Why: err.Error()}
	}
	return swap.Decide(choice, facts)
}

// examine says what the host lacks, and changes what it may if it is told to.
func examine(ctx context.Context, args []string) error {
	var o doctorOptions
	c, rest, err := load("doctor", args, o.bind)
	switch {
	case err != nil:
		return err
	case len(rest) > 0:
		return fmt.Errorf("dozed doctor takes no argument %q", rest[0])
	}
	found := doctor.Examine(examined(ctx, c))
	if o.apply {
		if err := mend(os.Stdout, found, o.only); err != nil {
			return err
		}
		found = doctor.Examine(examined(ctx, c))
	}
	if !doctor.Print(os.Stdout, found) {
		return errors.New("this host cannot run sandboxes yet")
	}
	fmt.Println("\nThis host can run sandboxes.")
	return nil
}

// mend changes the settings of the kernel that are advised, or the one of one
// check, and says how to take it back.
func mend(w io.Writer, found []doctor.Finding, only string) error {
	for _, f := range found {
		if f.Mend == nil || only != "" && f.Check != only {
			continue
		}
		undo, err := f.Mend.Apply()
		if err != nil {
			return fmt.Errorf("%s: %w", f.Check, err)
		}
		fmt.Fprintf(w, "changed: %s, until the next reboot; to undo: echo %s > %s\n", f.Check, undo.Value, undo.File)
	}
	return nil
}

// doctorOptions are the flags that only doctor has.
type doctorOptions struct {
	apply bool
	only  string
}

func (o *doctorOptions) bind(flags *flag.FlagSet) {
	flags.BoolVar(&o.apply, "apply", false, "change the kernel settings that it advises to change, until the next reboot")
	flags.StringVar(&o.only, "only", "", "with --apply: change what this `check` advises and nothing else, such as \"huge pages\"")
}

// images makes or lists images.
func images(ctx context.Context, args []string) error {
	c, do, names, err := loadFor("image", args, "build", "ls")
	if err != nil {
		return err
	}
	library, err := disk.Open(c.ImagesDir, disk.Options{PrivateRegistries: c.PrivateRegistries, BytesMax: c.ImageMaxMB << 20})
	if err != nil {
		return err
	}
	defer func() { _ = library.Close() }()
	if do == "ls" {
		out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
		fmt.Fprintln(out, "IMAGE\tDIGEST\tMB")
		for _, i := range library.Images() {
			fmt.Fprintf(out, "%s\t%.19s\t%d\n", i.Ref, i.Digest, i.Bytes>>20)
		}
		return out.Flush()
	}
	if len(names) == 0 {
		names = c.Images
	}
	for _, name := range names {
		image, err := library.Ensure(ctx, name, host.Progress(os.Stderr, name))
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		fmt.Printf("%s is %.19s, %d MB\n", name, image.Digest, image.Bytes>>20)
	}
	return nil
}

// lock makes a directory and makes sure that one process at a time serves it.
func lock(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the directory: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(doze.Errorf(doze.Conflict, "another dozed serves %s", dir), f.Close())
	}
	return func() { _ = f.Close() }, nil
}

// keep is what a dozed leaves behind for the next one. The flag says to others
// whose it is; the socket itself is inherited.
func keep(ctx context.Context, args []string) error {
	flags := quiet(keepCommand)
	flags.String("socket", "", "unix socket `file`, by which the next dozed gets the address")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			help(os.Stdout, keepCommand, flags)
		}
		return err
	}
	const inherited = 3 // the first behind the standard streams
	return handover.Keep(ctx, os.NewFile(inherited, "listener"))
}

func logLevel(name string) (l slog.Level, err error) {
	return l, l.UnmarshalText([]byte(strings.ToUpper(name)))
}
