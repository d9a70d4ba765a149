// Package builder builds images of Dockerfiles on one host. Each workspace has a builder
// of its own: a hidden machine that runs the program doze-builder, with the cache of the
// workspace in its memory. The machine sleeps between builds as a sandbox does, and so
// does its cache.
//
// The package knows no node and no library of images: it asks interfaces for both. What
// it asks the program is in package buildapi. The program runs beside the steps of
// Dockerfiles, so nothing that it answers is believed. The client of buildapi bounds each
// answer, and images are imported as those of strangers.
package builder

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/buildapi"
	"github.com/dozehq/doze/internal/fleet"
)

// Platform is the workspace of builds of the platform's own images. Control has no such
// workspace, and is not told of its builder. Its builds wait in no queue: those of
// workspaces wait for their images, with a turn.
const Platform = "the platform"

const (
	// sweepEvery is how often builders are looked for that nobody used for long.
	sweepEvery = 10 * time.Minute
	// platformAge is for how long the builder of the platform stays that nobody uses. Its
	// images are built once, so its cache helps the next of them alone.
	platformAge = 10 * time.Minute
)

// A Size is what a builder has.
type Size struct {
	Memory doze.Megabytes
	Disk   doze.Megabytes // of its file system, which is in its memory
}

// Machines are the hidden machines of a host.
type Machines interface {
	// UID returns that of the machine with a name.
	UID(name string) string
	// Create boots a machine on the root file system in a file. On an error nothing of
	// it is left.
	Create(ctx context.Context, o fleet.Order, root string) error
	// Delete ends a machine in any state. One that is not there is no error.
	Delete(ctx context.Context, uid string) error
	// SetNetwork has the rules of a network obeyed from now on.
	SetNetwork(ctx context.Context, uid string, network *doze.Network) error
	// Egress returns where a machine connected to, and what it was refused.
	Egress(uid string) doze.EgressSummary
	// Transport carries requests to a port of a machine, which wakes.
	Transport(uid string, port uint16) http.RoundTripper
	// Hold wakes a machine, and has it stay awake until release is called.
	Hold(ctx context.Context, uid string) (release func(), err error)
	// All returns the machines that there are, by UID.
	All() map[string]Machine
}

// Machine is what a host knows of a hidden machine.
type Machine struct {
	fleet.Status

	Root   string // the file of its root file system
	Memory int64  // what its guest may use, in bytes
}

// usable reports whether a machine can wake and build.
func (m *Machine) usable() bool { return !m.Phase.Ended() && m.Phase != doze.Failed }

// Images are those of a host.
type Images interface {
	// Platform reports whether a name is one of the platform's own images, which no
	// registry has.
	Platform(name string) bool
	// CheckPlatform returns why a name that can only mean an image of the platform means none.
	CheckPlatform(name string) error
	// Mirrored returns the reference and the registry of a name whose registry has a
	// mirror.
	Mirrored(name string) (ref, registry string, ok bool)
	// Pin returns the reference that means for ever what one without credentials means now.
	Pin(ctx context.Context, ref string) (pinned string, err error)
	// Ensure has an image here: made or pulled, if it is not there yet. It returns the
	// digest of its files.
	Ensure(ctx context.Context, b fleet.Base) (digest string, err error)
	// Export writes an image as an OCI layout in a tar.
	Export(ctx context.Context, b fleet.Base, w io.Writer) error
	// Import makes an image of an OCI layout in a tar, under an id that is never reused.
	// Layers of bases may be missing in the archive, as they are in that of a build.
	Import(ctx context.Context, id string, archive io.Reader, bases []fleet.Base) (fleet.Built, error)
}

// Options are the settings of a room, and what it builds with.
type Options struct {
	Dir string // a record for each builder; survives a reboot
	// Root returns the file of the root file system of builders, which it may have to
	// make. Its error says why this host has no builders.
	Root func(ctx context.Context) (string, error)
	// Able is the same, and makes nothing.
	Able     func() error
	Machines Machines
	Images   Images

	Builds int  // that run at a time; others wait for their turn
	Size   Size // of the builder of each workspace
	Own    Size // of the builder of the platform
	// CacheAge is for how long a builder stays that nobody uses; 0: for ever.
	CacheAge time.Duration
	Timeout  time.Duration // of one build, from its turn on
}

// Room has the builders of one host. It implements [fleet.Builder]. It is safe for
// concurrent use.
type Room struct {
	o     Options
	queue *queue
	life  context.Context //nolint:containedctx // of the benches; builds end with their callers

	mu      sync.Mutex
	benches map[string]*bench // guarded by mu; by the id of a workspace
}

var _ fleet.Builder = (*Room)(nil)

// Open returns a room that knows the builders of the process before it. It removes what
// is left of those that were not finished.
func Open(ctx context.Context, o Options) (*Room, error) {
	r := &Room{o: o, queue: newQueue(o.Builds, buildapi.BuildsMax), life: context.WithoutCancel(ctx), benches: map[string]*bench{}}
	if err := r.adopt(ctx); err != nil {
		return nil, err
	}
	return r, nil
}

// Run removes builders that nobody used for long, until ctx ends.
func (r *Room) Run(ctx context.Context) error {
	every := time.NewTicker(sweepEvery)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-every.C:
			r.sweep(ctx, now)
		}
	}
}

// size is what the builder of a workspace has.
func (o *Options) size(workspaceID string) Size {
	if workspaceID == Platform {
		return o.Own
	}
	return o.Size
}

// age is for how long the builder of a workspace stays that nobody uses; 0: for ever.
func (o *Options) age(workspaceID string) time.Duration {
	if workspaceID == Platform {
		return platformAge
	}
	return o.CacheAge
}

// sweep removes the builders that nobody used for their age before a moment.
func (r *Room) sweep(ctx context.Context, now time.Time) {
	for _, id := range r.unused(now) {
		if err := r.drop(ctx, id, errUnused); err != nil && ctx.Err() == nil {
			slog.WarnContext(ctx, "an unused builder is not removed", "workspace", id, "err", err)
		}
	}
}

// errUnused and errDropped are why a builder is removed.
var (
	errUnused  = doze.Errorf(doze.Unavailable, "the builder of the workspace was removed, since nobody used it: build again")
	errDropped = doze.Errorf(doze.Unavailable, "the builder of the workspace was removed")
)

// DropBuilder implements [fleet.Builder].
func (r *Room) DropBuilder(ctx context.Context, workspaceID string) error {
	return r.drop(ctx, workspaceID, errDropped)
}

// Builders implements [fleet.Builder].
func (r *Room) Builders(context.Context) (map[string]fleet.BuilderUse, error) {
	if err := r.o.Able(); err != nil {
		return nil, err
	}
	machines := r.o.Machines.All()
	r.mu.Lock()
	defer r.mu.Unlock()
	all := map[string]fleet.BuilderUse{}
	for id, b := range r.benches {
		m, made := machines[b.uid]
		if !made || id == Platform {
			continue
		}
		use := fleet.BuilderUse{CacheBytes: b.record.CacheBytes, LastUsed: b.record.LastUsed, Builds: b.builds, Tier: m.Tier}
		if b.builds > 0 {
			use.LastUsed = time.Now()
		}
		all[id] = use
	}
	return all, nil
}

// SaveImage implements [fleet.Builder].
func (r *Room) SaveImage(ctx context.Context, ref string, login *fleet.Login) (io.ReadCloser, error) {
	base := fleet.Base{Ref: ref, Login: login}
	if _, err := r.o.Images.Ensure(ctx, base); err != nil { // while there is no answer yet
		return nil, err
	}
	return newExport(ctx, r.o.Images, base), nil
}

// LoadImage implements [fleet.Builder].
func (r *Room) LoadImage(ctx context.Context, id string, archive io.Reader) (fleet.Built, error) {
	if !buildapi.ValidID(id) {
		return fleet.Built{}, doze.Errorf(doze.Internal, "%.40q is no id of an image", id)
	}
	return r.o.Images.Import(ctx, id, archive, nil)
}

// export is an image on its way out. A goroutine writes it, which ends with Close.
type export struct {
	*io.PipeReader

	done chan error
	err  error
	once sync.Once
}

// errClosed is what the writer of an export hears when nobody reads any more.
var errClosed = errors.New("nobody reads the image any more")

// newExport begins to write an image.
func newExport(ctx context.Context, from Images, b fleet.Base) *export {
	pr, pw := io.Pipe()
	e := &export{PipeReader: pr, done: make(chan error, 1)}
	go func() {
		err := from.Export(ctx, b, pw)
		_ = pw.CloseWithError(err) // never fails
		e.done <- err
	}()
	return e
}

// Close ends the writer, and waits for it.
func (e *export) Close() error {
	_ = e.end()
	return nil
}

// end is Close, and returns why the image was not written to its end.
func (e *export) end() error {
	e.once.Do(func() {
		_ = e.CloseWithError(errClosed) // never fails
		e.err = <-e.done
	})
	return e.err
}
