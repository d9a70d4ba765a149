package crew

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/placement"
)

// CheckImage implements [fleet.Node].
func (c *Crew) CheckImage(ctx context.Context, ref string) error {
	if c.waits(ref) {
		return nil
	}
	n, _, err := c.having(ref)
	if err != nil {
		return err
	}
	return n.CheckImage(ctx, ref)
}

// FetchImage implements [fleet.Node]. It proves that the image is there to be had: which
// node will need it, nobody knows yet.
func (c *Crew) FetchImage(ctx context.Context, ref string, login *fleet.Login) error {
	if c.waits(ref) {
		return nil
	}
	n, _, err := c.having(ref)
	if err != nil {
		return err
	}
	return n.FetchImage(ctx, ref, login)
}

// PinImage implements [fleet.Node]. Other nodes pull the same bytes when they need them.
func (c *Crew) PinImage(ctx context.Context, ref string, login *fleet.Login) (fleet.Pinned, error) {
	n, _, err := c.any()
	if err != nil {
		return fleet.Pinned{}, err
	}
	return n.PinImage(ctx, ref, login)
}

// ReleaseImage implements [fleet.Node].
func (c *Crew) ReleaseImage(ctx context.Context, ref string) error {
	err := c.all(func(_ string, n fleet.Node) error { return n.ReleaseImage(ctx, ref) })
	if err == nil || errors.Is(err, fleet.ErrUnreachable) { // a node that is away asks which images are named, when it is back
		c.forget(ctx, Image, ref)
		return nil
	}
	return err
}

// want is what an order needs of its node, apart from what can come from elsewhere.
func (c *Crew) want(o *fleet.Order) placement.Want {
	w := placement.Want{Memory: o.Memory, Disk: o.Storage, Image: o.Image}
	for _, v := range o.Volumes {
		if v.ID == "" {
			w.Disk += v.Size
		}
	}
	return w
}

// placed makes a call to the node of an order, which it may choose. A node that is full is
// no end: others are asked.
func (c *Crew) placed(ctx context.Context, o *fleet.Order, do func(fleet.Node) error) error {
	w := c.near(c.want(o), o)
	defer c.count(o.UID)
	for {
		n, err := c.place(ctx, Machine, o.UID, w)
		if err != nil {
			return err
		}
		err = do(n)
		if !errors.Is(err, fleet.ErrFull) {
			return err
		}
		not := append(w.Not, c.Of(Machine, o.UID)) //nolint:gocritic // appendAssign: w is another one
		w = c.want(o)
		w.Not = not
		w = c.near(w, o)
		if _, _, other := placement.Choose(w, c.nodes()); !other {
			return err
		}
	}
}

// nodes is what placement knows now.
func (c *Crew) nodes() []placement.Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.candidates()
}

// Create implements [fleet.Node].
func (c *Crew) Create(ctx context.Context, o fleet.Order) error {
	return c.placed(ctx, &o, func(n fleet.Node) error {
		if err := c.claim(ctx, n, &o, ""); err != nil {
			return err
		}
		if err := c.gather(ctx, &o); err != nil {
			return errors.Join(err, n.Delete(context.WithoutCancel(ctx), o.UID))
		}
		at := c.Of(Machine, o.UID)
		o.Epoch = c.Epoch(Machine, o.UID)
		defer c.lend(Snapshot, o.From, at)()
		defer c.lend(Image, c.built(o.Image), at)()
		return n.Create(ctx, o)
	})
}

// Claim implements [fleet.Node].
func (c *Crew) Claim(ctx context.Context, o fleet.Order, instead string) error {
	return c.placed(ctx, &o, func(n fleet.Node) error {
		if c.alone() {
			return n.Claim(ctx, o, instead)
		}
		return c.claim(ctx, n, &o, instead)
	})
}

// alone reports whether there is one member at most, which counts all that is awake.
func (c *Crew) alone() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.members) < 2
}

// claim claims a machine on its node, and takes that back if its workspace has too much
// awake on all nodes together. A node alone counts by itself.
func (c *Crew) claim(ctx context.Context, n fleet.Node, o *fleet.Order, instead string) error {
	if c.alone() {
		return nil
	}
	if err := n.Claim(ctx, *o, instead); err != nil {
		return err
	}
	if c.far(o) {
		return nil
	}
	now, err := c.nearlyAwake(ctx, o.Workspace)
	if err != nil {
		return err
	}
	if m, awake := c.awake(ctx, instead); awake {
		now.Sandboxes, now.Memory = now.Sandboxes-1, now.Memory-m
	}
	c.mu.Lock()
	own, defaults := c.limits[o.Workspace], c.limits[""]
	c.mu.Unlock()
	if most := own.Of(doze.QuotaSandboxesAwake, defaults); int64(now.Sandboxes) > most {
		err = doze.QuotaExceeded(doze.QuotaSandboxesAwake, int64(now.Sandboxes-1), most)
	} else if most := own.Of(doze.QuotaMemoryAwake, defaults); int64(now.Memory) > most {
		err = doze.QuotaExceeded(doze.QuotaMemoryAwake, int64(now.Memory-o.Memory), most)
	}
	if err == nil {
		return nil
	}
	return errors.Join(err, n.Delete(context.WithoutCancel(ctx), o.UID))
}

// awake returns what a machine that is to be replaced counts for now.
func (c *Crew) awake(ctx context.Context, uid string) (doze.Megabytes, bool) {
	if uid == "" {
		return 0, false
	}
	st, err := c.Statuses(ctx, []string{uid})
	if s, there := st[uid]; err != nil || !there || s.Phase != doze.Running {
		return 0, false
	}
	used, err := c.Consumption(ctx, []string{uid})
	if err != nil {
		return 0, true
	}
	return doze.Megabytes(used[uid].Memory.LimitBytes >> 20), true
}

// Delete implements [fleet.Node].
func (c *Crew) Delete(ctx context.Context, uid string) error {
	if err := c.tell(Machine, uid, func(n fleet.Node) error { return n.Delete(ctx, uid) }); err != nil {
		return err
	}
	c.forget(ctx, Machine, uid)
	return nil
}

// Disable implements [fleet.Node].
func (c *Crew) Disable(ctx context.Context, uid string) error {
	return c.tell(Machine, uid, func(n fleet.Node) error { return n.Disable(ctx, uid) })
}

// Enable implements [fleet.Node].
func (c *Crew) Enable(ctx context.Context, uid string) error {
	return c.tell(Machine, uid, func(n fleet.Node) error { return n.Enable(ctx, uid) })
}

// Snapshot implements [fleet.Node]. The snapshot is where its sandbox is.
func (c *Crew) Snapshot(ctx context.Context, uid, id string) (int64, error) {
	if err := c.Move(ctx, Snapshot, id, c.Of(Machine, uid)); err != nil {
		return 0, err
	}
	return on(c, Machine, uid, func(n fleet.Node) (int64, error) { return n.Snapshot(ctx, uid, id) })
}

// DropSnapshot implements [fleet.Node].
func (c *Crew) DropSnapshot(ctx context.Context, id string) error {
	if err := c.tell(Snapshot, id, func(n fleet.Node) error { return n.DropSnapshot(ctx, id) }); err != nil {
		return err
	}
	c.forget(ctx, Snapshot, id)
	return nil
}

// Snapshots implements [fleet.Node]. With an error, it returns those of the nodes that
// answered.
func (c *Crew) Snapshots(ctx context.Context) (map[string]int64, error) {
	var mu sync.Mutex
	all := map[string]int64{}
	err := c.all(func(_ string, n fleet.Node) error {
		some, err := n.Snapshots(ctx)
		mu.Lock()
		defer mu.Unlock()
		maps.Copy(all, some)
		return err
	})
	return all, err
}

// Archive implements [fleet.Node].
func (c *Crew) Archive(ctx context.Context, uid string) (int64, error) {
	return on(c, Machine, uid, func(n fleet.Node) (int64, error) { return n.Archive(ctx, uid) })
}

// Unarchive implements [fleet.Node]. The archive is on the node of its sandbox.
func (c *Crew) Unarchive(ctx context.Context, o fleet.Order) error {
	return c.tell(Machine, o.UID, func(n fleet.Node) error { return n.Unarchive(ctx, o) })
}

// MakeVolume implements [fleet.Node].
func (c *Crew) MakeVolume(ctx context.Context, id string, size doze.Megabytes, from string) error {
	w := placement.Want{Disk: size}
	if from != "" {
		var err error
		if w, err = c.nearTemplate(ctx, w, from); err != nil {
			return err
		}
	}
	n, err := c.place(ctx, Volume, id, w)
	if err != nil {
		return err
	}
	return n.MakeVolume(ctx, id, size, from)
}

// ImportVolume implements [fleet.Node].
func (c *Crew) ImportVolume(ctx context.Context, id string, size doze.Megabytes, archive io.Reader) (int64, error) {
	n, err := c.place(ctx, Volume, id, placement.Want{Disk: size})
	if err != nil {
		return 0, err
	}
	return n.ImportVolume(ctx, id, size, archive)
}

// ResizeVolume implements [fleet.Node].
func (c *Crew) ResizeVolume(ctx context.Context, id string, size doze.Megabytes) error {
	return c.tell(Volume, id, func(n fleet.Node) error { return n.ResizeVolume(ctx, id, size) })
}

// DropVolume implements [fleet.Node].
func (c *Crew) DropVolume(ctx context.Context, id string) error {
	if err := c.tell(Volume, id, func(n fleet.Node) error { return n.DropVolume(ctx, id) }); err != nil {
		return err
	}
	c.forget(ctx, Volume, id)
	return nil
}

// Volumes implements [fleet.Node]. With an error, it returns those of the nodes that
// answered.
func (c *Crew) Volumes(ctx context.Context) ([]string, error) {
	return list(c, func(n fleet.Node) ([]string, error) { return n.Volumes(ctx) })
}

// list asks all members for a list, and returns them as one.
func list[T any](c *Crew, ask func(fleet.Node) ([]T, error)) (all []T, err error) {
	var mu sync.Mutex
	err = c.all(func(_ string, n fleet.Node) error {
		some, err := ask(n)
		mu.Lock()
		defer mu.Unlock()
		all = append(all, some...)
		return err
	})
	return all, err
}

// Usage implements [fleet.Node]. A node that is away is left out: what it has is no use
// of the disks that are there.
func (c *Crew) Usage(ctx context.Context) (fleet.Usage, error) {
	var mu sync.Mutex
	var all fleet.Usage
	err := c.all(func(id string, n fleet.Node) error {
		u, err := n.Usage(ctx)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		if all.At.IsZero() || u.At.Before(all.At) {
			all.At = u.At
		}
		for _, use := range u.Uses {
			all.Uses = append(all.Uses, apart(use, id))
		}
		return nil
	})
	if errors.Is(err, fleet.ErrUnreachable) && len(all.Uses) > 0 {
		err = nil
	}
	return all, err
}

// apart makes the inodes of a node differ from those of others, as far as 64 bits can.
func apart(use fleet.DiskUse, node string) fleet.DiskUse {
	if len(use.Shared) == 0 {
		return use
	}
	shared := map[uint64]int64{}
	for inode, bytes := range use.Shared {
		shared[inode^seedOf(node)] = bytes
	}
	use.Shared = shared
	return use
}

// seedOf is the FNV-1a hash of the id of a node.
func seedOf(node string) uint64 {
	hash := uint64(14695981039346656037)
	for _, b := range []byte(node) {
		hash = (hash ^ uint64(b)) * 1099511628211
	}
	return hash
}

// SetGrace implements [fleet.Node].
func (c *Crew) SetGrace(ctx context.Context, uid string, grace time.Duration) error {
	return c.tell(Machine, uid, func(n fleet.Node) error { return n.SetGrace(ctx, uid, grace) })
}

// SetNetwork implements [fleet.Node].
func (c *Crew) SetNetwork(ctx context.Context, uid string, network *doze.Network) error {
	return c.tell(Machine, uid, func(n fleet.Node) error { return n.SetNetwork(ctx, uid, network) })
}

// MountDrive implements [fleet.Node].
func (c *Crew) MountDrive(ctx context.Context, uid string, m fleet.DriveMount) (fleet.DriveMount, error) {
	return on(c, Machine, uid, func(n fleet.Node) (fleet.DriveMount, error) { return n.MountDrive(ctx, uid, m) })
}

// UnmountDrive implements [fleet.Node].
func (c *Crew) UnmountDrive(ctx context.Context, uid, path string) error {
	return c.tell(Machine, uid, func(n fleet.Node) error { return n.UnmountDrive(ctx, uid, path) })
}

// DriveMounts implements [fleet.Node].
func (c *Crew) DriveMounts(ctx context.Context, uid string) ([]fleet.DriveMount, error) {
	return on(c, Machine, uid, func(n fleet.Node) ([]fleet.DriveMount, error) { return n.DriveMounts(ctx, uid) })
}

// DriveUsers implements [fleet.Node]. With an error, nobody knows all.
func (c *Crew) DriveUsers(ctx context.Context, drive string) ([]string, error) {
	return list(c, func(n fleet.Node) ([]string, error) { return n.DriveUsers(ctx, drive) })
}

// SetLimits implements [fleet.Node]. A node that is away hears of them when it joins.
func (c *Crew) SetLimits(ctx context.Context, workspace string, l doze.Limits) error {
	c.mu.Lock()
	c.limits[workspace] = l
	c.mu.Unlock()
	err := c.all(func(_ string, n fleet.Node) error { return n.SetLimits(ctx, workspace, l) })
	if errors.Is(err, fleet.ErrUnreachable) {
		return nil
	}
	return err
}

// Awake implements [fleet.Node]. What is on a node that is away is not awake.
func (c *Crew) Awake(ctx context.Context, workspace string) (fleet.Awake, error) {
	return c.awakeOn(ctx, workspace, func(*Member) bool { return true })
}

// nearlyAwake is Awake without the nodes that had nothing of the workspace awake when they were
// renewed, and got nothing since.
func (c *Crew) nearlyAwake(ctx context.Context, workspace string) (fleet.Awake, error) {
	claimed := c.claimedOn(workspace)
	return c.awakeOn(ctx, workspace, func(m *Member) bool {
		_, has := m.Load.Workspaces[workspace]
		return has || m.Load.Workspaces == nil || claimed[m.Info.ID]
	})
}

// awakeOn sums up what is awake on the members that may reports. It is called with c.mu held.
func (c *Crew) awakeOn(ctx context.Context, workspace string, may func(*Member) bool) (sum fleet.Awake, err error) {
	var mu sync.Mutex
	answered := 0
	err = c.some(func(m *Member) bool {
		asked := may(m)
		if !asked {
			answered++ // it has said so with its last renewal
		}
		return asked
	}, func(_ string, n fleet.Node) error {
		one, err := n.Awake(ctx, workspace)
		mu.Lock()
		defer mu.Unlock()
		sum.Sandboxes += one.Sandboxes
		sum.Memory += one.Memory
		if err == nil {
			answered++
		}
		return err
	})
	if errors.Is(err, fleet.ErrUnreachable) && answered > 0 {
		err = nil
	}
	return sum, err
}

// Statuses implements [fleet.Node]. With an error, it returns those of the nodes that
// answered.
func (c *Crew) Statuses(ctx context.Context, uids []string) (map[string]fleet.Status, error) {
	return split(c, Machine, uids, func(n fleet.Node, uids []string) (map[string]fleet.Status, error) { return n.Statuses(ctx, uids) })
}

// Consumption implements [fleet.Node]. With an error, it returns that of the nodes that
// answered.
func (c *Crew) Consumption(ctx context.Context, uids []string) (map[string]doze.Usage, error) {
	return split(c, Machine, uids, func(n fleet.Node, uids []string) (map[string]doze.Usage, error) { return n.Consumption(ctx, uids) })
}

// Traces implements [fleet.Node].
func (c *Crew) Traces(ctx context.Context, uid string) ([]doze.Trace, error) {
	return on(c, Machine, uid, func(n fleet.Node) ([]doze.Trace, error) { return n.Traces(ctx, uid) })
}

// Egress implements [fleet.Node].
func (c *Crew) Egress(ctx context.Context, uid string) (doze.EgressSummary, error) {
	return on(c, Machine, uid, func(n fleet.Node) (doze.EgressSummary, error) { return n.Egress(ctx, uid) })
}

// Logs implements [fleet.Node]: the lines of all nodes, since a sandbox may have been on
// several. Those of a node that is away are missing.
func (c *Crew) Logs(ctx context.Context, q fleet.LogQuery) (fleet.LogPage, error) {
	pages, err := list(c, func(n fleet.Node) ([]fleet.LogPage, error) {
		p, err := n.Logs(ctx, q)
		return []fleet.LogPage{p}, err
	})
	if len(pages) == 0 || err != nil && !errors.Is(err, fleet.ErrUnreachable) {
		return fleet.LogPage{}, cmp.Or(err, fleet.ErrNoNode)
	}
	return q.Merge(pages), nil
}

// EndLogs implements [fleet.Node]. Each log ends where its machine was.
func (c *Crew) EndLogs(ctx context.Context, all []fleet.EndedLog) error {
	by := map[string][]fleet.EndedLog{}
	for _, log := range all {
		at := c.Of(Machine, log.Machine)
		by[at] = append(by[at], log)
	}
	var errs []error
	for _, at := range slices.Sorted(maps.Keys(by)) {
		errs = append(errs, c.tell(Machine, by[at][0].Machine, func(n fleet.Node) error { return n.EndLogs(ctx, by[at]) }))
	}
	return errors.Join(errs...)
}

// DropLogs implements [fleet.Node].
func (c *Crew) DropLogs(ctx context.Context, workspace string) error {
	return c.all(func(_ string, n fleet.Node) error { return n.DropLogs(ctx, workspace) })
}

// Sleep implements [fleet.Node].
func (c *Crew) Sleep(ctx context.Context, uid string, deep bool) error {
	return c.tell(Machine, uid, func(n fleet.Node) error { return n.Sleep(ctx, uid, deep) })
}

// Wake implements [fleet.Node].
func (c *Crew) Wake(ctx context.Context, uid string) error {
	return c.tell(Machine, uid, func(n fleet.Node) error { return n.Wake(ctx, uid) })
}

// Consult implements [fleet.Node].
func (c *Crew) Consult(ctx context.Context, uid string) error {
	return c.tell(Machine, uid, func(n fleet.Node) error { return n.Consult(ctx, uid) })
}

// Retire implements [fleet.Node].
func (c *Crew) Retire(ctx context.Context, uid string, since time.Time) (bool, error) {
	return on(c, Machine, uid, func(n fleet.Node) (bool, error) { return n.Retire(ctx, uid, since) })
}

// Reinstate implements [fleet.Node].
func (c *Crew) Reinstate(ctx context.Context, uid string) error {
	return c.tell(Machine, uid, func(n fleet.Node) error { return n.Reinstate(ctx, uid) })
}

// Depart implements [fleet.Mover].
func (c *Crew) Depart(ctx context.Context, uid string) error {
	return c.tell(Machine, uid, func(n fleet.Node) error { return n.Depart(ctx, uid) })
}

// Return implements [fleet.Mover].
func (c *Crew) Return(ctx context.Context, uid string) error {
	return c.tell(Machine, uid, func(n fleet.Node) error { return n.Return(ctx, uid) })
}

// Leave implements [fleet.Mover].
func (c *Crew) Leave(ctx context.Context, uid string) error {
	return c.tell(Machine, uid, func(n fleet.Node) error { return n.Leave(ctx, uid) })
}

// Revive implements [fleet.Mover].
func (c *Crew) Revive(ctx context.Context, o fleet.Order, used time.Time, ran bool) (time.Time, error) {
	o.Volumes, o.Epoch = c.using(o.Volumes), c.Epoch(Machine, o.UID)
	return on(c, Machine, o.UID, func(n fleet.Node) (time.Time, error) { return n.Revive(ctx, o, used, ran) })
}

// Build implements [fleet.Builder]. A workspace has one builder: its cache is there.
func (c *Crew) Build(ctx context.Context, o fleet.BuildOrder, archive io.Reader, emit func(fleet.BuildEvent)) (fleet.Built, error) {
	n, err := c.place(ctx, Builder, o.WorkspaceID, placement.Want{})
	if err != nil {
		return fleet.Built{}, err
	}
	at := c.Of(Builder, o.WorkspaceID)
	for _, base := range o.Bases {
		defer c.lend(Image, c.built(base.Ref), at)()
	}
	built, err := n.Build(ctx, o, archive, emit)
	if err != nil {
		return built, err
	}
	return built, c.Move(ctx, Image, built.Ref, at)
}

// DropBuilder implements [fleet.Builder].
func (c *Crew) DropBuilder(ctx context.Context, workspaceID string) error {
	if err := c.tell(Builder, workspaceID, func(n fleet.Node) error { return n.DropBuilder(ctx, workspaceID) }); err != nil {
		return err
	}
	c.forget(ctx, Builder, workspaceID)
	return nil
}

// Builders implements [fleet.Builder].
func (c *Crew) Builders(ctx context.Context) (map[string]fleet.BuilderUse, error) {
	var mu sync.Mutex
	all := map[string]fleet.BuilderUse{}
	err := c.all(func(_ string, n fleet.Node) error {
		some, err := n.Builders(ctx)
		mu.Lock()
		defer mu.Unlock()
		maps.Copy(all, some)
		return err
	})
	if errors.Is(err, fleet.ErrUnreachable) && len(all) > 0 {
		err = nil
	}
	return all, err
}

// SaveImage implements [fleet.Builder].
func (c *Crew) SaveImage(ctx context.Context, ref string, login *fleet.Login) (io.ReadCloser, error) {
	n, at, err := c.having(ref)
	if err != nil {
		return nil, err
	}
	back := c.lend(Image, c.built(ref), at)
	archive, err := n.SaveImage(ctx, ref, login)
	if err != nil {
		back()
		return nil, err
	}
	return &borrowed{ReadCloser: archive, back: sync.OnceFunc(back)}, nil
}

// borrowed is an archive of an image that was lent to the node that sends it.
type borrowed struct {
	io.ReadCloser

	back func()
}

// Close implements [io.Closer].
func (b *borrowed) Close() error {
	b.back()
	return b.ReadCloser.Close()
}

// LoadImage implements [fleet.Builder].
func (c *Crew) LoadImage(ctx context.Context, id string, archive io.Reader) (fleet.Built, error) {
	at, n, err := c.choose(placement.Want{})
	if err != nil {
		return fleet.Built{}, err
	}
	built, err := n.LoadImage(ctx, id, archive)
	if err != nil {
		return built, err
	}
	return built, c.Move(ctx, Image, built.Ref, at)
}

// Ports are the ports of sandboxes on all nodes, by the gates of their nodes.
func (c *Crew) Ports(gate func(node string) fleet.Gate) fleet.Gate { return gates{c, gate} }

type gates struct {
	c    *Crew
	gate func(node string) fleet.Gate
}

// Transport implements [fleet.Gate].
func (g gates) Transport(uid string, port uint16) http.RoundTripper {
	return roundTrip(func(r *http.Request) (*http.Response, error) {
		at := g.c.Of(Machine, uid)
		gate := g.gate(at)
		if gate == nil {
			return nil, fmt.Errorf("a request to a sandbox: %w", errAway(at))
		}
		return gate.Transport(uid, port).RoundTrip(r)
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

// RoundTrip implements [http.RoundTripper].
func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
