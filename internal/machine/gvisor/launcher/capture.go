package launcher

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/control"
	"gvisor.dev/gvisor/pkg/sentry/loader/vdsodata"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/state/stateio"
	"gvisor.dev/gvisor/pkg/sentry/state/stateipc"
	"gvisor.dev/gvisor/pkg/state/statefile"
	"gvisor.dev/gvisor/pkg/unet"
	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/boot"

	"github.com/dozehq/doze/internal/failpoint"
	"github.com/dozehq/doze/internal/machine/checkpoint"
	"github.com/dozehq/doze/internal/machine/gvisor"
	"github.com/dozehq/doze/internal/machine/gvisor/launcher/patch"
	"github.com/dozehq/doze/internal/machine/gvisor/launcher/tune"
	"github.com/dozehq/doze/internal/machine/hostproc"
)

// A checkpoint has two parts. In the first, the engine writes its own state and
// names the memory of its guest, range by range. It takes a tenth of a second, or
// longer with many files. A request ends it by a signal: see [sandbox.stops]. In the
// second, the launcher copies that memory out
// of the engine's memory file, but for chunks that the last checkpoint has: see
// [checkpoint.Layer].
// The guest stands still meanwhile, and a request can end the copy between any two
// chunks.
//
// The engine sends its checkpoint over the interface that gVisor has for images
// in a distant store. It believes that a range is written as soon as the launcher
// says so, and the launcher says so before it copies.
//
// The engine itself still writes to one page of the memory that it named: the
// parameters of its guest's clock. The state holds a sequence number that must
// match the one in that page, so the launcher copies this page at once.

const (
	// pageWrite is how much memory one message of the engine names at most.
	// The length of a completion has 32 bits.
	pageWrite = 1 << 30
	// writing is how many messages may be under way. Each is answered at once.
	writing = 64
	// writeRanges is how many ranges one message names at most.
	writeRanges = 1024
	// clockReach is how much memory on both sides of the clock's code is copied
	// at once. Its page of parameters is allocated right after the code.
	clockReach = 64 << 10
	// clockSearch is how much of the memory file may hold the clock's code. It is
	// the engine's first allocation.
	clockSearch = 4 << 20
	// namedMost bounds what an engine may name, as a multiple of what its machine
	// may have in RAM: on cgroup v2, memory in swap comes on top of that.
	namedMost = 4
	// copiers is how many threads copy at most. Memory is no faster with more,
	// and the machines that are awake need the others.
	copiers = 4
	// stateMax bounds the engine's own state: its heap is below gvisor.Overhead.
	stateMax = 1 << 30
	// A copy has the priority of a job in the background, for processor and
	// disk: 7 is the lowest of the default class of the disk.
	copyNice, copyDisk = 10, 2<<13 | 7
	ioprioProcess      = 1 // IOPRIO_WHO_PROCESS: one thread
)

// checkpoint writes one of the paused machine and leaves it paused.
// It returns what it knows of the files. When ctx ends, it stops copying memory
// at once. It never lets the engine end the machine itself: gVisor does that
// after a failed write too, and the memory would be lost.
func (s *sandbox) checkpoint(ctx context.Context, what gvisor.Checkpoint) (made gvisor.Made, err error) {
	if err := s.copied(ctx); err != nil {
		return made, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.container == nil {
		return made, fmt.Errorf("%s: %w", s.id, errGone)
	}
	if !s.paused || s.doubtful {
		return made, errors.New("a machine must be paused before its checkpoint")
	}
	defer s.note()
	share := s.share(ctx, what.Base, what.Dir)
	if err := failpoint.Reach(failpoint.Write, s.id); err != nil {
		return made, err
	}
	c, err := newCapture(what.Dir, share, s.mostNamed())
	if err != nil {
		return made, err
	}
	s.dropLeft()
	s.still()
	held := s.omitStill(ctx, c, what)
	if err := s.name(ctx, c, what); err != nil {
		return made, errors.Join(err, c.close())
	}
	if err := failpoint.Reach(failpoint.Copy, s.id); err != nil {
		return made, errors.Join(err, c.close())
	}
	if held != nil {
		if left, err := s.leave(ctx, c, what, held); err != nil || left {
			return gvisor.Made{Runs: left}, err
		}
	}
	err = s.copyOut(ctx, c, what.Yields)
	disk, lost := s.copyDisk(ctx, what.Dir)
	if err = errors.Join(err, lost); err == nil {
		made.Files, err = s.seal(c, what.Dir, disk)
	}
	if err != nil {
		return made, err
	}
	s.took(ctx, c, what)
	s.saved()
	return made, nil
}

// seal completes a checkpoint in a directory, while the caller leaves that alone. It returns
// what is known of the files, those of a disk included.
func (s *sandbox) seal(c *capture, dir string, disk []checkpoint.File) ([]checkpoint.File, error) {
	if err := failpoint.Reach(failpoint.Index, s.id); err != nil {
		return nil, err
	}
	files, err := c.pages.Seal(dir)
	if err != nil {
		return nil, err
	}
	failpoint.Pass(failpoint.Written, s.id)
	return slices.Concat(files, c.others(), disk), nil
}

// leave leaves the memory of a checkpoint to finish, for which the guest need not stand
// still. If it cannot, it reports false. Preconditions: mu is held.
func (s *sandbox) leave(ctx context.Context, c *capture, what gvisor.Checkpoint, held []byte) (left bool, err error) {
	pages := c.all()
	if c.still {
		if err := hostproc.Guard(c.sample); err != nil {
			return false, errors.Join(err, c.close())
		}
	}
	if len(c.named) == 0 {
		return false, nil
	}
	if left, err = s.runOn(ctx, c, held); err != nil {
		return false, errors.Join(err, c.close())
	}
	if !left {
		return false, nil
	}
	u := &unfinished{c: c, what: what, pages: pages, watch: s.watches}
	if u.disk, err = s.copyDisk(ctx, what.Dir); err != nil {
		s.endAside()
		return false, errors.Join(err, c.close())
	}
	s.leaveOver(u)
	return true, nil
}

// share returns what a copy of memory in dir shares with an earlier one: nil, if it is
// whole.
func (s *sandbox) share(ctx context.Context, with *gvisor.Base, dir string) *checkpoint.Base {
	if with == nil {
		return nil
	}
	var base *checkpoint.Base
	err := failpoint.Reach(failpoint.Share, s.id)
	if err == nil {
		base, err = checkpoint.OpenBase(with.Dir, with.Index, dir)
	}
	if err != nil {
		slog.WarnContext(ctx, "a copy of memory shares nothing with the last", "sandbox", s.id, "err", err)
		return nil
	}
	return base
}

// mostNamed is how many bytes of memory may be named. Preconditions: mu is held, and
// the machine has processes.
func (s *sandbox) mostNamed() uint64 {
	return namedMost * uint64(memoryLimit(s.container.Spec)) //nolint:gosec // G115: it is positive
}

// copyOut copies what a capture named, and closes it. Where nobody waits for the copy,
// it yields to all others. When ctx ends, copyOut returns at once, and a write to a
// busy disk may take longer. It reads no more memory then.
func (s *sandbox) copyOut(ctx context.Context, c *capture, yields bool) error {
	ended, stop := make(chan error, 1), make(chan struct{})
	s.copying.Go(func() { ended <- errors.Join(c.copy(stop, yields), c.close()) })
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		if s.over() { // what is copied is all that is left
			return <-ended
		}
		close(stop)
		return context.Cause(ctx)
	}
}

// copyDisk takes a copy of the disk of a machine into the checkpoint in dir, if it has one.
// When ctx ends, it returns at once, as copyOut does. Preconditions: mu is held, and the
// engine named its memory. So what the copy has is what the state of the engine says.
func (s *sandbox) copyDisk(ctx context.Context, dir string) ([]checkpoint.File, error) {
	live := s.container.Spec.Annotations[patch.DiskAnnotation]
	if live == "" {
		return nil, nil
	}
	if ctx.Err() != nil && !s.over() {
		return nil, context.Cause(ctx)
	}
	if err := failpoint.Reach(failpoint.Disk, s.id); err != nil {
		return nil, err
	}
	work := ctx
	if s.over() {
		work = context.WithoutCancel(ctx)
	}
	d, err := checkpoint.NewDiskCopy(s.id, live, dir)
	if err != nil {
		return nil, err
	}
	var file checkpoint.File
	if err := s.apart(work, func() (err error) { file, err = d.Take(work); return err }); err != nil {
		return nil, err // file may still be written to
	}
	return []checkpoint.File{file}, nil
}

// apart does something that the next copy waits for. When ctx ends, apart returns at once,
// and what it began goes on.
func (s *sandbox) apart(ctx context.Context, do func() error) error {
	ended := make(chan error, 1)
	s.copying.Go(func() { ended <- do() })
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// copied waits until an earlier copy has ended: it writes to the same file.
func (s *sandbox) copied(ctx context.Context) error {
	done := make(chan struct{})
	go func() { s.copying.Wait(); close(done) }() // ends with the copy
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// background runs do on a thread that yields to all others.
func background(do func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		tid := unix.Gettid()
		_ = unix.Setpriority(unix.PRIO_PROCESS, tid, copyNice) // a copy of another priority is as good
		_, _, _ = unix.RawSyscall(unix.SYS_IOPRIO_SET, ioprioProcess, uintptr(tid), uintptr(copyDisk))
		done <- hostproc.Guard(do)
	}()
	return <-done
}

// name lets the engine write its state and name its memory. Preconditions: mu is
// held.
func (s *sandbox) name(ctx context.Context, c *capture, what gvisor.Checkpoint) error {
	defer s.unlimited(ctx)() // a request may come at any moment
	if what.Yields {
		defer s.group.Load().Behind(ctx)()
	}
	if !what.Counted {
		if err := s.count(ctx); err != nil {
			return err
		}
	}
	files, err := stateipc.NewAsyncFileServer(c)
	if err != nil {
		return fmt.Errorf("take the checkpoint: %w", err)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		files.Stop()
		return fmt.Errorf("take the checkpoint: %w", err)
	}
	theirs := os.NewFile(uintptr(pair[0]), "image")
	defer func() { _ = theirs.Close() }()
	ours, err := unet.NewSocket(pair[1])
	if err != nil {
		files.Stop()
		return errors.Join(fmt.Errorf("take the checkpoint: %w", err), unix.Close(pair[1]))
	}
	server := urpc.NewServer()
	server.Register(files)
	served := make(chan struct{})
	s.l.tasks.Go(func() {
		defer close(served)
		_ = server.Handle(ours) // until one of us hangs up
		server.Stop(stopServing)
	})
	heard := s.stops(ctx)
	err = hostproc.Watch(ctx, gvisor.LimitCheckpoint, s.shoot, func() error {
		return s.call(boot.ContMgrCheckpoint, &control.SaveOpts{
			Metadata:      statefile.CompressionLevelNone.ToMetadata(), // pages in a file of their own, which can be read in any order
			HavePagesFile: true, Resume: true, UseCheckpointGofer: true,
			FilePayload: urpc.FilePayload{Files: []*os.File{theirs}},
		})
	})
	heard()
	if err != nil {
		s.hangUp()
	}
	_ = ours.Shutdown() // or the engine did
	<-served
	switch {
	case err == nil || !strings.Contains(err.Error(), patch.Stopped):
		return errors.Join(err, c.err)
	case ctx.Err() != nil:
		return fmt.Errorf("the engine's part was stopped: %w", context.Cause(ctx))
	default:
		return errLate
	}
}

// errLate is what a checkpoint ends with that was stopped although nobody asked for
// that: the signal was for the checkpoint before it. The caller tries again.
var errLate = errors.New("the engine's part was stopped for an earlier request")

// stops has the engine end its part of a checkpoint when ctx ends, until the returned
// function is called. No signal is sent after that.
func (s *sandbox) stops(ctx context.Context) (over func()) {
	sent := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(sent)
		s.tell(tune.SaveStop)
	})
	return func() {
		if !stop() {
			<-sent
		}
	}
}

// count lets the engine ask the kernel which of its memory is in use. What it
// does not know of, it reads in a checkpoint, a page at a time, to find those that
// are zero; that takes four times as long, and a request cannot stop it. Of what
// it knows of, the launcher finds those. Preconditions: mu is held.
func (s *sandbox) count(ctx context.Context) error {
	err := hostproc.Watch(ctx, gvisor.LimitCheckpoint, s.shoot, func() error {
		return s.ask(boot.UsageCollect, &control.MemoryUsageOpts{Full: true}, new(control.MemoryUsage))
	})
	if err != nil { // it takes longer without
		s.hangUp()
		slog.WarnContext(ctx, "an engine does not count its memory", "sandbox", s.id, "err", err)
	}
	if errors.Is(err, hostproc.ErrHung) {
		return err
	}
	return context.Cause(ctx)
}

// capture takes one checkpoint.
type capture struct {
	most uint64 // bytes of memory that the engine may name

	mu    sync.Mutex
	files map[string]*writer // guarded by mu; those that the engine has not opened
	fds   []int              // guarded by mu; of the sources, ours to close
	// small are the files besides the memory, as they were when they were closed.
	small []checkpoint.File // guarded by mu

	// The goroutine that serves the file of pages writes these. Others read
	// them after it has ended.
	pages *checkpoint.Layer
	named []part // of the memory, by chunk
	total uint64
	clock bool  // it was found
	err   error // guarded by mu

	known   *seen         // the base, if it is known what was touched since then
	still   bool          // nobody touched memory since then
	unread  atomic.Int64  // chunks that were left out
	aside   *aside        // nil if nobody touches memory during the copy, or it need not be right
	claimed []atomic.Bool // by index of named, with aside
	next    atomic.Int64  // of named, that nobody copies yet
}

// part is what the engine named of one chunk.
type part struct {
	number uint32
	pieces []piece
}

// piece is memory that the engine named.
type piece struct {
	from *source
	at   memmap.FileRange
	copy []byte // if it was copied at once
}

// copyNow copies a piece, which may change from now on.
func (p *piece) copyNow() error {
	p.copy = make([]byte, p.at.Length())
	return readFull(p.from.fd, p.copy, p.at.Start)
}

// source is a memory file of an engine.
type source struct {
	fd    int
	base  uint64           // where it begins in the file of pages
	clock memmap.FileRange // what is copied at once; empty if it was not found
}

// place returns where a range of a source is in the file of pages. One that no
// file has is no range.
func (s source) place(r memmap.FileRange) checkpoint.Range {
	return checkpoint.Range{At: int64(s.base + r.Start), Bytes: int64(r.Length())} //nolint:gosec // G115: Extend refuses what is negative
}

// newCapture opens the files of a checkpoint in a directory, all of them before the
// engine asks. When one cannot be opened, gVisor panics, and the memory would be lost.
// The base may be nil.
func newCapture(dir string, base *checkpoint.Base, most uint64) (_ *capture, err error) {
	c := &capture{most: most, files: map[string]*writer{}}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("open the files of a checkpoint: %w", err), c.close())
		}
	}()
	for _, name := range []string{gvisor.FileState, gvisor.FilePageMeta} {
		file, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return nil, err
		}
		out := &stateOut{file: file}
		c.files[name] = &writer{c: c, put: out.put, release: func() error {
			c.small = append(c.small, out.about.File(name))
			return file.Close()
		}}
	}
	if err := c.openPages(dir, base); err != nil {
		return nil, err
	}
	c.files[checkpoint.FilePages] = &writer{c: c, memory: true, put: c.put, release: func() error { return nil }} // copy goes on with it
	return c, nil
}

// openPages opens the file of pages, which may hold what an earlier copy of the same
// machine wrote.
func (c *capture) openPages(dir string, base *checkpoint.Base) error {
	file, err := os.OpenFile(filepath.Join(dir, checkpoint.FilePages), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if c.pages, err = checkpoint.NewLayer(file, base); err != nil {
		return errors.Join(err, file.Close())
	}
	return nil
}

// Destroy implements [stateipc.AsyncFileServerImpl].
func (*capture) Destroy() {}

// OpenRead implements [stateipc.AsyncFileServerImpl].
func (*capture) OpenRead(string) (stateio.AsyncReader, error) { return nil, fs.ErrPermission }

// OpenWrite implements [stateipc.AsyncFileServerImpl]. The engine may ask for any
// name, any number of times.
func (c *capture) OpenWrite(name string) (stateio.AsyncWriter, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.files[name]
	if w == nil {
		return nil, fs.ErrPermission
	}
	delete(c.files, name)
	return w, nil
}

// others returns what is known of the files besides the memory.
func (c *capture) others() []checkpoint.File {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.small
}

// close gives back what the capture holds.
func (c *capture) close() (err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range c.files {
		err = errors.Join(err, w.release())
	}
	for _, fd := range c.fds {
		err = errors.Join(err, unix.Close(fd))
	}
	c.files, c.fds = nil, nil
	if c.pages != nil {
		err = errors.Join(err, c.pages.Close())
	}
	if c.aside != nil {
		err = errors.Join(err, c.aside.close())
	}
	return err
}

// put takes note of memory that the engine named. What the engine may still
// change is copied at once: all, if the clock is not where it should be.
func (c *capture) put(from source, at memmap.FileRange) error {
	if c.total += at.Length(); c.total > c.most {
		return fmt.Errorf("the engine names more than %d bytes of memory", c.most)
	}
	if err := c.pages.Extend(from.place(at)); err != nil {
		return err
	}
	c.clock = c.clock || from.clock.Length() > 0
	for _, r := range cut(at, from.clock) {
		now := !c.clock || from.clock.IsSupersetOf(r)
		for r.Start < r.End {
			number := (from.base + r.Start) / checkpoint.PageChunk
			p := piece{from: &from, at: memmap.FileRange{Start: r.Start, End: min(r.End, (number+1)*checkpoint.PageChunk-from.base)}}
			r.Start = p.at.End
			if now {
				if err := p.copyNow(); err != nil {
					return err
				}
			}
			last := len(c.named) - 1
			if last < 0 || c.named[last].number != uint32(number) { //nolint:gosec // G115: below checkpoint.MemoryMost
				if last >= 0 && !c.clock { // it is whole
					room := checkpoint.NewScratch()
					err := c.write(c.named[last], room)
					if room.Release(); err != nil {
						return err
					}
					c.named = c.named[:last]
				}
				last = len(c.named)
				c.named = append(c.named, part{number: uint32(number)}) //nolint:gosec // G115: likewise
			}
			c.named[last].pieces = append(c.named[last].pieces, p)
		}
	}
	return nil
}

// cut divides a range into what is before, in and after another one.
func cut(r, by memmap.FileRange) (parts []memmap.FileRange) {
	for _, end := range []uint64{by.Start, by.End, r.End} {
		if end = min(end, r.End); end > r.Start {
			parts = append(parts, memmap.FileRange{Start: r.Start, End: end})
			r.Start = end
		}
	}
	return parts
}

// copy writes all memory that the engine named, until stop is closed.
func (c *capture) copy(stop <-chan struct{}, yields bool) error {
	if c.total == 0 {
		return errors.New("the engine named no memory")
	}
	work := hostproc.Guard
	if yields {
		work = background
	}
	if c.still && c.aside == nil {
		if err := work(c.sample); err != nil {
			return err
		}
	}
	c.next.Store(0) // it may go on after a stop
	var workers, ready errgroup.Group
	for range min(copiers, runtime.GOMAXPROCS(0)) {
		workers.Go(func() error { return work(func() error { return c.writeAll(stop) }) })
	}
	done := make(chan struct{})
	if c.aside != nil { // the guest waits until a slot is free
		ready.Go(func() error { return hostproc.Guard(func() error { return c.writeFilled(done) }) })
	}
	err := workers.Wait()
	close(done)
	if err = errors.Join(err, ready.Wait()); err != nil {
		return err
	}
	return c.pages.Finish()
}

// writeAll writes parts until there is none that nobody writes. Several may do so at a time.
func (c *capture) writeAll(stop <-chan struct{}) error {
	room := checkpoint.NewScratch()
	defer room.Release()
	for {
		p, more := c.claim()
		if !more {
			return nil
		}
		select {
		case <-stop:
			return errStopped
		default:
		}
		if err := c.write(p, room); err != nil {
			c.next.Store(int64(len(c.named))) // the others end, too
			return err
		}
	}
}

// write writes the part of a chunk that the engine named, unless it is on disk.
func (c *capture) write(named part, room *checkpoint.Scratch) error {
	if c.same(named) {
		shared, err := c.pages.Share(named.number)
		if err != nil {
			return err
		}
		if shared {
			c.unread.Add(1)
			return nil
		}
	}
	return c.pages.Write(named.number, room, c.filler(named))
}

// filler returns what reads a part of a chunk.
func (c *capture) filler(named part) func(chunk []byte, start int64) error {
	return func(chunk []byte, start int64) error {
		err := named.fill(chunk, start, func(p piece, into []byte) error { return readFull(p.from.fd, into, p.at.Start) })
		if err != nil || c.aside == nil {
			return err
		}
		return c.aside.take(named, chunk, start)
	}
}

// fill fills a part into its chunk, which begins at start of the file of pages. What was not
// copied at once, read reads.
func (p part) fill(chunk []byte, start int64, read func(p piece, into []byte) error) error {
	for _, piece := range p.pieces {
		at := piece.from.place(piece.at)
		into := chunk[at.At-start : at.End()-start]
		if piece.copy != nil {
			copy(into, piece.copy)
		} else if err := read(piece, into); err != nil {
			return err
		}
	}
	return nil
}

// errStopped is what a copy returns that was told to stop.
var errStopped = errors.New("the copy was stopped")

// stateOut is a small file, which is written at once.
type stateOut struct {
	file  *os.File
	about checkpoint.Sums
}

func (o *stateOut) put(from source, at memmap.FileRange) error {
	room := checkpoint.NewRoom()
	defer checkpoint.FreeRoom(room)
	for at.Start < at.End {
		raw := room[:min(uint64(len(room)), at.Length())]
		if err := readFull(from.fd, raw, at.Start); err != nil {
			return err
		}
		if o.about.Add(raw); o.about.Bytes() > stateMax {
			return fmt.Errorf("the engine's state has more than %d bytes", stateMax)
		}
		if _, err := o.file.Write(raw); err != nil {
			return err
		}
		at.Start += uint64(len(raw))
	}
	return nil
}

// readFull reads from a file of the engine. It never maps one: an engine that
// makes its file shorter would end this process.
func readFull(fd int, into []byte, at uint64) error {
	for len(into) > 0 {
		n, err := unix.Pread(fd, into, int64(at)) //nolint:gosec // G115: the interface checks it
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return fmt.Errorf("read memory: %w", err)
		case n == 0:
			return fmt.Errorf("read memory: %w", io.ErrUnexpectedEOF)
		}
		into = into[n:]
		at += uint64(n) //nolint:gosec // G115: a count
	}
	return nil
}

// findClock returns where the engine writes to a memory file while its guest
// stands still: around the code that reads the clock for the guest.
func findClock(fd int) memmap.FileRange {
	page := os.Getpagesize()
	code := vdsodata.Binary
	have := make([]byte, len(code))
	for at := uint64(0); at < clockSearch; at += uint64(page) { //nolint:gosec // G115: it is positive
		if readFull(fd, have[:64], at) != nil { // the file ends
			break
		}
		if !bytes.Equal(have[:64], code[:64]) || readFull(fd, have, at) != nil || !bytes.Equal(have, code) {
			continue
		}
		end := at + uint64(len(code)) + clockReach
		return memmap.FileRange{Start: at - min(at, clockReach), End: end &^ uint64(page-1)} //nolint:gosec // G115: likewise
	}
	return memmap.FileRange{}
}

// writer serves the engine's writes to one file. It answers each at once.
type writer struct {
	c       *capture
	memory  bool // its sources are the guest's memory
	put     func(source, memmap.FileRange) error
	release func() error // precondition: the capture's mu is held
	known   int          // sources that were registered
	size    uint64       // of all of them
	done    []stateio.Completion
}

// Close implements [stateio.AsyncWriter].
func (w *writer) Close() error {
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	return w.release()
}

// MaxWriteBytes implements [stateio.AsyncWriter].
func (*writer) MaxWriteBytes() uint64 { return pageWrite }

// MaxRanges implements [stateio.AsyncWriter].
func (*writer) MaxRanges() int { return writeRanges }

// MaxParallel implements [stateio.AsyncWriter].
func (*writer) MaxParallel() int { return writing }

// NeedRegisterSourceFD implements [stateio.AsyncWriter].
func (*writer) NeedRegisterSourceFD() bool { return true }

// RegisterSourceFD implements [stateio.AsyncWriter].
func (w *writer) RegisterSourceFD(fd int32, size uint64, _ []stateio.ClientFileRangeSetting) (stateio.SourceFile, error) {
	if w.known++; w.known > destinations {
		return nil, errors.New("too many sources")
	}
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0) //nolint:gosec // G115: a descriptor is small
	if err == nil {
		w.c.fds = append(w.c.fds, own)
	} else { // the writes fail: gVisor panics when this does
		w.c.err = errors.Join(w.c.err, fmt.Errorf("keep a source: %w", err))
	}
	from := source{fd: own, base: w.size}
	if w.memory {
		from.clock = findClock(own)
	}
	if size > checkpoint.MemoryMost-w.size {
		return nil, fmt.Errorf("sources have more than %d bytes", uint64(checkpoint.MemoryMost))
	}
	w.size = (w.size + size + checkpoint.SumChunk - 1) / checkpoint.SumChunk * checkpoint.SumChunk
	return from, nil
}

// AddWrite implements [stateio.AsyncWriter].
func (w *writer) AddWrite(id int, from stateio.SourceFile, at memmap.FileRange, _ []byte) {
	w.add(id, from, []memmap.FileRange{at})
}

// AddWritev implements [stateio.AsyncWriter].
func (w *writer) AddWritev(id int, _ uint64, from stateio.SourceFile, at []memmap.FileRange, _ []unix.Iovec) {
	w.add(id, from, at)
}

func (w *writer) add(id int, from stateio.SourceFile, ranges []memmap.FileRange) {
	all := stateio.Completion{ID: id}
	own, _ := from.(source) // RegisterSourceFD returns nothing else
	for _, r := range ranges {
		if err := w.put(own, r); err != nil {
			w.c.fail(err)
			all.Err = unix.EIO
			break
		}
		all.N += r.Length()
	}
	w.done = append(w.done, all)
}

// fail keeps why a write did not work: the engine is told a number only.
func (c *capture) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = errors.Join(c.err, err)
}

// Wait implements [stateio.AsyncWriter].
func (w *writer) Wait(done []stateio.Completion, _ int) ([]stateio.Completion, error) {
	done = append(done, w.done...)
	w.done = w.done[:0]
	return done, nil
}

// Reserve implements [stateio.AsyncWriter].
func (*writer) Reserve(uint64) {}

// Finalize implements [stateio.AsyncWriter].
func (*writer) Finalize() error { return nil }
