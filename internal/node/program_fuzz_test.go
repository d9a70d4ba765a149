package node

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agentapi"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/machine/machinetest"
)

// FuzzImageState: whatever an agent answers about the program of its image, what callers see
// is bounded text, and their events are few.
func FuzzImageState(f *testing.F) {
	f.Add([]byte(`{"change":1,"status":"failed","message":"x","at":9000000000000}`), []byte(`{"change":2,"health":"unhealthy","output":"\ud800"}`))
	f.Add([]byte(`{"status":"failed"}`), []byte(`{"at":-9223372036854775808}`))
	f.Fuzz(func(t *testing.T, first, second []byte) {
		n := &Node{Options: Options{Driver: machinetest.NewFake()}, life: t.Context(), reports: newReports()}
		b := n.newBox(fleet.Order{UID: "a"}, machine.Config{}, doze.Running)
		b.entry.of(&Image{ImageConfig: doze.ImageConfig{Cmd: []string{"serve"}}}, &b.order)
		for range 3 {
			for _, raw := range [][]byte{first, second} {
				var s agentapi.ImageState
				if json.Unmarshal(raw, &s) != nil {
					return
				}
				b.entry.take(s, time.Now())
			}
		}
		e := b.entry.shown()
		for _, text := range []string{e.Status, e.Health, e.Message, e.HealthOutput} {
			if len(text) > programTextMax || !utf8.ValidString(text) {
				t.Errorf("it shows %q", text)
			}
		}
		if len(n.reports.list) > 2 {
			t.Errorf("%d events", len(n.reports.list))
		}
		for _, r := range n.reports.list {
			if strings.ContainsAny(r.Message, "\n\x00") || len(r.Message) > 1000 {
				t.Errorf("an event says %q", r.Message)
			}
		}
	})
}
