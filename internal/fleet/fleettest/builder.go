package fleettest

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
)

// workspaceBuilds is how many builds of one workspace the fake has at a time.
const workspaceBuilds = 2

// Builder is a [fleet.Builder] that runs nothing. It reads archives, obeys the names of
// Dockerfiles such as [Broken], and remembers which images it made. Its zero value works.
type Builder struct {
	mu     sync.Mutex
	caches map[string]*cache            // guarded by mu; by workspace id
	images map[string][]byte            // guarded by mu; archives by reference
	orders []fleet.BuildOrder           // guarded by mu
	hook   func(fleet.BuildOrder) error // guarded by mu
}

// cache is what the fake has for one workspace.
type cache struct {
	slots chan struct{}
	life  context.Context //nolint:containedctx // ends when the builder is dropped
	end   context.CancelCauseFunc
	known map[string]bool // guarded by mu of the builder; Dockerfiles that were built
	used  time.Time       // guarded by mu of the builder
	now   int             // guarded by mu of the builder; builds that are under way
}

var _ fleet.Builder = (*Builder)(nil)

// OnBuild has each build call a function when its turn has come. Its error is that of
// the build.
func (b *Builder) OnBuild(hook func(fleet.BuildOrder) error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hook = hook
}

// Builds returns the orders of all builds.
func (b *Builder) Builds() []fleet.BuildOrder {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]fleet.BuildOrder(nil), b.orders...)
}

// Build implements [fleet.Builder].
func (b *Builder) Build(ctx context.Context, o fleet.BuildOrder, archive io.Reader, emit func(fleet.BuildEvent)) (fleet.Built, error) {
	c, hook := b.enter(ctx, o)
	select {
	case c.slots <- struct{}{}:
	default:
		emit(fleet.BuildEvent{At: time.Now(), State: fleet.BuildWaiting, Text: "other builds of the workspace"})
		select {
		case c.slots <- struct{}{}:
		case <-ctx.Done():
			return fleet.Built{}, context.Cause(ctx)
		}
	}
	defer func() { <-c.slots }()
	defer b.count(c)()
	if o.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, o.Timeout, doze.Errorf(doze.Timeout, "the build took longer than %v", o.Timeout))
		defer cancel()
	}
	if hook != nil {
		if err := hook(o); err != nil {
			return fleet.Built{}, err
		}
	}
	raw, err := io.ReadAll(archive)
	if err != nil {
		return fleet.Built{}, err
	}
	if err := b.step(ctx, c, o, raw, emit); err != nil {
		return fleet.Built{}, err
	}
	return b.put("built/"+o.ID, raw), nil
}

// enter returns what there is for the workspace of an order.
func (b *Builder) enter(ctx context.Context, o fleet.BuildOrder) (*cache, func(fleet.BuildOrder) error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.orders = append(b.orders, o)
	c := b.caches[o.WorkspaceID]
	if c == nil {
		c = &cache{slots: make(chan struct{}, workspaceBuilds), known: map[string]bool{}}
		c.life, c.end = context.WithCancelCause(context.WithoutCancel(ctx))
		if b.caches == nil {
			b.caches = map[string]*cache{}
		}
		b.caches[o.WorkspaceID] = c
	}
	return c, b.hook
}

// count counts a build that is under way until the function that it returns is called.
func (b *Builder) count(c *cache) (leave func()) {
	add := func(n int) {
		b.mu.Lock()
		defer b.mu.Unlock()
		c.now, c.used = c.now+n, time.Now()
	}
	add(1)
	return func() { add(-1) }
}

// step does what the name of the Dockerfile says.
func (b *Builder) step(ctx context.Context, c *cache, o fleet.BuildOrder, raw []byte, emit func(fleet.BuildEvent)) error {
	name := o.Dockerfile
	if name == "" {
		name = "Dockerfile"
	}
	if err := hasFile(raw, name); err != nil {
		return err
	}
	tell := func(step int, name, state, stream, text string) {
		emit(fleet.BuildEvent{At: time.Now(), Step: step, Steps: 2, Line: step, Name: name, State: state, Stream: stream, Text: text})
	}
	tell(1, "FROM doze/slim", fleet.BuildStarted, "", "")
	tell(1, "FROM doze/slim", fleet.BuildDone, "", "")
	switch name {
	case Broken:
		const run = "RUN echo reason && exit 7"
		tell(2, run, fleet.BuildStarted, "", "")
		tell(2, run, "", "stdout", "reason")
		tell(2, run, fleet.BuildError, "", "")
		return fleet.BuildFailed("step 2 failed", fleet.BuildFailure{Step: 2, Line: 3, Command: run, Code: 7, Output: []string{"reason"}})
	case Endless:
		tell(2, "RUN", fleet.BuildStarted, "", "")
		tell(2, "RUN", "", "stdout", "begun")
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-c.life.Done():
			return context.Cause(c.life)
		}
	}
	b.mu.Lock()
	hit := c.known[name] && !o.NoCache
	c.known[name] = true
	b.mu.Unlock()
	if hit {
		tell(2, "RUN echo built", fleet.BuildCached, "", "")
		return nil
	}
	tell(2, "RUN echo built", fleet.BuildStarted, "", "")
	tell(2, "RUN echo built", "", "stdout", "built")
	tell(2, "RUN echo built", fleet.BuildDone, "", "")
	return context.Cause(ctx)
}

// hasFile fails unless raw is a zip, or a tar, that has a file.
func hasFile(raw []byte, name string) error {
	missing := fleet.BuildFailed("the context has no file "+name, fleet.BuildFailure{})
	if z, err := zip.NewReader(bytes.NewReader(raw), int64(len(raw))); err == nil {
		if f, err := z.Open(name); err == nil {
			return f.Close()
		}
		return missing
	}
	for t := tar.NewReader(bytes.NewReader(raw)); ; {
		switch h, err := t.Next(); {
		case errors.Is(err, io.EOF):
			return missing
		case err != nil:
			return fleet.BuildFailed("the archive is neither a zip nor a tar", fleet.BuildFailure{})
		case h.Name == name:
			return nil
		}
	}
}

// put remembers an image.
func (b *Builder) put(name string, raw []byte) fleet.Built {
	sum := sha256.Sum256(append([]byte(name), raw...))
	digest := "sha256:" + hex.EncodeToString(sum[:])
	ref := name + "@" + digest
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.images == nil {
		b.images = map[string][]byte{}
	}
	b.images[ref] = raw
	return fleet.Built{Ref: ref, Digest: digest, Bytes: int64(len(raw))}
}

// Image returns the archive of an image that was built or loaded here.
func (b *Builder) Image(ref string) (raw []byte, there bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	raw, there = b.images[ref]
	return raw, there
}

// DropBuilder implements [fleet.Builder].
func (b *Builder) DropBuilder(_ context.Context, workspaceID string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c := b.caches[workspaceID]; c != nil {
		c.end(doze.Errorf(doze.Unavailable, "the builder of the workspace was removed"))
		delete(b.caches, workspaceID)
	}
	return nil
}

// Builders implements [fleet.Builder].
func (b *Builder) Builders(context.Context) (map[string]fleet.BuilderUse, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := map[string]fleet.BuilderUse{}
	for id, c := range b.caches {
		all[id] = fleet.BuilderUse{CacheBytes: int64(len(c.known)), LastUsed: c.used, Builds: c.now, Tier: "awake"}
	}
	return all, nil
}

// SaveImage implements [fleet.Builder]. Images that were not built here are an archive
// of their reference.
func (b *Builder) SaveImage(_ context.Context, ref string, login *fleet.Login) (io.ReadCloser, error) {
	if ref == "" || bytes.ContainsAny([]byte(ref), " ") {
		return nil, &doze.Error{Kind: doze.Invalid, Name: doze.NameInvalidImage, Message: "the image cannot be run"}
	}
	if err := CheckLogin(ref, login); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	raw, ok := b.images[ref]
	if !ok {
		var archive bytes.Buffer
		w := tar.NewWriter(&archive)
		err := w.WriteHeader(&tar.Header{Name: "oci-layout", Mode: 0o644, Size: int64(len(ref))})
		if err == nil {
			_, err = io.WriteString(w, ref)
		}
		if err := errors.Join(err, w.Close()); err != nil {
			return nil, err
		}
		raw = archive.Bytes()
	}
	return io.NopCloser(bytes.NewReader(raw)), nil
}

// LoadImage implements [fleet.Builder]: whatever is an archive with something in it is
// an image.
func (b *Builder) LoadImage(_ context.Context, id string, archive io.Reader) (fleet.Built, error) {
	raw, err := io.ReadAll(archive)
	if err != nil {
		return fleet.Built{}, err
	}
	_, zipped := zip.NewReader(bytes.NewReader(raw), int64(len(raw)))
	if _, err := tar.NewReader(bytes.NewReader(raw)).Next(); err != nil && zipped != nil {
		return fleet.Built{}, &doze.Error{Kind: doze.Invalid, Name: doze.NameInvalidImage, Message: "the archive is no image"}
	}
	return b.put("loaded/"+id, raw), nil
}
