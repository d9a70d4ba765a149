package node_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/node"
)

// copyables are the sandboxes that a node would copy.
func (p *process) copyables() (uids []string) {
	for _, s := range p.Copyable() {
		uids = append(uids, s.UID)
	}
	return uids
}

// TestArchiveTravels: an archived sandbox is copied once, and is archived on another node, over a restart
// too. Its files come when it is wanted back, and its processes run again.
func TestArchiveTravels(t *testing.T) {
	virtual(t, func(h *host) {
		t, c := h.t, newChest(h.t)
		p := c.with(h, nil)
		if err := p.Create(t.Context(), order("a")); err != nil {
			t.Fatal(err)
		}
		before := c.copy(p, "a")
		if _, err := p.Archive(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		first := p.Copyable()
		if len(first) != 1 {
			t.Fatalf("an archive that the bucket has not is not copied: %v", first)
		}
		made := c.copy(p, "a")
		if made.Before(before) || len(p.copyables()) != 0 {
			t.Errorf("the archive is of %s, and is copied again: %v", made, p.copyables())
		}
		p.stop()
		p = c.with(h, nil)
		if all := p.copyables(); len(all) != 0 {
			t.Errorf("after a restart it is copied again: %v", all)
		}
		p.stop()

		c.fails(errBroken)
		other := newHost(t)
		p = c.with(other, nil)
		o := order("a")
		o.Archived = true
		for range 2 {
			if at, err := p.Revive(t.Context(), o, c.record(t, "a"), made.Add(time.Hour), false); err != nil || !at.Equal(made) {
				t.Fatalf("it is of %s, not of %s: %v", at, made, err)
			}
		}
		p.in("a", doze.Archived, "")
		if p.Buried(&o) {
			t.Error("it is not to be archived")
		}
		p.stop()
		p = c.with(other, nil)
		p.in("a", doze.Archived, "")
		if err := p.Unarchive(t.Context(), order("a")); err == nil {
			t.Error("it comes back without its files")
		}
		p.in("a", doze.Archived, "")
		if n := c.fetches(); n != 1 {
			t.Errorf("its files came %d times by themselves", n-1)
		}
		c.fails(nil)
		if _, _, _, err := p.CopyDeparting(t.Context(), "a"); doze.Public(err).Kind != doze.Conflict || !p.Rests("a") {
			t.Errorf("what the bucket has is copied again: %v", err)
		}
		other.asks()
		if err := p.Unarchive(t.Context(), order("a")); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"/doze/files", askStart}, other.asks()); diff != "" {
			t.Error(diff)
		}
		p.in("a", doze.Running, "awake")
		p.hello("a")
		if p.Rests("a") {
			t.Error("it is archived still")
		}
		// Its copy has no memory: nothing goes back to it.
		other.Kill("a")
		p.in("a", doze.Failed, "")
		if err := p.Delete(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		p.empty("a")
	})
}

// TestArchiveIsDug: a sandbox came out of its archive, and its node was lost before the next copy. It goes on
// from the archive, and its owner hears of that.
func TestArchiveIsDug(t *testing.T) {
	virtual(t, func(h *host) {
		t, c := h.t, newChest(h.t)
		p := c.with(h, nil)
		if err := p.Create(t.Context(), order("a")); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Archive(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		made := c.copy(p, "a")
		p.stop()
		o, used := order("a"), made.Add(time.Hour)
		strict := newHost(t)
		_, err := c.with(strict, func(o *node.Options) { o.GoBack = false }).Revive(t.Context(), o, c.record(t, "a"), used, true)
		h.kind(err, doze.NotFound, "--on-crash fail")
		other := newHost(t)
		p = c.with(other, nil)
		if _, err := p.Revive(t.Context(), o, c.record(t, "a"), used, true); err != nil {
			t.Fatal(err)
		}
		if !p.Buried(&o) {
			t.Fatal("nobody knows that it is archived")
		}
		if last := other.last("a"); !strings.Contains(last.Message, "its node was lost") || !strings.Contains(last.Message, "is lost") {
			t.Errorf("it reported %+v", last)
		}
		if err := p.Unarchive(t.Context(), o); err != nil || p.Buried(&o) {
			t.Fatalf("it stays in its archive: %v", err)
		}
		p.hello("a")
	})
}

// TestLateCopyOfArchive: a copy of memory does not count for an archive that was made meanwhile, nor the
// other way round.
func TestLateCopyOfArchive(t *testing.T) {
	virtual(t, func(h *host) {
		t, c := h.t, newChest(h.t)
		p := c.with(h, nil)
		if err := p.Create(t.Context(), order("a")); err != nil {
			t.Fatal(err)
		}
		_, _, done, err := p.CopyOut(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		_, memory, err := p.Needs("a")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Archive(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		p.Copied("a", memory)
		if err := done(); err != nil {
			t.Fatal(err)
		}
		if len(p.copyables()) != 1 {
			t.Error("the archive counts as copied")
		}
		_, _, done, err = p.CopyOut(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Unarchive(t.Context(), order("a")); err != nil {
			t.Fatal(err)
		}
		p.Copied("a", time.Now())
		if err := done(); err != nil {
			t.Fatal(err)
		}
		h.Kill("a")
		p.in("a", doze.Failed, "") // else it waited for a memory that nobody has
		if all := p.copyables(); len(all) != 0 {
			t.Errorf("what failed is copied: %v", all)
		}
	})
}

// TestArchiveWithVolume: an archive that is not all of a sandbox stays on its node.
func TestArchiveWithVolume(t *testing.T) {
	virtual(t, func(h *host) {
		t, c := h.t, newChest(h.t)
		p := c.with(h, nil)
		if err := p.MakeVolume(t.Context(), "v", 64, ""); err != nil {
			t.Fatal(err)
		}
		o := order("a")
		o.Volumes = []fleet.Volume{{ID: "v", Path: "/v", Size: 64}}
		if err := p.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Archive(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		_, _, _, err := p.CopyDeparting(t.Context(), "a")
		h.kind(err, doze.Conflict, "volume")
		if all := p.copyables(); len(all) != 0 {
			t.Errorf("it is copied: %v", all)
		}
	})
}
