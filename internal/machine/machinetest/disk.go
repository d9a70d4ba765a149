package machinetest

import (
	"errors"

	"github.com/dozehq/doze/internal/machine"
)

// diskOf is how large the disks of the suite are, in bytes.
const diskOf = 256 << 20

// diskStays has a machine whose files are on disk sleep in all tiers, crash, and be copied.
// What goes on from a copy has a disk, too.
func diskStays(b *bench) {
	c := b.host.Config(b.T, "a")
	c.Disk, c.GoBack = diskOf, true
	g := b.bootConfig(c)
	for _, tier := range b.tiers(machine.Awake, machine.Paused, machine.Saved, machine.OnDisk) {
		g.do("/write", "name", "/kept", "text", tier.String())
		g.suspend(tier)
		g.resume()
		if got := must[string](g, "/read", "name", "/kept"); got != tier.String() {
			b.Errorf("after %s the file has %q", tier, got)
		}
	}
	if s, err := g.Stats(b.Context()); err != nil || s.StorageBytes <= 0 || s.StorageBytes > diskOf {
		b.Errorf("its disk takes %d bytes, %v", s.StorageBytes, err)
	}
	dir := b.snapshot(g)
	g.do("/write", "name", "/kept", "text", "lost")
	b.host.Kill(b.T, c.ID)
	g = b.adopt(c)
	g.resume()
	if got := must[string](g, "/read", "name", "/kept"); got != machine.OnDisk.String() {
		b.Errorf("after a crash the file has %q", got)
	}
	g.do("/write", "name", "/kept", "text", "own")
	without := b.host.Config(b.T, "b")
	without.From = dir
	if m, err := b.Boot(b.Context(), without); !errors.Is(err, machine.ErrDamaged) {
		b.Errorf("a machine without a disk goes on from a copy with one: %v, %v", m, err)
	}
	with := b.host.Config(b.T, "c")
	with.From, with.Disk = dir, diskOf
	f := b.bootConfig(with)
	if got := must[string](f, "/read", "name", "/kept"); got != machine.OnDisk.String() {
		b.Errorf("in the copy the file has %q", got)
	}
	f.do("/write", "name", "/kept", "text", "the copy's")
	if got := must[string](g, "/read", "name", "/kept"); got != "own" {
		b.Errorf("the copy wrote %q to the disk of the other", got)
	}
}
