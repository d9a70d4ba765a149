package machinetest

import (
	"archive/tar"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/dozehq/doze/internal/machine"
)

// forks is how many machines the suite starts out of one copy at once.
const forks = 3

func copiesGoOn(b *bench) {
	g := b.boot("a")
	g.do("/alloc", "mb", "24")
	g.do("/write", "name", "/kept", "text", "before")
	sum := must[uint32](g, "/sum")
	var copied []string
	for _, tier := range b.tiers(machine.Awake, machine.Paused, machine.Saved, machine.Swapped, machine.OnDisk) {
		g.suspend(tier)
		dir := b.snapshot(g)
		g.in(tier)
		if err := g.Snapshot(b.Context(), dir, nil); !errors.Is(err, fs.ErrExist) {
			b.Errorf("keep in a place that is taken: %v", err)
		}
		copied = append(copied, dir)
		if tier == machine.Paused { // it must still go up and down from here
			g.resume()
		}
	}
	g.resume()
	g.do("/write", "name", "/kept", "text", "after")
	count := must[int64](g, "/count")
	if err := g.Close(b.Context()); err != nil {
		b.Fatal(err)
	}
	for i, dir := range copied[:len(copied)-1] {
		f := b.fork(strconv.Itoa(i), dir)
		b.same(f, sum)
		if err := f.Close(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	var guests [forks]*guest
	var all sync.WaitGroup
	for i := range guests {
		all.Go(func() { guests[i] = b.fork("fork-"+strconv.Itoa(i), copied[len(copied)-1]) })
	}
	all.Wait()
	random := map[string]bool{}
	for i, f := range guests {
		b.same(f, sum)
		f.do("/write", "name", "/kept", "text", f.config.ID)
		random[must[string](f, "/random")] = true
		if n := must[int64](f, "/count"); n > 10*count+callTime.Milliseconds() {
			b.Errorf("fork %d counts %d, and the original came to %d", i, n, count)
		}
	}
	if len(random) != forks {
		b.Errorf("%d forks drew %v", forks, random)
	}
	for _, f := range guests {
		f.suspend(machine.OnDisk)
		f.resume()
		if got := must[string](f, "/read", "name", "/kept"); got != f.config.ID {
			b.Errorf("fork %s reads %q in its file", f.config.ID, got)
		}
	}
}

// copyComesBack gives a machine its own copy back after it was lost, on another host and on
// the same one. It wakes from there, and may go back there.
func copyComesBack(b *bench) {
	c := b.host.Config(b.T, "a")
	c.GoBack = true
	g := b.bootConfig(c)
	g.do("/alloc", "mb", "24")
	g.do("/write", "name", "/kept", "text", "before")
	sum := must[uint32](g, "/sum")
	dir := b.snapshot(g)
	g.do("/write", "name", "/kept", "text", "after")
	receive := func() *guest {
		b.Helper()
		with := c
		with.From = dir
		m, err := b.Receive(b.Context(), with)
		if err != nil {
			b.Fatal("receive:", err)
		}
		g := b.guest(m, c)
		g.in(machine.OnDisk)
		return g
	}
	with := c
	with.From = dir
	if _, err := b.Receive(b.Context(), with); err == nil {
		b.Error("a machine that runs gets another checkpoint")
	}
	if err := g.Close(b.Context()); err != nil {
		b.Fatal(err)
	}
	receive()
	g = b.adopt(c) // by the next process
	g.in(machine.OnDisk)
	g.resume()
	b.same(g, sum)
	g.do("/write", "name", "/kept", "text", "lost")
	g.settle()
	b.host.Kill(b.T, c.ID)
	g = b.adopt(c)
	if g.in(machine.OnDisk); g.WentBack().IsZero() {
		b.Error("it does not say that it went back")
	}
	g.resume()
	b.same(g, sum)
	g.do("/write", "name", "/kept", "text", "newer")
	g.suspend(machine.OnDisk)
	g = receive() // in the place of its own
	if names := entries(b, c.Dir); len(names) != 1 {
		b.Errorf("beside the copy %q is left", names)
	}
	g.resume()
	b.same(g, sum)
	g.settle()
	if err := b.Discard(dir); err != nil {
		b.Error(err)
	}
	g.suspend(machine.OnDisk)
	g.resume()
	b.same(g, sum)
}

func precopyChanges(b *bench) {
	g := b.boot("a")
	g.do("/alloc", "mb", "24")
	g.do("/write", "name", "/kept", "text", "while it is copied")
	if err := g.Precopy(b.Context()); err != nil {
		b.Fatal("copy memory:", err)
	}
	g.in(machine.Awake)
	g.do("/change", "from", "3", "mb", "5")
	g.do("/write", "name", "/kept", "text", "before")
	sum := must[uint32](g, "/sum")
	dir := b.snapshot(g)
	g.do("/change", "from", "6", "mb", "9")
	g.do("/write", "name", "/kept", "text", "after")
	b.same(b.fork("b", dir), sum)
	if names := entries(b, g.config.Dir); len(names) != 0 {
		b.Errorf("after a copy %q is left", names)
	}

	sum = must[uint32](g, "/sum")
	for _, tier := range []machine.Tier{machine.Paused, machine.OnDisk} {
		if err := g.Precopy(b.Context()); err != nil {
			b.Fatal("copy memory again:", err)
		}
		g.suspend(tier)
		if err := g.Precopy(b.Context()); err != nil {
			b.Errorf("copy the memory of a machine that is %s: %v", tier, err)
		}
		g.suspend(machine.OnDisk)
		g.settle()
		if names := entries(b, g.config.Dir); len(names) != 1 {
			b.Errorf("beside a checkpoint %q is left", names)
		}
		g.resume()
		if got := must[uint32](g, "/sum"); got != sum {
			b.Errorf("after a sleep the memory's checksum is %d, want %d", got, sum)
		}
	}
}

// fork starts a machine that goes on from a copy.
func (b *bench) fork(id, dir string) *guest {
	b.Helper()
	c := b.host.Config(b.T, id)
	c.From = dir
	m, err := b.Boot(b.Context(), c)
	if err != nil {
		b.Fatal("fork:", err)
	}
	c.From = ""
	return b.guest(m, c)
}

// same fails unless a fork has what the original had when it was copied.
func (b *bench) same(f *guest, sum uint32) {
	b.Helper()
	f.in(machine.Awake)
	if got := must[uint32](f, "/sum"); got != sum {
		b.Errorf("fork %s: the memory's checksum is %d, want %d", f.config.ID, got, sum)
	}
	if got := must[string](f, "/read", "name", "/kept"); got != "before" {
		b.Errorf("fork %s reads %q", f.config.ID, got)
	}
	if got := must[string](f, "/hostname"); got != f.config.Hostname {
		b.Errorf("fork %s is called %q, want %q", f.config.ID, got, f.config.Hostname)
	}
	before := must[int64](f, "/count")
	b.eventually("the fork counts", func() bool { return must[int64](f, "/count") > before })
}

func copyFails(b *bench) {
	c := b.host.Config(b.T, "a")
	relieve := b.host.Crowd(b.T, c)
	g := b.bootConfig(c)
	g.do("/alloc", "mb", "16")
	dir := filepath.Join(c.Dir, "copy")
	if err := g.Snapshot(b.Context(), dir, nil); err == nil {
		b.Fatal("a copy fits on a full disk")
	}
	g.in(machine.Awake)
	must[int64](g, "/count")
	if names := entries(b, c.Dir); len(names) != 0 {
		b.Errorf("after a copy that could not be made %q is left", names)
	}
	relieve()
	if err := g.Snapshot(b.Context(), dir, nil); err != nil {
		b.Error("with room on the disk:", err)
	}
	must[int64](g, "/count")
	if err := b.Discard(dir); err != nil {
		b.Error("discard:", err)
	}
}

func copyDamaged(b *bench) {
	g := b.boot("a")
	dir := b.snapshot(g)
	for i, name := range entries(b, dir) {
		damaged := filepath.Join(b.TempDir(), "copy")
		copyTree(b, dir, damaged)
		corrupt(b, filepath.Join(damaged, name), sizeOf(b, filepath.Join(damaged, name))-1)
		c := b.host.Config(b.T, strconv.Itoa(i))
		c.From = damaged
		if m, err := b.Boot(b.Context(), c); !errors.Is(err, machine.ErrDamaged) {
			b.Errorf("a copy with an altered %s: %v, want ErrDamaged", name, err)
			if err == nil {
				b.guest(m, c)
			}
		}
		if _, err := os.Lstat(c.Dir); !errors.Is(err, fs.ErrNotExist) {
			b.Errorf("the directory of a machine that does not run is left: %v", err)
		}
	}
	c := g.config
	c.From = dir
	if _, err := b.Boot(b.Context(), c); err == nil {
		b.Error("two machines of one name run")
	}
	must[int64](g, "/count")
	c = b.host.Config(b.T, "z")
	c.From = dir
	for range 2 {
		if err := b.Discard(dir); err != nil {
			b.Error("discard:", err)
		}
	}
	if _, err := b.Boot(b.Context(), c); !errors.Is(err, machine.ErrDamaged) {
		b.Errorf("no copy: %v, want ErrDamaged", err)
	}
}

// snapshot makes a copy that ends with the case.
func (b *bench) snapshot(g *guest) (dir string) {
	b.Helper()
	dir = filepath.Join(b.TempDir(), "copy")
	if err := g.Snapshot(b.Context(), dir, nil); err != nil {
		b.Fatalf("keep in %s: %v", g.Tier(), err)
	}
	b.Cleanup(func() {
		if err := b.Discard(dir); err != nil {
			b.Error("discard:", err)
		}
	})
	return dir
}

func renameStays(b *bench) {
	g := b.boot("a")
	called := func(g *guest, want string) {
		b.Helper()
		if got := must[string](g, "/hostname"); got != want {
			b.Errorf("it is called %q, want %q", got, want)
		}
	}
	if err := g.Rename(b.Context(), "renamed"); err != nil {
		b.Fatal(err)
	}
	called(g, "renamed")
	g.suspend(machine.OnDisk)
	if err := g.Rename(b.Context(), "asleep"); err == nil {
		b.Error("a machine without processes was renamed")
	}
	g.resume()
	called(g, "renamed")
	f := b.fork("b", b.snapshot(g))
	called(f, "renamed")
	if err := f.Rename(b.Context(), "another"); err != nil {
		b.Fatal(err)
	}
	called(f, "another")
	called(g, "renamed")
}

func archiveFiles(b *bench) {
	g := b.boot("a")
	g.do("/write", "name", "/kept", "text", "in the archive")
	file := filepath.Join(b.TempDir(), "files.tar")
	if err := g.Archive(b.Context(), file); err != nil {
		b.Fatal(err)
	}
	g.in(machine.Awake)
	must[int64](g, "/count")
	if got := member(b, file, "kept"); got != "in the archive" {
		b.Errorf("the archive has %q", got)
	}
	if err := g.Archive(b.Context(), file); !errors.Is(err, fs.ErrExist) && err == nil {
		b.Error("an archive was overwritten")
	}
	g.suspend(machine.OnDisk)
	if err := g.Archive(b.Context(), file+"2"); err == nil {
		b.Error("the files of a machine without processes were archived")
	}
	if names := entries(b, filepath.Dir(file)); !slices.Equal(names, []string{"files.tar"}) {
		b.Errorf("%q is left", names)
	}
}

// member returns the content of a file in a tar.
func member(b *bench, file, name string) string {
	b.Helper()
	f, err := os.Open(file)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if err != nil {
			b.Fatalf("%s is not in the archive: %v", name, err)
		}
		if strings.Trim(h.Name, "./") != name {
			continue
		}
		text, err := io.ReadAll(r)
		if err != nil {
			b.Fatal(err)
		}
		return string(text)
	}
}
