// Package disk makes a root file system out of an image, cheaply: one
// read-only EROFS file per image, which all sandboxes of that image share.
// Images come from three places: our own recipes (Debian packages, put
// together on this machine), registries, and tar archives of the operator.
package disk

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/durable"
	"github.com/dozehq/doze/internal/outproxy"
)

// buildsMax is how many images are made at the same time. Each one uses a
// processor and the disk to the full.
const buildsMax = 2

// Options are the operator's choices. The zero value is a working one.
type Options struct {
	// Suite is the Debian release that our own images are made of, such as
	// bookworm. Empty means the release of this machine.
	Suite string
	// PrivateRegistries lets references name registries on loopback and
	// private addresses. Callers choose references, so with it they can make
	// this machine send requests into its own network.
	PrivateRegistries bool
	// Through is the proxy through which this host reaches public addresses; nil: none.
	Through *outproxy.Proxy
	// Mirrors are where images are pulled from instead of their registries.
	Mirrors Mirrors
	// Owner is the data directory of the user of the library, which others may share:
	// what the owner uses stays until the owner collects it. Without one nothing is claimed.
	Owner string
	// BytesMax bounds the files of an image of a registry; 0 is [BytesDefault].
	BytesMax int64
	// Build has the platform's builder make the image of a row of the catalogue that has a
	// Dockerfile, and import it into the library. It returns the digest of the image.
	// Without it there are no such images here.
	Build func(ctx context.Context, name string, report func(Progress)) (digest string, err error)
	// Room returns an error if so many bytes more would not leave the disk enough
	// for others. They are taken until release is called, which is when they are
	// written. Without it the disk is ours.
	Room func(bytes int64) (release func(), err error)
}

func (o *Options) room() func(bytes int64) (release func(), err error) {
	if o.Room == nil {
		return unlimited
	}
	return o.Room
}

// Library keeps the images of one machine. It is safe for concurrent use, and
// several processes may have the same directory open.
type Library struct {
	dir    string // images/, tmp/ and lock
	o      Options
	limits limits
	slots  chan struct{}  // one element for each build under way
	builds sync.WaitGroup // of the goroutines that make images

	mu     sync.Mutex
	images map[string]Image // guarded by mu; by reference key
	// What follows is guarded by mu too, and by the name of an image's file.
	claimed  map[string]bool      // the claim of the owner has it
	started  map[string]time.Time // when somebody last got it to start a sandbox
	released map[string]bool      // no record names it any more
	flights  map[string]*flight   // guarded by mu; by reference key
	closed   bool                 // guarded by mu
}

var errClosed = doze.Errorf(doze.Unavailable, "the image library is shutting down")

// Open reads the library in dir, which it creates if needed, and removes what
// a killed process left half-made.
func Open(dir string, o Options) (*Library, error) {
	l := &Library{
		dir: dir, o: o, limits: limitsDefault,
		slots:   make(chan struct{}, buildsMax),
		images:  map[string]Image{},
		claimed: map[string]bool{}, started: map[string]time.Time{}, released: map[string]bool{},
		flights: map[string]*flight{},
	}
	if o.BytesMax > 0 {
		l.limits.bytes = o.BytesMax
	}
	for _, d := range []string{l.imageDir(), l.tempDir()} {
		if err := os.MkdirAll(d, 0o755); err != nil { //nolint:gosec // G301: apt reads the tree that it fills as its own user
			return nil, fmt.Errorf("open the image library: %w", err)
		}
	}
	unlock, err := l.lock()
	if err != nil {
		return nil, fmt.Errorf("open the image library: %w", err)
	}
	defer unlock()
	if err := errors.Join(l.load(), l.sweep(), l.openClaim()); err != nil {
		return nil, fmt.Errorf("open the image library: %w", err)
	}
	return l, nil
}

// Close ends all builds under way and waits for them.
func (l *Library) Close() error {
	l.mu.Lock()
	l.closed = true
	for _, f := range l.flights {
		f.cancel(errClosed)
	}
	l.mu.Unlock()
	l.builds.Wait()
	return nil
}

func (l *Library) imageDir() string { return filepath.Join(l.dir, "images") }
func (l *Library) tempDir() string  { return filepath.Join(l.dir, "tmp") }

// Check returns an Invalid error named INVALID_IMAGE for a reference that can
// never be run here. It makes and pulls nothing, so nil is no promise.
func (l *Library) Check(ref string) error {
	r, err := parse(ref)
	if err != nil {
		return err
	}
	if _, ok := l.find(r.key); !ok && !r.made() {
		return unknown(ref)
	}
	return nil
}

// Making tells the owner of a sandbox that this host has to make its image first. It is
// empty if the image is there, or if a registry sends it.
func (l *Library) Making(ref string) string {
	r, err := parse(ref)
	if err != nil || !r.ours() {
		return ""
	}
	if _, there := l.find(r.key); there {
		return ""
	}
	return "this host makes the image " + ref + ", since nobody used it here before: that takes some minutes"
}

// NeedsBuilder reports whether the image of a reference is one that [Options.Build] makes.
func (l *Library) NeedsBuilder(ref string) bool {
	r, err := parse(ref)
	return err == nil && r.built != ""
}

// Ensure returns the image of a reference and makes or pulls it if it is missing.
// Concurrent calls for one image share the work. It goes on when a caller's ctx ends,
// and leaves nothing if it fails. progress may be nil. It is called in the caller's
// goroutine.
func (l *Library) Ensure(ctx context.Context, ref string, progress func(Progress)) (Image, error) {
	return l.EnsureFor(ctx, ref, nil, progress)
}

// EnsureFor is Ensure with credentials for the registry; nil is without.
func (l *Library) EnsureFor(ctx context.Context, ref string, login *Login, progress func(Progress)) (Image, error) {
	r, err := parse(ref)
	if err != nil {
		return Image{}, err
	}
	return l.ensure(ctx, ref, r.as(login), true, progress)
}

// Pin asks the registry what a reference means now, gets that, and returns it
// with the reference that means it for ever. login may be nil.
func (l *Library) Pin(ctx context.Context, ref string, login *Login, progress func(Progress)) (pinned string, _ Image, err error) {
	r, err := parse(ref)
	if err != nil {
		return "", Image{}, err
	}
	if r.remote == nil {
		return "", Image{}, invalid(ref, "%q names no registry: write it in front, as in registry.example.com/team/image:1.0", ref)
	}
	p, err := l.resolve(ctx, r.as(login))
	if err != nil {
		return "", Image{}, err
	}
	if err := l.complete(ctx, p); err != nil {
		return "", Image{}, err
	}
	to := r.remote.Context().Digest(p.digest)
	img, err := l.ensure(ctx, ref, reference{key: to.Name(), remote: to}.as(login), false, progress)
	return to.Name(), img, err
}

// ensure has the image of a reference here. It stays, if starting for long enough
// to start a sandbox with it.
func (l *Library) ensure(ctx context.Context, ref string, r reference, starting bool, progress func(Progress)) (Image, error) {
	for {
		img, ok := l.find(r.key)
		if !ok {
			if !r.made() {
				return Image{}, unknown(ref)
			}
			f, err := l.join(ctx, r)
			if err != nil {
				return Image{}, err
			}
			if img, err = f.wait(ctx, progress); err != nil {
				return img, err
			}
		}
		switch held, err := l.hold(img, starting); {
		case err != nil:
			return Image{}, err
		case held:
			return img, nil
		}
		// Somebody has removed it just now.
		if err := errors.Join(context.Cause(ctx), l.load()); err != nil {
			return Image{}, err
		}
	}
}

// ImportTar makes an image of a tar archive, which may be compressed with
// gzip. A second import under the same reference replaces the first for new
// sandboxes; importing a name of ours replaces what we would make ourselves.
func (l *Library) ImportTar(ctx context.Context, ref string, archive io.Reader) (Image, error) {
	r, err := parse(ref)
	if err != nil {
		return Image{}, err
	}
	return l.build(ctx, r.key, func(ctx context.Context, tree string) (config, error) {
		return importTar(ctx, tree, archive, l.limits)
	})
}

// Retain removes every image whose file is not among files, which are known by
// their names: a library can be moved. What it removes must be in use nowhere,
// which only a process that has the library to itself can know. It returns the references
// that are gone.
func (l *Library) Retain(files []string) (gone []string, err error) {
	used := map[string]bool{}
	for _, f := range files {
		used[filepath.Base(f)] = true
	}
	unlock, err := l.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	records, _, err := read(l.imageDir()) // damaged images stay, for the operator to look into
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, r := range records {
		if used[filepath.Base(r.Path)] {
			continue
		}
		if err := l.remove(r); err != nil {
			errs = append(errs, fmt.Errorf("remove %s: %w", r.Ref, err))
			continue
		}
		gone = slices.AppendSeq(gone, maps.Keys(r.Refs))
	}
	slices.Sort(gone)
	return gone, errors.Join(append(errs, l.load())...)
}

// Images returns what is there, by reference.
func (l *Library) Images() []Image {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.SortedFunc(maps.Values(l.images), func(a, b Image) int { return strings.Compare(a.Ref, b.Ref) })
}

// Refs returns the references of images that are there, in order, without whose credentials
// they need. It looks in memory alone: what another process has put into the library is among
// them when somebody has asked for it here.
func (l *Library) Refs() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	refs := make([]string, 0, len(l.images))
	for key := range l.images {
		ref, _, _ := strings.Cut(key, ownerMark)
		refs = append(refs, ref)
	}
	slices.Sort(refs)
	return slices.Compact(refs)
}

// Stored is an image as it is on the disk.
type Stored struct {
	Image
	Refs      []string // all references that lead to it, without whose credentials they need
	Allocated int64    // bytes of the blocks that its file takes
	Platform  bool     // it was made or imported on this host, and not pulled
}

// Stored returns each image once, by its path.
func (l *Library) Stored() (all []Stored, err error) {
	records, _, err := read(l.imageDir()) // what is damaged was reported when it was found
	for _, r := range records {
		var st unix.Stat_t
		if err := unix.Lstat(r.Path, &st); err != nil {
			continue // it was removed just now
		}
		s := Stored{Image: r.Image, Allocated: st.Blocks * blockUnit}
		s.Platform = r.platform()
		for ref := range r.Refs {
			ref, _, _ = strings.Cut(ref, ownerMark)
			s.Refs = append(s.Refs, ref)
		}
		slices.Sort(s.Refs)
		s.Refs = slices.Compact(s.Refs)
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b Stored) int { return strings.Compare(a.Path, b.Path) })
	return all, err
}

// blockUnit is what stat counts blocks in.
const blockUnit = 512

func unknown(ref string) error {
	return invalid(ref, "there is no image %q: use an image of the platform, an imported one, or write the registry in front, as in registry.example.com/%s", ref, ref)
}

// find looks in memory and then, since another process may have been at work,
// on disk.
func (l *Library) find(key string) (Image, bool) {
	l.mu.Lock()
	img, ok := l.images[key]
	l.mu.Unlock()
	if ok {
		return img, true
	}
	if err := l.load(); err != nil {
		slog.Warn("the image library cannot be read", "dir", l.dir, "err", err)
		return Image{}, false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	img, ok = l.images[key]
	return img, ok
}

// load reads all records from disk.
func (l *Library) load() error {
	records, broken, err := read(l.imageDir())
	if err != nil {
		return err
	}
	for _, err := range broken {
		slog.Warn("an image is not whole and is not used", "err", err)
	}
	images, since := map[string]Image{}, map[string]time.Time{}
	for _, r := range records {
		for ref, at := range r.Refs {
			if known, ok := since[ref]; ok && known.After(at) {
				continue
			}
			images[ref], since[ref] = r.as(ref), at
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.images = images
	return nil
}

// join returns the flight that makes r, and starts one if there is none.
func (l *Library) join(ctx context.Context, r reference) (*flight, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, errClosed
	}
	if f, ok := l.flights[r.key]; ok {
		return f, nil
	}
	life, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	f := newFlight(cancel)
	l.flights[r.key] = f
	l.builds.Go(func() {
		defer cancel(nil)
		f.image, f.err = l.make(life, r, f.report)
		l.mu.Lock()
		delete(l.flights, r.key)
		l.mu.Unlock()
		close(f.done)
	})
	return f, nil
}

// make makes or pulls the image of r.
func (l *Library) make(ctx context.Context, r reference, report func(Progress)) (Image, error) {
	if r.built == "" { // else its import takes a turn, and so does its base
		report(Progress{Step: "waiting for other builds"})
		end, err := l.turn(ctx)
		if err != nil {
			return Image{}, err
		}
		defer end()
	}
	begin := time.Now()
	slog.Info("making an image", "image", r.key)
	img, err := l.source(ctx, r, report)
	if err != nil {
		if stopped := context.Cause(ctx); stopped != nil {
			return Image{}, stopped
		}
		slog.Warn("an image could not be made", "image", r.key, "took", time.Since(begin), "err", err)
		return Image{}, err
	}
	slog.Info("made an image", "image", r.key, "digest", img.Digest, "bytes", img.Bytes, "took", time.Since(begin))
	return img, nil
}

// source chooses where the image of r comes from.
func (l *Library) source(ctx context.Context, r reference, report func(Progress)) (Image, error) {
	if r.recipe != nil {
		return l.build(ctx, r.key, func(ctx context.Context, tree string) (config, error) {
			c, err := r.recipe.cook(ctx, tree, l.o.Suite, report)
			report(Progress{Step: "writing the image", Percent: 95})
			return c, err
		})
	}
	if r.built != "" {
		return l.commission(ctx, r, report)
	}
	p, err := l.resolve(ctx, r)
	if err != nil {
		return Image{}, err
	}
	if err := l.complete(ctx, p); err != nil {
		return Image{}, err
	}
	if img, ok, err := l.adopt(r.key, p.digest); ok || err != nil {
		return img, err
	}
	return l.download(ctx, r, p, report)
}

// commission has the image of a Dockerfile of ours built, and gives it its key. After a crash in
// between, nothing has the key and it is built anew.
func (l *Library) commission(ctx context.Context, r reference, report func(Progress)) (Image, error) {
	if l.o.Build == nil {
		return Image{}, doze.Errorf(doze.Unsupported, "%s is built by a running dozed: name it in --images of dozed, or create a sandbox with it", r.built)
	}
	digest, err := l.o.Build(ctx, r.built, report)
	if err != nil {
		return Image{}, err
	}
	img, there, err := l.adopt(r.key, digest)
	if err == nil && !there {
		err = doze.Errorf(doze.Unavailable, "the image %s was removed right after it was built: try again", r.built)
	}
	return img, err
}

// build lets fill put files into an empty directory and makes an image of it.
func (l *Library) build(ctx context.Context, key string, fill func(ctx context.Context, tree string) (config, error)) (_ Image, err error) {
	work, err := l.workspace()
	if err != nil {
		return Image{}, err
	}
	defer func() { err = errors.Join(err, work.discard()) }()

	tree := filepath.Join(work.dir, "tree")
	if err := os.Mkdir(tree, 0o755); err != nil { //nolint:gosec // G301: this is the root directory of the image
		return Image{}, fmt.Errorf("make a root: %w", err)
	}
	c, err := fill(ctx, tree)
	if err != nil {
		return Image{}, err
	}
	release, err := l.o.room()(c.bytes)
	if err != nil {
		return Image{}, err
	}
	defer release()
	file := filepath.Join(work.dir, "image"+imageSuffix)
	size, sum, err := seal(ctx, tree, file, c.digest == "")
	if err != nil {
		return Image{}, err
	}
	if c.digest == "" {
		c.digest = "sha256:" + sum
	}
	return l.commit(file, record{
		Image: Image{Ref: key, Digest: c.digest, Bytes: size, ImageConfig: c.ImageConfig}, Configured: true,
	})
}

// commit moves a finished file into the library. The record comes last: it is
// what makes the image exist.
func (l *Library) commit(file string, r record) (Image, error) {
	unlock, err := l.lock()
	if err != nil {
		return Image{}, err
	}
	defer unlock()
	r.Path = filepath.Join(l.imageDir(), r.hex()+imageSuffix)
	if old, err := readRecord(l.imageDir(), r.hex()); err == nil {
		r.Refs, r.Export = old.Refs, old.Export
		r.Bytes = old.Bytes // sandboxes may have the old file open: it stays
	} else if err := os.Rename(file, r.Path); err != nil {
		return Image{}, fmt.Errorf("keep the image: %w", err)
	}
	return r.as(r.Ref), l.putClaimed(r)
}

// adopt gives an image that is there already one more reference.
func (l *Library) adopt(key, digest string) (img Image, ok bool, err error) {
	unlock, err := l.lock()
	if err != nil {
		return Image{}, false, err
	}
	defer unlock()
	r, err := readRecord(l.imageDir(), strings.TrimPrefix(digest, "sha256:"))
	if err != nil {
		return Image{}, false, nil // what is missing or damaged is made anew
	}
	r.Ref = key
	return r.Image, true, l.putClaimed(r)
}

// complete reads the configuration anew of an image whose record is from before all of
// it counted. Its files stay, and so do sandboxes that have it.
func (l *Library) complete(ctx context.Context, p *pull) error {
	hex := strings.TrimPrefix(p.digest, "sha256:")
	if r, err := readRecord(l.imageDir(), hex); err != nil || r.Configured {
		return nil // what is missing or damaged is made anew
	}
	c, err := p.configure(ctx)
	if err != nil {
		return err
	}
	unlock, err := l.lock()
	if err != nil {
		return err
	}
	defer unlock()
	r, err := readRecord(l.imageDir(), hex)
	if err != nil {
		return nil // somebody has removed it just now
	}
	r.ImageConfig, r.Configured = c.ImageConfig, true
	return errors.Join(l.write(r), l.load())
}

// putClaimed is put, and claims the image. Preconditions: the library is locked.
func (l *Library) putClaimed(r record) error {
	if err := l.put(r); err != nil {
		return err
	}
	_, err := l.claim(filepath.Base(r.Path))
	return err
}

// put writes the record of an image whose file is in place, with r.Ref among
// its references, and only then shows the image to callers. Preconditions:
// the library is locked.
func (l *Library) put(r record) error {
	if r.Refs == nil {
		r.Refs = map[string]time.Time{}
	}
	r.Refs[r.Ref] = time.Now().UTC()
	if err := l.write(r); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.images[r.Ref] = r.Image
	return nil
}

// write writes the record of an image. Preconditions: the library is locked.
func (l *Library) write(r record) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("write the record of %s: %w", r.Ref, err)
	}
	if len(b) > recordBytesMax {
		return doze.Errorf(doze.Invalid, "what %s says about its process is longer than %d bytes", r.Ref, recordBytesMax)
	}
	file := filepath.Join(l.imageDir(), r.hex()+recordSuffix)
	if err := durable.Replace(file, b, recordMode); err != nil {
		return fmt.Errorf("write the record of %s: %w", r.Ref, err)
	}
	return nil
}

// lock keeps other processes out of the directory while records change.
func (l *Library) lock() (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(l.dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := flock(f, unix.LOCK_EX); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { _ = f.Close() }, nil
}

// sweep removes what has no owner: work directories whose process is gone, and
// files of images that never got their record. Preconditions: the library is
// locked.
func (l *Library) sweep() error {
	temps, err := os.ReadDir(l.tempDir())
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range temps {
		w, err := adoptWorkspace(filepath.Join(l.tempDir(), e.Name()))
		if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, w.discard())
	}
	files, err := os.ReadDir(l.imageDir())
	errs = append(errs, err)
	for _, e := range files {
		hex, isImage := strings.CutSuffix(e.Name(), imageSuffix)
		_, err := os.Stat(filepath.Join(l.imageDir(), hex+recordSuffix))
		if isImage && errors.Is(err, os.ErrNotExist) || strings.HasSuffix(e.Name(), durable.NewSuffix) {
			errs = append(errs, os.Remove(filepath.Join(l.imageDir(), e.Name())))
		}
	}
	return errors.Join(errs...)
}

// A workspace is a directory for one build. It is locked as long as its
// process lives, so that others can tell it from a leftover.
type workspace struct {
	dir  string
	hold *os.File
}

func (l *Library) workspace() (*workspace, error) {
	unlock, err := l.lock() // a sweep must not see it before it is held
	if err != nil {
		return nil, fmt.Errorf("make a work directory: %w", err)
	}
	defer unlock()
	dir, err := os.MkdirTemp(l.tempDir(), "build-")
	if err != nil {
		return nil, fmt.Errorf("make a work directory: %w", err)
	}
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // G302: apt reads the tree below as its own user
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return adoptWorkspace(dir)
}

func adoptWorkspace(dir string) (*workspace, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := flock(f, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &workspace{dir, f}, nil
}

func (w *workspace) discard() error {
	return errors.Join(os.RemoveAll(w.dir), w.hold.Close())
}

func flock(f *os.File, how int) error {
	for {
		err := unix.Flock(int(f.Fd()), how)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// sumOf is the SHA-256 sum of a text, in hexadecimal.
func sumOf(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// checksum reads f to its end.
func checksum(f io.Reader) (string, error) {
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
