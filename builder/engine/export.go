package engine

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/dozehq/doze/internal/buildapi"
	"github.com/moby/buildkit/client"
	"github.com/moby/buildkit/exporter"
	"github.com/moby/buildkit/session"
	"github.com/moby/buildkit/worker/base"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// worker is BuildKit's, with an exporter that holds what it made.
type worker struct {
	*base.Worker
	engine *Engine
}

// Exporter implements BuildKit's worker.Worker.
func (w *worker) Exporter(name string, sm *session.Manager) (exporter.Exporter, error) {
	e, err := w.Worker.Exporter(name, sm)
	if err != nil || name != client.ExporterImage {
		return e, err
	}
	return &holding{e, w.engine}, nil
}

// holding makes exporters that hold what they made.
type holding struct {
	exporter.Exporter
	engine *Engine
}

// Resolve implements [exporter.Exporter].
func (h *holding) Resolve(ctx context.Context, id int, attrs map[string]string) (exporter.ExporterInstance, error) {
	i, err := h.Exporter.Resolve(ctx, id, attrs)
	if err != nil {
		return nil, err
	}
	return &holdingInstance{i, h.engine}, nil
}

// holdingInstance leases the blobs of a result before BuildKit lets go of them. Another build
// may collect garbage at any moment.
type holdingInstance struct {
	exporter.ExporterInstance
	engine *Engine
}

// Export implements [exporter.ExporterInstance].
func (h *holdingInstance) Export(ctx context.Context, src *exporter.Source, info exporter.ExportBuildInfo) (
	resp map[string]string, finalize exporter.FinalizeFunc, ref exporter.DescriptorReference, err error,
) {
	resp, finalize, ref, err = h.ExporterInstance.Export(ctx, src, info)
	if err != nil {
		return resp, finalize, ref, err
	}
	if err := h.engine.hold(ctx, info.Ref, ref.Descriptor().Digest); err != nil {
		return nil, nil, nil, errors.Join(err, ref.Release())
	}
	return resp, finalize, ref, nil
}

// expect has a result of BuildKit be held as that of a build, until the function that it
// returns is called. That function returns what was held, or nil.
func (e *Engine) expect(ref, id string) (forget func() *buildapi.Result) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.results[ref] = &expected{id: id}
	return func() *buildapi.Result {
		e.mu.Lock()
		defer e.mu.Unlock()
		x := e.results[ref]
		delete(e.results, ref)
		return x.result
	}
}

// expected is a result that BuildKit is to make.
type expected struct {
	id     string
	result *buildapi.Result // nil until it is held
}

// hold saves the blobs of a result from garbage collection.
func (e *Engine) hold(ctx context.Context, ref string, d digest.Digest) error {
	e.mu.Lock()
	x := e.results[ref]
	e.mu.Unlock()
	if x == nil {
		return errors.New("the build has ended")
	}
	m, err := e.manifest(ctx, d)
	if err != nil {
		return err
	}
	out := &buildapi.Result{Digest: d.String(), Config: m.Config.Digest.String(), Layers: len(m.Layers)}
	blobs := []digest.Digest{d}
	for i, l := range append([]ocispec.Descriptor{m.Config}, m.Layers...) {
		if _, err := e.content.Info(ctx, l.Digest); err != nil {
			return fmt.Errorf("the image that was built lacks a layer: %w", err)
		}
		if i > 0 {
			out.Bytes += l.Size
		}
		blobs = append(blobs, l.Digest)
	}
	if err := e.lease(ctx, resultLease+x.id, blobs); err != nil {
		return err
	}
	if err := os.WriteFile(e.resultFile(x.id), []byte(d), 0o600); err != nil {
		return errors.Join(err, e.unlease(context.WithoutCancel(ctx), resultLease+x.id))
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	x.result = out
	return nil
}
