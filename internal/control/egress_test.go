package control_test

import (
	"testing"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/plane/planetest"
)

// TestEgress: who may see a sandbox sees where it connected to, and nobody else does.
func TestEgress(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		p.Create(`{"metadata":{"name":"a"}}`)
		seen := planetest.Want[doze.EgressSummary](p, 200, "GET", "/sandboxes/a/egress", "")
		if all := seen.Destinations; seen.Since.IsZero() || len(all) != 2 || all[0].Verdict != doze.EgressDenied || all[0].Reason == "" || all[1].Rule != "allowedDomains[0]" {
			t.Errorf("%+v", seen)
		}
		planetest.Want[any](p, 404, "GET", "/sandboxes/b/egress", "")
		planetest.Want[doze.Workspace](p, 200, "POST", "/workspaces", `{"name":"team"}`)
		planetest.Want[any](p, 404, "GET", "/sandboxes/a/egress?workspace=team", "")
		planetest.Want[any](p, 200, "DELETE", "/sandboxes/a", "")
		planetest.After(1)
		planetest.Want[any](p, 404, "GET", "/sandboxes/a/egress", "")
	})
}
