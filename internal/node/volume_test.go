package node_test

import (
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/fleet/fleettest"
	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/machine/machinetest"
	"github.com/dozehq/doze/internal/node"
)

// shelf is a host's volumes without their contents. Like the real one it gives
// a volume to one owner at a time, and forgets at a reboot what is mounted.
type shelf struct {
	mu      sync.Mutex
	sizes   map[string]doze.Megabytes // guarded by mu
	owners  map[string]string         // guarded by mu; by volume
	mounted map[string]bool           // guarded by mu; by volume, true for one that is read-only
	travelled
}

var _ node.Volumes = (*shelf)(nil)

func newShelf() *shelf {
	return &shelf{sizes: map[string]doze.Megabytes{}, owners: map[string]string{}, mounted: map[string]bool{}, travelled: travelled{epochs: map[string]uint64{}, saved: map[string]string{}}}
}

// reboot forgets what is mounted; whose it is, is on disk.
func (s *shelf) reboot() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.mounted)
}

// of returns what is mounted for an owner, and what ends with it.
func (s *shelf) of(owner string) (ids []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.sizes {
		if _, is := s.mounted[id]; is && s.owners[id] == owner || strings.Contains(id, "-"+owner+"-") {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

func (s *shelf) Make(_ context.Context, id string, size doze.Megabytes, from string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sizes[from] > size {
		return doze.Errorf(doze.Invalid, "the other disk is larger")
	}
	if s.sizes[id] == 0 {
		s.sizes[id] = size
	}
	return nil
}

func (s *shelf) Import(ctx context.Context, id string, size doze.Megabytes, archive io.Reader) (int64, error) {
	bytes, err := fleettest.ReadTar(archive)
	if err != nil {
		return 0, err
	}
	return bytes, s.Make(ctx, id, size, "")
}

// Measure says that each disk is full to a quarter.
func (s *shelf) Measure(id string) (allocated, reserved int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sizes[id].Bytes() / 4, s.sizes[id].Bytes(), nil
}

// Copy writes the size of a disk to a file.
func (s *shelf) Copy(ctx context.Context, id, file string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.slow {
		s.mu.Unlock()
		<-ctx.Done()
		s.mu.Lock()
		return context.Cause(ctx)
	}
	if s.sizes[id] == 0 {
		return doze.Errorf(doze.NotFound, "there is no such volume")
	}
	return os.WriteFile(file, strconv.AppendInt(nil, int64(s.sizes[id]), 10), 0o600)
}

// travelled are what a shelf knows of disks that were elsewhere, by id. The content of each is its size.
type travelled struct {
	epochs map[string]uint64
	saved  map[string]string
	slow   bool // copies take until somebody ends them
}

func (s *shelf) Lend(ctx context.Context, id string, read func(context.Context, string) error) error {
	if s.Owner(id) != "" {
		return doze.Errorf(doze.Unavailable, "it is in use")
	}
	dir, err := os.MkdirTemp("", "shelf-")
	if err != nil {
		return err
	}
	file := dir + "/" + id
	err = s.Copy(ctx, id, file)
	if err == nil {
		err = read(ctx, file)
	}
	return errors.Join(err, os.RemoveAll(dir))
}

func (s *shelf) Owner(id string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.owners[id]
}

func (s *shelf) Epoch(id string) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sizes[id] == 0 {
		return 0, nil
	}
	return max(2, s.epochs[id]), nil
}

func (s *shelf) Receive(id string, epoch uint64, _ int64, write func(*os.File) error) error {
	file, err := os.CreateTemp("", "shelf-")
	if err != nil {
		return err
	}
	err = errors.Join(write(file), file.Close())
	raw, none := os.ReadFile(file.Name())
	size, bad := strconv.Atoi(string(raw))
	if err := errors.Join(err, none, bad, os.Remove(file.Name())); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.owners[id] != "" {
		return doze.Errorf(doze.Unavailable, "it is in use")
	}
	s.sizes[id], s.epochs[id] = doze.Megabytes(size), epoch
	return nil
}

func (s *shelf) Evict(id string, epoch uint64) error {
	if now, err := s.Epoch(id); err != nil || now >= epoch {
		return err
	}
	return s.Remove(id)
}

func (s *shelf) SetSaved(id, text string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.saved[id] = text
	return nil
}

func (s *shelf) Saved(id string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.saved[id], nil
}

func (s *shelf) Resize(id string, size doze.Megabytes) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sizes[id] == 0 {
		return doze.Errorf(doze.NotFound, "there is no such volume")
	}
	s.sizes[id] = max(s.sizes[id], size)
	return nil
}

func (s *shelf) Remove(id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.owners[id] != "" {
		return doze.Errorf(doze.Unavailable, "it is in use")
	}
	delete(s.sizes, id)
	return nil
}

func (s *shelf) IDs() ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.sizes)), nil
}

func (s *shelf) Attach(_ context.Context, id, owner string, readOnly bool) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.sizes[id] == 0:
		return "", doze.Errorf(doze.NotFound, "there is no such volume")
	case s.owners[id] != "" && s.owners[id] != owner:
		return "", doze.Errorf(doze.Unavailable, "it is in use")
	}
	s.owners[id], s.mounted[id] = owner, readOnly
	return "/mounts/" + owner + "/" + id, nil
}

func (s *shelf) Detach(owner string) error {
	return s.Sweep(func(o string) bool { return o != owner })
}

func (s *shelf) Sweep(owned func(string) bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, owner := range s.owners {
		if !owned(owner) {
			delete(s.owners, id)
			delete(s.mounted, id)
		}
	}
	return nil
}

// withVolumes is the order of a sandbox that has some.
func withVolumes(uid string) fleet.Order {
	o := order(uid)
	o.Volumes = []fleet.Volume{{ID: "kept", Path: "/kept", Size: 64, ReadOnly: true}, {Path: "/scratch", Size: 32}}
	return o
}

// TestVolumes gives a sandbox volumes through all of its life.
func TestVolumes(t *testing.T) {
	virtual(t, func(h *host) {
		t, ctx := h.t, h.t.Context()
		o := h.options()
		o.Ahead, o.Spares = h.dir+"/ahead", 1
		p := h.startWith(o)
		if err := p.Create(ctx, order("plain")); err != nil { // what is started ahead is for the likes of it
			t.Fatal(err)
		}
		synctest.Wait()
		if err := p.MakeVolume(ctx, "kept", 16, ""); err != nil {
			t.Fatal(err)
		}
		h.FailNext(machinetest.OpBoot, errBroken)
		if err := p.Create(ctx, withVolumes("a")); !errors.Is(err, errBroken) {
			t.Fatal(err)
		}
		p.empty("a")
		h.FailNext(machinetest.OpBoot, machine.ErrNoVolumes)
		h.kind(p.Create(ctx, withVolumes("a")), doze.Unavailable, "launcher")
		p.empty("a")
		if err := p.Create(ctx, withVolumes("a")); err != nil {
			t.Fatal(err)
		}
		scratch := "passing-a-1"
		has := func(when string, want ...string) {
			t.Helper()
			if diff := cmp.Diff(want, h.shelf.of("a")); diff != "" {
				t.Errorf("%s (-want +got):\n%s", when, diff)
			}
		}
		has("at first", "kept", scratch)
		if n := h.shelf.sizes["kept"]; n != 64 { // a crash had come before its growth
			t.Errorf("it has %d MB", n)
		}
		if ids, err := p.Volumes(ctx); err != nil || !slices.Equal(ids, []string{"kept"}) {
			t.Errorf("the node has %q, %v", ids, err)
		}
		_, err := p.Snapshot(ctx, "a", "n")
		h.kind(err, doze.Conflict, "volumes")
		h.kind(p.Create(ctx, withVolumes("b")), doze.Unavailable, "in use")
		p.empty("b")
		h.kind(p.DropVolume(ctx, "kept"), doze.Unavailable, "in use")

		p.sleep("disk")
		p.stop()
		h.Reboot()
		h.shelf.reboot()
		h.shelf.owners["stray"], h.shelf.sizes["stray"], h.shelf.sizes["passing-gone-0"] = "gone", 16, 16
		p = h.startWith(o)
		has("after a reboot", "kept", scratch)
		if h.shelf.owners["stray"] != "" || h.shelf.sizes["passing-gone-0"] != 0 {
			t.Error("what was of nobody stays")
		}
		p.hello("a")
		p.in("a", doze.Running, "awake")

		if _, err := p.Archive(ctx, "a"); err != nil {
			t.Fatal(err)
		}
		has("archived")
		if err := p.Unarchive(ctx, withVolumes("a")); err != nil {
			t.Fatal(err)
		}
		has("out of the archive", "kept", scratch)
		if err := p.Delete(ctx, "a"); err != nil {
			t.Fatal(err)
		}
		p.empty("a")
		if err := p.DropVolume(ctx, "kept"); err != nil {
			t.Error(err)
		}
	})
}

// TestCopyHasVolumes: a sandbox goes on from a copy with its volumes.
func TestCopyHasVolumes(t *testing.T) {
	virtual(t, func(h *host) {
		t, ctx := h.t, h.t.Context()
		p := h.start()
		p.done(p.MakeVolume(ctx, "kept", 64, ""))
		p.done(p.Create(ctx, withVolumes("a")))
		if all := p.Copyable(); len(all) != 1 {
			t.Errorf("what can be copied is %v", all)
		}
		dir, needs, done, err := p.CopyOut(ctx, "a")
		if err != nil {
			t.Fatal(err)
		}
		for id, size := range map[string]string{"kept": "64", "passing-a-1": "32"} {
			if raw, err := os.ReadFile(filepath.Join(dir, node.VolumesName, id)); err != nil || string(raw) != size {
				t.Errorf("the copy of %s has %q: %v", id, raw, err)
			}
		}
		if diff := cmp.Diff([]string{"kept"}, needs.Volumes); diff != "" {
			t.Error(diff)
		}
		p.done(done())
		p.hello("a")

		dir, needs, done, err = p.CopyDeparting(ctx, "a")
		if err != nil {
			t.Fatal(err)
		}
		away := filepath.Join(t.TempDir(), "copy")
		p.done(os.CopyFS(away, os.DirFS(dir)))
		p.done(done())
		p.done(p.Leave(ctx, "a"))
		if got := h.shelf.of("a"); len(got) > 0 || p.Has("a") {
			t.Errorf("the node that it left has %v", got)
		}
		in, err := p.Incoming("a")
		p.done(err)
		p.done(os.Rename(away, in))
		_, err = p.ReviveNow(ctx, withVolumes("a"), needs, time.Time{})
		p.done(err)
		if diff := cmp.Diff([]string{"kept", "passing-a-1"}, h.shelf.of("a")); diff != "" {
			t.Errorf("what goes on has (-want +got):\n%s", diff)
		}
		p.hello("a")
		p.sleep("disk")
		p.hello("a")
	})
}

// TestWakeEndsCopy: nobody waits for a copy of volumes.
func TestWakeEndsCopy(t *testing.T) {
	virtual(t, func(h *host) {
		t, ctx := h.t, h.t.Context()
		p := h.start()
		p.done(p.MakeVolume(ctx, "kept", 64, ""))
		p.done(p.Create(ctx, withVolumes("a")))
		for _, tier := range []string{"paused", "disk"} {
			p.sleep(tier)
			h.shelf.mu.Lock()
			h.shelf.slow = true
			h.shelf.mu.Unlock()
			copied := make(chan error, 1)
			go func() {
				_, _, _, err := p.CopyOut(ctx, "a")
				copied <- err
			}()
			synctest.Wait()
			p.hello("a")
			if err := <-copied; doze.Public(err).Kind != doze.Unavailable {
				t.Errorf("%s: the copy that was in the way: %v", tier, err)
			}
			h.shelf.mu.Lock()
			h.shelf.slow = false
			h.shelf.mu.Unlock()
		}
	})
}

// TestHeavyVolumes: a sandbox that runs does not stand still for large volumes. It is copied when
// it sleeps.
func TestHeavyVolumes(t *testing.T) {
	virtual(t, func(h *host) {
		t, ctx := h.t, h.t.Context()
		p := h.start()
		p.done(p.MakeVolume(ctx, "kept", 64, ""))
		p.done(p.MakeVolume(ctx, "heavy", 4096, "")) // a quarter is full
		o := withVolumes("a")
		o.Volumes[0].ID = "heavy"
		p.done(p.Create(ctx, o))
		if all := p.Copyable(); len(all) != 0 {
			t.Errorf("while it runs, it can be copied: %v", all)
		}
		p.sleep("paused")
		if all := p.Copyable(); len(all) != 1 {
			t.Errorf("while it sleeps, %v can be copied", all)
		}
	})
}
