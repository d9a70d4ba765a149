package node_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/node"
)

// TestBackupLeavesSandboxesAsTheyWere: in each tier there is a copy, and the sandbox goes on.
func TestBackupLeavesSandboxesAsTheyWere(t *testing.T) {
	virtual(t, func(h *host) {
		t, to := h.t, h.t.TempDir()
		p := h.has("a")
		p.hello("a")
		for _, tier := range []string{"awake", "paused", "disk"} {
			if tier != "awake" {
				p.sleep(tier)
			}
			dir := filepath.Join(to, tier)
			left, err := p.Backup(t.Context(), "a", dir)
			if err != nil || left != "" {
				t.Fatalf("%s: %q, %v", tier, left, err)
			}
			for _, name := range []string{"record.json", "machine/image"} {
				if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
					t.Errorf("%s: %v", tier, err)
				}
			}
			p.in("a", map[bool]doze.Phase{true: doze.Running, false: doze.Standby}[tier == "awake"], tier)
		}
		p.hello("a")
		if _, err := p.Backup(t.Context(), "nobody", filepath.Join(to, "nobody")); doze.Public(err).Kind != doze.NotFound {
			t.Errorf("of nobody: %v", err)
		}
		if got := p.Sandboxes(); !cmp.Equal(got, []string{"a"}) {
			t.Errorf("sandboxes %q", got)
		}
	})
}

// TestBackupHasVolumes: what a sandbox has besides is in its backup.
func TestBackupHasVolumes(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		p := h.start()
		if err := p.MakeVolume(t.Context(), "kept", 64, ""); err != nil {
			t.Fatal(err)
		}
		o := order("a")
		o.Volumes = []fleet.Volume{{ID: "kept", Path: "/kept", Size: 64}, {Path: "/scratch", Size: 32}}
		if err := p.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(t.TempDir(), "a")
		if _, err := p.Backup(t.Context(), "a", dir); err != nil {
			t.Fatal(err)
		}
		for name, size := range map[string]string{"kept": "64", "passing-a-1": "32"} {
			if raw, err := os.ReadFile(filepath.Join(dir, "volumes", name)); err != nil || string(raw) != size {
				t.Errorf("%s: %q, %v", name, raw, err)
			}
		}
		p.in("a", doze.Running, "awake")
		p.hello("a")
	})
}

// TestRelocate: the record of a backup names files where they are now, and no other record
// is taken for one.
func TestRelocate(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		p := h.has("a")
		dir := filepath.Join(t.TempDir(), "a")
		if _, err := p.Backup(t.Context(), "a", dir); err != nil {
			t.Fatal(err)
		}
		raw, err := os.ReadFile(filepath.Join(dir, "record.json"))
		if err != nil {
			t.Fatal(err)
		}
		moved, err := node.RelocateSandbox("a", "/new", raw, func(path string) string { return "/moved/" + filepath.Base(path) })
		if err != nil {
			t.Fatal(err)
		}
		var r struct {
			Config struct{ Dir, Root, Agent string }
		}
		if err := json.Unmarshal(moved, &r); err != nil {
			t.Fatal(err)
		}
		if r.Config.Dir != "/new/a/machine" || !strings.HasPrefix(r.Config.Agent, "/moved/") || !strings.HasPrefix(r.Config.Root, "/moved/") {
			t.Errorf("%+v", r)
		}
		for _, bad := range []string{"", "{", strings.ReplaceAll(string(raw), `"a"`, `"b"`)} {
			if _, err := node.RelocateSandbox("a", "/new", []byte(bad), func(p string) string { return p }); err == nil {
				t.Errorf("%.40q is a record", bad)
			}
		}
		if _, err := node.RelocateSnapshot([]byte("{"), func(p string) string { return p }); err == nil {
			t.Error("a damaged record is one")
		}
	})
}
