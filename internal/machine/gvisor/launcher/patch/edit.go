package patch

import (
	"fmt"
	"maps"
	"slices"
)

// watchShift says how much memory the changed gVisor notes at a time: [WatchUnit].
const watchShift = "18"

// WatchUnit is how much memory the method Usage.Watch has a bit for, in bytes.
const WatchUnit = 1 << 18

// The table of memory that is copied while the guest runs: see the method Usage.Aside. It has
// words of 32 bits: one that is set when something was lost, one for each slot, and one for
// each unit. The engine and the launcher change them, at any time.

// States of a slot.
const (
	AsideFree    = iota // nobody uses the slot
	AsideFilling        // the engine is about to fill it
	AsideUnit           // the slot has the unit of this number, from here on
)

// States of a unit.
const (
	AsideDone    = iota // the launcher does not need it, or does no more
	AsideWanted         // the launcher will read it: it must be as it was
	AsideCopying        // the engine is about to copy it into a slot
	AsideSlot           // it is in the slot of this number, from here on
)

// asideConstants are these in the engine.
var asideConstants = fmt.Sprintf(`const (
	asideFree, asideFilling, asideUnit                    = %d, %d, %d
	asideDone, asideWanted, asideCopying, asideSlot uint32 = %d, %d, %d, %d
)`, AsideFree, AsideFilling, AsideUnit, AsideDone, AsideWanted, AsideCopying, AsideSlot)

// DiskAnnotation is the annotation of a spec that names the file of a disk.
const DiskAnnotation = "dev.doze.disk"

// fileMemory bounds how many files a disk has: half of the memory, at most, is for what
// the engine knows of them.
const fileMemory = "8192"

// Stopped is in the error of a save that a request stopped.
const Stopped = "the save was stopped by a request"

// mark is what the licence of gVisor asks for: each file that we change says so.
const mark = "// Doze changed this file, or added it.\n\n"

// edit replaces a text that must be in a file exactly once.
type edit struct{ file, old, with string }

// added are the files that gVisor does not have.
var added = together(engineAdded, processorAdded)

// together has the files of all.
func together(some ...map[string]string) map[string]string {
	all := map[string]string{}
	for _, m := range some {
		maps.Copy(all, m)
	}
	return all
}

// engineAdded are those that change what the engine does.
var engineAdded = map[string]string{
	"pkg/state/stop.go": `// Package state: see state.go.
package state

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
)

// saveStop says that a request waits for the end of the save.
var saveStop atomic.Bool

// ErrStopped is what a save fails with that was stopped.
var ErrStopped = errors.New("` + Stopped + `")

// SaveUntilStopped is Save that fails with ErrStopped as soon as saveStop is set.
func SaveUntilStopped(ctx context.Context, w io.Writer, rootPtr any) (Stats, error) {
	return save(ctx, w, rootPtr, true)
}

// Stopping reports whether a request waits.
func Stopping() bool { return saveStop.Load() }

// ForgetStop ends what was asked of a save that is over.
func ForgetStop() { saveStop.Store(false) }

// stopped reports whether to encode no further object.
func (es *encodeState) stopped() bool { return es.stoppable && saveStop.Load() }

// checkStop ends the save, outside of what would print the object at hand.
func (es *encodeState) checkStop() {
	if es.stopped() {
		panic(ErrStopped)
	}
}
`,
	"pkg/sentry/pgalloc/watch.go": `package pgalloc

import (
	"encoding/binary"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/sentry/memmap"
)

const (
	// WatchUnit is how much memory is noted at a time, in bytes.
	WatchUnit  = 1 << watchShift
	// WatchMap is how much is mapped at a time: a fault for each unit takes longer than to
	// copy some units in vain.
	WatchMap   = 2 << 20
	watchShift = ` + watchShift + `
	// chunkWords has a bit for each unit of a chunk.
	chunkWords = chunkSize >> watchShift / 64
	// watchChunks bounds the memory that can be watched, in chunks. All that is
	// behind counts as touched.
	watchChunks = 1024
)

// units has a bit for each unit of a file that somebody touched.
type units struct {
	file   *MemoryFile
	chunks [watchChunks]atomic.Pointer[[chunkWords]atomic.Uint64]
	behind atomic.Bool
}

var (
	// watched is what was touched since the last call of Watch. Nobody watches if it is nil.
	watched atomic.Pointer[units]
	// held is what somebody may write to at any time.
	held units

	// WatchLoaded has memory watched that comes out of a checkpoint, before its first use.
	WatchLoaded atomic.Bool
)

// Watching reports whether somebody wants to know what is touched.
func Watching() bool { return watched.Load() != nil }

// Touch notes that memory may be written to from now on. It is called before the caller
// has a mapping of it.
func (f *MemoryFile) Touch(fr memmap.FileRange) {
	if a := asideNow.Load(); a != nil && a.file == f {
		a.preserve(fr)
	}
	if w := watched.Load(); w != nil && w.file == f {
		w.add(fr)
	}
}

// Hold notes that memory may be written to for as long as the process lives.
func (f *MemoryFile) Hold(fr memmap.FileRange) { held.add(fr) }

// Watch begins to note what is touched, anew. The caller has seen to it that nobody has a
// mapping through which memory can be written to.
func (f *MemoryFile) Watch() { watched.Store(&units{file: f}) }

// Touched returns what was touched since Watch: eight units in each byte, the first one in
// the lowest bit. It reports false if that is not known.
func (f *MemoryFile) Touched() ([]byte, bool) {
	w := watched.Load()
	if w == nil || w.file != f {
		return nil, false
	}
	return f.bits(w, &held)
}

// Held returns what is held, likewise.
func (f *MemoryFile) Held() ([]byte, bool) { return f.bits(&held) }

// bits returns the bits of some notes together.
func (f *MemoryFile) bits(some ...*units) (bits []byte, known bool) {
	for _, u := range some {
		if u.behind.Load() {
			return nil, false
		}
	}
	for i := range f.chunksLoad() {
		if i >= watchChunks {
			return nil, false
		}
		var words [chunkWords]uint64
		for _, u := range some {
			if noted := u.chunks[i].Load(); noted != nil {
				for j := range words {
					words[j] |= noted[j].Load()
				}
			}
		}
		for _, word := range words {
			bits = binary.LittleEndian.AppendUint64(bits, word)
		}
	}
	return bits, true
}

// add sets the bits of a range.
func (u *units) add(fr memmap.FileRange) {
	if fr.Length() == 0 {
		return
	}
	for unit := fr.Start >> watchShift; unit <= (fr.End-1)>>watchShift; unit++ {
		i, j, bit := unit/(chunkWords*64), unit/64%chunkWords, uint64(1)<<(unit%64)
		if i >= watchChunks {
			u.behind.Store(true)
			return
		}
		words := u.chunks[i].Load()
		if words == nil {
			u.chunks[i].CompareAndSwap(nil, new([chunkWords]atomic.Uint64))
			words = u.chunks[i].Load()
		}
		if words[j].Load()&bit == 0 {
			words[j].Or(bit)
		}
	}
}
`,
	"pkg/sentry/pgalloc/aside.go": `package pgalloc

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"gvisor.dev/gvisor/pkg/sentry/memmap"
)

` + asideConstants + `

const (
	// asidePoll is the pause between looks at what another thread, or the launcher, does.
	asidePoll = 50 * time.Microsecond
	// asideWait bounds how long a writer waits for a free slot. After that, the copy is lost,
	// and nobody waits for it any more. A launcher on a busy host frees one in less.
	asideWait = time.Second
)

// aside is memory that the launcher copies while the guest runs. What it has not copied yet
// is copied into a slot before somebody writes to it.
type aside struct {
	file *MemoryFile
	room int // the file of the slots, each of WatchUnit

	mu    sync.RWMutex // held by those who use what follows
	table []byte       // nil when all is over; guarded by mu
	lost  *atomic.Uint32
	slots []atomic.Uint32
	units []atomic.Uint32
	next  atomic.Uint32 // where to look for a free slot
}

// asideNow is nil if nothing is copied.
var asideNow atomic.Pointer[aside]

// asideRooms is room for a unit on its way to a slot.
var asideRooms = sync.Pool{New: func() any { return new([WatchUnit]byte) }}

// Aside begins to copy aside what a table wants. It takes the descriptor of the room. The
// caller has seen to it that nobody has a mapping through which memory can be written to.
func (f *MemoryFile) Aside(table, room int, slots, units uint32) error {
	f.EndAside()
	const word = 4
	size := int(1+slots+units) * word
	mapped, err := unix.Mmap(table, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		unix.Close(room)
		return fmt.Errorf("map the table: %w", err)
	}
	words := unsafe.Slice((*atomic.Uint32)(unsafe.Pointer(&mapped[0])), size/word)
	asideNow.Store(&aside{file: f, room: room, table: mapped, lost: &words[0], slots: words[1 : 1+slots], units: words[1+slots:]})
	return nil
}

// EndAside copies nothing aside from now on.
func (f *MemoryFile) EndAside() {
	a := asideNow.Swap(nil)
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	unix.Munmap(a.table)
	unix.Close(a.room)
	a.table = nil
}

// preserve returns when nobody needs to read what is in a range.
func (a *aside) preserve(fr memmap.FileRange) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if a.table == nil || fr.Length() == 0 || a.lost.Load() != 0 {
		return
	}
	for unit := fr.Start >> watchShift; unit <= (fr.End-1)>>watchShift && unit < uint64(len(a.units)); unit++ {
		state := &a.units[unit]
		for now := state.Load(); now == asideWanted || now == asideCopying; now = state.Load() {
			switch {
			case now == asideCopying:
				time.Sleep(asidePoll)
			case state.CompareAndSwap(asideWanted, asideCopying):
				slot, err := a.fill(unit)
				if err != nil {
					a.lost.Store(1)
					state.Store(asideDone)
					return
				}
				state.Store(asideSlot + slot)
			}
		}
	}
}

// fill copies a unit into a slot.
func (a *aside) fill(unit uint64) (slot uint32, err error) {
	slot, err = a.slot()
	if err != nil {
		return slot, err
	}
	room := asideRooms.Get().(*[WatchUnit]byte)
	defer asideRooms.Put(room)
	if err := asideMove(unix.Pread, a.file.FD(), room[:], unit); err != nil {
		return slot, err
	}
	if err := asideMove(unix.Pwrite, a.room, room[:], uint64(slot)); err != nil {
		return slot, err
	}
	a.slots[slot].Store(asideUnit + uint32(unit))
	return slot, nil
}

// slot takes a free slot.
func (a *aside) slot() (uint32, error) {
	for end := time.Now().Add(asideWait); ; time.Sleep(asidePoll) {
		for range a.slots {
			slot := a.next.Add(1) % uint32(len(a.slots))
			if a.slots[slot].CompareAndSwap(asideFree, asideFilling) {
				return slot, nil
			}
		}
		if a.lost.Load() != 0 || time.Now().After(end) {
			return 0, errors.New("no slot is free")
		}
	}
}

// asideMove reads or writes the unit of a number of a file.
func asideMove(move func(fd int, p []byte, at int64) (int, error), fd int, p []byte, number uint64) error {
	for at := int64(number) << watchShift; len(p) > 0; {
		n, err := move(fd, p, at)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return err
		case n == 0:
			return io.ErrUnexpectedEOF
		}
		p, at = p[n:], at+int64(n)
	}
	return nil
}
`,
	"pkg/sentry/mm/watch.go": `package mm

import (
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/pgalloc"
)

// unmapPiece is how much is unmapped under one lock, in bytes: a fault waits 1 ms for it.
const unmapPiece = 64 << 20

// UnmapAll removes all mappings of the application. Its next access to each is a fault,
// which maps it again. It returns false if it was stopped before its end. The application
// may run meanwhile.
func (mm *MemoryManager) UnmapAll(stopping func() bool) bool {
	for at := mm.applicationAddrRange().Start; at < mm.applicationAddrRange().End; {
		if stopping() {
			return false
		}
		at = mm.unmapFrom(at)
	}
	return true
}

// unmapFrom removes the mappings of unmapPiece from an address on, and returns the address
// of the next ones.
func (mm *MemoryManager) unmapFrom(at hostarch.Addr) hostarch.Addr {
	mm.activeMu.Lock()
	defer mm.activeMu.Unlock()
	end, left := mm.applicationAddrRange().End, hostarch.Addr(unmapPiece)
	for pseg := mm.pmas.LowerBoundSegment(at); pseg.Ok(); pseg = pseg.NextSegment() {
		start := max(at, pseg.Start())
		if pseg.End()-start >= left {
			end = start + left
			break
		}
		left -= pseg.End() - start
	}
	mm.unmapASLocked(hostarch.AddrRange{Start: at, End: end})
	return end
}

// touchLocked notes that ar may be written to through internal mappings, which are cached
// for all of a pma.
//
// Preconditions:
//   - mm.activeMu must be locked.
//   - pmas must exist for all addresses in ar.
//   - pseg.Range().Contains(ar.Start).
func (mm *MemoryManager) touchLocked(pseg pmaIterator, ar hostarch.AddrRange) {
	if !pgalloc.Watching() {
		return
	}
	for pseg.Ok() && pseg.Start() < ar.End {
		if mf, ok := pseg.ValuePtr().file.(*pgalloc.MemoryFile); ok {
			mf.Touch(pseg.fileRangeOf(pseg.Range().Intersect(ar)))
		}
		pseg = pseg.NextSegment()
	}
}
`,
	"pkg/sentry/kernel/watch.go": `package kernel

import (
	"gvisor.dev/gvisor/pkg/sentry/mm"
	"gvisor.dev/gvisor/pkg/state"
)

// UnmapMemory removes the mappings of all applications, which may run meanwhile. So no
// request waits for it.
func (k *Kernel) UnmapMemory() {
	var all []*mm.MemoryManager // each may have ended until it is its turn, and has no mappings then
	k.tasks.mu.RLock()
	for t := range k.tasks.Root.tids {
		t.WithMuLocked(func(t *Task) { all = append(all, t.MemoryManager()) })
	}
	k.tasks.mu.RUnlock()
	unmapAll(all, func() bool { return false })
}

// WatchMemory begins to note which memory is touched. It fails with [state.ErrStopped] if a
// request waits.
//
// Preconditions: The kernel must be paused.
func (k *Kernel) WatchMemory() error {
	var all []*mm.MemoryManager
	k.tasks.mu.RLock()
	for t := range k.tasks.Root.tids {
		all = append(all, t.image.MemoryManager)
		if r, ok := t.runState.(*runExecveAfterSiblingExitStop); ok {
			all = append(all, r.image.MemoryManager)
		}
	}
	k.tasks.mu.RUnlock()
	if !unmapAll(all, state.Stopping) {
		state.ForgetStop() // what the request waits for is this
		return state.ErrStopped
	}
	k.mf.Watch()
	return nil
}

// unmapAll removes the mappings of each once. It returns false if it was stopped.
func unmapAll(all []*mm.MemoryManager, stopping func() bool) bool {
	unmapped := map[*mm.MemoryManager]struct{}{nil: {}} // a task that ends has none
	for _, memory := range all {
		if _, ok := unmapped[memory]; ok {
			continue
		}
		unmapped[memory] = struct{}{}
		if !memory.UnmapAll(stopping) {
			return false
		}
	}
	return true
}
`,
	"pkg/sentry/control/watch.go": `package control

import (
	"errors"

	"gvisor.dev/gvisor/pkg/sentry/pgalloc"
	"gvisor.dev/gvisor/pkg/urpc"
)

// WatchOpts says what is to be known of memory.
type WatchOpts struct {
	// Ahead does what takes long before it begins, while the guest may run. Nothing else is
	// done.
	Ahead bool
	// Begin notes anew what is touched from now on.
	Begin bool
	// Load notes what is touched of memory that is loaded later. Nothing else is done.
	Load bool
}

// Watched is memory that was touched.
type Watched struct {
	// Known says that all memory was watched that Bits has no bit for.
	Known bool
	// Bits has a bit for each unit of memory.
	Bits []byte
	// Held has those that may be written to at any time. There are none if that is not known.
	Held []byte
}

// Watch returns which memory was touched since the last time that it was to begin. The
// kernel must be paused for that.
func (u *Usage) Watch(opts *WatchOpts, out *Watched) error {
	if opts.Ahead {
		u.Kernel.UnmapMemory()
		return nil
	}
	if opts.Load {
		pgalloc.WatchLoaded.Store(true)
		return nil
	}
	if !u.Kernel.IsPaused() {
		return errors.New("the kernel must be paused")
	}
	out.Bits, out.Known = u.Kernel.MemoryFile().Touched()
	out.Held, _ = u.Kernel.MemoryFile().Held()
	if opts.Begin {
		return u.Kernel.WatchMemory()
	}
	return nil
}

// AsideOpts says what is copied while the guest runs. The files are the table and the room.
type AsideOpts struct {
	urpc.FilePayload
	// Slots and Units are what the table has words for.
	Slots, Units uint32
}

// Aside has what is copied be as it is now, until the next call without files. The kernel
// must be paused, and a watch must have begun since it was.
func (u *Usage) Aside(opts *AsideOpts, _ *struct{}) error {
	f := u.Kernel.MemoryFile()
	if len(opts.Files) == 0 {
		f.EndAside()
		return nil
	}
	if len(opts.Files) != 2 || !u.Kernel.IsPaused() || !pgalloc.Watching() {
		return errors.New("two files are needed, and a paused kernel that is watched")
	}
	room, err := opts.ReleaseFD(1)
	if err != nil {
		return err
	}
	return f.Aside(int(opts.Files[0].Fd()), room.Release(), opts.Slots, opts.Units)
}
`,
	"pkg/sentry/fsimpl/fuse/mmap.go": `package fuse

import (
	"io"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/safemem"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/pgalloc"
	"gvisor.dev/gvisor/pkg/sentry/usage"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

const (
	// mapMost is how much of a file one call of mmap maps at most, in bytes.
	mapMost = 1 << 30
	// mapRead is how much of it is read at a time.
	mapRead = 1 << 20
)

// configureMMap maps a file as it is now: private, or to be read. It is read whole before
// there is a mapping. So no fault waits for the server of the file system, which may stand
// still with all other processes.
func (fd *regularFileFD) configureMMap(ctx context.Context, opts *memmap.MMapOpts) error {
	if !opts.Private {
		if opts.Perms.Write {
			return linuxerr.ENODEV
		}
		opts.MaxPerms.Write = false
	}
	if err := fd.fill(ctx, opts.Offset, opts.Length); err != nil {
		return linuxerr.ConvertIntr(err, linuxerr.ERESTARTSYS)
	}
	return vfs.GenericConfigureMMap(&fd.vfsfd, fd, opts)
}

// fill reads what is mapped.
func (fd *regularFileFD) fill(ctx context.Context, offset, length uint64) error {
	inode := fd.inode()
	inode.attrMu.Lock()
	defer inode.attrMu.Unlock()
	if err := inode.reviseAttr(ctx, linux.FUSE_GETATTR_FH, fd.Fh); err != nil {
		return err
	}
	size := inode.size.Load()
	pages, ok := hostarch.PageRoundUp(size)
	if !ok {
		return linuxerr.EFBIG
	}
	mr := memmap.MappableRange{Start: offset, End: min(offset+length, pages)}
	if end, ok := hostarch.PageRoundUp(mr.End); ok {
		mr.End = end
	}
	if mr.End <= mr.Start {
		return nil // all of it is behind the end of the file
	}
	if mr.Length() > mapMost {
		return linuxerr.ENOMEM
	}
	fd.dataMu.Lock()
	defer fd.dataMu.Unlock()
	optional := mr // and no more than that
	_, err := fd.data.Fill(ctx, mr, optional, size, pgalloc.MemoryFileFromContext(ctx), pgalloc.AllocOpts{
		Kind:    usage.PageCache,
		MemCgID: pgalloc.MemoryCgroupIDFromContext(ctx),
		Mode:    pgalloc.AllocateAndWritePopulate,
	}, fd.readBlocks)
	if err == io.EOF {
		return nil
	}
	return err
}

// readBlocks reads from an offset on. The caller holds inode.attrMu.
func (fd *regularFileFD) readBlocks(ctx context.Context, dsts safemem.BlockSeq, offset uint64) (uint64, error) {
	parts, _, err := fd.inode().fs.ReadInPages(ctx, fd, offset, uint32(min(dsts.NumBytes(), mapRead))) // +checklocksforce
	var done uint64
	for _, part := range parts {
		n, err := safemem.CopySeq(dsts, safemem.BlockSeqOf(safemem.BlockFromSafeSlice(part)))
		done += n
		if err != nil {
			return done, err
		}
		dsts = dsts.DropFirst64(n)
	}
	return done, err
}

// AddMapping implements memmap.Mappable.AddMapping.
func (fd *regularFileFD) AddMapping(ctx context.Context, ms memmap.MappingSpace, ar hostarch.AddrRange, offset uint64, writable bool) error {
	fd.mapsMu.Lock()
	defer fd.mapsMu.Unlock()
	fd.mappings.AddMapping(ms, ar, offset, writable)
	return nil
}

// RemoveMapping implements memmap.Mappable.RemoveMapping.
func (fd *regularFileFD) RemoveMapping(ctx context.Context, ms memmap.MappingSpace, ar hostarch.AddrRange, offset uint64, writable bool) {
	fd.mapsMu.Lock()
	defer fd.mapsMu.Unlock()
	fd.mappings.RemoveMapping(ms, ar, offset, writable)
}

// CopyMapping implements memmap.Mappable.CopyMapping.
func (fd *regularFileFD) CopyMapping(ctx context.Context, ms memmap.MappingSpace, srcAR, dstAR hostarch.AddrRange, offset uint64, writable bool) error {
	return fd.AddMapping(ctx, ms, dstAR, offset, writable)
}

// Translate implements memmap.Mappable.Translate.
func (fd *regularFileFD) Translate(ctx context.Context, required, optional memmap.MappableRange, at hostarch.AccessType) ([]memmap.Translation, error) {
	fd.dataMu.RLock()
	defer fd.dataMu.RUnlock()
	var ts []memmap.Translation
	end := required.Start
	for seg := fd.data.FindSegment(required.Start); seg.Ok() && seg.Start() < required.End; seg, _ = seg.NextNonEmpty() {
		mr := seg.Range().Intersect(optional)
		ts = append(ts, memmap.Translation{
			Source: mr,
			File:   pgalloc.MemoryFileFromContext(ctx),
			Offset: seg.FileRangeOf(mr).Start,
			Perms:  hostarch.ReadExecute,
		})
		end = mr.End
	}
	if end < required.End {
		return ts, &memmap.BusError{Err: io.EOF}
	}
	return ts, nil
}

// InvalidateUnsavable implements memmap.Mappable.InvalidateUnsavable.
func (*regularFileFD) InvalidateUnsavable(context.Context) error { return nil }

// Release implements vfs.FileDescriptionImpl.Release.
func (fd *regularFileFD) Release(ctx context.Context) {
	fd.dataMu.Lock()
	if !fd.data.IsEmpty() {
		fd.data.DropAll(pgalloc.MemoryFileFromContext(ctx))
	}
	fd.dataMu.Unlock()
	fd.fileDescription.Release(ctx)
}
`,
	"pkg/sentry/pgalloc/disk.go": `package pgalloc

import (
	"encoding/binary"
	"fmt"
	"io"

	"google.golang.org/protobuf/proto"
)

// saveDisk writes what is where in the file of a disk, and no page of it.
//
// Preconditions: f.mu must be locked.
func (f *MemoryFile) saveDisk(w io.Writer) error {
	data, err := proto.Marshal(f.exportMetadataProto())
	if err != nil {
		return fmt.Errorf("marshal what a disk has: %w", err)
	}
	if _, err := w.Write(append(binary.LittleEndian.AppendUint64(nil, uint64(len(data))), data...)); err != nil {
		return fmt.Errorf("write what a disk has: %w", err)
	}
	return nil
}

// loadDisk counts the pages of a disk, which are in its file already.
func (f *MemoryFile) loadDisk() {
	for seg := f.memAcct.FirstSegment(); seg.Ok(); seg = seg.NextSegment() {
		if seg.ValuePtr().knownCommitted {
			f.knownCommittedBytes += seg.Range().Length()
		}
	}
}
`,
	"runsc/boot/disk.go": `package boot

import (
	"fmt"

	"gvisor.dev/gvisor/pkg/sentry/usage"
)

// fileMemory is how much of its memory a machine has for each file on its disk, in bytes.
// gVisor takes 3.4 KB for one.
const fileMemory = ` + fileMemory + `

// diskFiles is the mount option that says how many files a disk may have. It follows the
// size, which each disk has.
func diskFiles() string {
	return fmt.Sprintf(",nr_inodes=%d", max(1, usage.MaximumTotalMemoryBytes/fileMemory))
}
`,
	"runsc/container/disk.go": `package container

import (
	"fmt"
	"os"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// DiskAnnotation names the file of a disk. It may differ from one restore to the next.
const DiskAnnotation = "` + DiskAnnotation + `"

// failed returns what createGoferProcess does for an error.
func failed(why error) (files, filestores []*os.File, dev, mounts *os.File, err error) {
	err = why
	return
}

// openDisk opens the file that the layer above the root file system is in.
func openDisk(spec *specs.Spec) (*os.File, error) {
	file, err := os.OpenFile(spec.Annotations[DiskAnnotation], os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("open the disk: %w", err)
	}
	return file, nil
}
`,
	"pkg/sentry/kernel/processes.go": `package kernel

import "gvisor.dev/gvisor/pkg/errors/linuxerr"

// processesMost is how many processes the guest may have; 0 is no bound.
var processesMost int

// admitProcessLocked fails if a task of the guest would begin a process too many. What
// the host starts in the guest counts, and is admitted.
//
// Preconditions: ts.mu must be locked.
func (ts *TaskSet) admitProcessLocked(source *Task, tg *ThreadGroup) error {
	if source != nil && tg.leader == nil && processesMost > 0 && len(ts.Root.tgids) >= processesMost {
		return linuxerr.EAGAIN
	}
	return nil
}
`,
}

// edits are what changes in files of gVisor.
var edits = slices.Concat(engineEdits, encodeEdits, processorEdits)

// engineEdits are those that change what the engine does.
var engineEdits = []edit{
	// The encoder asks before each object whether it is to stop.
	{"pkg/state/state.go", `func Save(ctx context.Context, w io.Writer, rootPtr any) (Stats, error) {
`, `func Save(ctx context.Context, w io.Writer, rootPtr any) (Stats, error) {
	return save(ctx, w, rootPtr, false)
}

// save is Save, which can be stopped or not.
func save(ctx context.Context, w io.Writer, rootPtr any, stoppable bool) (Stats, error) {
`},
	{"pkg/state/state.go", `		encodedStructs: make(map[reflect.Value]*wire.Struct),
`, `		encodedStructs: make(map[reflect.Value]*wire.Struct),
		stoppable:      stoppable,
`},
	{"pkg/state/encode.go", `	// stats tracks time data.
	stats Stats
`, `	// stats tracks time data.
	stats Stats

	// stoppable says that saveStop ends the encoding.
	stoppable bool
`},
	{"pkg/state/encode.go", `			es.deferred.Remove(oes)
`, `			if es.stopped() {
				return
			}
			es.deferred.Remove(oes)
`},
	{"pkg/state/encode.go", `		Failf("encoding error: %w", err)
	}
`, `		Failf("encoding error: %w", err)
	}
	es.checkStop()
`},
	{"pkg/state/encode.go", `			// Encode the id.
			oes = nil
`, `			if es.stopped() {
				return
			}
			// Encode the id.
			oes = nil
`},
	{"pkg/state/encode.go", `			Failf("error serializing type or ID: %w", err)
		}
	}
`, `			Failf("error serializing type or ID: %w", err)
		}
	}
	es.checkStop()
`},
	// Of all that is saved, only the kernel has many objects.
	{"pkg/sentry/kernel/kernel.go", `		stats, err := state.Save(ctx, stateFile, k)
`, `		stats, err := state.SaveUntilStopped(ctx, stateFile, k)
`},
	{"pkg/sentry/kernel/kernel.go", `	saveStart := time.Now()
`, `	saveStart := time.Now()
	defer state.ForgetStop()
`},
	// A process too many is refused under the lock that counts them.
	{"pkg/sentry/kernel/task_start.go", `	if err := ts.assignTIDsLocked(t); err != nil {
`, `	if err := ts.admitProcessLocked(srcT, tg); err != nil {
		return nil, err
	}
	if err := ts.assignTIDsLocked(t); err != nil {
`},
	// Files of drives can be mapped, and fsync waits for its end. A write is sent once: gVisor
	// sent it a second time, with nothing, at each offset but 0.
	{"pkg/sentry/fsimpl/fuse/regular_file.go", `	return linuxerr.ENOSYS
`, `	return fd.configureMMap(ctx, opts)
`},
	{"pkg/sentry/fsimpl/fuse/file.go", `	// Ignoring errors and FUSE server replies is analogous to Linux's behavior.
	req := fs.conn.NewRequest(auth.CredentialsFromContext(ctx), pidFromContext(ctx), inode.nodeID, linux.FUSE_FSYNC, &in)
	// The reply will be ignored since no callback is defined in asyncCallBack().
	fs.conn.CallAsync(ctx, req)
	return nil
`, `	req := fs.conn.NewRequest(auth.CredentialsFromContext(ctx), pidFromContext(ctx), inode.nodeID, linux.FUSE_FSYNC, &in)
	res, err := fs.conn.Call(ctx, req)
	if err != nil {
		return err
	}
	return res.Error()
`},
	{"pkg/sentry/fsimpl/fuse/read_write.go", `	end := offset + src.NumBytes()
`, `	end := src.NumBytes()
`},
	// Debian's ping has a capability that sandboxes do not have, and does without it: there
	// are sockets of ICMP that need none. Linux would not start it.
	{"pkg/sentry/kernel/auth/capability_set.go", `		if f.Effective && (newC.PermittedCaps&f.PermittedCaps != f.PermittedCaps) {
`, `		lacking := f.PermittedCaps &^ newC.PermittedCaps &^ CapabilitySetOf(linux.CAP_NET_RAW)
		if f.Effective && lacking != 0 {
`},
	// A mapping, of the application or of gVisor itself, is noted before it is used. Those
	// of a pma are cached, so each use of one is noted.
	{"pkg/sentry/pgalloc/pgalloc.go", `	chunks := ((fr.End + chunkMask) / chunkSize) - (fr.Start / chunkSize)
`, `	if at.Write {
		f.Touch(fr)
	}
	chunks := ((fr.End + chunkMask) / chunkSize) - (fr.Start / chunkSize)
`},
	{"pkg/sentry/pgalloc/pgalloc.go", `	return f.FD(), nil
`, `	f.Touch(fr)
	return f.FD(), nil
`},
	{"pkg/sentry/pgalloc/pgalloc.go", `func (f *MemoryFile) decommitFile(fr memmap.FileRange) error {
`, `func (f *MemoryFile) decommitFile(fr memmap.FileRange) error {
	f.Touch(fr)
	defer f.Touch(fr)
`},
	{"pkg/sentry/pgalloc/pgalloc.go", `func (f *MemoryFile) manuallyZero(fr memmap.FileRange) {
`, `func (f *MemoryFile) manuallyZero(fr memmap.FileRange) {
	f.Touch(fr)
	defer f.Touch(fr)
`},
	{"pkg/sentry/mm/pma.go", `		perms.Execute = false
`, `		perms.Execute = false
		if _, ok := pma.file.(*pgalloc.MemoryFile); ok {
			perms.Write = false // touchLocked tells what is written to
		}
`},
	{"pkg/sentry/mm/pma.go", `		// Since only one pma is involved, we can use pma.internalMappings
		// directly, avoiding a slice allocation.
		offset := uint64(ar.Start - pseg.Start())
`, `		// Since only one pma is involved, we can use pma.internalMappings
		// directly, avoiding a slice allocation.
		mm.touchLocked(pseg, ar)
		offset := uint64(ar.Start - pseg.Start())
`},
	{"pkg/sentry/mm/pma.go", `	var ims []safemem.Block
	for {
		pr := pseg.Range().Intersect(ar)
`, `	mm.touchLocked(pseg, ar)
	var ims []safemem.Block
	for {
		pr := pseg.Range().Intersect(ar)
`},
	{"pkg/sentry/mm/io.go", `		offset := uint64(ar.Start - pseg.Start())
`, `		mm.touchLocked(pseg, ar)
		offset := uint64(ar.Start - pseg.Start())
`},
	{"pkg/sentry/mm/io.go", `		pmaAR := ar.Intersect(pseg.Range())
		if err := pseg.getInternalMappingsLocked(); err == nil {
`, `		pmaAR := ar.Intersect(pseg.Range())
		mm.touchLocked(pseg, pmaAR)
		if err := pseg.getInternalMappingsLocked(); err == nil {
`},
	{"pkg/sentry/socket/netstack/packetmmap/ring_buffer.go", `	return rb.mf.MapInternal(frameFR, at)
`, `	rb.mf.Hold(frameFR)
	return rb.mf.MapInternal(frameFR, at)
`},
	{"pkg/sentry/fsimpl/iouringfs/iouringfs.go", `	// Mapping for the IORings header struct.
`, `	fd.mf.Hold(fd.rbmf.fr)
	fd.mf.Hold(fd.sqemf.fr)
	// Mapping for the IORings header struct.
`},
	// A mapping of much memory would touch all of it.
	{"pkg/sentry/mm/address_space.go", `	} else if mapUnit := mm.p.MapUnit(); mapUnit != 0 {
`, `	} else if pgalloc.Watching() {
		setMapUnit(pgalloc.WatchMap)
	} else if mapUnit := mm.p.MapUnit(); mapUnit != 0 {
`},
	// Of memory that comes out of a checkpoint, nothing is touched yet. Even its clock is
	// set later.
	{"pkg/sentry/kernel/kernel.go", `	initAppCores := k.applicationCores
`, `	initAppCores := k.applicationCores
	if pgalloc.WatchLoaded.Load() {
		k.mf.Watch()
	}
`},
	// The file of a disk is as it was when its machine stood still. So a checkpoint has what
	// is where in it, and none of its bytes. The files in it are no memory of the guest.
	{"pkg/sentry/pgalloc/pgalloc.go", `	// Truncate the file to 0 bytes first to ensure that it's empty.
	if err := file.Truncate(0); err != nil {
		return nil, err
	}
`, `	// Truncate the file to 0 bytes first to ensure that it's empty.
	if !opts.DiskBackedFile {
		if err := file.Truncate(0); err != nil {
			return nil, err
		}
	}
`},
	{"pkg/sentry/pgalloc/save_restore.go", `	// Register this MemoryFile with async page saving if a pages file has been
	// provided.
`, `	if f.IsDiskBacked() {
		return f.saveDisk(w)
	}

	// Register this MemoryFile with async page saving if a pages file has been
	// provided.
`},
	{"pkg/sentry/pgalloc/save_restore.go", `	// Register this MemoryFile with async page loading if a pages file has
	// been provided.
`, `	if f.IsDiskBacked() {
		f.loadDisk()
		return nil
	}

	// Register this MemoryFile with async page loading if a pages file has
	// been provided.
`},
	// A backup is restored where the images are in another directory. The manifest of a
	// checkpoint says which image it is.
	{"runsc/specutils/restore.go", `	// The source of a mount can change during restore.
`, `	// The source of a mount can change during restore, and so can that of the root file system.
	if key == "dev.gvisor.spec.rootfs.source" {
		return false
	}
`},
	{"runsc/boot/vfs.go", `		DiskBackedFile: true,
`, `		DiskBackedFile:          true,
		DisableMemoryAccounting: true,
`},
	// A file can be larger than the memory: an archive has it in pieces.
	{"pkg/sentry/fsimpl/tmpfs/tar.go", `	data := make([]byte, rf.size.RacyLoad())
	dst := usermem.BytesIOSequence(data)
	rw := getRegularFileReadWriter(rf, 0, 0)
	n, err := dst.CopyOutFrom(ctx, rw)
	putRegularFileReadWriter(rw)
	if err != nil && err != io.EOF {
		return fmt.Errorf("failed to read file content: %w", err)
	}
	if n != int64(len(data)) {
		return fmt.Errorf("failed to read all file content, got %d bytes, want %d", n, len(data))
	}
	if _, err := tw.Write(data); err != nil {
		return fmt.Errorf("failed to write file content to tar: %w", err)
	}
	return nil
`, `	const piece = 1 << 20
	size := int64(rf.size.RacyLoad())
	data := make([]byte, min(piece, size))
	for at := int64(0); at < size; {
		dst := usermem.BytesIOSequence(data[:min(piece, size-at)])
		rw := getRegularFileReadWriter(rf, at, 0)
		n, err := dst.CopyOutFrom(ctx, rw)
		putRegularFileReadWriter(rw)
		if err != nil && err != io.EOF {
			return fmt.Errorf("failed to read file content: %w", err)
		}
		if n != dst.NumBytes() {
			return fmt.Errorf("failed to read all file content, got %d bytes, want %d", at+n, size)
		}
		if _, err := tw.Write(data[:n]); err != nil {
			return fmt.Errorf("failed to write file content to tar: %w", err)
		}
		at += n
	}
	return nil
`},
	// gVisor keeps what it knows of each file in its own memory, whose end is that of the
	// machine. So a disk has fewer files than would fill it.
	{"runsc/boot/vfs.go", `		tmpfsOpts.MemoryFile = mf
`, `		tmpfsOpts.MemoryFile = mf
		upperOpts.GetFilesystemOptions.Data += diskFiles()
`},
	{"runsc/container/container.go", `		cu.Release()
		return ioFiles, nil,`, `		filestores, err := c.createGoferFilestores(conf.GetOverlay2(), mountHints)
		if err != nil {
			return failed(err)
		}
		cu.Release()
		return ioFiles, filestores,`},
	{"runsc/container/container.go", `		return c.createGoferFilestoreInDir(goferRootfs, ovlConf.Medium().HostFileDir())
`, `		return openDisk(c.Spec)
`},
	// A freezer of cgroups interrupts the wait of a stub for an answer, as a signal does: see
	// seccomp_do_user_notification in kernel/seccomp.c. The kernel then notifies again, even if
	// the answer was given already. gVisor took the first for the death of the stub, and killed
	// it. It took the second for the end of a system call that nobody had made.
	{"pkg/sentry/platform/systrap/syscall_thread.go", `const maxErrno = 4095
`, `const maxErrno = 4095

const (
	// notExecuted is in a message of the stub until its system call has ended. No system call
	// returns it: it is no error, and no address.
	notExecuted = ^uint64(maxErrno)
	// resendsMost bounds how often the stub may say that it was interrupted: the guest can write
	// its messages.
	resendsMost = 10_000
)
`},
	{"pkg/sentry/platform/systrap/syscall_thread.go", `		if err := t.notifySeccompThread(); err != nil {
			t.thread.Warningf("%s", err)
			return 0, errDeadSubprocess
		}
		if err := t.waitForSeccompNotify(); err != nil {
			t.thread.Warningf("failed waiting for seccomp notify: %s", err)
			return 0, errDeadSubprocess
		}
`, `		atomic.StoreUint64(&stubMsg.ret, notExecuted)
		for resends := 0; atomic.LoadUint64(&stubMsg.ret) == notExecuted; resends++ {
			if resends > resendsMost {
				t.thread.kill()
				t.thread.Warningf("the stub does not execute its system call")
				return 0, errDeadSubprocess
			}
			if err := t.notifySeccompThread(); err != nil {
				t.thread.Warningf("%s", err)
				return 0, errDeadSubprocess
			}
			if err := t.waitForSeccompNotify(); err != nil {
				t.thread.Warningf("failed waiting for seccomp notify: %s", err)
				return 0, errDeadSubprocess
			}
		}
`},
	{"pkg/sentry/platform/systrap/syscall_thread.go", `		case unix.ENOENT:
			// The notification`, `		case unix.EINTR: // a freezer, or a signal for a thread of ours
		case unix.ENOENT:
			// The notification`},
	{"pkg/sentry/platform/systrap/syscall_thread_unsafe.go", `		if errno == unix.EINTR && t.subproc.alive() {
`, `		// ENOENT says that the notification went while it was on its way: it comes again.
		if (errno == unix.EINTR || errno == unix.ENOENT) && t.subproc.alive() {
`},
}
