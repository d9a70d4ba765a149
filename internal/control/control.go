// Package control keeps sandboxes, snapshots, volumes and drives: its handlers change the
// record and tell the node, and its loops keep both the same. It holds no machine and
// proxies no byte.
//
// The record comes first. What a process began and did not finish is in the
// records, so that the next one can finish it: see [Server.Load] and [Server.Adopt].
package control

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/api"
	"github.com/dozehq/doze/internal/audit"
	"github.com/dozehq/doze/internal/bell"
	"github.com/dozehq/doze/internal/build"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/image"
	"github.com/dozehq/doze/internal/keylock"
	"github.com/dozehq/doze/internal/quota"
	"github.com/dozehq/doze/internal/store"
)

// Bucket is where drives are.
type Bucket interface {
	// URL is <endpoint>/<bucket>.
	URL() string
	// Purge removes all files of a drive, by its id. One that has none is no
	// error.
	Purge(ctx context.Context, id string) error
}

// Config is what a Server works with. Every field but Hub, Bucket, Pool and Info is required.
type Config struct {
	Store       *store.Store
	Node        fleet.Node
	Directory   *fleet.Directory
	Credentials *access.Credentials
	Audit       *audit.Journal
	Regions     []string                            // the names of this place; the first is the default
	URL         func(workspace, name string) string // the address of a sandbox, for metadata.url
	Images      *image.Server
	Builds      *build.Server
	Unpublish   func(ctx context.Context, uids ...string) // ends the previews of sandboxes that end
	Hub         []HubImage
	Base        string           // the address of the control API, for uploads
	Bucket      Bucket           // nil: there are no drives
	Pool        doze.AddressPool // of egress IPs; none: they wait for one
	Quotas      *quota.Book      // what workspaces may have, and how much they ask
	Info        fleet.NodeInfo   // of the node; the zero one while no node has joined
}

// Server serves what is about sandboxes and what they are made of.
type Server struct {
	Config
	locks       *keylock.Locks
	began       time.Time // before it, nodes do not know what was used
	reports     *fleet.Reports
	expiry      *deadlines
	ends        ends
	stepped     atomic.Bool
	reconciling bell.Bell // something is left to finish
	disk        disk
	node        atomic.Pointer[fleet.NodeInfo]
	published   published
	cut         cutShort // by the end of the process before
	siblings    api.Siblings
}

// New returns a server that serves and reports at once; [Server.Load], [Server.Adopt]
// and [Server.Run] belong to it.
func New(c Config) *Server {
	s := &Server{
		Config: c, locks: keylock.New(), began: time.Now(),
		siblings: api.SiblingsOf(rows),
		reports:  fleet.NewReports(), expiry: newDeadlines(), reconciling: bell.New(),
	}
	c.Store.SetMeasured(s.disk.of)
	s.node.Store(&c.Info)
	return s
}

// Run expires, purges and cleans up sandboxes, and records reports until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	var tasks sync.WaitGroup
	tasks.Go(func() { s.expire(ctx) })
	tasks.Go(func() { s.reconcile(ctx) })
	tasks.Go(func() { s.record(ctx) })
	tasks.Go(func() { s.measureDisk(ctx) })
	tasks.Wait()
	return context.Cause(ctx)
}

// cutShort is what a process before this one began and did not finish, and what only
// a node can tell about.
type cutShort struct {
	starts   []string        // UIDs of sandboxes whose first start was under way
	disables []string        // UIDs of those that were to be disabled after their create
	failed   []store.Sandbox // that may have a machine all the same
	unbuilt  []string        // UIDs of those that await an image of no build
}

// Load takes over the records from a process that ended at any moment. Call it once,
// before requests come in and after that of the builds: it fills the directory. What a node has to do with,
// [Server.Adopt] completes.
func (s *Server) Load(ctx context.Context) error {
	used := map[string]time.Time{}
	err := s.Store.EachLiving(ctx, func(sb store.Sandbox) error {
		if !sb.Spec.IsEnabled() && sb.Phase.Status() == doze.Running.Status() {
			s.cut.disables = append(s.cut.disables, sb.UID) // its create was cut short before it was disabled
		}
		switch sb.Phase {
		case doze.Running, doze.Suspending, doze.Waking:
			// Until when it was used is not recorded: perhaps until now.
			used[sb.Machine] = s.began
			s.Directory.Put(upstreamOf(sb))
		case doze.Pending, doze.Starting:
			if sb.Machine == sb.UID { // its first
				s.cut.starts = append(s.cut.starts, sb.UID)
			}
		case doze.Uploading, doze.Building: // it has no machine
			s.Directory.Put(upstreamOf(sb))
			if !s.Builds.Lives(build.SandboxTarget(sb.UID)) {
				s.cut.unbuilt = append(s.cut.unbuilt, sb.UID)
			}
		case doze.Failed:
			s.cut.failed = append(s.cut.failed, sb)
			s.Directory.Put(upstreamOf(sb))
		default:
			s.Directory.Put(upstreamOf(sb))
		}
		return nil
	})
	for i, sb := range s.cut.failed {
		full, unread := s.Store.Sandbox(ctx, sb.UID) // with its events
		if unread == nil {
			s.cut.failed[i] = full
			s.Directory.Put(upstreamOf(full))
		}
		err = errors.Join(err, unread)
	}
	err = errors.Join(err, s.Store.Touch(ctx, used))
	// What came due while nobody ran is shown by no answer, however soon.
	next, unknown := s.Store.NextDeadline(ctx)
	s.expiry.by(next)
	return errors.Join(err, unknown)
}

// Adopt takes over the node from a process that ended at any moment. Call it once,
// after Load and [Link.TellNode], and before calls that change something: it ends the
// first starts and snapshots that were under way. What is left on the node, what was to be disabled, and what was to get a fresh machine,
// Run completes. While the records are those of an earlier moment, it ends nothing: that is left
// to the next process.
func (s *Server) Adopt(ctx context.Context) error {
	restored, err := s.Store.Restored(ctx)
	if restored || err != nil {
		return err
	}
	err = errors.Join(s.recoverSnapshots(ctx), s.recoverVolumes(ctx))
	for _, sb := range s.cut.failed {
		if _, ok := s.glance(ctx, sb)[sb.Machine]; ok {
			up := upstreamOf(sb)
			up.Failed = false
			s.Directory.Put(up)
		}
	}
	for _, uid := range s.cut.starts {
		err = errors.Join(err, s.resume(ctx, uid))
	}
	for _, uid := range s.cut.disables {
		_, disabled := s.Store.Apply(ctx, uid, store.Step{On: doze.Disable, At: time.Now()})
		err = errors.Join(err, disabled)
	}
	for _, uid := range s.cut.unbuilt {
		err = errors.Join(err, Builds{s}.Failed(ctx, uid, "the platform stopped while the image was being built: upload the files again"))
	}
	s.cut = cutShort{}
	s.reconciling.Ring()
	return err
}

// tellNode tells a node what its process before knew: limits, grace periods and
// networks. The limits come first, before anything wakes.
func (s *Server) tellNode(ctx context.Context, n fleet.Node, has func(machine string) bool, among []string) error {
	limits, err := s.Store.Limits(ctx)
	if err != nil {
		return err
	}
	err = n.SetLimits(ctx, "", s.Quotas.Defaults)
	for workspace, own := range limits {
		err = errors.Join(err, n.SetLimits(ctx, workspace, own))
	}
	if err != nil {
		return err
	}
	each := s.Store.EachLiving
	if among != nil {
		each = func(ctx context.Context, fn func(store.Sandbox) error) error { return s.Store.EachOf(ctx, among, fn) }
	}
	var there []store.Sandbox // a node that is slow to answer must not hold a connection to the records
	err = each(ctx, func(sb store.Sandbox) error {
		if has(sb.Machine) {
			there = append(there, sb)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, sb := range there {
		err := errors.Join(n.SetGrace(ctx, sb.Machine, grace(sb)), s.setNetwork(ctx, n, sb))
		if errors.Is(err, fleet.ErrUnreachable) {
			return err // nor would it hear of the others
		}
		if err != nil { // no reason to keep the others from theirs
			slog.ErrorContext(ctx, "a sandbox reaches nothing until it is updated", "sandbox", sb.UID, "err", err)
		}
	}
	return nil
}

// resume takes up a start that was cut short. A sandbox that never ran ends, so that
// its name is free for a retry. A sandbox that was being replaced gets its fresh
// machine, or fails and keeps its name. Preconditions: the lock of the sandbox is held,
// or no request comes in yet.
func (s *Server) resume(ctx context.Context, uid string) error {
	sb, err := s.Store.Sandbox(ctx, uid)
	if doze.Public(err).Kind == doze.NotFound { // it left nothing
		return nil
	}
	if err != nil || sb.Phase.Status() != doze.Starting.Status() {
		return err
	}
	defer s.reconciling.Ring()
	if sb.Machine == sb.UID { // its first
		_, err = s.end(ctx, sb, "the platform stopped while the sandbox was being started: create it again")
		return err
	}
	// How far the one that was begun came, nobody knows.
	sb, err = s.Store.Apply(ctx, uid, store.Step{
		On: doze.Redeploy, At: time.Now(), Revision: sb.Revision, Machine: store.NewID(),
		Message: "the platform stopped while the sandbox was being redeployed: it is started again",
	})
	if err != nil {
		return err
	}
	if err := s.clearLeftovers(ctx); err != nil { // none may hold its volumes any more
		slog.WarnContext(ctx, "a sandbox starts before all machines are gone that nobody needs", "sandbox", uid, "err", err)
	}
	if _, err := s.boot(ctx, sb, ""); err != nil && ctx.Err() == nil {
		slog.WarnContext(ctx, "a redeploy that was cut short did not work", "sandbox", uid, "err", err) // its record says so
	}
	return context.Cause(ctx)
}

// upstreamOf is where the edge finds a sandbox.
func upstreamOf(sb store.Sandbox) fleet.Upstream {
	return fleet.Upstream{
		UID: sb.Machine, Workspace: sb.Metadata.Workspace, Name: sb.Metadata.Name,
		Enabled:  sb.Admits(),
		Failed:   sb.Phase == doze.Failed,
		Why:      whyFailed(sb),
		Building: awaitsImage(sb.Phase),
		Until:    lastDay(sb),
		Streams:  sb.Spec.Runtime.Streams(),
	}
}

// whyFailed is what the last event about the failure of a sandbox says, or empty if it has
// none or did not fail.
func whyFailed(sb store.Sandbox) string {
	if sb.Phase != doze.Failed {
		return ""
	}
	for _, e := range slices.Backward(sb.Events) {
		if e.Status == doze.Failed.Status() && e.Type != doze.EventNotice {
			return e.Message
		}
	}
	return ""
}

func (s *Server) drop(sb store.Sandbox) {
	s.Directory.Drop(sb.Metadata.Workspace, sb.Metadata.Name, sb.Machine)
}
