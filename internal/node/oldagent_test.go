package node_test

import (
	"encoding/json"
	"net/http"
	"os"
	"testing"

	"github.com/dozehq/doze"
)

// answerAsBefore answers as an agent of version 0, whose calls agentapi has on
// record.
func (h *host) answerAsBefore(w http.ResponseWriter, r *http.Request) {
	raw, err := os.ReadFile("../agentapi/testdata/v0.json")
	var known map[string]json.RawMessage
	if err == nil {
		err = json.Unmarshal(raw, &known)
	}
	if err != nil {
		h.t.Error(err)
	}
	answer, ok := known[r.Method+" "+r.URL.Path]
	if r.URL.Path == "/doze/keepalive" {
		answer = []byte(`{"keepAlive":0}`) // the one on record stays awake
	}
	if !ok {
		w.WriteHeader(http.StatusNotFound)
	}
	_, _ = w.Write(answer)
}

// TestOldAgent: a sandbox whose agent is of the first release sleeps, wakes, and
// survives a new node. What its agent does not know is refused with the reason,
// and costs nothing.
func TestOldAgent(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		h.set(func() { h.old = true })
		p := h.start()
		o := order("a")
		o.Name = "box" // as on record
		if err := p.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		for _, tier := range []string{"paused", "disk"} {
			p.sleep(tier)
			p.hello("a")
		}
		p.stop()
		p = h.start()
		p.hello("a")
		if _, err := p.MountDrive(t.Context(), "a", share("one", "/mnt/x")); doze.Public(err).Kind != doze.Conflict {
			t.Errorf("mount a drive: %v", err)
		}
		if _, err := p.Archive(t.Context(), "a"); err == nil {
			t.Error("it is archived, and nobody ended its processes")
		}
		p.hello("a")
		if len(p.DriveMounts("a")) != 0 {
			t.Error("it has a drive")
		}
		p.sleep("paused")
		if err := p.Delete(t.Context(), "a"); err != nil {
			t.Error(err)
		}
		p.empty("a")
	})
}
