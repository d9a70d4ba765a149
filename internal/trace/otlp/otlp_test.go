package otlp_test

import (
	"context"
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	spans "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/testkit/collector"
	"github.com/dozehq/doze/internal/trace"
	"github.com/dozehq/doze/internal/trace/otlp"
)

// record is a wake of 10 ms.
func record(parent string) trace.Record {
	return trace.Record{
		Kind: trace.Wake, Sandbox: "uid", Workspace: "main", Parent: parent, Began: time.UnixMilli(1_800_000_000_000), From: "saved",
		Status: doze.TraceDone, Waited: 9 * time.Millisecond, Took: 10 * time.Millisecond, Spans: []trace.Span{
			{Stage: trace.Turn, Within: -1, Took: time.Millisecond},
			{Stage: trace.Launch, Within: -1, Start: time.Millisecond, Took: 8 * time.Millisecond},
			{Stage: trace.Engine, Within: 1, Start: 2 * time.Millisecond, Took: 5 * time.Millisecond},
		},
	}
}

// run opens an exporter that runs until the test, or stop, ends it.
func run(t *testing.T, endpoint string) (e *otlp.Exporter, stop func()) {
	t.Helper()
	e, err := otlp.Open(t.Context(), endpoint, "v1")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	return e, func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// TestExport sends traces to a real receiver, with the headers of the operator.
func TestExport(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-token=hunter2")
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
	c := collector.Serve(t)
	e, stop := run(t, c.URL)
	const id = "4bf92f3577b34da6a3ce929d0e0e4736"
	e.Offer(record("00-" + id + "-00f067aa0ba902b7-00"))
	e.Offer(record("nonsense"))
	failed := record("")
	failed.Status, failed.Error = doze.TraceFailed, "the disk of the node is full"
	e.Offer(failed)
	stop() // what waits is sent

	all := c.Spans()
	if len(all) != 3 {
		t.Fatalf("%d traces", len(all))
	}
	own := 0
	for trace, list := range all {
		byName := map[string]*spans.Span{}
		for _, s := range list {
			byName[s.GetName()] = s
		}
		wake, launch, engine := byName["wake"], byName["launch"], byName["engine"]
		if len(list) != 4 || wake == nil || launch == nil || engine == nil {
			t.Fatalf("spans %v", list)
		}
		if got := time.Duration(wake.GetEndTimeUnixNano() - wake.GetStartTimeUnixNano()); got != 10*time.Millisecond || wake.GetStartTimeUnixNano() != 1_800_000_000_000_000_000 {
			t.Errorf("the wake took %v: %v", got, wake)
		}
		if got := engine.GetStartTimeUnixNano() - wake.GetStartTimeUnixNano(); got != 2_000_000 {
			t.Errorf("the engine began after %d ns", got)
		}
		if string(engine.GetParentSpanId()) != string(launch.GetSpanId()) || string(launch.GetParentSpanId()) != string(wake.GetSpanId()) {
			t.Errorf("the parents are wrong: %v", list)
		}
		text := wake.String()
		for _, part := range []string{"doze.sandbox", "uid", "doze.workspace", "main", "saved"} {
			if !strings.Contains(text, part) {
				t.Errorf("%s is missing in %s", part, text)
			}
		}
		switch parent := hex.EncodeToString(wake.GetParentSpanId()); {
		case hex.EncodeToString([]byte(trace)) == id:
			own++
			if parent != "00f067aa0ba902b7" {
				t.Errorf("the parent is %s", parent)
			}
		case parent != "":
			t.Errorf("a trace of our own has the parent %s", parent)
		case wake.GetStatus().GetCode() == spans.Status_STATUS_CODE_ERROR && wake.GetStatus().GetMessage() == failed.Error:
			own++
		}
	}
	if own != 2 {
		t.Errorf("%d of the caller's trace and the failed one are there", own)
	}
	if token, requests := c.Header("X-Token"); token != "hunter2" || requests != 1 {
		t.Errorf("the token is %q, in %d requests", token, requests)
	}
	if about := c.Resources()[0]; about["service.name"] != "dozed" || about["service.version"] != "v1" || about["deployment.environment.name"] != "test" {
		t.Errorf("%v", about)
	}
	if d := e.Drops(); d[otlp.Full]+d[otlp.Refused] != 0 {
		t.Errorf("drops %v", d)
	}
}

// TestRefused: what a collector does not want is counted, and later traces reach
// it.
func TestRefused(t *testing.T) {
	t.Parallel()
	c := collector.Serve(t)
	c.Refuse.Store(true)
	e, stop := run(t, c.URL+"/")
	e.Offer(record(""))
	for e.Drops()[otlp.Refused] == 0 && t.Context().Err() == nil {
		time.Sleep(time.Millisecond)
	}
	c.Refuse.Store(false)
	e.Offer(record(""))
	stop()
	if got := len(c.Spans()); got != 1 || e.Drops()[otlp.Refused] != 1 {
		t.Errorf("%d traces, and %v", got, e.Drops())
	}
}

// TestHanging: with a collector that does not answer, nobody waits, memory is
// bounded, and the end comes soon.
func TestHanging(t *testing.T) {
	t.Parallel()
	hang := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hang }))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(hang) })
	e, stop := run(t, server.URL)
	began := time.Now()
	const many = 10_000
	for range many {
		e.Offer(record(""))
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("%d offers took %v", many, took)
	}
	if full := e.Drops()[otlp.Full]; full == 0 || full == many {
		t.Errorf("%d of %d were dropped", full, many)
	}
	began = time.Now()
	stop()
	if took := time.Since(began); took > 4*time.Second {
		t.Errorf("the end took %v", took)
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	for endpoint, good := range map[string]bool{
		"http://127.0.0.1:4318": true, "https://otel.example.com/v1/traces": true, "http://[::1]:4318/": true,
		"127.0.0.1:4318": false, "grpc://a:1": false, "http://": false, "http://user:pass@a": false, "http://a?token=b": false, "": false, "http://%": false,
	} {
		if err := otlp.Check(endpoint); (err == nil) != good {
			t.Errorf("%s: %v", endpoint, err)
		}
	}
}

// FuzzParent: what callers say of their traces breaks nothing.
func FuzzParent(f *testing.F) {
	f.Add("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
	f.Add("ff-00000000000000000000000000000000-0000000000000000-01-x")
	c := collector.Serve(f)
	f.Fuzz(func(t *testing.T, parent string) {
		e, err := otlp.Open(t.Context(), c.URL, "v1")
		if err != nil {
			t.Fatal(err)
		}
		ended, end := context.WithCancel(t.Context())
		end()
		e.Offer(record(parent))
		if err := e.Run(ended); err != nil || e.Drops()[otlp.Refused] > 0 {
			t.Error(err, e.Drops())
		}
	})
}
