package instance

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/disk"
	"github.com/dozehq/doze/internal/host"
	"github.com/dozehq/doze/internal/hostnet"
	"github.com/dozehq/doze/internal/settings"
	"github.com/dozehq/doze/internal/swap"
	"github.com/dozehq/doze/internal/teardown"
)

// A Destruction ends everything that a dozed left on this host.
type Destruction struct {
	Data        string
	Run, Cgroup string // of a dozed that announced nothing
	ImagesDir   string
	All         bool // the records, checkpoints, images and keys too
	Yes         bool // nobody is asked

	In  io.Reader // has the answer of the operator
	Out io.Writer
}

// Bind adds the flags that only dozed destroy has.
func (d *Destruction) Bind(flags *flag.FlagSet) {
	flags.BoolVar(&d.All, "all", false, "also delete records, checkpoints, images and keys")
	flags.BoolVar(&d.Yes, "yes", false, "do not ask for confirmation")
}

// Do ends what is left of a data directory, when the operator agrees. Nobody may serve the
// directory.
func (d *Destruction) Do(ctx context.Context, s settings.Settings) error {
	d.Data, d.Run, d.Cgroup, d.ImagesDir = s.Data, s.Run, s.Cgroup, s.ImagesDir
	return d.do(ctx)
}

func (d *Destruction) do(ctx context.Context) error {
	if !Served(d.Data) {
		return doze.Errorf(doze.NotFound, "%s is no data directory of dozed: name one with --data", d.Data)
	}
	left, unlock, err := d.claim()
	if err != nil {
		return err
	}
	defer unlock()
	if !d.Yes {
		if err := confirm(d.In, d.Out, d.Data, d.All); err != nil {
			return err
		}
	}
	ended := len(left.Processes())
	if err := withdraw(ctx, left); err != nil {
		return err
	}
	if !d.All {
		fmt.Fprintf(d.Out, "processes ended: %d; records and checkpoints are still in %s\n", ended, d.Data)
		return nil
	}
	kind, err := recordsOf(d.Data)
	if err != nil {
		return err
	}
	if err := errors.Join(disk.Disown(d.ImagesDir, d.Data), erase(d.Data)); err != nil {
		return err
	}
	fmt.Fprintf(d.Out, "processes ended: %d; nothing of the platform is left in %s\n", ended, d.Data)
	if kind == onServer {
		fmt.Fprintln(d.Out, "its records are still on the PostgreSQL server, where nobody can read what is secret in them any more: drop that database")
	}
	return nil
}

// claim locks the directories, and finds what is left of the last dozed.
func (d *Destruction) claim() (left teardown.Platform, unlock func(), err error) {
	unlockData, err := Lock(d.Data)
	if err != nil {
		return left, nil, fmt.Errorf("stop it first: %w", err)
	}
	if left, err = Remains(d.Data, Instance{Run: d.Run, Cgroup: d.Cgroup}); err != nil {
		unlockData()
		return left, nil, err
	}
	if _, err := os.Stat(left.Run); err != nil {
		return left, unlockData, nil //nolint:nilerr // nothing is there to lock
	}
	unlockRun, err := Lock(left.Run)
	if err != nil {
		unlockData()
		return left, nil, fmt.Errorf("stop it first: %w", err)
	}
	return left, func() { unlockRun(); unlockData() }, nil
}

// withdraw ends what runs, and takes back what dozed changed on the host.
func withdraw(ctx context.Context, left teardown.Platform) error {
	if err := closeNetwork(filepath.Join(left.Data, "net")); err != nil {
		return err
	}
	if err := left.Clear(); err != nil {
		return err
	}
	return swap.Remove(ctx, host.SwapFile(left.Data)) // with nobody's memory in it, which takes a moment
}

// closeNetwork takes back what open egress changed in the network of the host.
// The rest ends with its namespaces.
func closeNetwork(dir string) error {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	n, err := hostnet.Open(dir, hostnet.Options{})
	if err != nil {
		return err
	}
	return n.Close()
}

// erase removes what is ours in a data directory, and the directory if nothing
// else is in it.
func erase(data string) error {
	var errs []error
	for _, name := range ours {
		errs = append(errs, os.RemoveAll(filepath.Join(data, name)))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	left, err := os.ReadDir(data)
	if err != nil || len(left) > 0 {
		return err
	}
	return os.Remove(data)
}

// confirm asks the person at the other end of in whether to destroy the sandboxes
// of a data directory, or all that is in it.
func confirm(in io.Reader, out io.Writer, data string, all bool) error {
	what := "What sleeps on disk can be woken by the next dozed; the others are lost."
	if all {
		what = "All of them, and everything else of the platform, is lost: records, keys, images."
	}
	fmt.Fprintf(out, "This ends all sandboxes of %s. %s\nType yes to go on: ", data, what)
	line, err := bufio.NewReader(in).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read the answer: %w", err)
	}
	if strings.TrimSpace(line) != "yes" {
		return errors.New("nothing was done: answer yes, or give --yes")
	}
	return nil
}
