package control_test

import (
	"testing"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/plane/planetest"
)

// TestSleepAndWake: who may use a sandbox puts it to sleep and wakes it, and hears why not.
func TestSleepAndWake(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		p.Create(`{"metadata":{"name":"a"}}`)
		state := func(path, want, tier string) {
			t.Helper()
			if sb := planetest.Want[doze.Sandbox](p, 200, "POST", "/sandboxes/a/"+path, ""); sb.State != want || sb.Status != "DEPLOYED" {
				t.Errorf("after %s it is %s, %s", path, sb.Status, sb.State)
			}
			if u := planetest.Want[doze.SandboxUsage](p, 200, "GET", "/sandboxes/a/usage", ""); u.Tier != tier {
				t.Errorf("after %s it is %s", path, u.Tier)
			}
		}
		state("sleep", "STANDBY", "paused")
		state("sleep?tier=paused", "STANDBY", "paused")
		state("sleep?tier=disk", "STANDBY", "disk")
		state("wake", "RUNNING", "awake")
		state("wake", "RUNNING", "awake")
		planetest.Want[any](p, 400, "POST", "/sandboxes/a/sleep?tier=swapped", "")
		planetest.Want[any](p, 404, "POST", "/sandboxes/b/sleep", "")
		planetest.Want[any](p, 404, "POST", "/sandboxes/b/wake", "")
		planetest.Want[doze.Workspace](p, 200, "POST", "/workspaces", `{"name":"team"}`)
		planetest.Want[any](p, 404, "POST", "/sandboxes/a/sleep?workspace=team", "")

		planetest.Want[doze.Sandbox](p, 200, "PUT", "/sandboxes/a", `{"spec":{"enabled":false}}`)
		planetest.After(1)
		planetest.Want[any](p, 409, "POST", "/sandboxes/a/wake", "")
		planetest.Want[any](p, 409, "POST", "/sandboxes/a/sleep", "")
	})
}
