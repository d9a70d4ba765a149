package disk

import (
	"context"
	"sync"
)

// Progress is how far the making of an image is.
type Progress struct {
	Step    string // what happens now, such as "downloading packages"
	Percent int    // 0 to 100 of the whole; never falls
}

// A flight is one image in the making, and all callers that wait for it.
type flight struct {
	cancel context.CancelCauseFunc
	done   chan struct{} // closed at the end; image and err are set before
	image  Image
	err    error

	mu      sync.Mutex
	now     Progress      // guarded by mu
	changed chan struct{} // guarded by mu; closed by the next report
}

func newFlight(cancel context.CancelCauseFunc) *flight {
	return &flight{cancel: cancel, done: make(chan struct{}), changed: make(chan struct{})}
}

// report tells all who wait.
func (f *flight) report(p Progress) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p.Percent = max(p.Percent, f.now.Percent)
	if p == f.now {
		return
	}
	f.now = p
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *flight) latest() (Progress, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now, f.changed
}

// wait blocks until the image is there or ctx ends. It calls progress, if not
// nil, in the goroutine of the caller.
func (f *flight) wait(ctx context.Context, progress func(Progress)) (Image, error) {
	for {
		now, changed := f.latest()
		if progress != nil && now != (Progress{}) {
			progress(now)
		}
		select {
		case <-f.done:
			return f.image, f.err
		case <-changed:
		case <-ctx.Done():
			return Image{}, context.Cause(ctx)
		}
	}
}
