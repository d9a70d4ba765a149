package launcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/urpc"

	"github.com/dozehq/doze/internal/failpoint"
	"github.com/dozehq/doze/internal/machine/checkpoint"
	"github.com/dozehq/doze/internal/machine/gvisor"
	"github.com/dozehq/doze/internal/machine/gvisor/launcher/patch"
)

// The memory of a machine that runs on is copied while its guest runs, as it was at one
// moment. The guest stands still for the engine's own part and for what changes while
// nobody can note it. Then the engine copies each chunk aside before somebody writes to it
// for the first time: copy on write. The launcher reads the others where they are.
//
// For each chunk, the two agree by one word of a table that both have mapped. The launcher
// reads a chunk first. Then the table says whether it was still as it should be.
//
// A guest that is taken over can write to the table, and spoils its own copy by that. It
// cannot keep the launcher waiting: see asideTime.

const (
	// slots is how many chunks are aside at most: 64 MB. A guest that writes to more waits
	// for the launcher.
	slots = 256
	// asideTime bounds how long the launcher waits for a chunk that the engine copies. It
	// takes a tenth of a millisecond, and more on a busy host.
	asideTime = 5 * time.Second
	// asidePoll is the pause between looks at the table.
	asidePoll = 50 * time.Microsecond
	// finishTime is how long the engine copies aside for a caller that does not say that
	// the copy is to be taken. It takes a few milliseconds, and the guest pays for more.
	finishTime = 10 * time.Second
	// filledPoll is the pause between looks for chunks in slots: the guest fills some in it.
	filledPoll = 500 * time.Microsecond
	// usageAside is a method that the changed gVisor has.
	usageAside = "Usage.Aside"
)

// errLost is what a copy ends with that the guest was too fast for.
var errLost = errors.New("the guest wrote to memory before it was copied")

// asideOpts is as package patch has it.
type asideOpts struct {
	urpc.FilePayload

	Slots, Units uint32
}

// aside is what the engine copies aside, and the table of that.
type aside struct {
	table, room *os.File
	mapped      []byte
	lost        *atomic.Uint32
	slots       []atomic.Uint32
	units       []atomic.Uint32
	over        func() bool // the engine has ended; nil if nobody knows
}

// newRoom returns a file with room for all slots. Its memory is the launcher's: that of the
// machine may be full.
func newRoom() (*os.File, error) {
	room, err := inMemory("aside", slots*checkpoint.PageChunk)
	if err != nil {
		return nil, err
	}
	if err := unix.Fallocate(int(room.Fd()), 0, 0, slots*checkpoint.PageChunk); err != nil {
		return nil, errors.Join(fmt.Errorf("allocate the room: %w", err), room.Close())
	}
	return room, nil
}

// inMemory returns a file in memory whose size nobody can change: who maps it would end with a
// signal.
func inMemory(name string, size int64) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("make a file in memory: %w", err)
	}
	file := os.NewFile(uintptr(fd), name)
	err = unix.Ftruncate(fd, size)
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make a file in memory: %w", err), file.Close())
	}
	return file, nil
}

// newAside returns a table for so many units, none of which is wanted. It takes the room.
func newAside(room *os.File, units uint32) (_ *aside, err error) {
	const word = 4
	size := (1 + slots + int(units)) * word
	a := &aside{room: room}
	if a.table, err = inMemory("table", int64(size)); err != nil {
		return nil, errors.Join(err, room.Close())
	}
	if a.mapped, err = unix.Mmap(int(a.table.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return nil, errors.Join(fmt.Errorf("map the table: %w", err), a.table.Close(), room.Close())
	}
	words := unsafe.Slice((*atomic.Uint32)(unsafe.Pointer(&a.mapped[0])), size/word) //nolint:gosec // G103: words that two processes have
	a.lost, a.slots, a.units = &words[0], words[1:1+slots], words[1+slots:]
	return a, nil
}

// close gives the table and the room back. The engine may have them still: it fills no slot
// any more.
func (a *aside) close() error {
	a.lost.Store(1)
	return errors.Join(unix.Munmap(a.mapped), a.table.Close(), a.room.Close())
}

// take makes a chunk right that was read where it is: its parts are read out of a slot if
// the engine copied it aside.
func (a *aside) take(p part, chunk []byte, start int64) error {
	state := &a.units[p.number]
	if state.CompareAndSwap(patch.AsideWanted, patch.AsideDone) {
		return nil
	}
	for end := time.Now().Add(asideTime); state.Load() == patch.AsideCopying; time.Sleep(asidePoll) {
		if a.over != nil && a.over() {
			return fmt.Errorf("it ended while a chunk was copied: %w", errGone)
		}
		if time.Now().After(end) {
			return fmt.Errorf("the engine does not copy a chunk within %v", asideTime)
		}
	}
	slot := state.Load() - patch.AsideSlot
	if slot >= slots { // it is done, and we did not do it
		return errLost
	}
	clear(chunk)
	err := p.fill(chunk, start, func(p piece, into []byte) error {
		return readFull(int(a.room.Fd()), into, uint64(slot)*checkpoint.PageChunk+p.at.Start%checkpoint.PageChunk)
	})
	if err != nil {
		return err
	}
	state.Store(patch.AsideDone)
	a.slots[slot].Store(patch.AsideFree)
	return nil
}

// filled returns the numbers of the units that wait in slots.
func (a *aside) filled() (numbers []uint32) {
	for i := range a.slots {
		if unit := a.slots[i].Load(); unit >= patch.AsideUnit {
			numbers = append(numbers, unit-patch.AsideUnit)
		}
	}
	return numbers
}

// unfinished is a checkpoint whose memory is to be copied while the guest runs.
type unfinished struct {
	c     *capture
	what  gvisor.Checkpoint
	disk  []checkpoint.File
	pages []chunkPages
	watch int         // the watch that began with it
	drop  *time.Timer // ends it if nobody finishes it
}

// runOn has the engine copy aside what a capture named, so that the guest can run on. It
// reports false if that cannot be: then the guest stands still meanwhile. Preconditions: mu
// is held, and the watch began since the machine stands still.
func (s *sandbox) runOn(ctx context.Context, c *capture, held []byte) (bool, error) {
	a, err := s.newAside(c.named[len(c.named)-1].number + 1)
	if err != nil {
		slog.WarnContext(ctx, "a machine stands still while its memory is copied", "sandbox", s.id, "err", err)
		return false, nil
	}
	if err := c.late(a, held); err != nil {
		return false, errors.Join(err, a.close())
	}
	files := urpc.FilePayload{Files: []*os.File{a.table, a.room}}
	if err := s.ask(usageAside, &asideOpts{FilePayload: files, Slots: slots, Units: uint32(len(a.units))}, nil); err != nil { //nolint:gosec // G115: it was one
		s.hangUp()
		slog.WarnContext(ctx, "a machine stands still while its memory is copied", "sandbox", s.id, "err", errors.Join(err, a.close()))
		return false, nil
	}
	c.aside = a
	return true, nil
}

// newAside returns a table for so many units, with the room that a pre-copy made.
// Preconditions: mu is held.
func (s *sandbox) newAside(units uint32) (*aside, error) {
	room := s.takeRoom()
	if room == nil {
		var err error
		if room, err = newRoom(); err != nil {
			return nil, err
		}
	}
	a, err := newAside(room, units)
	if err == nil {
		a.over = s.over
	}
	return a, err
}

// takeRoom returns the room that a pre-copy made, or nil. Preconditions: mu is held.
func (s *sandbox) takeRoom() *os.File {
	room := s.room
	if s.room = nil; room != nil {
		s.roomless.Stop()
	}
	return room
}

// makeRoom makes the room for the checkpoint that comes next: the machine would stand still
// for that. It is given back if none comes.
func (s *sandbox) makeRoom(ctx context.Context) {
	room, err := newRoom()
	if err != nil {
		slog.WarnContext(ctx, "make room for what a guest writes to", "sandbox", s.id, "err", err)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropRoom()
	s.room = room
	s.roomless = restart(s.roomless, finishTime, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.room == room {
			s.dropRoom()
		}
	})
}

// dropRoom gives the room back. Preconditions: mu is held.
func (s *sandbox) dropRoom() {
	if room := s.takeRoom(); room != nil {
		_ = room.Close() // nobody wrote to it
	}
}

// late copies what cannot wait, and has a table want the rest. What the base has is done.
func (c *capture) late(a *aside, held []byte) error {
	var left []part
	for _, p := range c.named {
		if c.same(p) {
			switch shared, err := c.pages.Share(p.number); {
			case err != nil:
				return err
			case shared:
				c.unread.Add(1)
				continue
			}
		}
		for i, piece := range p.pieces {
			if piece.copy != nil || piece.from.base == 0 && !bit(held, p.number) {
				continue
			}
			if err := p.pieces[i].copyNow(); err != nil {
				return err
			}
		}
		a.units[p.number].Store(patch.AsideWanted)
		left = append(left, p)
	}
	c.named, c.known = left, nil
	c.claimed = make([]atomic.Bool, len(left))
	return nil
}

// writeFilled writes the parts that wait in slots, until done is closed.
func (c *capture) writeFilled(done <-chan struct{}) error {
	room := checkpoint.NewScratch()
	defer room.Release()
	for {
		for p, ok := c.claimFilled(); ok; p, ok = c.claimFilled() {
			if err := c.write(p, room); err != nil {
				c.next.Store(int64(len(c.named))) // the others end, too
				return err
			}
		}
		select {
		case <-done:
			return nil
		case <-time.After(filledPoll):
		}
	}
}

// leaveOver notes a checkpoint that finish finishes. Preconditions: mu is held.
func (s *sandbox) leaveOver(u *unfinished) {
	s.left = u
	u.drop = time.AfterFunc(finishTime, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.left == u {
			s.dropLeft()
		}
	})
}

// dropLeft gives up a checkpoint that nobody finished. Preconditions: mu is held.
func (s *sandbox) dropLeft() {
	u := s.left
	if s.left = nil; u == nil {
		return
	}
	u.drop.Stop()
	slog.Warn("nobody finished a checkpoint", "sandbox", s.id)
	s.endAside()
	if err := u.c.close(); err != nil {
		slog.Warn("give up a checkpoint", "sandbox", s.id, "err", err)
	}
}

// endAside has the engine copy nothing aside any more. Preconditions: mu is held.
func (s *sandbox) endAside() {
	if s.container == nil || s.over() {
		return
	}
	if err := s.ask(usageAside, &asideOpts{}, nil); err != nil && !s.over() {
		s.hangUp() // it copies for nobody, until its slots are full
		slog.Warn("an engine copies memory for nobody", "sandbox", s.id, "err", err)
	}
}

// finish copies the memory of a machine that runs, as it was when its checkpoint began.
// When ctx ends, it stops at once.
func (s *sandbox) finish(ctx context.Context) (made gvisor.Made, err error) {
	s.mu.Lock()
	u := s.left
	s.left = nil
	s.mu.Unlock()
	if u == nil {
		return made, errors.New("no checkpoint is to be finished")
	}
	u.drop.Stop()
	over := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.endAside()
	}
	if err := failpoint.Reach(failpoint.Finish, s.id); err != nil {
		over()
		return made, errors.Join(err, u.c.close())
	}
	err = s.copyOut(ctx, u.c, true)
	if over(); err != nil {
		return made, err
	}
	if made.Files, err = s.seal(u.c, u.what.Dir, u.disk); err != nil {
		return made, err
	}
	hash, err := indexHash(u.what.Dir)
	if err != nil {
		return made, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if u.watch == s.watches {
		s.remember(hash, u.pages)
	}
	return made, nil
}

// claim returns the next part to be copied: one that waits in a slot, if there is any. It
// reports false if all are taken.
func (c *capture) claim() (p part, more bool) {
	if c.aside == nil {
		i := c.next.Add(1) - 1
		if i >= int64(len(c.named)) {
			return p, false
		}
		return c.named[i], true
	}
	if p, ok := c.claimFilled(); ok {
		return p, true
	}
	for i := c.next.Add(1) - 1; i < int64(len(c.named)); i = c.next.Add(1) - 1 {
		if c.claimed[i].CompareAndSwap(false, true) {
			return c.named[i], true
		}
	}
	return p, false
}

// claimFilled is claim, of those in slots.
func (c *capture) claimFilled() (p part, ok bool) {
	for _, number := range c.aside.filled() {
		i, known := slices.BinarySearchFunc(c.named, number, func(p part, n uint32) int { return cmp.Compare(p.number, n) })
		if known && c.claimed[i].CompareAndSwap(false, true) {
			return c.named[i], true
		}
	}
	return p, false
}
