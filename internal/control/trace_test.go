package control_test

import (
	"testing"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/plane/planetest"
)

// TestTraces: who may see a sandbox sees its traces, and nobody else does.
func TestTraces(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		p.Create(`{"metadata":{"name":"a"}}`)
		all := planetest.Want[[]doze.Trace](p, 200, "GET", "/sandboxes/a/traces", "")
		if len(all) != 1 || all[0].Kind != doze.TraceCreate || len(all[0].Stages) != 3 || all[0].Stages[1].Within != "launch" || all[0].Stages[2].Name != "publish" {
			t.Errorf("%+v", all)
		}
		planetest.Want[any](p, 404, "GET", "/sandboxes/b/traces", "")
		planetest.Want[doze.Workspace](p, 200, "POST", "/workspaces", `{"name":"team"}`)
		planetest.Want[any](p, 404, "GET", "/sandboxes/a/traces?workspace=team", "")
		planetest.Want[any](p, 200, "DELETE", "/sandboxes/a", "")
		planetest.After(1)
		planetest.Want[any](p, 404, "GET", "/sandboxes/a/traces", "")
	})
}
