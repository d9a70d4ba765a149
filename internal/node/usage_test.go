package node_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
)

// TestUsage writes files where sandboxes, snapshots and archives have theirs, and
// finds them again with their owners. What has two names counts for both, and once
// for a workspace.
func TestUsage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t)
		h.images = []fleet.DiskUse{{Kind: fleet.DiskImage, ID: imageFile, Refs: []string{"registry.example.com/a@sha256:abc"}, Bytes: 8 << 20}}
		p := h.start()
		defer p.stop()
		ctx := t.Context()
		if err := p.MakeVolume(ctx, "kept", 64, ""); err != nil {
			t.Fatal(err)
		}
		o := withVolumes("a")
		o.Workspace = "main"
		if err := p.Create(ctx, o); err != nil {
			t.Fatal(err)
		}
		const size = 1 << 20
		write := func(name string) string {
			name = filepath.Join(h.dir, name)
			if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(name, make([]byte, size), 0o600); err != nil {
				t.Fatal(err)
			}
			return name
		}
		pages := write("sandboxes/a/machine/another/pages.img")
		write("sandboxes/a/files.tar")
		write("sandboxes/a/drives/one/file")
		sparse := write("snapshots/s/copy/hole")
		if err := os.Truncate(sparse, 0); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(sparse, 1<<30); err != nil {
			t.Fatal(err)
		}
		if err := os.Link(pages, filepath.Join(h.dir, "snapshots/s/copy/pages.img")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute) // virtual: the node looks again
		u, err := p.Usage(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if time.Since(u.At) > time.Minute {
			t.Errorf("it was measured at %v, and now is %v", u.At, time.Now())
		}
		sums := u.Of(func(d fleet.DiskUse) []string {
			switch d.Kind {
			case fleet.DiskSnapshot:
				return []string{"main"}
			case fleet.DiskImage, fleet.DiskVolume:
				return []string{"others"}
			default:
				return []string{d.Workspace}
			}
		})
		const slack = 64 << 10 // of directories and records
		for kind, want := range map[fleet.DiskKind]int64{
			fleet.DiskCheckpoint: size, fleet.DiskArchive: size, fleet.DiskDrive: size, fleet.DiskSnapshot: 0, fleet.DiskScratch: doze.Megabytes(8).Bytes(),
		} {
			if got := sums["main"][kind]; got < want || got > want+slack {
				t.Errorf("%s takes %d bytes, and should take about %d", kind, got, want)
			}
		}
		if got := sums["others"]; got[fleet.DiskImage] != 8<<20 {
			t.Errorf("others have %v", got)
		}
		for _, use := range u.Uses {
			if use.Kind == fleet.DiskScratch && use.Reserved != doze.Megabytes(32).Bytes() {
				t.Errorf("the scratch disk reserves %d bytes", use.Reserved)
			}
			if use.Kind == fleet.DiskSnapshot && use.Total() < size {
				t.Errorf("the snapshot takes %d bytes for itself", use.Total())
			}
		}
	})
}

// TestUsers finds which sandboxes and snapshots need an image.
func TestUsers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t)
		h.images = []fleet.DiskUse{{Kind: fleet.DiskImage, ID: imageFile, Bytes: 1}}
		p := h.start()
		defer p.stop()
		if err := p.Create(t.Context(), order("a")); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Snapshot(t.Context(), "a", "s"); err != nil {
			t.Fatal(err)
		}
		if files, err := p.ImageFiles(); err != nil || len(files) != 1 || files[0] != filepath.Join(h.dir, imageFile) {
			t.Errorf("images %v are needed, %v", files, err)
		}
		broken := filepath.Join(h.dir, "sandboxes", "broken", "record.json")
		if err := errors.Join(os.MkdirAll(filepath.Dir(broken), 0o700), os.WriteFile(broken, []byte("{"), 0o600)); err != nil {
			t.Fatal(err)
		}
		if files, err := p.ImageFiles(); err == nil {
			t.Errorf("with a damaged record nobody knows, and %v are needed", files)
		}
		time.Sleep(2 * time.Minute)
		u, err := p.Usage(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, use := range u.Uses {
			if use.Kind == fleet.DiskImage && (len(use.Users) != 2 || use.Users[0] != "a" || use.Users[1] != "s") {
				t.Errorf("the image is needed by %v", use.Users)
			}
		}
	})
}

// TestNoRoom has a disk without room: what a tenant asks for is refused and leaves
// nothing, and a sandbox stays where it can be woken from memory until there is
// room again.
func TestNoRoom(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		var full atomic.Bool
		var claimed, asked atomic.Int64
		room := func(n int64) (func(), error) {
			asked.Add(n)
			if full.Load() {
				return nil, doze.Errorf(doze.Exhausted, "the disk of this host has no room")
			}
			claimed.Add(n)
			return func() { claimed.Add(-n) }, nil
		}
		o := h.options()
		o.Room, o.SleepRoom = room, room
		p := h.startWith(o)
		if err := p.Create(t.Context(), order("a")); err != nil {
			t.Fatal(err)
		}
		p.hello("a")
		full.Store(true)
		_, err := p.Snapshot(t.Context(), "a", "s")
		h.kind(err, doze.Exhausted, "no room")
		if ids := p.complete(); len(ids) != 0 {
			t.Errorf("snapshots are left: %v", ids)
		}
		_, err = p.Archive(t.Context(), "a")
		h.kind(err, doze.Exhausted, "no room")
		p.hello("a") // it runs on
		time.Sleep(pauseAfter + diskAfter + time.Second)
		p.in("a", doze.Standby, "paused")
		if last := h.last("a").Message; !strings.Contains(last, "no room") {
			t.Errorf("control hears %q", last)
		}
		if asked.Load() == 0 {
			t.Error("nobody asked for room")
		}
		p.hello("a")
		full.Store(false)
		p.sleep("disk")
		p.snap("a", "s")
		if n := claimed.Load(); n != 0 {
			t.Errorf("%d bytes are still claimed", n)
		}

		full.Store(true)
		p.hello("a")
		if err := p.Disable(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		p.in("a", doze.Disabled, "paused")
	})
}
