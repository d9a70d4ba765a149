package e2e_test

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/dozehq/doze"
)

// TestCLIUsage: the short forms of commands, and what sandboxes take, while a sandbox
// works, sleeps and wakes.
func TestCLIUsage(t *testing.T) {
	t.Parallel()
	p, _ := start(t, "--pause-after", "2s", "--metrics-per-sandbox", "1")
	s := shell{t.TempDir()}
	s.ok(t, "doze", "login", "--address", p.Address, "--data", p.Data)
	s.ok(t, "doze", "create", "used", "--memory", "512", "--label", "a=b", "-e", "KEPT=1")

	usage := func() (u doze.SandboxUsage) {
		t.Helper()
		var all []doze.SandboxUsage
		if err := json.Unmarshal([]byte(s.ok(t, "doze", "stats", "used", "-o", "json")), &all); err != nil || len(all) != 1 {
			t.Fatalf("%v, %v", all, err)
		}
		return all[0]
	}
	before := usage()
	s.ok(t, "doze", "exec", "used", "head -c 3000000 /dev/zero | tr '\\0' x; i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done")
	after := usage()
	if d := after.Network.SentBytes - before.Network.SentBytes; d < 3_000_000 || d > 20_000_000 {
		t.Errorf("it sent 3 MB, and %d bytes are counted", d)
	}
	if d := after.Processor.Seconds - before.Processor.Seconds; d <= 0.01 || d > 60 {
		t.Errorf("it computed for %v s", d)
	}
	if m := after.Memory; m.GuestBytes < 4<<20 || m.EngineBytes < 1<<20 || m.GuestBytes+m.EngineBytes > m.ResidentBytes+16<<20 {
		t.Errorf("by kind: %+v", m)
	}
	if after.Memory.ResidentBytes < 8<<20 || after.Memory.LimitBytes != 512<<20 || after.Tier != "awake" {
		t.Errorf("%+v", after)
	}

	// Asking does not wake it, nor keep it awake.
	asleep := after
	for end := time.Now().Add(patience); (asleep.Tier == "awake" || asleep.State != "STANDBY") && time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		asleep = usage()
	}
	if asleep.Tier == "awake" || asleep.Sleeps < 1 || asleep.State != "STANDBY" {
		t.Fatalf("%+v", asleep)
	}
	if table := s.ok(t, "doze", "stats"); !regexp.MustCompile(`(?m)^used +(paused|saved) `).MatchString(table) {
		t.Errorf("%s", table)
	}
	s.ok(t, "doze", "exec", "used", "true")
	if awake := usage(); awake.Wakes.Count != asleep.Wakes.Count+1 || awake.Wakes.LastUs <= 0 || awake.LastWake == nil || awake.Processor.Seconds < after.Processor.Seconds {
		t.Errorf("%+v", awake)
	}
	_, metrics := get(t, p, p.Address+"/metrics")
	if !regexp.MustCompile(`(?m)^doze_sandbox_wakes_total\{sandbox="used",workspace="main"\} [1-9]`).MatchString(metrics) {
		t.Error("/metrics does not have the sandbox by its name")
	}

	shortForms(t, s)
}

// shortForms uses the sandbox "used" by the commands without a noun.
func shortForms(t *testing.T, s shell) {
	t.Helper()
	if out := s.ok(t, "doze", "ls", "-o", "name"); out != "used\n" {
		t.Errorf("ls: %q", out)
	}
	if out := s.ok(t, "doze", "get", "used", "-o", "wide"); !strings.Contains(out, "a=b") || !strings.Contains(out, "REGION") {
		t.Errorf("get: %s", out)
	}
	if out := s.ok(t, "doze", "get", "used", "-o", "yaml"); !strings.HasPrefix(out, "metadata:\n  name: used\n") {
		t.Errorf("get: %s", out)
	}
	if out := s.ok(t, "doze", "events", "used"); !strings.Contains(out, "the sandbox is ready") {
		t.Errorf("events: %s", out)
	}
	for _, step := range []struct{ command, flag, tier string }{{"sleep", "--disk", "disk"}, {"wake", "-o=table", "awake"}, {"sleep", "--disk=false", "paused"}} {
		if out := s.ok(t, "doze", step.command, step.flag, "used"); out != "used\n" {
			t.Errorf("%s: %q", step.command, out)
		}
		if out := s.ok(t, "doze", "stats", "used"); !strings.Contains(out, " "+step.tier+" ") {
			t.Errorf("after %s: %s", step.command, out)
		}
	}
	process := strings.TrimSpace(s.ok(t, "doze", "exec", "-d", "used", "sleep", "600"))
	if out := s.ok(t, "doze", "ps", "used"); !strings.Contains(out, process) || !strings.Contains(out, "s ago") {
		t.Errorf("ps: %s", out)
	}
	if out := s.ok(t, "doze", "kill", "used", process); out != process+"\n" {
		t.Errorf("kill: %q", out)
	}
	if r := s.run(t, "", "doze", "kill", "used", "none"); r.code != 3 {
		t.Errorf("kill of nothing: %+v", r)
	}
	s.ok(t, "doze", "update", "used", "--label", "c=d", "--unset-label", "a")
	var sb doze.Sandbox
	if err := json.Unmarshal([]byte(s.ok(t, "doze", "get", "used", "-o", "json")), &sb); err != nil || len(sb.Metadata.Labels) != 1 || sb.Metadata.Labels["c"] != "d" {
		t.Errorf("update: %+v, %v", sb.Metadata.Labels, err)
	}
	s.ok(t, "doze", "update", "used", "-e", "MORE=2")
	if out := s.ok(t, "doze", "exec", "used", "echo $KEPT $MORE"); out != "1 2\n" {
		t.Errorf("after an update: %q", out)
	}
	if r := s.run(t, "", "doze", "get", "usde"); r.code != 3 || !strings.Contains(r.err, "did you mean used?") {
		t.Errorf("a misspelt name: %+v", r)
	}
	s.ok(t, "doze", "update", "used", "--disable")
	if r := s.run(t, "", "doze", "exec", "used", "true"); r.code != 4 || !strings.Contains(r.err, "--enable") {
		t.Errorf("a disabled sandbox: %+v", r)
	}
	s.ok(t, "doze", "update", "used", "--enable")
	if r := s.run(t, "", "doze", "logs", "usde"); r.code != 3 || !strings.Contains(r.err, "did you mean used?") {
		t.Errorf("the log of a misspelt name: %+v", r)
	}
	if out := s.ok(t, "doze", "image", "catalog"); !strings.Contains(out, "blaxel/base-image:latest") {
		t.Errorf("the catalog: %s", out)
	}
	s.ok(t, "doze", "workspace", "create", "second")
	s.ok(t, "doze", "workspace", "use", "second")
	if out := s.ok(t, "doze", "ls", "-o", "json"); strings.TrimSpace(out) != "[]" {
		t.Errorf("another workspace has %s", out)
	}
	if out := s.ok(t, "doze", "whoami", "-o", "yaml"); !strings.Contains(out, "workspace: second\n") || !strings.Contains(out, "config.json") {
		t.Errorf("whoami: %s", out)
	}
	s.ok(t, "doze", "workspace", "use", "main")
	s.ok(t, "doze", "workspace", "rm", "second")
	s.ok(t, "doze", "rm", "used")
	s.ok(t, "doze", "logout")
	if r := s.run(t, "", "doze", "whoami"); r.code != 1 || !strings.Contains(r.err, "doze login") {
		t.Errorf("after logout: %+v", r)
	}
}
