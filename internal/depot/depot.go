// Package depot has copies of the sandboxes of a node in a bucket, and begins sandboxes of
// other nodes from theirs.
package depot

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/keylock"
	"github.com/dozehq/doze/internal/node"
	"github.com/dozehq/doze/internal/vault"
)

const (
	// lookEvery is how often the depot looks for sandboxes that have slept for long enough.
	lookEvery = 2 * time.Second
	// retryAfter is the pause after a copy that did not work.
	retryAfter = 30 * time.Second
	// backMost is for how long copies stand back at most.
	backMost = time.Minute
	// copyTimeout bounds one copy.
	copyTimeout = 30 * time.Minute
	// copiesMost are how many copies of a sandbox stay: nobody goes on from an old one.
	copiesMost = 1
	// sweepGrace is for how long the bucket has what only older copies need.
	sweepGrace = 10 * time.Minute
	// fileEpoch is that of files, which never change.
	fileEpoch = 1
	// recordMost bounds the record of a copy, in bytes.
	recordMost = 256 << 10
	// claimTime is how long a load waits for control to say whose the copy is. A node that
	// starts has to join first. claimEvery is how often the load asks.
	claimTime, claimEvery = 10 * time.Second, 250 * time.Millisecond
	// openTime is how long the bucket may take to say what it has of a sandbox: a few small
	// requests. Where it cannot be reached, another node may reach it.
	openTime = 20 * time.Second
)

// Node is what a depot asks of its node: a [node.Node].
type Node interface {
	Copyable() []node.Copyable
	CopyOut(ctx context.Context, uid string) (dir string, needs node.Files, done func() error, err error)
	CopyDeparting(ctx context.Context, uid string) (dir string, needs node.Files, done func() error, err error)
	Return(ctx context.Context, uid string) error
	Incoming(uid string) (dir string, err error)
	Needs(uid string) (f node.Files, at time.Time, err error)
	Sending(uid string, at time.Time) error
	Copied(uid string, at time.Time)
	Receiving() bool
	Revive(ctx context.Context, o fleet.Order, record []byte, used time.Time, ran bool) (at time.Time, err error)
	ReviveNow(ctx context.Context, o fleet.Order, has node.Files, used time.Time) (at time.Time, err error)
	Has(uid string) bool
	Travels() node.Traveller
	SnapshotOut(id string) (dir string, needs node.Files, err error)
	SnapshotIn(id string, has node.Files) error
	HasSnapshot(id string) bool
}

// Rights are what control grants a node for what it puts into the bucket.
type Rights interface {
	Claim(ctx context.Context, node, machine string) (fleet.Claim, error)
	FileKey(ctx context.Context, node, name string) ([]byte, error)
	FileMark(ctx context.Context, node, name string) (string, error)
}

// Options say how a depot works.
type Options struct {
	Vault  *vault.Vault
	Rights Rights
	ID     string        // of the node
	After  time.Duration // a sandbox is copied when it has slept for so long, or is so old
	// Every is how old the copy of a sandbox may be that does not sleep. It stands still for a
	// moment while it is copied. 0: only sandboxes that sleep are copied.
	Every time.Duration
	Dir   string // for files that came with copies; on the file system of the node
	// Local are directories in which files may be that a copy needs, by their names.
	Local []string
	// Images are those of the node that were built or loaded.
	Images Images
	// Room is asked before a copy comes, with its bytes; nil: there is enough.
	Room func(bytes int64) (release func(), err error)
}

// Depot is made by New. It is safe for concurrent use.
type Depot struct {
	Options

	node  Node
	files files
	back  time.Time      // used by Run alone; since when copies stand back
	locks *keylock.Locks // one transfer of a sandbox at a time

	mu     sync.Mutex
	sent   map[string]sent        // guarded by mu; by UID
	claims map[string]fleet.Claim // guarded by mu; of sandboxes whose copies are to come, by UID
	seq    uint64                 // guarded by mu; of the last generation
}

// sent is what was copied last of a sandbox.
type sent struct {
	state string // as node.Copyable has it
	awake bool
	at    time.Time // of the last try
	err   bool
}

// New returns the depot of a node. It asks nobody.
func New(o Options, n Node) (*Depot, error) {
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of files that come: %w", err)
	}
	d := &Depot{Options: o, node: n, locks: keylock.New(), sent: map[string]sent{}, claims: map[string]fleet.Claim{}}
	d.files = files{d: d, sums: map[string]string{}, stamps: map[string]stamp{}}
	d.files.recall()
	return d, nil
}

// Run copies sandboxes until ctx ends, one after the other: those that sleep, and those that
// do not sleep for long.
func (d *Depot) Run(ctx context.Context) error {
	var learning sync.WaitGroup
	defer learning.Wait()
	learning.Go(func() { d.files.learn(ctx) })
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		select {
		case <-look.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if d.standsBack(time.Now()) {
			continue
		}
		all := d.node.Copyable()
		d.forget(all)
		for _, s := range all {
			if d.standsBack(time.Now()) {
				break
			}
			if time.Since(s.Since) < d.After || !d.due(s, time.Now()) || ctx.Err() != nil {
				continue
			}
			err := d.send(ctx, s.UID, d.node.CopyOut)
			d.note(s, err)
			if err != nil && ctx.Err() == nil {
				slog.WarnContext(ctx, "a sandbox is not in the bucket yet", "sandbox", s.UID, "err", err, "again", retryAfter)
			}
		}
	}
}

// standsBack reports whether copies wait for memory that comes from the bucket, and that somebody
// may wait for. They do not for longer than backMost.
func (d *Depot) standsBack(now time.Time) bool {
	if !d.node.Receiving() {
		d.back = time.Time{}
		return false
	}
	if d.back.IsZero() {
		d.back = now
	}
	return now.Sub(d.back) < backMost
}

// due reports whether the bucket should have another copy of a sandbox.
func (d *Depot) due(s node.Copyable, now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	last, tried := d.sent[s.UID]
	age := now.Sub(last.at)
	switch {
	case s.Awake && d.Every <= 0:
		return false
	case !tried:
		return true
	case last.err:
		return age > retryAfter
	case s.Awake:
		return age > d.Every
	}
	return last.awake || last.state != s.State
}

func (d *Depot) note(s node.Copyable, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sent[s.UID] = sent{s.State, s.Awake, time.Now(), err != nil}
}

// tried reports whether a sandbox was copied, or was to be.
func (d *Depot) tried(uid string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, was := d.sent[uid]
	return was
}

// forget drops what is known of sandboxes that are gone.
func (d *Depot) forget(all []node.Copyable) {
	there := map[string]bool{}
	for _, s := range all {
		there[s.UID] = true
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for uid := range d.sent {
		if !there[uid] {
			delete(d.sent, uid)
		}
	}
}

// Depart implements [fleet.Mover].
func (d *Depot) Depart(ctx context.Context, uid string) error {
	if !d.tried(uid) { // most of it goes while requests still enter
		if err := d.send(ctx, uid, d.node.CopyOut); err != nil && ctx.Err() == nil {
			slog.InfoContext(ctx, "a sandbox that moves was not copied before", "sandbox", uid, "err", err)
		}
	}
	err := d.send(ctx, uid, d.node.CopyDeparting)
	if err != nil {
		err = errors.Join(err, d.node.Return(context.WithoutCancel(ctx), uid))
	}
	return err
}

// copier makes a copy of a sandbox on this host.
type copier func(ctx context.Context, uid string) (dir string, needs node.Files, done func() error, err error)

// send puts a copy of a sandbox into the bucket. It waits for a copy that is under way, which
// may be of a moment before: it never takes that for its own.
func (d *Depot) send(ctx context.Context, uid string, from copier) error {
	return d.inTurn(ctx, uid, func(ctx context.Context) error { return d.sendOnce(ctx, uid, from) })
}

// inTurn does something when nothing else is done with an object of the bucket. It has
// copyTimeout, and ends early with ctx or if the lock is interrupted.
func (d *Depot) inTurn(ctx context.Context, object string, do func(ctx context.Context) error) error {
	turn, release, err := d.locks.Take(ctx, object)
	if err != nil {
		return err
	}
	defer release()
	bounded, cancel := context.WithTimeout(turn, copyTimeout)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	return do(bounded)
}

// right returns the right of this node to an object of the bucket: its epoch and its key.
func (d *Depot) right(ctx context.Context, object string) (epoch uint64, key vault.Key, err error) {
	claim, err := d.Rights.Claim(ctx, d.ID, object)
	if err != nil {
		return 0, key, err
	}
	key, err = vault.KeyOf(claim.Key)
	return claim.Epoch, key, err
}

func (d *Depot) sendOnce(ctx context.Context, uid string, from copier) (err error) {
	epoch, key, err := d.right(ctx, uid)
	if err != nil {
		return err
	}
	start := time.Now()
	dir, needs, done, err := from(ctx, uid)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
	volumes, err := d.putVolumes(ctx, dir, uid, needs.Volumes)
	if err != nil {
		return err
	}
	sent, err := d.files.send(ctx, dir, needs, volumes)
	if err != nil {
		return err
	}
	tree, err := vault.Tree(dir)
	if err != nil {
		return err
	}
	tree = without(tree, needs.Volumes)
	_, at, err := d.node.Needs(uid)
	if err != nil {
		return err
	}
	// If this process ends between the next two steps, the node has to ask the bucket. Else it
	// could go on from an older state, and another node later from this one.
	if err := d.node.Sending(uid, at); err != nil {
		return err
	}
	g := d.next(ctx, uid, epoch)
	saved, err := d.Vault.SaveIf(ctx, uid, key, g, tree, func(ctx context.Context) error { return d.files.hold(ctx, sent.Root, sent.Agent) })
	if err != nil {
		return err
	}
	d.node.Copied(uid, at)
	slog.InfoContext(ctx, "a sandbox is in the bucket", "sandbox", uid, "took", time.Since(start), "sent", saved.SentBytes, "of", saved.ChunkBytes)
	if _, err := d.Vault.Sweep(ctx, uid, key, copiesMost, sweepGrace); err != nil {
		slog.WarnContext(ctx, "older copies of a sandbox stay in the bucket", "sandbox", uid, "err", err)
		return nil
	}
	for _, id := range needs.Volumes {
		d.tidyVolume(ctx, id)
	}
	return nil
}

// Revive implements [fleet.Mover]. Of a sandbox without volumes it reads no more than the
// record of the copy.
func (d *Depot) Revive(ctx context.Context, o fleet.Order, used time.Time, ran bool) (at time.Time, err error) {
	ctx, release, err := d.locks.Take(ctx, o.UID)
	if err != nil {
		return at, err
	}
	defer release()
	claim, err := d.Rights.Claim(ctx, d.ID, o.UID)
	if err != nil {
		return at, err
	}
	c, record, err := d.look(ctx, o.UID, claim)
	if err != nil {
		return at, err
	}
	if len(o.Volumes) > 0 {
		return d.reviveNow(ctx, o, c, used)
	}
	if at, err = d.node.Revive(ctx, o, record, used, ran); err != nil {
		return at, err
	}
	d.mu.Lock()
	d.claims[o.UID] = claim
	d.mu.Unlock()
	slog.InfoContext(ctx, "a sandbox of another node is here", "sandbox", o.UID, "made", at)
	return at, nil
}

// look is open with the record of the copy. If the bucket is out of reach, nothing has begun here,
// and another node may get the sandbox: the error has [fleet.ErrFull] in it.
func (d *Depot) look(ctx context.Context, uid string, claim fleet.Claim) (c *vault.Copy, record []byte, err error) {
	bounded, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	if c, err = d.open(bounded, uid, claim); err == nil {
		record, err = small(bounded, c, node.CopyRecord, recordMost)
	}
	if err != nil && ctx.Err() == nil && errors.Is(err, vault.ErrAway) && !d.node.Has(uid) {
		err = doze.Wrap(errors.Join(fleet.ErrFull, err), doze.Unavailable, "the bucket of copies does not answer the node: try again in a moment")
	}
	return c, record, err
}

// reviveNow begins a sandbox with all of its copy. Its volumes come as they were with its
// memory. One that is here has them, and goes on.
func (d *Depot) reviveNow(ctx context.Context, o fleet.Order, c *vault.Copy, used time.Time) (at time.Time, err error) {
	start := time.Now()
	has, volumes, err := d.load(ctx, o.UID, c)
	if err != nil {
		return at, err
	}
	if !d.node.Has(o.UID) {
		if err := d.getVolumes(ctx, volumes); err != nil {
			return at, err
		}
	}
	loaded := time.Since(start)
	if at, err = d.node.ReviveNow(ctx, o, has, used); err != nil {
		return at, err
	}
	slog.InfoContext(ctx, "a sandbox of another node is here", "sandbox", o.UID, "made", at, "load", loaded, "took", time.Since(start))
	return at, nil
}

// open makes the epoch of a claim the newest of a sandbox, and opens the copy that it
// goes on from. Without a copy the error is NotFound.
func (d *Depot) open(ctx context.Context, uid string, claim fleet.Claim) (c *vault.Copy, err error) {
	key, err := vault.KeyOf(claim.Key)
	if err != nil {
		return nil, err
	}
	was, err := d.Vault.Claim(ctx, uid, claim.Epoch)
	if err != nil {
		return nil, err
	}
	if was == (vault.Generation{}) {
		return nil, doze.Errorf(doze.NotFound, "the bucket has no copy of the sandbox: it was on a node that is lost, and never slept for long enough")
	}
	if c, err = d.Vault.OpenAt(ctx, uid, key, was); errors.Is(err, vault.ErrNotFound) { // this node saved a newer one meanwhile
		c, err = d.Vault.Open(ctx, uid, key)
	}
	return c, err
}

// small returns a whole file of a copy, which has one chunk at most.
func small(ctx context.Context, c *vault.Copy, name string, most int64) ([]byte, error) {
	for _, f := range c.Files() {
		if f.Name == name && f.Size <= min(most, vault.ChunkBytes) {
			return c.Chunk(ctx, name, 0)
		}
	}
	return nil, fmt.Errorf("the copy has no %s of at most %d bytes", name, most)
}

// load puts a copy where the node expects it, and returns what it needs: files, on this host,
// and volumes.
func (d *Depot) load(ctx context.Context, uid string, c *vault.Copy) (has node.Files, volumes []held, err error) {
	raw, err := small(ctx, c, needsFile, needsMax)
	if err != nil {
		return has, nil, err
	}
	n, err := parseNeeds(raw)
	if err != nil {
		return has, nil, err
	}
	dir, err := d.node.Incoming(uid)
	if err != nil {
		return has, nil, err
	}
	// The files first: many sandboxes wait for the same.
	if has, err = d.files.fetch(ctx, n); err != nil {
		return has, nil, err
	}
	return has, n.Volumes, c.Load(ctx, dir)
}

// Fetch puts the newest copy of a sandbox of this node where the node expects it, and
// returns what the copy needs, on this host. It is NotFound if there is no copy. A copy that
// is being made of the sandbox ends early: it is of the processes that the sandbox lost.
func (d *Depot) Fetch(ctx context.Context, uid string) (has node.Files, err error) {
	ctx, release, err := d.instead(ctx, uid)
	if err != nil {
		return has, err
	}
	defer release()
	claim, err := d.claim(ctx, uid)
	if err != nil {
		return has, err
	}
	key, err := vault.KeyOf(claim.Key)
	if err != nil {
		return has, err
	}
	// A copy that this node was sending when it ended may arrive later. Then another node could go
	// on from it, and this one from an older state.
	if err := d.Vault.FinishIf(ctx, uid, key, claim.Epoch, d.files.whole); err != nil {
		return has, err
	}
	c, err := d.open(ctx, uid, claim)
	if err != nil {
		return has, err
	}
	if has, _, err = d.load(ctx, uid, c); err != nil { // its volumes are here, and stay as they are
		return has, err
	}
	d.mu.Lock()
	delete(d.claims, uid)
	d.mu.Unlock()
	return has, nil
}

// errInstead is why a copy ends early.
var errInstead = errors.New("the sandbox goes on from an earlier copy")

// instead takes the turn of a sandbox from a copy that is under way.
func (d *Depot) instead(ctx context.Context, uid string) (_ context.Context, release func(), err error) {
	for {
		turn, release, busy := d.locks.Try(ctx, uid)
		if busy == nil {
			return turn, release, nil
		}
		d.locks.Interrupt(uid, errInstead)
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, nil, context.Cause(ctx)
		}
	}
}

// claim returns what control granted when the sandbox came, or asks it.
func (d *Depot) claim(ctx context.Context, uid string) (c fleet.Claim, err error) {
	d.mu.Lock()
	c, known := d.claims[uid]
	d.mu.Unlock()
	if known {
		return c, nil
	}
	deadline := time.Now().Add(claimTime)
	for ask := time.NewTicker(claimEvery); ; {
		c, err = d.Rights.Claim(ctx, d.ID, uid)
		if err == nil || !errors.Is(err, fleet.ErrNotJoined) && !errors.Is(err, fleet.ErrUnreachable) || time.Now().After(deadline) {
			ask.Stop()
			return c, err
		}
		select {
		case <-ask.C:
		case <-ctx.Done():
			ask.Stop()
			return c, context.Cause(ctx)
		}
	}
}

// Retain removes files that came with copies and that nobody uses. Nothing may come meanwhile.
func (d *Depot) Retain(used func(path string) bool) error {
	sums, err := os.ReadDir(d.Dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, sum := range sums {
		if !sum.IsDir() {
			continue // what it remembers of them
		}
		dir := filepath.Join(d.Dir, sum.Name())
		names, err := os.ReadDir(dir)
		errs = append(errs, err)
		inUse := false
		for _, name := range names {
			inUse = inUse || used(filepath.Join(dir, name.Name()))
		}
		if !inUse {
			errs = append(errs, os.RemoveAll(dir))
		}
	}
	return errors.Join(errs...)
}
