package machinetest

import (
	"os"
	"path/filepath"

	"github.com/dozehq/doze/internal/machine"
)

// volumesStay has machines with directories of the host, which are the same in
// every tier, under whatever name the host has them, and in the next machine.
func volumesStay(b *bench) {
	c := b.host.Config(b.T, "a")
	c.Volumes = []machine.Volume{{Source: b.TempDir(), Path: "/data/kept"}, {Source: b.TempDir(), Path: "/fixed", ReadOnly: true}}
	own, fixed := filepath.Join(c.Volumes[0].Source, "own"), filepath.Join(c.Volumes[1].Source, "given")
	put(b, fixed, "from the host")
	g := b.bootConfig(c)
	if got := must[string](g, "/read", "name", "/fixed/given"); got != "from the host" {
		b.Errorf("the guest reads %q", got)
	}
	if _, err := ask[any](g, "/write", "name", "/fixed/given", "text", "altered"); err == nil {
		b.Error("the guest writes what is read-only")
	}
	for _, tier := range b.tiers(machine.Awake, machine.Paused, machine.Saved, machine.OnDisk, machine.OnDisk) {
		if tier != machine.Awake {
			g.suspend(tier)
			g.resume()
		}
		g.do("/write", "name", "/data/kept/own", "text", tier.String())
		if got := have(b, own); got != tier.String() {
			b.Errorf("after %s the host reads %q", tier, got)
		}
		put(b, own, "host after "+tier.String())
		if got := must[string](g, "/read", "name", "/data/kept/own"); got != "host after "+tier.String() {
			b.Errorf("after %s the guest reads %q", tier, got)
		}
	}
	g.suspend(machine.OnDisk)
	if g = b.adopt(c); g.Tier() != machine.OnDisk {
		b.Fatal("it is", g.Tier())
	}
	g.resume()
	g.do("/write", "name", "/data/kept/own", "text", "last")
	if b.Traits().Copies {
		g = volumesOfCopy(b, g)
	}
	if err := g.Close(b.Context()); err != nil {
		b.Fatal(err)
	}
	next := b.host.Config(b.T, "b")
	next.Volumes = []machine.Volume{{Source: c.Volumes[0].Source, Path: "/elsewhere", ReadOnly: true}}
	if got := must[string](b.bootConfig(next), "/read", "name", "/elsewhere/own"); got != "last" {
		b.Errorf("the next guest reads %q", got)
	}
	if got := have(b, fixed); got != "from the host" {
		b.Errorf("what is read-only is %q in the end", got)
	}
}

// volumesOfCopy has a machine go on from a copy of another one, with its volumes.
func volumesOfCopy(b *bench, g *guest) *guest {
	b.Helper()
	dir := b.snapshot(g)
	if err := g.Close(b.Context()); err != nil {
		b.Fatal(err)
	}
	c := b.host.Config(b.T, "c")
	c.Volumes, c.From = g.config.Volumes, dir
	m, err := b.Boot(b.Context(), c)
	if err != nil {
		b.Fatal("go on with volumes:", err)
	}
	c.From = ""
	next := b.guest(m, c)
	if got := must[string](next, "/read", "name", "/data/kept/own"); got != "last" {
		b.Errorf("what goes on from a copy reads %q", got)
	}
	if _, err := ask[any](next, "/write", "name", "/fixed/given", "text", "altered"); err == nil {
		b.Error("what goes on from a copy writes what is read-only")
	}
	next.do("/write", "name", "/data/kept/own", "text", "last")
	next.suspend(machine.OnDisk)
	next.resume()
	return next
}

func put(b *bench, name, text string) {
	b.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		b.Fatal(err)
	}
}

func have(b *bench, name string) string {
	b.Helper()
	raw, err := os.ReadFile(name)
	if err != nil {
		b.Fatal(err)
	}
	return string(raw)
}
