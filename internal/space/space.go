// Package space keeps some of a disk free, so that nobody fills it for others. It
// knows who is about to write how much, and how much of volumes is reserved and not
// written yet.
package space

import (
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze"
)

const (
	// Of the reserve that nobody sets: a large disk can keep more, and on none would
	// more than 20 GB help, which is what sandboxes write as they fall asleep.
	reserveLeast = 1 << 30
	reserveShare = 50 // one of so many parts of the disk
	reserveMost  = 20 << 30
	// floorShare is which part of the reserve sleep leaves: the records, and what the
	// host writes for itself, need some.
	floorShare = 4
	// inodeShare is which part of the inodes stays free.
	inodeShare = 50
	// writtenEvery is how often somebody counts how much of the volumes is written.
	writtenEvery = 5 * time.Second
)

const mega = 1 << 20

// Auto is the reserve of a disk of which the operator says nothing.
const Auto = -1

// Options are the settings of a disk.
type Options struct {
	// Reserve is how many bytes stay free, or [Auto].
	Reserve int64
	// Overcommit is how many bytes of volumes may be reserved for each that is free. With
	// 1 each volume can be filled.
	Overcommit float64
}

// Disk is one file system. It is safe for concurrent use.
type Disk struct {
	dir     string
	o       Options
	written func() int64 // of the volumes; nil without

	mu       sync.Mutex
	claimed  int64            // guarded by mu; bytes that are being written
	reserved map[string]int64 // guarded by mu; sizes of volumes, by id
	counted  int64            // guarded by mu; bytes of these that are written
	at       time.Time        // guarded by mu; when that was counted
}

// Open returns the disk that a directory is on.
func Open(dir string, o Options) (*Disk, error) {
	d := &Disk{dir: dir, o: o, reserved: map[string]int64{}}
	s, err := d.stat()
	if err != nil {
		return nil, err
	}
	if o.Reserve < 0 {
		d.o.Reserve = min(max(reserveLeast, s.total/reserveShare), reserveMost)
	}
	if o.Overcommit <= 0 {
		d.o.Overcommit = 1
	}
	return d, nil
}

// Written says how to count what is written of the volumes. It is called before
// the first reservation.
func (d *Disk) Written(count func() int64) { d.written = count }

// Same reports whether a directory is on the disk.
func (d *Disk) Same(dir string) (bool, error) {
	var mine, other unix.Stat_t
	if err := unix.Stat(d.dir, &mine); err != nil {
		return false, fmt.Errorf("look at %s: %w", d.dir, err)
	}
	if err := unix.Stat(dir, &other); err != nil {
		return false, fmt.Errorf("look at %s: %w", dir, err)
	}
	return mine.Dev == other.Dev, nil
}

// state is what the kernel says of a file system.
type state struct {
	total, free       int64 // bytes
	inodes, freeNodes uint64
}

func (d *Disk) stat() (state, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(d.dir, &s); err != nil {
		return state{}, fmt.Errorf("look at the disk of %s: %w", d.dir, err)
	}
	unit := s.Bsize
	return state{total: int64(s.Blocks) * unit, free: int64(s.Bavail) * unit, inodes: s.Files, freeNodes: s.Ffree}, nil //nolint:gosec // G115: no disk has so many bytes
}

// Claim takes n bytes that are about to be written for a tenant, or is Exhausted if
// they would not leave the reserve. They are taken until release is called, which
// is when they are written: then the kernel counts them.
func (d *Disk) Claim(n int64) (release func(), err error) {
	return d.claim(n, func(s state) error {
		return d.short(n, s, d.o.Reserve, d.pending())
	})
}

// ClaimSleep is Claim for the checkpoint of a sandbox. It may use the reserve, down
// to a floor, and what is reserved for volumes: a sandbox falls asleep although
// others have filled the disk.
func (d *Disk) ClaimSleep(n int64) (release func(), err error) {
	return d.claim(n, func(s state) error {
		return d.short(n, s, d.o.Reserve/floorShare, 0)
	})
}

// Reserve reserves the whole size of a volume for its guest, or is Exhausted if the
// disk has no room for that. A size that is reserved already costs nothing.
func (d *Disk) Reserve(id string, size int64) error {
	d.count()
	s, err := d.stat()
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	more := size - d.reserved[id]
	if more <= 0 {
		return nil
	}
	if err := d.short(int64(float64(more)/d.o.Overcommit), s, d.o.Reserve, d.pending()); err != nil {
		return doze.Wrap(err, doze.Exhausted,
			"there is no room for %d MB more of volumes: the disk of this host has %d MB free, of which %d MB stay free and %d MB are reserved for other volumes; make it smaller, or delete what is not needed",
			more>>20, s.free>>20, d.o.Reserve>>20, d.pending()>>20)
	}
	d.reserved[id] = size
	return nil
}

// Record takes note of a volume that is there, whether or not there is room.
func (d *Disk) Record(id string, size int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.reserved[id] = size
}

// Forget takes a reservation back.
func (d *Disk) Forget(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.reserved, id)
}

// claim takes n bytes if fits agrees.
func (d *Disk) claim(n int64, fits func(state) error) (release func(), err error) {
	d.count()
	s, err := d.stat()
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := fits(s); err != nil {
		return nil, err
	}
	d.claimed += n
	var once sync.Once
	return func() {
		once.Do(func() {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.claimed -= n
		})
	}, nil
}

// short says why n bytes do not fit beside what is kept and pending. Preconditions:
// mu is held.
func (d *Disk) short(n int64, s state, aside, pending int64) error {
	left := s.free - d.claimed - aside - pending
	if n > left {
		return doze.Errorf(doze.Exhausted, "the disk of this host has no room for %d MB more: %d MB are free, of which %d MB stay free and %d MB are reserved for volumes or being written; delete what is not needed, or ask its operator",
			(n+mega-1)>>20, s.free>>20, aside>>20, (pending+d.claimed)>>20)
	}
	if s.inodes > 0 && s.freeNodes < s.inodes/inodeShare {
		return doze.Errorf(doze.Exhausted, "the file system has %d of %d inodes left: delete files, or ask the operator", s.freeNodes, s.inodes)
	}
	return nil
}

// pending is what volumes may still take, as far as it is kept for them.
// Preconditions: mu is held.
func (d *Disk) pending() int64 {
	var total int64
	for _, size := range d.reserved {
		total += size
	}
	return int64(float64(max(0, total-d.counted)) / d.o.Overcommit)
}

// count counts what is written of the volumes, unless that was done just now. The
// reservations are exact: what is written may be some seconds old, and is then on the
// safe side as volumes fill.
func (d *Disk) count() {
	if d.written == nil {
		return
	}
	d.mu.Lock()
	due := time.Since(d.at) >= writtenEvery
	if due {
		d.at = time.Now() // nobody else counts meanwhile
	}
	d.mu.Unlock()
	if !due {
		return
	}
	n := d.written()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.counted = n
}

// State is how full a disk is.
type State struct {
	Total, Free, Reserve int64
	Reserved             int64 // for volumes
	Pending              int64 // of that, what is not written and is kept for them
}

// State returns how full the disk is.
func (d *Disk) State() (State, error) {
	d.count()
	s, err := d.stat()
	d.mu.Lock()
	defer d.mu.Unlock()
	out := State{Total: s.total, Free: s.free, Reserve: d.o.Reserve, Pending: d.pending()}
	for _, size := range d.reserved {
		out.Reserved += size
	}
	return out, err
}
