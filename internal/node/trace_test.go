package node_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/machine/machinetest"
	"github.com/dozehq/doze/internal/trace"
)

// stage is one of a trace, in seconds.
type stage struct {
	Name        string
	Start, Took int64
}

// seconds are the stages of a trace that took any time.
func seconds(t doze.Trace) (list []stage) {
	for _, s := range t.Stages {
		if s.TookUs > 0 {
			list = append(list, stage{s.Name, s.StartUs / 1e6, s.TookUs / 1e6})
		}
	}
	return list
}

// names are those of all stages of a trace.
func names(t doze.Trace) (list []string) {
	for _, s := range t.Stages {
		list = append(list, s.Name)
	}
	return list
}

// ask sends a request that came a second ago.
func (p *process) ask(ctx context.Context, uid string) (err error) {
	ctx, caller := trace.Arrive(ctx, time.Now().Add(-time.Second), "00-parent")
	defer caller.Leave()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://x/", nil)
	if err != nil {
		return err
	}
	resp, err := p.Transport(uid, appPort).RoundTrip(r)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// TestTraceOfWake: the time of a wake counts from the arrival of its request, and
// has the end of a move down that the request waited for.
func TestTraceOfWake(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		var took []time.Duration
		var records []trace.Record
		o := h.options()
		o.Woke = func(_ machine.Tier, d time.Duration, _ error) { h.set(func() { took = append(took, d) }) }
		o.Traced = func(r trace.Record) { h.set(func() { records = append(records, r) }) }
		h.app = func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(7 * time.Second)
			_, _ = io.WriteString(w, "hello")
		}
		p := h.startWith(o)
		if err := p.Create(t.Context(), order("a")); err != nil {
			t.Fatal(err)
		}
		h.Delay(machinetest.OpSave, 5*time.Second)
		h.Delay(machinetest.OpResume, 3*time.Second)
		time.Sleep(pauseAfter + saveAfter + time.Second)
		go func() {
			time.Sleep(4*time.Second + 2*time.Second) // in the resume
			now := p.Traces("a")[0]
			if now.Status != doze.TraceRunning || now.WaitedUs != 7e6 || len(now.Stages) != 4 {
				t.Errorf("under way it is %+v", now)
			}
		}()
		if err := p.ask(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		p.hello("a") // wakes nobody
		all := p.Traces("a")
		if len(all) != 2 || all[1].Kind != doze.TraceCreate {
			t.Fatalf("%+v", all)
		}
		w := all[0]
		want := []stage{{"admit", 0, 1}, {"settle", 1, 4}, {"answer", 8, 7}}
		if d := cmp.Diff(want, seconds(w)); d != "" {
			t.Errorf("%s\n%+v", d, w)
		}
		if d := cmp.Diff([]string{"admit", "settle", "turn", "memory", "connect", "answer"}, names(w)); d != "" {
			t.Error(d)
		}
		w.Stages = nil
		if d := cmp.Diff(doze.Trace{Kind: "wake", StartedAt: w.StartedAt, From: "paused", Status: "done", WaitedUs: 8e6}, w); d != "" {
			t.Error(d)
		}
		h.set(func() {
			if len(took) != 1 || took[0] != 8*time.Second {
				t.Errorf("the metric and the log say %v, and the caller waited 8 s", took)
			}
			if len(records) != 2 || records[1].Parent != "00-parent" || records[1].Sandbox != "a" || records[1].Took != 15*time.Second {
				t.Errorf("%+v", records)
			}
		})
	})
}

// TestTraceEnds: a trace ends with its wake if its caller has left, or failed.
func TestTraceEnds(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		var records []trace.Record
		o := h.options()
		o.Traced = func(r trace.Record) { h.set(func() { records = append(records, r) }) }
		p := h.startWith(o)
		if err := p.Create(t.Context(), order("a")); err != nil {
			t.Fatal(err)
		}
		p.sleep("disk")
		h.Delay(machinetest.OpRestore, 5*time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := p.ask(ctx, "a"); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		if w := p.Traces("a")[0]; w.Status != doze.TraceDone || w.From != "disk" || slices.Contains(names(w), "connect") {
			t.Errorf("%+v", w)
		}

		p.sleep("disk")
		h.FailNext(machinetest.OpRestore, errBroken)
		if err := p.ask(t.Context(), "a"); err == nil {
			t.Fatal("a broken wake works")
		}
		w := p.Traces("a")[0]
		if w.Status != doze.TraceFailed || w.Error == "" || w.WaitedUs < 1e6 {
			t.Errorf("%+v", w)
		}
		synctest.Wait()
		h.set(func() {
			if len(records) != 3 || records[2].Status != doze.TraceFailed {
				t.Errorf("%d traces ended: %+v", len(records), records)
			}
		})
	})
}

// TestTraceOfLostMachine: a machine that could not be adopted is looked for, which
// is a stage of the next wake.
func TestTraceOfLostMachine(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		p := h.has("a")
		p.sleep("disk")
		p.stop()
		h.FailNext(machinetest.OpAdopt, errBroken)
		p = h.start()
		if all := p.Traces("a"); len(all) != 0 {
			t.Errorf("another process remembers %+v", all)
		}
		p.hello("a")
		if w := p.Traces("a")[0]; !slices.Contains(names(w), "find") {
			t.Errorf("%+v", w)
		}
	})
}

// TestTraceOfCreate: a create is traced until its caller has the answer, and one
// that does not work is traced, too.
func TestTraceOfCreate(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		var records []trace.Record
		o := h.options()
		o.Traced = func(r trace.Record) { h.set(func() { records = append(records, r) }) }
		p := h.startWith(o)
		create := func(o fleet.Order) error {
			ctx, caller := trace.Arrive(t.Context(), time.Now().Add(-time.Second), "")
			defer caller.Leave()
			err := p.Create(ctx, o)
			publishing := trace.Next(ctx, trace.Publish)
			time.Sleep(2 * time.Second)
			publishing.End()
			return err
		}
		if err := create(order("a")); err != nil {
			t.Fatal(err)
		}
		w := p.Traces("a")[0]
		if d := cmp.Diff([]string{"admit", "image", "commit", "memory", "network", "volumes", "agent", "commit", "publish"}, names(w)); d != "" {
			t.Error(d)
		}
		if w.Kind != doze.TraceCreate || w.From != trace.FromImage || w.Status != doze.TraceDone || w.WaitedUs < 3e6 {
			t.Errorf("%+v", w)
		}

		h.set(func() { h.failing["lease"] = errBroken })
		if err := create(order("b")); err == nil {
			t.Fatal("a broken create works")
		}
		h.set(func() {
			if len(records) != 2 || records[1].Status != doze.TraceFailed || records[1].Sandbox != "b" {
				t.Errorf("%+v", records)
			}
		})
		if all := p.Traces("b"); len(all) != 0 {
			t.Errorf("what is gone has %+v", all)
		}
	})
}
