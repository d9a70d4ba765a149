package gvisor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// engineThat is a program that answers like an engine that measures.
func engineThat(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), Program)
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestChoose: KVM is refused, with what it lacks, or with what nobody proved. All other choices ask no engine.
func TestChoose(t *testing.T) {
	t.Parallel()
	works, lacks := engineThat(t, `test "$1 $2" = "-measure kvm" && echo 900ns`), engineThat(t, "echo 'doze-sentry: no device\nstacks' >&2; exit 1")
	for name, c := range map[string]struct {
		wanted, engine string
		platform       string
		says           string
	}{
		"by default":          {"", "/nowhere", PlatformSystrap, "auto"},
		"auto":                {PlatformAuto, "/nowhere", PlatformSystrap, "auto"},
		"systrap":             {PlatformSystrap, "/nowhere", PlatformSystrap, "as set"},
		"kvm, which works":    {PlatformKVM, works, "", "takes 900ns"},
		"kvm without device":  {PlatformKVM, lacks, "", "does not work on this host: no device"},
		"kvm, without engine": {PlatformKVM, "/nowhere", "", "no such file"},
		"another":             {"ptrace", works, "", "auto, systrap, kvm"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			platform, why, err := Choose(t.Context(), c.engine, c.wanted)
			if platform != c.platform || err == nil && !strings.Contains(why, c.says) {
				t.Errorf("it chose %q: %s", platform, why)
			}
			if (err == nil) != (c.platform != "") || err != nil && (!strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "stacks")) {
				t.Errorf("it says %v", err)
			}
		})
	}
}

// TestMeasure: the engine runs system calls on the platform in use. KVM does too, or says what it lacks.
func TestMeasure(t *testing.T) {
	t.Parallel()
	shared.Build(t)
	took, err := Measure(t.Context(), sentryIn(shared.Dir()), PlatformSystrap)
	if err != nil || took < 50*time.Nanosecond || took > time.Second {
		t.Errorf("a system call takes %v: %v", took, err)
	}
	took, err = Measure(t.Context(), sentryIn(shared.Dir()), PlatformKVM)
	if (err == nil) != (took > 0) || err != nil && err.Error() == "" {
		t.Errorf("a system call takes %v with KVM: %v", took, err)
	}
	t.Logf("KVM: %v, %v", took, err)
}
