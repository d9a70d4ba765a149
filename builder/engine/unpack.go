package engine

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// counting is an applier of layers that counts what it reads of them.
type counting struct {
	diff.Applier

	counts *sync.Map
}

// Apply implements [diff.Applier].
func (c counting) Apply(ctx context.Context, desc ocispec.Descriptor, mounts []mount.Mount, opts ...diff.ApplyOpt) (ocispec.Descriptor, error) {
	count := new(atomic.Int64)
	c.counts.Store(desc.Digest, count)
	defer c.counts.CompareAndDelete(desc.Digest, count)
	return c.Applier.Apply(ctx, desc, mounts, append(opts, diff.WithProgress(func(_ ocispec.Descriptor, n int64) { count.Store(n) }))...)
}

// unpacked returns how many bytes of a layer were read to unpack it, while that goes on, and
// how many it has.
func (e *Engine) unpacked(ctx context.Context, layer digest.Digest) (current, total int64) {
	known, _ := e.unpacks.Load(layer)
	if count, ok := known.(*atomic.Int64); ok {
		current = count.Load()
	}
	if info, err := e.content.Info(ctx, layer); err == nil {
		total = info.Size
	}
	return current, total
}
