package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/durable"
)

// FirstEpoch is the highest epoch of a volume that never was on another host. One that came
// from elsewhere has a higher one.
const FirstEpoch = 2

// Names beside the file of a volume.
const (
	epochSuffix = ".epoch" // the epoch in which the volume came here
	savedSuffix = ".saved" // what was told of the last copy; gone before anybody changes the volume
	// besideMax bounds such a file, in bytes.
	besideMax = 256
	// besideMode is of such files.
	besideMode = 0o600
)

// A lending is a volume that is being read, and that nobody has.
type lending struct {
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when it is not read any more
}

// errWanted ends a lending.
var errWanted = doze.Errorf(doze.Unavailable, "somebody wants the volume that is being copied")

// errInUse is for what needs a volume that nobody has.
var errInUse = doze.Errorf(doze.Unavailable, "a volume is still in use by the machine before: try again in a moment")

func (p *Pool) beside(id, name string) string { return filepath.Join(p.dir, dirDisks, id+name) }

// Lend has read get the path of the file of a volume that nobody has, and that does not
// change meanwhile. To attach or remove the volume ends the context of read, and waits until
// read returns.
func (p *Pool) Lend(ctx context.Context, id string, read func(ctx context.Context, path string) error) error {
	if err := check(id); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	l := &lending{cancel, make(chan struct{})}
	p.mu.Lock()
	if p.owners[id] != "" || p.lent[id] != nil {
		p.mu.Unlock()
		return errInUse
	}
	p.lent[id] = l
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.lent, id)
		p.mu.Unlock()
		close(l.done)
	}()
	if err := p.idle(id); err != nil {
		return err
	}
	err := read(ctx, p.disk(id))
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return err
}

// idle is an error for a volume that is not there. Another one is for a volume that the kernel
// may still write to. Preconditions: nobody can attach it.
func (p *Pool) idle(id string) error {
	file, err := os.Open(p.disk(id))
	if err != nil {
		return unknown(err)
	}
	defer func() { _ = file.Close() }() // it was only looked at
	dev, err := deviceOf(file)
	if dev != nil {
		return errors.Join(errInUse, dev.Close())
	}
	return err
}

// reclaim ends the lending of a volume, if it is lent, and waits for that.
func (p *Pool) reclaim(id string) {
	p.mu.Lock()
	l := p.lent[id]
	p.mu.Unlock()
	if l != nil {
		l.cancel(errWanted)
		<-l.done
	}
}

// Owner is the owner of the lease of a volume; empty if the volume is free.
func (p *Pool) Owner(id string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.owners[id]
}

// Epoch is that in which a volume is here. It is 0 if there is none.
func (p *Pool) Epoch(id string) (uint64, error) {
	if err := check(id); err != nil {
		return 0, err
	}
	if _, err := os.Lstat(p.disk(id)); errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	} else if err != nil {
		return 0, err
	}
	text, err := p.read(id, epochSuffix)
	if err != nil || text == "" {
		return FirstEpoch, err
	}
	epoch, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("the epoch of the volume %s is damaged: %w", id, err)
	}
	return epoch, nil
}

// EpochIn is [Pool.Epoch] for a directory that no pool has open.
func EpochIn(dir, id string) (uint64, error) { return (&Pool{dir: dir}).Epoch(id) }

// read returns what a file beside that of a volume says; nothing if it is not there.
func (p *Pool) read(id, name string) (string, error) {
	info, err := os.Lstat(p.beside(id, name))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err == nil && info.Size() > besideMax {
		err = fmt.Errorf("%s has %d bytes", p.beside(id, name), info.Size())
	}
	if err != nil {
		return "", err
	}
	raw, err := os.ReadFile(p.beside(id, name))
	return string(raw), err
}

// Receive makes a volume of size bytes with content from another host. It replaces the volume
// of that id that is here. One with an owner is Unavailable. After an error, the volume of before
// is there, or none.
func (p *Pool) Receive(id string, epoch uint64, size int64, write func(*os.File) error) (err error) {
	if err := check(id); err != nil {
		return err
	}
	if err := p.claimFree(id); err != nil {
		return err
	}
	defer p.release(id)
	if err := p.idle(id); err != nil && doze.Public(err).Kind != doze.NotFound {
		return err
	}
	if err := p.ledger.Reserve(id, size); err != nil {
		return err
	}
	err = p.make(id, func(name string) error {
		file, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_RDWR, besideMode)
		if err != nil {
			return err
		}
		if err := errors.Join(write(file), file.Close()); err != nil {
			return err
		}
		// The epoch is that of the file that gets the name, whenever we stop.
		return errors.Join(p.erase(id), durable.Replace(p.beside(id, epochSuffix), strconv.AppendUint(nil, epoch, 10), besideMode))
	})
	if err == nil {
		return nil
	}
	if _, was, none := p.Measure(id); none == nil {
		p.ledger.Record(id, was)
	} else {
		p.ledger.Forget(id)
	}
	return err
}

// claimFree claims a volume for itself. One that somebody has stays theirs.
func (p *Pool) claimFree(id string) error {
	p.reclaim(id)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.owners[id] != "" || p.lent[id] != nil {
		return errInUse
	}
	p.owners[id] = id
	return nil
}

// erase removes the file of a volume, and what is beside it. What is not there is no error.
func (p *Pool) erase(id string) error {
	for _, name := range []string{p.disk(id), p.beside(id, savedSuffix), p.beside(id, epochSuffix)} {
		err := os.Remove(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		// The file goes before its epoch.
		if err := errors.Join(err, durable.Sync(filepath.Dir(name))); err != nil {
			return err
		}
	}
	return nil
}

// Evict removes a volume that is here in an earlier epoch than that of another host. One that
// is not there is no error.
func (p *Pool) Evict(id string, epoch uint64) error {
	now, err := p.Epoch(id)
	if err != nil || now == 0 || now >= epoch {
		return err
	}
	return p.Remove(id)
}

// SetSaved notes what a copy of a volume is known by, until somebody attaches the volume. The
// volume is lent meanwhile.
func (p *Pool) SetSaved(id, text string) error {
	if err := check(id); err != nil {
		return err
	}
	return durable.Replace(p.beside(id, savedSuffix), []byte(text), besideMode)
}

// Saved returns what SetSaved noted; nothing if somebody has attached the volume since.
func (p *Pool) Saved(id string) (string, error) {
	if err := check(id); err != nil {
		return "", err
	}
	return p.read(id, savedSuffix)
}

// unsave takes note that a volume is about to change.
func (p *Pool) unsave(id string) error {
	err := os.Remove(p.beside(id, savedSuffix))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return errors.Join(err, durable.Sync(filepath.Join(p.dir, dirDisks)))
}
