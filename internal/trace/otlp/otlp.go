// Package otlp sends traces to a collector of OpenTelemetry, by HTTP. Nobody
// waits for it: what it cannot send in time is dropped, and counted.
package otlp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.37.0"
	otel "go.opentelemetry.io/otel/trace"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/trace"
)

const (
	// queueMax bounds the traces that wait to be sent: a storm of wakes, and some
	// seconds of a collector that does not answer. A trace takes less than 1 KB.
	queueMax = 2048
	// batchMax bounds the traces of one request, which are some 700 KB then.
	batchMax = 256
	// batchWait is how long a trace waits for others to be sent with.
	batchWait = time.Second
	// sendTimeout bounds one request, with its retries.
	sendTimeout = 10 * time.Second
	// lastTimeout bounds what is sent after the end.
	lastTimeout = 2 * time.Second
	// tracesPath is where collectors take traces by default.
	tracesPath = "/v1/traces"
)

// Why traces were dropped.
const (
	Full    = "full"    // too many waited
	Refused = "refused" // the collector cannot be reached, or does not want them
)

// Exporter sends traces. It needs [Exporter.Run] beside it. A nil Exporter, of a
// platform without a collector, sends none.
type Exporter struct {
	queue    chan trace.Record
	client   sdk.SpanExporter
	tracer   otel.Tracer
	made     *collected
	full     atomic.Uint64
	refused  atomic.Uint64
	failing  bool // owned by Run: the last batch was not sent
	provider *sdk.TracerProvider
}

// Check returns what is wrong with the address of a collector, or nil.
func Check(endpoint string) error {
	_, err := locate(endpoint)
	return err
}

// locate returns where traces are sent.
func locate(endpoint string) (string, error) {
	u, err := url.Parse(endpoint)
	switch {
	case err != nil:
		return "", errors.New("must be a URL such as http://127.0.0.1:4318")
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return "", errors.New("must be a URL that begins with http:// or https://")
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return "", errors.New("must have neither credentials nor a query: set headers with OTEL_EXPORTER_OTLP_HEADERS")
	}
	if strings.Trim(u.Path, "/") == "" {
		u.Path = tracesPath
	}
	return u.String(), nil
}

// Open returns an exporter to a collector, which need not be there. The standard
// environment variables say the rest: OTEL_EXPORTER_OTLP_HEADERS,
// OTEL_EXPORTER_OTLP_CERTIFICATE, OTEL_RESOURCE_ATTRIBUTES, and so on.
func Open(ctx context.Context, endpoint, version string) (*Exporter, error) {
	to, err := locate(endpoint)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", endpoint, err)
	}
	client, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(to), otlptracehttp.WithTimeout(sendTimeout))
	if err != nil {
		return nil, fmt.Errorf("export traces: %w", err)
	}
	about, err := resource.New(ctx,
		resource.WithAttributes(semconv.ServiceName("dozed"), semconv.ServiceVersion(version)),
		resource.WithHost(), resource.WithFromEnv(), resource.WithTelemetrySDK(),
	)
	if err != nil && !errors.Is(err, resource.ErrPartialResource) {
		return nil, errors.Join(fmt.Errorf("export traces: %w", err), client.Shutdown(ctx))
	}
	e := &Exporter{queue: make(chan trace.Record, queueMax), client: client, made: &collected{}}
	e.provider = sdk.NewTracerProvider(sdk.WithSampler(sdk.AlwaysSample()), sdk.WithSpanProcessor(e.made), sdk.WithResource(about))
	e.tracer = e.provider.Tracer("doze")
	return e, nil
}

// Offer takes a trace that has ended. It does not wait.
func (e *Exporter) Offer(r trace.Record) {
	if e == nil {
		return
	}
	select {
	case e.queue <- r:
	default:
		e.full.Add(1)
	}
}

// Drops returns how many traces were not sent, by reason.
func (e *Exporter) Drops() map[string]uint64 {
	if e == nil {
		return nil
	}
	return map[string]uint64{Full: e.full.Load(), Refused: e.refused.Load()}
}

// Run sends what is offered until ctx ends, and then what is left, for a moment.
func (e *Exporter) Run(ctx context.Context) error {
	if e == nil {
		<-ctx.Done()
		return nil
	}
	lasting := context.WithoutCancel(ctx)
	sending, end := context.WithCancel(lasting)
	defer end()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(lastTimeout, end) })()
	list := e.batch(ctx)
	for ; ctx.Err() == nil; list = e.batch(ctx) {
		e.send(sending, list)
	}
	for list = append(list, e.rest()...); len(list) > 0; list = e.rest() {
		e.send(sending, list)
	}
	return errors.Join(e.provider.Shutdown(lasting), e.client.Shutdown(lasting))
}

// batch waits for traces, and returns some.
func (e *Exporter) batch(ctx context.Context) (list []trace.Record) {
	var full <-chan time.Time
	for len(list) < batchMax {
		select {
		case r := <-e.queue:
			if list = append(list, r); full == nil {
				full = time.After(batchWait)
			}
		case <-full:
			return list
		case <-ctx.Done():
			return list
		}
	}
	return list
}

// rest returns some of what waits, without a wait for more.
func (e *Exporter) rest() (list []trace.Record) {
	for len(list) < batchMax {
		select {
		case r := <-e.queue:
			list = append(list, r)
		default:
			return list
		}
	}
	return list
}

// send sends traces, and counts those that were not.
func (e *Exporter) send(ctx context.Context, list []trace.Record) {
	for _, r := range list {
		e.describe(ctx, r)
	}
	limited, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	err := e.client.ExportSpans(limited, e.made.take())
	if err != nil {
		e.refused.Add(uint64(len(list)))
		if !e.failing { // one line for each time that it goes away
			slog.WarnContext(ctx, "traces cannot be exported, and are dropped", "count", len(list), "err", err)
		}
	} else if e.failing {
		slog.InfoContext(ctx, "traces are exported again")
	}
	e.failing = err != nil
}

// describe makes spans of a trace.
func (e *Exporter) describe(ctx context.Context, r trace.Record) {
	// What the caller said is the parent of these spans, if it makes sense, and
	// counts for nothing else.
	parent := propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{"traceparent": r.Parent})
	whole, root := e.tracer.Start(parent, string(r.Kind), otel.WithTimestamp(r.Began), otel.WithSpanKind(otel.SpanKindServer), otel.WithAttributes(
		attribute.String("doze.sandbox", r.Sandbox), attribute.String("doze.workspace", r.Workspace), attribute.String("doze.from", r.From),
		attribute.Int64("doze.waited_us", r.Waited.Microseconds()),
	))
	if r.Status == doze.TraceFailed {
		root.SetStatus(codes.Error, r.Error)
	}
	contexts := make([]context.Context, len(r.Spans))
	spans := make([]otel.Span, len(r.Spans))
	for i, s := range r.Spans {
		in := whole
		if s.Within >= 0 && s.Within < i {
			in = contexts[s.Within]
		}
		contexts[i], spans[i] = e.tracer.Start(in, s.Stage.String(), otel.WithTimestamp(r.Began.Add(s.Start)))
	}
	for i, s := range r.Spans {
		spans[i].End(otel.WithTimestamp(r.Began.Add(s.Start + s.Took)))
	}
	root.End(otel.WithTimestamp(r.Began.Add(r.Took)))
}

// collected are the spans that Run has made. They are its alone.
type collected struct{ spans []sdk.ReadOnlySpan }

func (c *collected) OnStart(context.Context, sdk.ReadWriteSpan) {}
func (c *collected) OnEnd(s sdk.ReadOnlySpan)                   { c.spans = append(c.spans, s) }
func (c *collected) Shutdown(context.Context) error             { return nil }
func (c *collected) ForceFlush(context.Context) error           { return nil }

func (c *collected) take() []sdk.ReadOnlySpan {
	spans := c.spans
	c.spans = nil
	return spans
}
