// Package engine is BuildKit as a library: one worker, the overlayfs snapshotter, the
// frontend for Dockerfiles, and an executor of our own. Nothing of it listens: the client
// of BuildKit talks to its controller over memory.
package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/plugins/snapshots/overlay"
	"github.com/dozehq/doze/internal/buildapi"
	"github.com/moby/buildkit/client"
	"github.com/moby/buildkit/cmd/buildkitd/config"
	"github.com/moby/buildkit/control"
	"github.com/moby/buildkit/executor/oci"
	"github.com/moby/buildkit/frontend"
	"github.com/moby/buildkit/frontend/gateway/forwarder"
	"github.com/moby/buildkit/session"
	"github.com/moby/buildkit/solver"
	"github.com/moby/buildkit/solver/bboltcachestorage"
	"github.com/moby/buildkit/util/db/boltutil"
	"github.com/moby/buildkit/util/grpcerrors"
	"github.com/moby/buildkit/util/network/netproviders"
	"github.com/moby/buildkit/util/resolver"
	bkworker "github.com/moby/buildkit/worker"
	"github.com/moby/buildkit/worker/base"
	"github.com/moby/buildkit/worker/runc"
	"github.com/opencontainers/go-digest"
	"github.com/sirupsen/logrus"
	bolt "go.etcd.io/bbolt"
	noopmetric "go.opentelemetry.io/otel/metric/noop"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"github.com/dozehq/doze/builder/progress"
)

const (
	// messageMax bounds a message between BuildKit's client and its controller, in bytes.
	messageMax = 16 << 20
	// pipeBytes is the buffer between them.
	pipeBytes = 1 << 20
	// freePart is which part of the disk is free after a build: a fifth.
	freePart = 5
	// stopTimeout is how long the engine waits for BuildKit at its end.
	stopTimeout = 5 * time.Second
	// stepLogUnlimited are values by which BuildKit forwards all output: this program has
	// limits of its own, which say so.
	stepLogUnlimited = "-1"
)

// Config is what an engine needs.
type Config struct {
	// Dir has the cache. It is short, since a mount of many layers names it for each.
	Dir string
	// Program starts this program as a step: see package step.
	Program []string
	Log     *slog.Logger
	// Runtime is the path of an OCI runtime that runs steps in place of package step. Tests
	// compare what both make.
	Runtime string
}

// An Engine builds images. Its methods may be called at the same time.
type Engine struct {
	dir     string
	log     *slog.Logger
	client  *client.Client
	content content.Store
	leases  leases.Manager
	server  *grpc.Server
	served  chan struct{}
	closers []func() error

	mu     sync.Mutex
	builds map[string]*progress.Recorder // guarded by mu; by the id of a build
	images map[string]*image             // guarded by mu; by the digest under which they were put
	inUse  map[string]int                // guarded by mu; builds that need an image
	// results are those that BuildKit is to make, by its own name of the build.
	results map[string]*expected // guarded by mu

	unpacks sync.Map // how many bytes of a layer were read, while it is unpacked, by its digest
}

// image is one that was put.
type image struct {
	Manifest digest.Digest   `json:"manifest"`
	Layers   []digest.Digest `json:"layers"`
	Used     time.Time       `json:"used"`
}

// Open opens the cache of a directory, and makes it if there is none. What an engine before
// left of its builds is removed.
func Open(ctx context.Context, c Config) (_ *Engine, err error) {
	e := &Engine{
		dir: c.Dir, log: c.Log, served: make(chan struct{}),
		builds: map[string]*progress.Recorder{}, images: map[string]*image{}, inUse: map[string]int{}, results: map[string]*expected{},
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.close())
		}
	}()
	logrus.SetLevel(logrus.ErrorLevel) // BuildKit warns about what does not concern us in each build
	for _, name := range []string{"BUILDKIT_STEP_LOG_MAX_SIZE", "BUILDKIT_STEP_LOG_MAX_SPEED"} {
		if err := os.Setenv(name, stepLogUnlimited); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(os.RemoveAll(e.stepsDir()), os.MkdirAll(e.stepsDir(), 0o711), e.makeAgent()); err != nil { //nolint:gosec // users other than root pass through it
		return nil, err
	}
	w, err := e.worker(ctx, c)
	if err != nil {
		return nil, err
	}
	e.content, e.leases = w.ContentStore(), w.LeaseManager()
	if err := e.serve(ctx, w); err != nil {
		return nil, err
	}
	return e, errors.Join(e.loadImages(ctx), e.dropResults(ctx))
}

// stepsDir has a directory for each step that runs.
func (e *Engine) stepsDir() string { return filepath.Join(e.dir, "s") }

// worker makes BuildKit's worker.
func (e *Engine) worker(ctx context.Context, c Config) (*base.Worker, error) {
	binary := c.Runtime
	if binary == "" {
		binary = c.Program[0] // BuildKit looks whether it exists, and does not run it
	}
	root := filepath.Join(e.dir, "w")
	if err := os.MkdirAll(root, 0o700); err != nil {
		return nil, err
	}
	opt, err := runc.NewWorkerOpt(root, runc.SnapshotterFactory{
		Name: "overlayfs",
		New: func(string) (snapshots.Snapshotter, error) {
			// The options of a mount name each layer, and have less than a page. A longer list would
			// have relative paths, which not every kernel mounts.
			return overlay.NewSnapshotter(filepath.Join(e.dir, "o"), overlay.AsynchronousRemove)
		},
	}, false, oci.ProcessSandbox, nil, nil, netproviders.Opt{Mode: "host"}, nil, binary, "", false, nil, "", "", nil)
	if err != nil {
		return nil, fmt.Errorf("open the cache: %w", err)
	}
	if c.Runtime == "" {
		opt.Executor = &steps{dir: e.stepsDir(), program: c.Program, ballast: e.ballast()}
	}
	opt.Applier = counting{opt.Applier, &e.unpacks}
	opt.RegistryHosts = resolver.NewRegistryConfig(nil)
	w, err := base.NewWorker(ctx, opt)
	if err != nil {
		return nil, fmt.Errorf("open the worker: %w", err)
	}
	e.closers = append(e.closers, w.Close)
	return w, nil
}

// serve starts BuildKit's controller, and connects its client.
func (e *Engine) serve(ctx context.Context, w *base.Worker) error {
	sessions, err := session.NewManager()
	if err != nil {
		return err
	}
	workers := &bkworker.Controller{}
	if err := workers.Add(&worker{w, e}); err != nil {
		return err
	}
	cache, err := bboltcachestorage.NewStore(filepath.Join(e.dir, "cache.db"))
	if err != nil {
		return fmt.Errorf("open the keys of the cache: %w", err)
	}
	e.closers = append(e.closers, cache.Close)
	// The history of builds is in the records of control. BuildKit wants a file for its own.
	history := filepath.Join(e.dir, "history.db")
	if err := os.Remove(history); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	past, err := boltutil.SafeOpen(history, 0o600, &bolt.Options{NoFreelistSync: true})
	if err != nil {
		return fmt.Errorf("open the history: %w", err)
	}
	e.closers = append(e.closers, past.Close)
	controller, err := control.NewController(control.Opt{
		SessionManager: sessions, WorkerController: workers,
		Frontends:      map[string]frontend.Frontend{frontendName: forwarder.NewGatewayForwarder(workers.Infos(), e.frontend)},
		CacheManager:   solver.NewCacheManager(ctx, "local", cache, bkworker.NewCacheResultStorage(workers)),
		Entitlements:   entitlements,
		MeterProvider:  noopmetric.NewMeterProvider(),
		HistoryDB:      past,
		CacheStore:     cache,
		LeaseManager:   w.LeaseManager(),
		ContentStore:   w.ContentStore(),
		HistoryConfig:  &config.HistoryConfig{},
		GarbageCollect: w.GarbageCollect,
		GracefulStop:   ctx.Done(),
	})
	if err != nil {
		return fmt.Errorf("start the controller: %w", err)
	}
	// It closes all that it was given.
	e.closers = []func() error{controller.Close}
	listener := bufconn.Listen(pipeBytes)
	e.server = grpc.NewServer(
		grpc.MaxRecvMsgSize(messageMax), grpc.MaxSendMsgSize(messageMax),
		grpc.ChainUnaryInterceptor(grpcerrors.UnaryServerInterceptor), grpc.ChainStreamInterceptor(grpcerrors.StreamServerInterceptor),
	)
	controller.Register(e.server)
	go func() {
		defer close(e.served)
		if err := e.server.Serve(listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			e.log.ErrorContext(ctx, "the controller has ended", "err", err)
		}
	}()
	e.client, err = client.New(ctx, "", client.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	if err != nil {
		return fmt.Errorf("reach the controller: %w", err)
	}
	e.closers = append(e.closers, e.client.Close)
	return nil
}

// Close ends the builds that run, and closes the cache.
func (e *Engine) Close() error { return e.close() }

func (e *Engine) close() error {
	var errs []error
	if e.server != nil {
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			e.server.Stop()
			<-e.served
		}()
		select {
		case <-stopped:
		case <-time.After(stopTimeout): // the process ends anyway
		}
	}
	for _, closer := range slices.Backward(e.closers) {
		errs = append(errs, closer())
	}
	return errors.Join(errs...)
}

// Status says how much the cache has.
func (e *Engine) Status(ctx context.Context) (buildapi.Status, error) {
	s := buildapi.Status{Version: buildapi.Version}
	e.mu.Lock()
	s.Builds = len(e.builds)
	e.mu.Unlock()
	records, err := e.client.DiskUsage(ctx)
	if err != nil {
		return s, err
	}
	for _, r := range records {
		s.CacheBytes += r.Size
	}
	s.DiskBytes, s.DiskFree, err = disk(e.dir)
	return s, err
}

// disk returns the size and the free bytes of a file system.
func disk(dir string) (size, free int64, err error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return 0, 0, err
	}
	return int64(fs.Blocks) * fs.Bsize, int64(fs.Bavail) * fs.Bsize, nil //nolint:gosec // disks are smaller
}

// Prune deletes what earlier builds made and nobody uses, the oldest first.
func (e *Engine) Prune(ctx context.Context, p buildapi.Prune) (buildapi.Pruned, error) {
	size, _, err := disk(e.dir)
	if err != nil {
		return buildapi.Pruned{}, err
	}
	rules := []client.PruneOption{client.WithKeepOpt(0, 0, p.Bytes, size/freePart)}
	switch {
	case p.All:
		rules = []client.PruneOption{client.WithKeepOpt(0, 0, 0, 0)}
	case p.Age > 0: // two rules, as one rule with both deletes what meets both
		rules = append([]client.PruneOption{client.WithKeepOpt(p.Age, 0, 0, 0)}, rules...)
	}
	if err := e.forgetImages(ctx, p); err != nil {
		return buildapi.Pruned{}, err
	}
	var out buildapi.Pruned
	for _, rule := range rules {
		n, err := e.prune(ctx, rule)
		out.Bytes += n
		if err != nil {
			return out, err
		}
	}
	n, err := e.makeRoom(ctx)
	out.Bytes += n
	return out, err
}

// ballast takes room for the databases of the cache.
func (e *Engine) ballast() ballast { return ballast{e.dir} }

// makeRoom deletes what nobody uses until a part of the disk is free: what was built, and then
// images that were put, the oldest first. It returns the bytes that it freed.
func (e *Engine) makeRoom(ctx context.Context) (freed int64, err error) {
	e.ballast().drop()
	defer func() { err = errors.Join(err, e.ballast().load()) }()
	for {
		size, free, err := disk(e.dir)
		if err != nil || free >= size/freePart {
			return freed, err
		}
		n, err := e.prune(ctx, client.WithKeepOpt(0, 0, 0, size/freePart))
		freed += n
		if err != nil {
			return freed, err
		}
		if _, free, err = disk(e.dir); err != nil || free >= size/freePart {
			return freed, err
		}
		if forgot, err := e.forgetOldest(ctx); err != nil || !forgot {
			return freed, err
		}
	}
}

// prune obeys one rule, and returns the bytes that it freed.
func (e *Engine) prune(ctx context.Context, rule client.PruneOption) (int64, error) {
	freed := make(chan client.UsageInfo)
	sum := make(chan int64)
	go func() {
		var n int64
		for u := range freed {
			n += u.Size
		}
		sum <- n
	}()
	err := e.client.Prune(ctx, freed, client.PruneAll, rule)
	close(freed)
	return <-sum, err
}

// imagesFile has the images that were put, for the next process.
func (e *Engine) imagesFile() string { return filepath.Join(e.dir, "images.json") }

// loadImages reads it, and forgets images of which the cache has no lease.
func (e *Engine) loadImages(ctx context.Context) error {
	raw, err := os.ReadFile(e.imagesFile())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	known := map[string]*image{}
	if err := json.Unmarshal(raw, &known); err != nil {
		return fmt.Errorf("%s: %w", e.imagesFile(), err)
	}
	held, err := e.leases.List(ctx)
	if err != nil {
		return err
	}
	for _, l := range held {
		if key, ok := strings.CutPrefix(l.ID, imageLease); ok && known[key] != nil {
			e.images[key] = known[key]
		}
	}
	return nil
}

// saveImages writes it. Callers hold mu.
func (e *Engine) saveImages() error {
	raw, err := json.Marshal(e.images)
	if err != nil {
		return err
	}
	if err := os.WriteFile(e.imagesFile()+".new", raw, 0o600); err != nil {
		return err
	}
	return os.Rename(e.imagesFile()+".new", e.imagesFile())
}
