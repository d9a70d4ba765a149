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
	// copyTimeout bounds one copy.
	copyTimeout = 30 * time.Minute
	// copiesMost are how many copies of a sandbox stay: nobody goes on from an old one.
	copiesMost = 1
	// sweepGrace is for how long the bucket has what only older copies need.
	sweepGrace = 10 * time.Minute
	// fileEpoch is that of files, which never change.
	fileEpoch = 1
)

// Node is what a depot asks of its node: a [node.Node].
type Node interface {
	Copyable() []node.Copyable
	CopyOut(ctx context.Context, uid string) (dir string, needs node.Files, done func() error, err error)
	CopyDeparting(ctx context.Context, uid string) (dir string, needs node.Files, done func() error, err error)
	Return(ctx context.Context, uid string) error
	Incoming(uid string) (dir string, err error)
	Needs(uid string) (f node.Files, at time.Time, err error)
	Revive(ctx context.Context, o fleet.Order, has node.Files, used time.Time) error
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
	// Room is asked before a copy comes, with its bytes; nil: there is enough.
	Room func(bytes int64) (release func(), err error)
}

// Depot is made by New. It is safe for concurrent use.
type Depot struct {
	Options

	node  Node
	files files
	locks *keylock.Locks // one transfer of a sandbox at a time

	mu   sync.Mutex
	sent map[string]sent // guarded by mu; by UID
	seq  uint64          // guarded by mu; of the last generation
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
	d := &Depot{Options: o, node: n, locks: keylock.New(), sent: map[string]sent{}}
	d.files = files{d: d, sums: map[string]string{}}
	return d, nil
}

// Run copies sandboxes until ctx ends, one after the other: those that sleep, and those that
// do not sleep for long.
func (d *Depot) Run(ctx context.Context) error {
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		select {
		case <-look.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		all := d.node.Copyable()
		d.forget(all)
		for _, s := range all {
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
	turn, release, err := d.locks.Take(ctx, uid)
	if err != nil {
		return err
	}
	defer release()
	bounded, cancel := context.WithTimeout(turn, copyTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, cancel)
	defer stop()
	return d.sendOnce(bounded, uid, from)
}

func (d *Depot) sendOnce(ctx context.Context, uid string, from copier) (err error) {
	claim, err := d.Rights.Claim(ctx, d.ID, uid)
	if err != nil {
		return err
	}
	key, err := vault.KeyOf(claim.Key)
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
	if err := d.files.send(ctx, dir, needs, volumes); err != nil {
		return err
	}
	tree, err := vault.Tree(dir)
	if err != nil {
		return err
	}
	tree = without(tree, needs.Volumes)
	g := d.next(ctx, uid, claim.Epoch)
	saved, err := d.Vault.Save(ctx, uid, key, g, tree)
	if err != nil {
		return err
	}
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

// Revive implements [fleet.Mover].
func (d *Depot) Revive(ctx context.Context, o fleet.Order, used time.Time) (time.Time, error) {
	turn, release, err := d.locks.Take(ctx, o.UID)
	if err != nil {
		return time.Time{}, err
	}
	defer release()
	return d.revive(turn, o, used)
}

func (d *Depot) revive(ctx context.Context, o fleet.Order, used time.Time) (at time.Time, err error) {
	claim, err := d.Rights.Claim(ctx, d.ID, o.UID)
	if err != nil {
		return at, err
	}
	key, err := vault.KeyOf(claim.Key)
	if err != nil {
		return at, err
	}
	was, err := d.Vault.Claim(ctx, o.UID, claim.Epoch)
	if err != nil {
		return at, err
	}
	if was == (vault.Generation{}) {
		return at, doze.Errorf(doze.NotFound, "the bucket has no copy of the sandbox: it was on a node that is lost, and never slept for long enough")
	}
	dir, err := d.node.Incoming(o.UID)
	if err != nil {
		return at, err
	}
	start := time.Now()
	if _, err := d.Vault.Load(ctx, o.UID, key, dir); err != nil {
		return at, err
	}
	has, volumes, err := d.files.fetch(ctx, dir)
	if err != nil {
		return at, err
	}
	if !d.node.Has(o.UID) { // one that is here has them, and goes on
		if err := d.getVolumes(ctx, volumes); err != nil {
			return at, err
		}
	}
	loaded := time.Since(start)
	if _, at, err = d.node.Needs(o.UID); err != nil {
		return at, err
	}
	if err := d.node.Revive(ctx, o, has, used); err != nil {
		return at, err
	}
	slog.InfoContext(ctx, "a sandbox of another node is here", "sandbox", o.UID, "made", at, "load", loaded, "took", time.Since(start))
	return at, nil
}

// Retain removes files that came with copies and that nobody uses. Nothing may come meanwhile.
func (d *Depot) Retain(used func(path string) bool) error {
	sums, err := os.ReadDir(d.Dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, sum := range sums {
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
