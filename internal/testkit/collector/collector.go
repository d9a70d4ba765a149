// Package collector is a collector of OpenTelemetry for tests: it decodes what
// it gets with the types of the protocol, and keeps it.
package collector

import (
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"

	collect "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	spans "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// Collector is one that runs until the end of a test.
type Collector struct {
	URL string
	// Refuse has it answer 403 to what it gets, which is not repeated.
	Refuse atomic.Bool

	mu       sync.Mutex
	got      []*spans.ResourceSpans // guarded by mu
	header   http.Header            // guarded by mu; of the last request
	requests int                    // guarded by mu
}

// Serve starts a collector.
func Serve(tb testing.TB) *Collector {
	tb.Helper()
	c := &Collector{}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/traces", func(w http.ResponseWriter, r *http.Request) {
		if err := c.take(r); err != nil {
			tb.Error("a collector got nonsense:", err)
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		if c.Refuse.Load() {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		raw, err := proto.Marshal(&collect.ExportTraceServiceResponse{})
		if err != nil {
			tb.Error(err)
		}
		w.Header().Set("Content-Type", "application/x-protobuf")
		_, _ = w.Write(raw)
	})
	server := httptest.NewServer(mux)
	tb.Cleanup(server.Close)
	c.URL = server.URL
	return c
}

func (c *Collector) take(r *http.Request) error {
	body := io.Reader(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		unzipped, err := gzip.NewReader(r.Body)
		if err != nil {
			return err
		}
		body = unzipped
	}
	raw, err := io.ReadAll(body)
	if err != nil {
		return err
	}
	var in collect.ExportTraceServiceRequest
	if err := proto.Unmarshal(raw, &in); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests++
	c.header = r.Header.Clone()
	if !c.Refuse.Load() {
		c.got = append(c.got, in.GetResourceSpans()...)
	}
	return nil
}

// Spans returns all spans that it has, by their trace ids.
func (c *Collector) Spans() map[string][]*spans.Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := map[string][]*spans.Span{}
	for _, r := range c.got {
		for _, s := range r.GetScopeSpans() {
			for _, span := range s.GetSpans() {
				all[string(span.GetTraceId())] = append(all[string(span.GetTraceId())], span)
			}
		}
	}
	return all
}

// Resources returns the attributes of those who sent spans.
func (c *Collector) Resources() (all []map[string]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.got {
		of := map[string]string{}
		for _, a := range r.GetResource().GetAttributes() {
			of[a.GetKey()] = a.GetValue().GetStringValue()
		}
		all = append(all, of)
	}
	return all
}

// Header returns a field of the last request, and how many there were.
func (c *Collector) Header(name string) (value string, requests int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.header.Get(name), c.requests
}
