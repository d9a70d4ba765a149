package control_test

import (
	"testing"

	"github.com/dozehq/doze"
)

// TestTraces: who may see a sandbox sees its traces, and nobody else does.
func TestTraces(t *testing.T) {
	t.Parallel()
	inBubble(t, func(p *platform) {
		t := p.t
		p.create(`{"metadata":{"name":"a"}}`)
		all := want[[]doze.Trace](p, 200, "GET", "/sandboxes/a/traces", "")
		if len(all) != 1 || all[0].Kind != doze.TraceCreate || len(all[0].Stages) != 3 || all[0].Stages[1].Within != "launch" || all[0].Stages[2].Name != "publish" {
			t.Errorf("%+v", all)
		}
		want[any](p, 404, "GET", "/sandboxes/b/traces", "")
		want[doze.Workspace](p, 200, "POST", "/workspaces", `{"name":"team"}`)
		want[any](p, 404, "GET", "/sandboxes/a/traces?workspace=team", "")
		want[any](p, 200, "DELETE", "/sandboxes/a", "")
		after(1)
		want[any](p, 404, "GET", "/sandboxes/a/traces", "")
	})
}
