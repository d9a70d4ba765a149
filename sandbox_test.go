package doze_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
)

// TestStreams: which declared ports previews serve without HTTP.
func TestStreams(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ports []doze.Port
		want  map[int]string
	}{
		"none":            {},
		"HTTP":            {ports: []doze.Port{{Target: 1}, {Target: 2, Protocol: "HTTP"}, {Target: 3, Protocol: "UDP"}}},
		"both kinds":      {ports: []doze.Port{{Target: 1, Protocol: "TCP"}, {Target: 2, Protocol: "TLS"}}, want: map[int]string{1: "TCP", 2: "TLS"}},
		"the first":       {ports: []doze.Port{{Target: 1}, {Target: 1, Protocol: "TCP"}, {Target: 2, Protocol: "TCP"}, {Target: 2}}, want: map[int]string{2: "TCP"}},
		"the sandbox API": {ports: []doze.Port{{Target: doze.AgentPort, Protocol: "TCP"}, {Target: doze.ControlPort, Protocol: "TLS"}}},
	} {
		r := doze.Runtime{Ports: c.ports}
		if diff := cmp.Diff(c.want, r.Streams()); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}
