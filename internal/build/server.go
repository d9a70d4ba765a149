// Package build serves builds of images. It offers addresses for uploads, and stores the
// archives until their builds have ended. It orders the builds from a node in fair turns,
// and has their logs. What a build makes goes to the rooms of images and sandboxes.
//
// The records say how far a build is. A build that the end of a process interrupts
// begins again with the archive that is still there.
package build

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/audit"
	"github.com/dozehq/doze/internal/bell"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/keylock"
	"github.com/dozehq/doze/internal/store"
)

const (
	// ParallelDefault is how many builds run at a time unless an operator says otherwise.
	ParallelDefault = 2
	// ownMax bounds the builds of one workspace that run at a time: they share a builder.
	ownMax = 2
	// attemptsMax is how often a node is asked for one build. A builder that ends by
	// itself may work the next time, but not for ever.
	attemptsMax = 3
	// retryAfter is the pause before the next attempt.
	retryAfter = 5 * time.Second
	// waitMax bounds the life of a build from its upload to its end, whatever it waits
	// for. A node that is out of reach for longer than that does not come back soon.
	waitMax = 6 * time.Hour
	// seenAfter is how long a build is shown as BUILDING at least, unless somebody has
	// read that. Clients look every three seconds, and take a build for a new one only
	// if they have seen it.
	seenAfter = 3 * time.Second
	// failedFor is how long the failure of a build is the status of what it was to
	// replace. Clients look every three to five seconds.
	failedFor = time.Minute
	// endTimeout bounds the writes that end a build, whose own time may be over.
	endTimeout = 30 * time.Second
	// lookAtLeast is how often the loop looks at its clock without being told.
	lookAtLeast = time.Minute
)

// Node is what a node does about builds.
type Node interface {
	Build(ctx context.Context, o fleet.BuildOrder, archive io.Reader, emit func(fleet.BuildEvent)) (fleet.Built, error)
	Builders(ctx context.Context) (map[string]fleet.BuilderUse, error)
	DropBuilder(ctx context.Context, workspaceID string) error
	ReleaseImage(ctx context.Context, ref string) error
}

// Images is what the room of images does for builds.
type Images interface {
	// Materials returns what builds of a workspace may begin with. These are its images and
	// those that others share with it, by every name that a Dockerfile may use. Its
	// credentials are by the host of a registry.
	Materials(ctx context.Context, workspace string) (map[string]fleet.Base, map[string]fleet.Login, error)
	// CheckBuild reads the name of an image that is to be built, with or without a tag, and
	// adds what is wrong with it.
	CheckBuild(ctx context.Context, workspace, ref string, wrong *doze.Problems) (name, tag string, err error)
	// Tag gives an image that a node made its name in a workspace.
	Tag(ctx context.Context, b *store.Build, built fleet.Built) error
}

// Sandboxes is what the room of sandboxes does for builds that are for one.
type Sandboxes interface {
	// Uploaded records that the files of the image are there. A sandbox that ended is
	// NotFound.
	Uploaded(ctx context.Context, uid string) error
	// Deploy gives the sandbox of a build a machine of its image, with the change that
	// came with the request.
	Deploy(ctx context.Context, b *store.Build) error
	// Failed records that there will be no image, and why. What runs is left alone.
	Failed(ctx context.Context, uid, why string) error
	// BuilderDisk is how many files a builder of the node has room for. 0 is not known.
	BuilderDisk() doze.Megabytes
}

// Config is what a Server works with. Every field but Parallel is required. Images and
// Sandboxes are asked once requests come in: they may need the Server themselves.
type Config struct {
	Store     *store.Store
	Node      Node
	Audit     *audit.Journal
	Images    func() Images
	Sandboxes func() Sandboxes
	Dir       string // for archives and logs; it is made
	Base      string // the address of the control API, for uploads
	Parallel  int    // builds at a time; 0 is ParallelDefault
}

// Server serves builds.
type Server struct {
	Config
	locks *keylock.Locks // of targets and uploads
	ring  bell.Bell      // something may be due

	mu      sync.Mutex
	live    map[string]*job      // guarded by mu; builds that have not ended, by id
	targets map[string]*job      // guarded by mu; the same by what they are for: at most one each
	failed  map[string]time.Time // guarded by mu; until when a failure is shown, by target
	running map[string]int       // guarded by mu; by workspace
	total   int                  // guarded by mu; that run
	last    map[string]time.Time // guarded by mu; when a workspace had its last turn, while it has builds
	uploads map[string]int       // guarded by mu; under way, by workspace
}

// job is a build that has not ended.
type job struct {
	id, workspace string
	record        store.Build // guarded by Server.mu
	retry         time.Time   // guarded by Server.mu; not before
	taking        bool        // guarded by Server.mu; its files come in
	runs          bool        // guarded by Server.mu; a goroutine has it
	// cancel ends what the goroutine does that has the build; nil while none has it.
	cancel  context.CancelCauseFunc // guarded by Server.mu
	seen    chan struct{}           // closed when BUILDING was read
	sawOnce sync.Once
	log     *journal
}

// New returns a server that serves at once; [Server.Load] and [Server.Run] belong to it.
func New(c Config) *Server {
	if c.Parallel <= 0 {
		c.Parallel = ParallelDefault
	}
	return &Server{
		Config: c, locks: keylock.New(), ring: bell.New(),
		live: map[string]*job{}, targets: map[string]*job{}, failed: map[string]time.Time{},
		running: map[string]int{}, last: map[string]time.Time{}, uploads: map[string]int{},
	}
}

// Load takes over the builds of a process that ended at any moment, and removes the files
// of those that nobody knows. Call it once, before requests come in.
func (s *Server) Load(ctx context.Context) error {
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return err
	}
	known, err := s.Store.BuildIDs(ctx)
	if err != nil {
		return err
	}
	files, err := os.ReadDir(s.Dir)
	if err != nil {
		return err
	}
	all, err := s.Store.UnfinishedBuilds(ctx)
	if err != nil {
		return err
	}
	open := map[string]bool{}
	for i := range all {
		open[all[i].ID] = true
	}
	for _, f := range files {
		id, kind, _ := strings.Cut(f.Name(), ".")
		if !known[id] || kind != logKind && (kind != archiveKind || !open[id]) {
			err = errors.Join(err, os.Remove(filepath.Join(s.Dir, f.Name())))
		}
	}
	if err != nil {
		slog.WarnContext(ctx, "files of builds that ended are left", "err", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range all {
		s.addLocked(b)
	}
	return nil
}

// addLocked makes a build one that has not ended. Preconditions: mu is held.
func (s *Server) addLocked(b store.Build) {
	j := &job{id: b.ID, workspace: b.Workspace, record: b, seen: make(chan struct{}), log: openJournal(s.file(b.ID, logKind))}
	s.live[b.ID], s.targets[targetOf(&b)] = j, j
}

// endLocked forgets a build that has ended. Preconditions: mu is held.
func (s *Server) endLocked(j *job, cause error) {
	target := targetOf(&j.record)
	delete(s.live, j.id)
	if s.targets[target] == j {
		delete(s.targets, target)
	}
	workspace := j.workspace
	for _, other := range s.live {
		if other.workspace == workspace {
			workspace = ""
			break
		}
	}
	delete(s.last, workspace)
	if j.cancel != nil {
		j.cancel(cause)
	}
	j.log.end()
	s.ring.Ring()
}

// Target is what a build is for: at most one build for each has not ended.
type Target string

// SandboxTarget is a sandbox.
func SandboxTarget(uid string) Target { return Target(doze.KindSandbox + "/" + uid) }

// ImageTarget is an image of a workspace.
func ImageTarget(workspace, name string) Target { return Target("image/" + workspace + "/" + name) }

func targetOf(b *store.Build) string {
	if b.UID != "" {
		return string(SandboxTarget(b.UID))
	}
	return string(ImageTarget(b.Workspace, b.Name))
}

// Shown returns the status of the build for a target, while callers see it in place of that
// of the target. That is until its end, and for a minute after a failure.
func (s *Server) Shown(t Target) (status string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if j := s.targets[string(t)]; j != nil {
		status := statusOf(&j.record)
		if status == doze.BuildBuilding {
			j.sawOnce.Do(func() { close(j.seen) })
		}
		return status, true
	}
	if until, failed := s.failed[string(t)]; failed && time.Now().Before(until) {
		return doze.BuildFailed, true
	}
	return "", false
}

// Lives reports whether the build for a target has not ended.
func (s *Server) Lives(t Target) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.targets[string(t)] != nil
}

// statusOf is what the API shows of a phase.
func statusOf(b *store.Build) string {
	switch b.Phase {
	case store.BuildOffered:
		return doze.BuildUploading
	case store.BuildQueued, store.BuildRunning:
		return doze.BuildBuilding
	case store.BuildDeploying:
		return doze.BuildDeploying
	case store.BuildEnded:
	}
	return b.Status
}

// Available is Unsupported if the node has no builders.
func (s *Server) Available(ctx context.Context) error {
	_, err := s.Node.Builders(ctx)
	if e := doze.Public(err); e.Kind == doze.Unsupported {
		return doze.Wrap(err, doze.Unsupported, "this platform builds no images: push yours to a registry, and name that as image, or as spec.runtime.image")
	}
	if err != nil {
		return fleet.Tell(err, "the look for a builder")
	}
	return nil
}

// Drop cancels the builds of a workspace that was deleted, and removes its files and its
// builder.
func (s *Server) Drop(ctx context.Context, w doze.Workspace) error {
	s.mu.Lock()
	for _, j := range s.live {
		if j.workspace == w.Name {
			s.endLocked(j, errCancelled)
		}
	}
	s.mu.Unlock()
	// The records are gone with the workspace: what has no record is nobody's.
	known, err := s.Store.BuildIDs(ctx)
	files, err2 := os.ReadDir(s.Dir)
	err = errors.Join(err, err2)
	for _, f := range files {
		if id, _, _ := strings.Cut(f.Name(), "."); err == nil && !known[id] && !s.lives(id) {
			err = os.Remove(filepath.Join(s.Dir, f.Name()))
		}
	}
	dropped := s.Node.DropBuilder(ctx, w.ID)
	if doze.Public(dropped).Kind == doze.Unsupported && dropped != nil {
		dropped = nil
	}
	return errors.Join(err, dropped)
}

func (s *Server) lives(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.live[id] != nil
}

// The kinds of files of a build.
const (
	archiveKind = "context"
	partKind    = "part" // of an archive that comes in
	logKind     = "log"
)

func (s *Server) file(id, kind string) string { return filepath.Join(s.Dir, id+"."+kind) }

// remove removes files of a build, if they are there.
func (s *Server) remove(ctx context.Context, id string, kinds ...string) {
	for _, kind := range kinds {
		if err := os.Remove(s.file(id, kind)); err != nil && !errors.Is(err, os.ErrNotExist) {
			slog.WarnContext(ctx, "a file of a build is left until the next start", "build", id, "err", err)
		}
	}
}
