package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/disk"
	"github.com/dozehq/doze/internal/host"
	"github.com/dozehq/doze/internal/hostnet"
	"github.com/dozehq/doze/internal/swap"
	"github.com/dozehq/doze/internal/teardown"
)

// instanceFile is in the data directory and tells others on this host where its
// dozed is, or was.
const instanceFile = "instance.json"

// instance is what instanceFile holds. The command line client reads it too.
type instance struct {
	Address string `json:"address"` // URL by which this host reaches it
	Run     string `json:"run"`     // as in config
	Cgroup  string `json:"cgroup"`
}

// ours is everything that dozed makes in a data directory.
var ours = []string{
	"admin.key", "agents", databaseFile, databaseFile + "-shm", databaseFile + "-wal", host.EgressFile, "engines", "images", instanceFile, "lock", "net", recordsFile, "sandboxes", "seal.key", "snapshots", "ahead",
	"swap", "swap.zram", "volumes",
}

// announce writes down what listens on an address. The certificate of a name is
// not good for an address.
func announce(c config, listen string) error {
	i := instance{Address: "http://" + reachable(listen), Run: c.Run, Cgroup: c.Cgroup}
	if c.TLSCert != "" {
		i.Address = c.PublicURL
	}
	raw, err := json.Marshal(i)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(c.Data, instanceFile), append(raw, '\n'), 0o600)
}

// destroyOptions are the flags that only destroy has.
type destroyOptions struct{ all, yes bool }

func (o *destroyOptions) bind(flags *flag.FlagSet) {
	flags.BoolVar(&o.all, "all", false, "remove the records, checkpoints, images and keys of the data directory too")
	flags.BoolVar(&o.yes, "yes", false, "do not ask")
}

// destroy ends everything that a dozed left on this host.
func destroy(ctx context.Context, args []string) error {
	var o destroyOptions
	c, rest, err := load("destroy", args, o.bind)
	switch {
	case err != nil:
		return err
	case len(rest) > 0:
		return fmt.Errorf("dozed destroy takes no argument %q: name a data directory with --data", rest[0])
	}
	if !served(c.Data) {
		return doze.Errorf(doze.NotFound, "%s is no data directory of dozed: name one with --data", c.Data)
	}
	unlock, err := lock(c.Data)
	if err != nil {
		return fmt.Errorf("stop it first: %w", err)
	}
	defer unlock()
	w, err := remainsOf(c)
	if err != nil {
		return err
	}
	if _, err := os.Stat(w.Run); err == nil {
		unlock, err := lock(w.Run)
		if err != nil {
			return fmt.Errorf("stop it first: %w", err)
		}
		defer unlock()
	}
	if !o.yes {
		if err := confirm(os.Stdin, os.Stdout, c.Data, o.all); err != nil {
			return err
		}
	}
	ended := len(w.Processes())
	if err := closeNetwork(filepath.Join(c.Data, "net")); err != nil {
		return err
	}
	if err := w.Clear(); err != nil {
		return err
	}
	if err := swap.Remove(ctx, host.SwapFile(c.Data)); err != nil { // with nobody's memory in it, which takes a moment
		return err
	}
	if !o.all {
		fmt.Printf("processes ended: %d; records and checkpoints are still in %s\n", ended, c.Data)
		return nil
	}
	kind, err := recordsOf(c.Data)
	if err != nil {
		return err
	}
	if err := errors.Join(disk.Disown(c.ImagesDir, c.Data), erase(c.Data)); err != nil {
		return err
	}
	fmt.Printf("processes ended: %d; nothing of the platform is left in %s\n", ended, c.Data)
	if kind == onServer {
		fmt.Println("its records are still on the PostgreSQL server, where nobody can read what is secret in them any more: drop that database")
	}
	return nil
}

// served reports whether a dozed ever had a directory for its data.
func served(data string) bool {
	return slices.ContainsFunc([]string{instanceFile, databaseFile}, func(name string) bool {
		_, err := os.Stat(filepath.Join(data, name))
		return err == nil
	})
}

// remainsOf finds what the last dozed of a data directory left, wherever its
// flags had put it.
func remainsOf(c config) (teardown.Platform, error) {
	i := instance{Run: c.Run, Cgroup: c.Cgroup}
	raw, err := os.ReadFile(filepath.Join(c.Data, instanceFile))
	if err == nil {
		err = json.Unmarshal(raw, &i)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // older ones had no such file
		return teardown.Platform{}, fmt.Errorf("read where it ran: %w", err)
	}
	if !filepath.IsAbs(i.Run) || !cgroupForm.MatchString(i.Cgroup) {
		return teardown.Platform{}, doze.Errorf(doze.Invalid, "%s is damaged: remove it, and give --run and --cgroup as dozed all had them", filepath.Join(c.Data, instanceFile))
	}
	return teardown.Platform{Run: filepath.Clean(i.Run), Cgroup: i.Cgroup, Data: c.Data}, nil
}

// confirm asks whoever is at the other end of in.
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
