package gvisor

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/machine/checkpoint"
	"github.com/dozehq/doze/internal/machine/machinetest/rig"
	"github.com/dozehq/doze/internal/sparse"
)

var (
	diskMB    = flag.Int("disk", 192, "how many megabytes the tests of disks write")
	diskFiles = flag.Int("disk-files", 2_000, "how many small files TestDiskCosts writes")
)

// disks are the kinds of file systems that disks are on: one whose files can share blocks,
// and the one of all tests.
func disks(t *testing.T, test func(t *testing.T, h *host, dir string)) {
	t.Helper()
	t.Run("copied", func(t *testing.T) {
		h := newHost(t)
		test(t, h, filepath.Join(h.Dir, "disks"))
	})
	t.Run("shared", func(t *testing.T) {
		h := newHost(t)
		test(t, h, sharing(t))
	})
}

// sharing returns a directory of a file system whose files can share blocks.
func sharing(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("mkfs.xfs"); err != nil {
		t.Skip("SKIPPED: there is no mkfs.xfs on this host")
	}
	dir := t.TempDir()
	file, at := filepath.Join(dir, "file"), filepath.Join(dir, "xfs")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Truncate(file, 64<<30), os.Mkdir(at, 0o700)); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"mkfs.xfs", "-q", "-m", "reflink=1", file}, {"mount", "-o", "loop", file, at}} {
		if out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Skipf("SKIPPED: this host cannot mount XFS: %v: %s", err, out)
		}
	}
	t.Cleanup(func() {
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return at
}

// withDisk returns the configuration of a machine whose files are on disk, in dir. They do
// not fit into its memory.
func withDisk(t *testing.T, h *host, dir, id string) machine.Config {
	t.Helper()
	c := h.Config(t, id)
	c.Dir = filepath.Join(dir, id)
	c.Disk, c.Memory, c.GoBack, c.CPUs = int64(*diskMB+64)<<20, 128<<20, true, 2
	return c
}

// does has the guest do something, which has to work.
func does(t *testing.T, m machine.Machine, path string, query ...string) {
	t.Helper()
	var said any
	if status := asks(t, m, path, &said, query...); status != http.StatusOK {
		t.Fatalf("%s %v: %d %v", path, query, status, said)
	}
}

// sumOf returns the checksum of a file in a machine.
func sumOf(t *testing.T, m machine.Machine, name string) (sum uint32) {
	t.Helper()
	ask(t, m, "/sumfile", &sum, "name", name)
	return sum
}

// has fails unless a file of a machine has a checksum.
func has(t *testing.T, m machine.Machine, name string, want uint32) {
	t.Helper()
	if got := sumOf(t, m, name); got != want {
		t.Errorf("%s has the sum %#x, want %#x", name, got, want)
	}
}

// TestDisk has a machine with files on disk write more than fits into its memory, and sleep
// and wake in all tiers. It fills its disk, and goes on.
func TestDisk(t *testing.T) {
	disks(t, func(t *testing.T, h *host, dir string) { //nolint:thelper // the test itself
		d := h.open(t)
		c := withDisk(t, h, dir, "m")
		m := boot(t, d, c)
		mb := strconv.Itoa(*diskMB)
		does(t, m, "/grow", "name", "/big", "mb", mb, "seed", "1")
		does(t, m, "/tree", "dir", "/tree", "n", "200")
		does(t, m, "/map", "name", "/mapped", "mb", "8")
		does(t, m, "/hold", "text", "unlinked")
		big, mapped := sumOf(t, m, "/big"), sumOf(t, m, "/mapped")
		var tree uint32
		ask(t, m, "/walk", &tree, "dir", "/tree")
		intact := func(when string) {
			t.Helper()
			has(t, m, "/big", big)
			has(t, m, "/mapped", mapped)
			var now uint32
			if ask(t, m, "/walk", &now, "dir", "/tree"); now != tree {
				t.Errorf("%s: the small files have the sum %#x, want %#x", when, now, tree)
			}
			var held string
			if ask(t, m, "/held", &held); held != "unlinked" {
				t.Errorf("%s: the file without a name has %q", when, held)
			}
		}
		s, err := m.Stats(t.Context())
		if err != nil || s.StorageBytes < int64(*diskMB)<<20 || s.MemoryBytes > c.Memory+Overhead {
			t.Errorf("it takes %+v, %v", s, err)
		}
		var room [2]int64
		if ask(t, m, "/room", &room, "name", "/"); room[0] != c.Disk || room[1] > 64<<20 {
			t.Errorf("its disk has %d bytes, and %d are free; it has %d", room[0], room[1], c.Disk)
		}
		var said string
		if status := asks(t, m, "/grow", &said, "name", "/more", "mb", "100"); status != http.StatusInternalServerError || !strings.Contains(said, "no space left") {
			t.Errorf("a file that does not fit: %d %s", status, said)
		}
		does(t, m, "/remove", "name", "/more")
		for _, tier := range []machine.Tier{machine.Paused, machine.Saved, machine.OnDisk, machine.Saved, machine.OnDisk} {
			move(t, m, tier)
			if tier == machine.OnDisk {
				if bytes, ok := checkpoint.Has(c); !ok || bytes > 64<<20 {
					t.Errorf("the checkpoint takes %d bytes without its disk, %v", bytes, ok)
				}
				if _, err := os.Stat(checkpoint.Disk(c)); !errors.Is(err, os.ErrNotExist) {
					t.Error("a machine on disk has two disks:", err)
				}
			}
			move(t, m, machine.Awake)
			intact(tier.String())
		}
		// What the guest removes is free on the host, too.
		does(t, m, "/remove", "name", "/big")
		rig.Wait(t, "the host has the blocks of a removed file again", func() bool {
			s, err := m.Stats(t.Context())
			return err == nil && s.StorageBytes < 64<<20
		})
	})
}

// TestDiskCrash ends the engine of a machine. It goes on with the files of its last
// checkpoint, whatever it wrote since.
func TestDiskCrash(t *testing.T) {
	disks(t, func(t *testing.T, h *host, dir string) { //nolint:thelper // the test itself
		d := h.open(t)
		c := withDisk(t, h, dir, "m")
		m := boot(t, d, c)
		does(t, m, "/grow", "name", "/big", "mb", "40", "seed", "1")
		does(t, m, "/alloc", "mb", "8")
		big := sumOf(t, m, "/big")
		move(t, m, machine.OnDisk)
		move(t, m, machine.Awake)
		does(t, m, "/count")
		for try := range 2 {
			does(t, m, "/change-file", "name", "/big", "mb", "40", "seed", "2")
			does(t, m, "/grow", "name", "/new", "mb", "30", "seed", "3")
			changed := sumOf(t, m, "/big")
			if changed == big {
				t.Fatal("nothing changed")
			}
			if try == 1 { // a checkpoint of before, which was stopped, changes nothing
				if err := m.Renew(t.Context(), time.Minute, nil); err != nil {
					t.Fatal(err)
				}
				big = changed
				does(t, m, "/change-file", "name", "/big", "mb", "40", "seed", "4")
			}
			h.Kill(t, c.ID)
			if _, err := os.Stat(checkpoint.Disk(c)); !errors.Is(err, os.ErrNotExist) {
				t.Error("what it wrote takes room:", err)
			}
			m = adopt(t, h.open(t), c)
			if m.Tier() != machine.OnDisk {
				t.Fatalf("it is %s", m.Tier())
			}
			move(t, m, machine.Awake)
			has(t, m, "/big", big)
			var said any
			if status := asks(t, m, "/sumfile", &said, "name", "/new"); (status != http.StatusOK) != (try == 0) {
				t.Errorf("try %d: a file of after the checkpoint: %d %v", try, status, said)
			}
		}
	})
}

// TestDiskCopies forks a machine that goes on, from snapshots of it awake and asleep. Each
// fork has the files of its snapshot, and none sees what another writes.
func TestDiskCopies(t *testing.T) {
	disks(t, func(t *testing.T, h *host, dir string) { //nolint:thelper // the test itself
		d := h.open(t)
		c := withDisk(t, h, dir, "m")
		m := boot(t, d, c)
		does(t, m, "/grow", "name", "/big", "mb", "40", "seed", "1")
		want := map[string]uint32{}
		for i, tier := range []machine.Tier{machine.Awake, machine.OnDisk} {
			does(t, m, "/change-file", "name", "/big", "mb", "40", "seed", strconv.Itoa(i+2))
			want[tier.String()] = sumOf(t, m, "/big")
			if tier != machine.Awake {
				move(t, m, tier)
			}
			if err := m.Precopy(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := m.Snapshot(t.Context(), filepath.Join(dir, tier.String()), nil); err != nil {
				t.Fatal(err)
			}
			if tier != machine.Awake {
				move(t, m, machine.Awake)
			}
		}
		does(t, m, "/change-file", "name", "/big", "mb", "40", "seed", "9")
		own := sumOf(t, m, "/big")
		for _, tier := range []machine.Tier{machine.Awake, machine.OnDisk} {
			f := withDisk(t, h, dir, "fork-"+tier.String())
			f.From = filepath.Join(dir, tier.String())
			fork := boot(t, d, f)
			has(t, fork, "/big", want[tier.String()])
			does(t, fork, "/change-file", "name", "/big", "mb", "40", "seed", "10")
			changed := sumOf(t, fork, "/big")
			move(t, fork, machine.OnDisk)
			move(t, fork, machine.Awake)
			has(t, fork, "/big", changed)
			if err := fork.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}
		has(t, m, "/big", own)
		other := withDisk(t, h, dir, "other")
		other.From, other.Disk = filepath.Join(dir, machine.Awake.String()), 0
		if _, err := d.Boot(t.Context(), other); !errors.Is(err, machine.ErrDamaged) {
			t.Errorf("a machine without a disk goes on from a copy with one: %v", err)
		}
		does(t, m, "/grow", "name", "/larger", "mb", strconv.Itoa(*diskMB), "seed", "1") // than its memory
		file := filepath.Join(h.Dir, "files.tar")
		if err := m.Archive(t.Context(), file); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(file); err != nil || info.Size() < int64(*diskMB+40)<<20 {
			t.Errorf("the archive: %v, %v", info, err)
		}
	})
}

// TestDiskRots changes a byte of a disk while its machine sleeps, behind the back of all who
// look at times. A machine whose disk is copied is told. One whose disk is shared wakes
// without a look at it.
func TestDiskRots(t *testing.T) {
	disks(t, func(t *testing.T, h *host, dir string) { //nolint:thelper // the test itself
		c := withDisk(t, h, dir, "m")
		m := boot(t, h.open(t), c)
		does(t, m, "/grow", "name", "/big", "mb", "40", "seed", "1")
		move(t, m, machine.OnDisk)
		name := filepath.Join(checkpoint.Dir(c), checkpoint.FileDisk)
		f, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }()
		info, err := f.Stat()
		if err != nil {
			t.Fatal(err)
		}
		last := sparse.Extent{}
		for e, err := range sparse.Extents(f, info.Size()) {
			if last = e; err != nil {
				t.Fatal(err)
			}
		}
		alter := func() {
			raw := make([]byte, 1)
			_, err := f.ReadAt(raw, last.Offset+last.Length/2)
			raw[0] ^= 0x40
			_, lost := f.WriteAt(raw, last.Offset+last.Length/2)
			if err := errors.Join(err, lost, f.Sync(), os.Chtimes(name, time.Time{}, info.ModTime())); err != nil {
				t.Fatal(err)
			}
		}
		alter()
		err = m.Resume(t.Context())
		if shared := strings.Contains(t.Name(), "shared"); errors.Is(err, machine.ErrDamaged) == shared || shared && err != nil {
			t.Fatalf("a wake with a disk that is damaged: %v", err)
		}
		if m.Tier() != machine.OnDisk {
			return
		}
		if _, err := os.Stat(checkpoint.Disk(c)); !errors.Is(err, os.ErrNotExist) {
			t.Error("a wake that did not work leaves a disk:", err)
		}
		alter() // back
		move(t, m, machine.Awake)
		does(t, m, "/sumfile", "name", "/big")
	})
}

// TestDiskExcess is an engine that a guest took over: it writes more to its disk than that
// has, through the descriptor that it has. It is ended, and the machine goes back to its
// checkpoint.
func TestDiskExcess(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	d := h.open(t)
	c := withDisk(t, h, filepath.Join(h.Dir, "disks"), "m")
	c.Disk = 64 << 20
	m := boot(t, d, c)
	does(t, m, "/grow", "name", "/big", "mb", "40", "seed", "1")
	big := sumOf(t, m, "/big")
	move(t, m, machine.OnDisk)
	move(t, m, machine.Awake)
	dir := fmt.Sprintf("/proc/%d/fd/", h.engine(c.ID))
	fds, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var theirs *os.File
	for _, fd := range fds {
		if to, _ := os.Readlink(dir + fd.Name()); to == checkpoint.Disk(c) {
			if theirs, err = os.OpenFile(dir+fd.Name(), os.O_WRONLY, 0); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = theirs.Close() }()
		}
	}
	if theirs == nil {
		t.Fatal("the engine has no descriptor of its disk")
	}
	much := bytes.Repeat([]byte{1}, 1<<20)
	write := func(mb int64) {
		for range mb {
			if _, err := theirs.WriteAt(much, c.Disk+mb<<20); err != nil {
				t.Fatal(err)
			}
			mb--
		}
	}
	events, err := d.Events(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	write(60) // which its file system may take besides
	time.Sleep(3 * time.Second)
	if h.engine(c.ID) == 0 {
		t.Fatal("an engine ended whose disk has its size")
	}
	write(300)
	if e := event(t, events); !e.Exited || !strings.Contains(e.Message, "spec.runtime.storage") {
		t.Errorf("%+v", e)
	}
	m = adopt(t, h.open(t), c)
	if _, err := os.Stat(checkpoint.Disk(c)); !errors.Is(err, os.ErrNotExist) {
		t.Error("what it wrote is there:", err)
	}
	move(t, m, machine.Awake)
	has(t, m, "/big", big)
}

// TestDiskInterrupted wakes a machine at moments of its checkpoint. Its disk is as it was.
func TestDiskInterrupted(t *testing.T) {
	disks(t, func(t *testing.T, h *host, dir string) { //nolint:thelper // the test itself
		d := h.open(t)
		c := withDisk(t, h, dir, "m")
		m := boot(t, d, c)
		stopped := 0
		for i := range 8 {
			does(t, m, "/grow", "name", "/big", "mb", "100", "seed", strconv.Itoa(i))
			want := sumOf(t, m, "/big")
			move(t, m, machine.Paused)
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*40*time.Millisecond+time.Millisecond)
			if err := m.Suspend(ctx, machine.Saved); err != nil {
				stopped++
			}
			cancel()
			move(t, m, machine.Awake)
			does(t, m, "/change-file", "name", "/big", "mb", "100", "seed", "77")
			does(t, m, "/grow", "name", "/big", "mb", "100", "seed", strconv.Itoa(i))
			has(t, m, "/big", want)
		}
		if stopped == 0 {
			t.Error("no checkpoint was stopped")
		}
		want := sumOf(t, m, "/big")
		move(t, m, machine.OnDisk)
		move(t, m, machine.Awake)
		has(t, m, "/big", want)
	})
}

// TestDiskBesideVolumes has a machine with both, whose engine does not open files itself.
func TestDiskBesideVolumes(t *testing.T) {
	h := newHost(t)
	d := h.open(t)
	c := withDisk(t, h, filepath.Join(h.Dir, "disks"), "m")
	volume := t.TempDir()
	c.Volumes = []machine.Volume{{Source: volume, Path: "/data"}}
	if err := os.Chmod(volume, 0o777); err != nil {
		t.Fatal(err)
	}
	m := boot(t, d, c)
	does(t, m, "/grow", "name", "/big", "mb", "40", "seed", "1")
	want := sumOf(t, m, "/big")
	move(t, m, machine.OnDisk)
	move(t, m, machine.Awake)
	has(t, m, "/big", want)
}

// TestDiskCosts prints what files cost in memory, on a disk, and in a directory of the host
// that the engine opens file by file.
func TestDiskCosts(t *testing.T) {
	onlyMeasures(t)
	mb := strconv.Itoa(*diskMB)
	costs := func(t *testing.T, h *host, c machine.Config, at string) {
		t.Helper()
		m := boot(t, h.open(t), c)
		timed := func(what, path string, out any, query ...string) {
			began := time.Now()
			ask(t, m, path, out, query...)
			t.Logf("%s: %v", what, time.Since(began).Round(time.Millisecond))
		}
		does(t, m, "/count")
		for range 3 {
			timed("small files", "/tree", new(any), "dir", at+"t", "n", strconv.Itoa(*diskFiles))
			timed("read them", "/walk", new(any), "dir", at+"t")
			timed("remove them", "/remove", new(any), "name", at+"t")
		}
		timed("write "+mb+" MB", "/grow", new(any), "name", at+"big", "mb", mb)
		want := sumOf(t, m, at+"big")
		for range 3 {
			move(t, m, machine.Paused)
			began := time.Now()
			move(t, m, machine.Saved)
			t.Logf("checkpoint: %v", time.Since(began).Round(time.Millisecond))
			move(t, m, machine.OnDisk)
			began = time.Now()
			move(t, m, machine.Awake)
			does(t, m, "/count")
			t.Logf("wake: %v", time.Since(began).Round(time.Millisecond))
			has(t, m, at+"big", want)
		}
		s, err := m.Stats(t.Context())
		t.Logf("%+v %v", s, err)
	}
	t.Run("memory", func(t *testing.T) {
		h := newHost(t)
		c := h.Config(t, "m")
		c.Memory, c.GoBack, c.CPUs = int64(*diskMB)<<21+1<<30, true, 2
		costs(t, h, c, "/")
	})
	disks(t, func(t *testing.T, h *host, dir string) { //nolint:thelper // the test itself
		costs(t, h, withDisk(t, h, dir, "m"), "/")
	})
	t.Run("directory", func(t *testing.T) {
		h := newHost(t)
		c := h.Config(t, "m")
		dir := t.TempDir()
		c.GoBack, c.CPUs, c.Volumes = true, 2, []machine.Volume{{Source: dir, Path: "/data"}}
		if err := os.Chmod(dir, 0o777); err != nil {
			t.Fatal(err)
		}
		costs(t, h, c, "/data/")
	})
}

// TestDiskFiles fills a disk with more files than the engine has memory for.
func TestDiskFiles(t *testing.T) {
	h := newHost(t)
	d := h.open(t)
	c := withDisk(t, h, filepath.Join(h.Dir, "disks"), "m")
	m := boot(t, d, c)
	most := int(c.Memory >> 13)
	const each = 4000
	for i := 0; ; i++ {
		var said any
		status := asks(t, m, "/tree", &said, "dir", fmt.Sprintf("/tree%d", i), "n", strconv.Itoa(each))
		if status == http.StatusOK && i*each < most {
			continue
		}
		if text, _ := said.(string); status == http.StatusOK || !strings.Contains(text, "no space left") || (i+2)*each < most {
			t.Errorf("the %dth %d files of %d: %d %v", i+1, each, most, status, said)
		}
		break
	}
	move(t, m, machine.OnDisk)
	move(t, m, machine.Awake)
	does(t, m, "/remove", "name", "/tree0")
	does(t, m, "/tree", "dir", "/again", "n", "1000")
}
