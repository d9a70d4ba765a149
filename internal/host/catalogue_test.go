package host

import (
	"strings"
	"testing"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/disk"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/npm"
)

// TestBuildOwnWithout: what keeps an image of the catalogue from being built is said before
// anything begins.
func TestBuildOwnWithout(t *testing.T) {
	t.Parallel()
	h := &Host{}
	if _, err := h.buildOwn(t.Context(), "ts-app", nil); doze.Public(err).Kind != doze.Unavailable {
		t.Errorf("without builders: %v", err)
	}
}

// TestProgressOf: a step that begins is progress, and nothing else is.
func TestProgressOf(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		event fleet.BuildEvent
		want  disk.Progress
		ok    bool
	}{
		"output":      {fleet.BuildEvent{Text: "a line"}, disk.Progress{}, false},
		"an end":      {fleet.BuildEvent{Name: "RUN a", State: fleet.BuildDone, Step: 1, Steps: 2}, disk.Progress{}, false},
		"a step":      {fleet.BuildEvent{Name: "RUN a", State: fleet.BuildStarted, Step: 2, Steps: 2}, disk.Progress{Step: "RUN a", Percent: 47}, true},
		"of no stage": {fleet.BuildEvent{Name: "import the image", State: fleet.BuildStarted}, disk.Progress{Step: "import the image"}, true},
	} {
		if got, ok := progressOf(row.event); got != row.want || ok != row.ok {
			t.Errorf("%s: %+v, %v", name, got, ok)
		}
	}
}

// TestBuildProblem: a Dockerfile of ours that fails is no mistake of a caller.
func TestBuildProblem(t *testing.T) {
	t.Parallel()
	failed := fleet.BuildFailed("the command failed with exit code 1", fleet.BuildFailure{Line: 4, Output: []string{"first", "no network"}})
	e := doze.Public(buildProblem("nextjs", failed))
	if e.Kind != doze.Unavailable || e.Name == fleet.NameBuildFailed || !strings.Contains(e.Message, "line 4") || !strings.HasSuffix(e.Message, "no network") {
		t.Errorf("a failed step: %v %s: %s", e.Kind, e.Name, e.Message)
	}
	if e := doze.Public(buildProblem("nextjs", doze.Errorf(doze.Timeout, "too long"))); e.Kind != doze.Timeout {
		t.Errorf("another error: %v", e)
	}
}

// TestNPMSecrets: a build gets the authorities of a registry only if there are some.
func TestNPMSecrets(t *testing.T) {
	t.Parallel()
	plain := npmSecrets(npm.Registry{URL: npm.Default})
	if len(plain) != 1 || strings.Contains(plain[npmSecret], "cafile") {
		t.Errorf("a registry of the world: %v", plain)
	}
	own := npmSecrets(npm.Registry{URL: "https://npm.example.com", Authorities: []byte("PEM")})
	if own[npmAuthorities] != "PEM" || !strings.Contains(own[npmSecret], "cafile=/run/secrets/npm-authorities\n") || !strings.Contains(own[npmSecret], "npm.example.com") {
		t.Errorf("a registry of ours: %v", own)
	}
}

// TestOwnBuilder: the builder of the platform has at least what that of a workspace has, and
// no more than half of the host.
func TestOwnBuilder(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		set          Builds
		all          int64
		memory, disk doze.Megabytes
	}{
		"a large host":   {Builds{}, 24 << 30, 6144, 4608},
		"a small host":   {Builds{}, 4 << 30, 2048, 1536},
		"set by hand":    {Builds{MemoryMB: 8192}, 24 << 30, 8192, 6144},
		"little by hand": {Builds{MemoryMB: 1024, DiskMB: 512}, 24 << 30, 6144, 4608},
	} {
		if got := row.set.own(row.all); got.Memory != row.memory || got.Disk != row.disk {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
