package launcher

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"gvisor.dev/gvisor/runsc/config"

	"github.com/dozehq/doze/internal/machine"
)

func TestSetFlag(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ args, want []string }{
		"missing":         {[]string{"runsc-sandbox", "--root=/x", "boot", "id"}, []string{"runsc-sandbox", "--root=/x", "boot", "--n=2", "id"}},
		"two words":       {[]string{"boot", "--n", "1", "id"}, []string{"boot", "--n", "2", "id"}},
		"one word":        {[]string{"boot", "--n=1", "id"}, []string{"boot", "--n=2", "id"}},
		"longer name":     {[]string{"boot", "--nn=1", "id"}, []string{"boot", "--n=2", "--nn=1", "id"}},
		"another command": {[]string{"umount", "--x"}, []string{"umount", "--x"}},
		"nothing":         {nil, nil},
	} {
		if diff := cmp.Diff(tc.want, setFlag(slices.Clone(tc.args), "--n", "2")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// inherit opens a file as the engine's process inherits its spec.
func inherit(tb testing.TB, raw []byte) string {
	tb.Helper()
	name := filepath.Join(tb.TempDir(), "config.json")
	if err := os.WriteFile(name, raw, 0o600); err != nil {
		tb.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = f.Close() })
	return fmt.Sprintf("--spec-fd=%d", f.Fd())
}

func TestSize(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		cpus float64
		want string
	}{
		"a part of one": {0.25, "--cpu-num=2"},
		"one":           {1, "--cpu-num=2"},
		"two":           {2, "--cpu-num=2"},
		"a bit more":    {2.01, "--cpu-num=3"},
		"many":          {16, "--cpu-num=16"},
	} {
		raw, err := json.Marshal(specFor(machine.Config{ID: "a", Memory: 1 << 30, CPUs: tc.cpus}, "/root"))
		if err != nil {
			t.Fatal(err)
		}
		fd := inherit(t, raw)
		got := Size([]string{"runsc-sandbox", "boot", fd, "a"})
		want := []string{"runsc-sandbox", "boot", tc.want, "--total-memory=1073741824", fd, "a"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestSizeLosesNothing is a table and not a fuzz target: gVisor does not link
// with the fuzzer's instrumentation, and the bytes are our own.
func TestSizeLosesNothing(t *testing.T) {
	t.Parallel()
	for name, raw := range map[string]string{
		"limits":     `{"linux":{"resources":{"memory":{"limit":1},"cpu":{"quota":5}}}}`,
		"no linux":   `{"linux":null}`,
		"nothing":    ``,
		"no JSON":    `{"linux":`,
		"wrong type": `{"linux":{"resources":{"memory":{"limit":"1"}}}}`,
		"negative":   `{"linux":{"resources":{"memory":{"limit":-1},"cpu":{"quota":-5}}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			args := []string{"runsc-sandbox", "boot", inherit(t, []byte(raw)), "a"}
			got := Size(slices.Clone(args))
			for _, a := range args {
				if !slices.Contains(got, a) {
					t.Errorf("%q lacks %q", got, a)
				}
			}
		})
	}
}

func TestSpec(t *testing.T) {
	t.Parallel()
	c := machine.Config{ID: "a", Root: "/r.erofs", Agent: "/a.erofs", Hostname: "box", Env: []string{"A=1"}, Memory: 1, CPUs: 1}
	s := specFor(c, "/bundle/root")
	if diff := cmp.Diff([]string{machine.AgentDir + "/doze-agent"}, s.Process.Args); diff != "" {
		t.Errorf("by default the agent runs (-want +got):\n%s", diff)
	}
	c.Args = []string{"/guest"}
	if diff := cmp.Diff(c.Args, specFor(c, "").Process.Args); diff != "" {
		t.Errorf("arguments (-want +got):\n%s", diff)
	}
	// A restore compares specs: everything else must not depend on anything.
	c.Env, c.Hostname = nil, ""
	first, second := specFor(c, "/x"), specFor(c, "/x")
	if diff := cmp.Diff(first, second); diff != "" {
		t.Errorf("two specs of one machine differ:\n%s", diff)
	}
	for _, m := range s.Mounts {
		if m.Type == "bind" {
			t.Errorf("%s is a bind mount: a checkpoint would depend on the host's files", m.Destination)
		}
	}
}

// TestCapabilities: who asked for nothing may do what every sandbox may.
func TestCapabilities(t *testing.T) {
	t.Parallel()
	usual := append([]string{naming}, capabilities...)
	all := &config.Config{RootDir: "/somewhere"}
	for name, tc := range map[string]struct {
		c    machine.Config
		more []string
		raw  bool
	}{
		"nothing":  {machine.Config{}, nil, false},
		"iptables": {machine.Config{IPTables: true}, []string{"CAP_NET_ADMIN", "CAP_NET_RAW"}, true},
		"tun":      {machine.Config{Tun: true}, []string{"CAP_NET_ADMIN"}, false},
		"both":     {machine.Config{IPTables: true, Tun: true}, []string{"CAP_NET_ADMIN", "CAP_NET_RAW"}, true},
		"all":      {machine.Config{IPTables: true, Tun: true, Containers: true}, everything, true},
	} {
		want, got := slices.Concat(usual, tc.more), specFor(tc.c, "/root").Process.Capabilities
		for set, has := range map[string][]string{"bounding": got.Bounding, "effective": got.Effective, "permitted": got.Permitted} {
			if diff := cmp.Diff(want, has); diff != "" {
				t.Errorf("%s, %s (-want +got):\n%s", name, set, diff)
			}
		}
		own := settingsFor(tc.c, all)
		if own.AllowPacketEndpointWrite != tc.c.Containers {
			t.Errorf("%s: may write packets: %t", name, own.AllowPacketEndpointWrite)
		}
		if own.EnableRaw != tc.raw || own.RootDir != all.RootDir || all.EnableRaw {
			t.Errorf("%s: raw sockets %t, of all %t", name, own.EnableRaw, all.EnableRaw)
		}
	}
}

// TestDeniesTun: a machine has the device only if it is for it. The rule comes
// to the engine as text.
func TestDeniesTun(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		c      machine.Config
		denied bool
	}{
		"nothing":  {machine.Config{}, true},
		"iptables": {machine.Config{IPTables: true}, true},
		"tun":      {machine.Config{Tun: true}, false},
		"both":     {machine.Config{IPTables: true, Tun: true}, false},
	} {
		raw, err := json.Marshal(specFor(tc.c, "/root"))
		if err != nil {
			t.Fatal(err)
		}
		var read specs.Spec
		if err := json.Unmarshal(raw, &read); err != nil {
			t.Fatal(err)
		}
		if got := deniesTun(&read); got != tc.denied {
			t.Errorf("%s: denied is %t", name, got)
		}
	}
	if deniesTun(&specs.Spec{}) {
		t.Error("a spec without rules denies something")
	}
}
