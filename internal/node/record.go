package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"doze"
	"doze/internal/machine"
	"doze/internal/peer"
)

// saved is what the next process must know of a box. Which tier it is in, the
// driver finds out.
type saved struct {
	Order    peer.Order     `json:"order"`
	Config   machine.Config `json:"config"`
	Booted   bool           `json:"booted"`   // its agent has answered once
	Disabled bool           `json:"disabled"` // it must not be woken
	Failed   string         `json:"failed"`   // why it is beyond repair
}

const recordName = "record.json"

// keep writes the record of a box, in one step and durably. It is called where
// the record changes, which is never on the way of a request. Preconditions: mu
// is held, or nobody else has the box yet.
func (n *Node) keep(b *Box) error {
	r := saved{
		Order: b.order, Config: b.config,
		Booted: b.phase != doze.Starting, Disabled: b.phase == doze.Disabled,
	}
	if b.phase == doze.Failed {
		r.Failed = b.message
	}
	raw, err := json.Marshal(r)
	if err != nil {
		return err
	}
	dir := filepath.Join(n.Dir, b.order.UID)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return replace(filepath.Join(dir, recordName), raw)
}

// replace writes a file so that a crash leaves the old one or the new one.
func replace(name string, raw []byte) (err error) {
	f, err := os.OpenFile(name+".new", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(raw)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(name+".new", name); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(name))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// adopt takes over what an earlier process left. A sandbox that was being
// created is removed: nobody was told that it exists.
func (n *Node) adopt(ctx context.Context) error {
	entries, err := os.ReadDir(n.Dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := n.adoptOne(ctx, e.Name()); err != nil {
			return fmt.Errorf("%s: %w", e.Name(), err)
		}
	}
	return n.Driver.Sweep(ctx, func(id string) bool { return n.box(id) != nil })
}

func (n *Node) adoptOne(ctx context.Context, uid string) error {
	r, err := readRecord(filepath.Join(n.Dir, uid, recordName))
	if errors.Is(err, fs.ErrNotExist) || err == nil && !r.Booted {
		slog.Warn("removing a sandbox that was not finished", "sandbox", uid)
		return n.discard(ctx, uid, r)
	}
	if err != nil {
		return err
	}
	link, err := n.Lease(ctx, uid) // the same as before; after a reboot its namespace is new
	if err != nil {
		return fmt.Errorf("lease an address: %w", err)
	}
	r.Config.Link = link
	b := n.newBox(r.Order, r.Config, doze.Standby)
	b.machine, err = n.Driver.Adopt(ctx, r.Config)
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case r.Failed != "":
		b.phase, b.message = doze.Failed, r.Failed
	case errors.Is(err, machine.ErrGone):
		b.machine = nil
		b.phase, b.message = doze.Failed, "the host restarted while it ran, and its memory is lost"
	case err != nil:
		return fmt.Errorf("adopt the machine: %w", err)
	case r.Disabled:
		b.phase = doze.Disabled
	case b.machine.Tier() == machine.Awake:
		b.phase = doze.Running
	}
	b.report(b.message, false)
	b.arm()
	if err := n.keep(b); err != nil {
		return err
	}
	slog.Info("adopted", "sandbox", uid, "phase", b.phase)
	return n.put(b)
}

// discard removes what is left of a sandbox that was not finished.
func (n *Node) discard(ctx context.Context, uid string, r saved) error {
	if r.Config.ID != "" {
		if err := n.end(ctx, n.newBox(r.Order, r.Config, doze.Starting)); err != nil {
			return err
		}
	}
	if err := n.Release(uid); err != nil {
		return err
	}
	return os.RemoveAll(filepath.Join(n.Dir, uid))
}

func readRecord(name string) (r saved, err error) {
	raw, err := os.ReadFile(name)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(raw, &r); err != nil {
		return r, fmt.Errorf("read the record: %w", err)
	}
	return r, nil
}
