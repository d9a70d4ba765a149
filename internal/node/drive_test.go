package node_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/machine/machinetest"
	"github.com/dozehq/doze/internal/node"
)

// opened is a part of a drive without files.
type opened struct {
	http.Handler

	h  *host
	id string
}

// Close implements [node.Drive].
func (o opened) Close(context.Context) error {
	var lag time.Duration
	o.h.set(func() { lag = o.h.lag })
	time.Sleep(lag)
	if err := o.h.fails("bucket"); err != nil {
		return err
	}
	o.h.set(func() { o.h.closed = append(o.h.closed, o.id) })
	return nil
}

func (h *host) openDrive(m fleet.DriveMount, dir string) (node.Drive, error) {
	return opened{http.NotFoundHandler(), h, m.ID}, os.MkdirAll(dir, 0o700)
}

// share is the mount of a drive.
func share(id, path string) fleet.DriveMount {
	return fleet.DriveMount{DriveMount: doze.DriveMount{Drive: "shared", MountPath: path, DrivePath: "/"}, ID: id, DriveID: "drive"}
}

func TestDriveMounts(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		p := h.has("a", "b")
		paths := func(uid string) (all []string) {
			for _, m := range p.DriveMounts(uid) {
				all = append(all, m.MountPath)
			}
			return all
		}
		if _, err := p.MountDrive(t.Context(), "a", share("one", "/mnt/x")); err != nil {
			t.Fatal(err)
		}
		again, err := p.MountDrive(t.Context(), "a", share("two", "/mnt/x"))
		if err != nil || again.ID != "one" {
			t.Errorf("mounted again, it is %s, %v", again.ID, err)
		}
		part := share("two", "/mnt/x")
		part.DrivePath = "/part"
		reads, maps := share("two", "/mnt/x"), share("two", "/mnt/x")
		reads.ReadOnly, maps.UIDMap = true, "1000"
		for _, m := range []fleet.DriveMount{part, reads, maps, share("two", "/mnt"), share("two", "/mnt/x/y")} {
			_, err := p.MountDrive(t.Context(), "a", m)
			h.kind(err, doze.Conflict, "unmount that first")
		}
		h.FailNext(machinetest.OpAdminister, errBroken)
		if _, err := p.MountDrive(t.Context(), "a", share("two", "/y")); !errors.Is(err, errBroken) {
			t.Errorf("a mount that does not work: %v", err)
		}
		if _, err := p.MountDrive(t.Context(), "none", share("two", "/y")); doze.Public(err).Kind != doze.NotFound {
			t.Errorf("in no sandbox: %v", err)
		}
		if diff := cmp.Diff([]string{"/mnt/x"}, paths("a")); diff != "" {
			t.Errorf("mounted are (-want +got):\n%s", diff)
		}
		if got := p.DriveUsers("drive"); !slices.Equal(got, []string{"a"}) {
			t.Errorf("it is used by %v", got)
		}

		p.sleep("disk")
		p.stop()
		p = h.start() // the record has it
		if diff := cmp.Diff([]string{"/mnt/x"}, paths("a")); diff != "" {
			t.Errorf("after a restart, mounted are (-want +got):\n%s", diff)
		}
		h.kind(p.UnmountDrive(t.Context(), "a", "/none"), doze.Internal, "no drive is mounted")
		h.FailNext(machinetest.OpAdminister, errBroken)
		h.kind(p.UnmountDrive(t.Context(), "a", "/mnt/x"), doze.Internal, "in use")
		h.set(func() { h.failing["bucket"] = errBroken })
		if err := p.UnmountDrive(t.Context(), "a", "/mnt/x"); !errors.Is(err, errBroken) || len(paths("a")) != 1 {
			t.Errorf("what cannot be written stays: %v", err)
		}
		h.set(func() { delete(h.failing, "bucket") })
		// The node may come first: it asks the agent, which has no such mount any more.
		err = p.UnmountDrive(t.Context(), "a", "/mnt/x")
		if first := err != nil && strings.Contains(err.Error(), "no drive is mounted"); err != nil && !first || len(paths("a")) != 0 {
			t.Errorf("unmounted: %v", err)
		}
		if _, err := p.MountDrive(t.Context(), "b", share("three", "/z")); err != nil {
			t.Fatal(err)
		}
		if err := p.Delete(t.Context(), "b"); err != nil {
			t.Fatal(err)
		}
		h.empty("b")
		var closed []string
		h.set(func() { closed = h.closed })
		if !slices.Contains(closed, "three") || !slices.Contains(closed, "one") {
			t.Errorf("closed were %v", closed)
		}
	})
}

// TestUnmountSlowly: the agent has forgotten a mount whose files are still being
// written to the bucket. Who serves it finds that, and leaves it alone.
func TestUnmountSlowly(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		p := h.has("a")
		if _, err := p.MountDrive(t.Context(), "a", share("one", "/mnt/x")); err != nil {
			t.Fatal(err)
		}
		h.set(func() { h.lag = time.Minute })
		if err := p.UnmountDrive(t.Context(), "a", "/mnt/x"); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		var closed []string
		h.set(func() { closed = h.closed })
		if diff := cmp.Diff([]string{"one"}, closed); diff != "" || len(p.DriveMounts("a")) > 0 {
			t.Errorf("closed were (-want +got):\n%s", diff)
		}
	})
}
