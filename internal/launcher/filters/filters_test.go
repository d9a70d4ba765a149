package filters

import (
	"os"
	"os/exec"
	"slices"
	"testing"

	"gvisor.dev/gvisor/pkg/bpf"
	"gvisor.dev/gvisor/pkg/seccomp"
	"gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"
	bootconfig "gvisor.dev/gvisor/runsc/boot/filter/config"

	"gvisor.dev/gvisor/pkg/sentry/platform"
	_ "gvisor.dev/gvisor/pkg/sentry/platform/platforms"
)

// TestSameAsSlowPath builds the program as filter.Install's slow path does and
// compares it with the embedded one, in this process and as PID 1 of a new PID
// namespace (what a sentry is). A gVisor bump that changes rules fails here:
// run "go generate ./filters".
func TestSameAsSlowPath(t *testing.T) {
	c, err := platform.Lookup("systrap")
	if err != nil {
		t.Fatal(err)
	}
	for _, fs := range []bool{true, false} {
		opt := bootconfig.Options{Platform: c.PrecompiledSeccompInfo()[0], HostFilesystem: fs, ControllerFD: 8}
		programs := map[string]precompiledseccomp.Program{}
		registerBoot(programs)
		p, ok := programs[opt.ConfigKey()]
		if !ok {
			t.Fatalf("no embedded program for %s", opt.ConfigKey())
		}
		got, err := p.RenderInstructions(opt.Vars())
		if err != nil {
			t.Fatal(err)
		}
		rules, deny := bootconfig.Rules(opt)
		prog := &seccomp.Program{RuleSets: []seccomp.RuleSet{{Rules: deny}, {Rules: rules, Action: seccomp.Allow}}, Options: bootconfig.SeccompOptions(opt)}
		want, _, err := prog.Build()
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(bpf.ToBytecode(got), bpf.ToBytecode(want)) {
			t.Errorf("pid %d, directfs %v: embedded program differs from the slow path", os.Getpid(), fs)
		}
	}
	if os.Getpid() != 1 && os.Getuid() == 0 {
		cmd := exec.Command("unshare", "-f", "-p", os.Args[0], "-test.run", "TestSameAsSlowPath")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("as pid 1: %v\n%s", err, out)
		}
	}
}

func BenchmarkRegister(b *testing.B) {
	for range b.N {
		RegisterBoot()
	}
}
