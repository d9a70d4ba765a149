package filters

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"gvisor.dev/gvisor/pkg/bpf"
	"gvisor.dev/gvisor/pkg/seccomp"
	"gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"
	"gvisor.dev/gvisor/pkg/sentry/platform"
	_ "gvisor.dev/gvisor/pkg/sentry/platform/platforms" // systrap
	bootfilter "gvisor.dev/gvisor/runsc/boot/filter"
	bootconfig "gvisor.dev/gvisor/runsc/boot/filter/config"
	goferfilter "gvisor.dev/gvisor/runsc/fsgofer/filter"
)

// TestSameAsSlowPath builds the program as gVisor does when it has no compiled
// one and compares, in this process and as the first of a PID namespace, which
// is what a sandbox is. A new gVisor that changes rules fails here: run go
// generate.
func TestSameAsSlowPath(t *testing.T) {
	systrap, err := platform.Lookup("systrap")
	if err != nil {
		t.Fatal(err)
	}
	programs := map[string]precompiledseccomp.Program{}
	registerBoot(programs)
	for _, direct := range []bool{true, false} {
		options := bootconfig.Options{Platform: systrap.PrecompiledSeccompInfo()[0], HostFilesystem: direct, ControllerFD: 8}
		key := options.ConfigKey()
		if strings.Contains(key, "Instrumentation=true") {
			t.Skip("SKIPPED: under the race detector gVisor allows more")
		}
		p, ok := programs[key]
		if !ok {
			t.Fatal("no program for", key)
		}
		got, err := p.RenderInstructions(options.Vars())
		if err != nil {
			t.Fatal(err)
		}
		rules, deny := bootconfig.Rules(options)
		slow := &seccomp.Program{
			RuleSets: []seccomp.RuleSet{{Rules: deny}, {Rules: rules, Action: seccomp.Allow}},
			Options:  bootconfig.SeccompOptions(options),
		}
		want, _, err := slow.Build()
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(bpf.ToBytecode(got), bpf.ToBytecode(want)) {
			t.Errorf("pid %d, direct access to files %v: the program differs from what gVisor builds", os.Getpid(), direct)
		}
	}
	if os.Getpid() != 1 && os.Getuid() == 0 {
		cmd := exec.Command("unshare", "--fork", "--pid", os.Args[0], "-test.run", "TestSameAsSlowPath")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("as the first process: %v\n%s", err, out)
		}
	}
}

// TestRegister checks that gVisor finds the programs where it looks.
func TestRegister(t *testing.T) {
	RegisterBoot()
	RegisterGofer()
	for name, tc := range map[string]struct {
		register func(map[string]precompiledseccomp.Program)
		listed   []string
	}{
		"boot":  {registerBoot, bootfilter.ListPrecompiled()},
		"gofer": {registerGofer, goferfilter.ListPrecompiled()},
	} {
		programs := map[string]precompiledseccomp.Program{}
		tc.register(programs)
		if len(programs) == 0 {
			t.Errorf("%s: there are no programs", name)
		}
		for key := range programs {
			if !slices.Contains(tc.listed, key) {
				t.Errorf("%s: gVisor does not find %s", name, key)
			}
		}
	}
}

func BenchmarkRegister(b *testing.B) {
	for b.Loop() {
		RegisterBoot()
	}
}
