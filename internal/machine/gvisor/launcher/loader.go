package launcher

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/state/stateio"
	"gvisor.dev/gvisor/pkg/sentry/state/stateipc"
	"gvisor.dev/gvisor/pkg/unet"
	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/boot"

	"github.com/dozehq/doze/internal/failpoint"
	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/machine/checkpoint"
	"github.com/dozehq/doze/internal/machine/gvisor"
	"github.com/dozehq/doze/internal/machine/hostproc"
)

// An engine that wakes from disk reads its checkpoint through its launcher, over the
// interface that gVisor has for images in a distant store. Left to itself it would load
// all memory at once with 128 readers. These take the processors from the decoding of
// the state and from the first steps of the guest, which the wake waits for. Here one
// reader loads, beside the decoding, which needs one processor. Pages that the guest
// waits for come first. No byte is handed over before its checksum was compared.

const (
	// pageRead is one read of memory pages. Smaller ones cost more hand-overs,
	// larger ones make those wait who need another page.
	pageRead = 128 << 10
	// reading is how many reads are under way: one is served, one is next.
	reading = 2
	// destinations bounds the memory files that an engine may name for one
	// file of its checkpoint. It has one for memory and one for each disk.
	destinations = 16
	// stopServing bounds the wait for calls of an engine that is gone.
	stopServing = time.Second
)

// loader serves the files of one checkpoint to one engine.
type loader struct {
	id    string // of the machine
	dir   string
	pid   int // of the engine
	all   []checkpoint.File
	files map[string]checkpoint.File // those of all, by name
	spoil func(err error)            // told what is wrong with the checkpoint

	mu   sync.Mutex
	open map[string]bool // guarded by mu; each file is opened once
}

// fill makes the created processes of s go on from a checkpoint. When it returns
// the guest runs, and its memory is still coming. Preconditions: mu is held.
func (s *sandbox) fill(r gvisor.Restore) error {
	ld := &loader{
		id: s.id, dir: r.Dir, pid: int(s.pid.Load()), all: r.Files, files: map[string]checkpoint.File{}, open: map[string]bool{},
		spoil: s.spoil,
	}
	for _, f := range r.Files {
		ld.files[f.Name] = f
	}
	files, err := stateipc.NewAsyncFileServer(ld)
	if err != nil {
		return fmt.Errorf("serve the checkpoint: %w", err)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		files.Stop()
		return fmt.Errorf("serve the checkpoint: %w", err)
	}
	theirs := os.NewFile(uintptr(pair[0]), "image")
	defer func() { _ = theirs.Close() }()
	ours, err := unet.NewSocket(pair[1])
	if err != nil {
		files.Stop()
		return errors.Join(fmt.Errorf("serve the checkpoint: %w", err), unix.Close(pair[1]))
	}
	server := urpc.NewServer()
	server.Register(files)
	s.l.tasks.Go(func() {
		_ = server.Handle(ours) // until the engine hangs up: all is loaded, or it is gone
		server.Stop(stopServing)
	})

	if err := s.call(boot.ContMgrSetNetworkArgs, s.link); err != nil {
		return err
	}
	defer s.hangUp() // the engine that comes out of the checkpoint is another one
	return s.call(boot.ContMgrRestore, &boot.RestoreOpts{
		FilePayload: urpc.FilePayload{Files: []*os.File{theirs}}, UseCheckpointGofer: true, Background: true,
	})
}

// Destroy implements [stateipc.AsyncFileServerImpl].
func (*loader) Destroy() {}

// OpenWrite implements [stateipc.AsyncFileServerImpl].
func (*loader) OpenWrite(string) (stateio.AsyncWriter, error) { return nil, fs.ErrPermission }

// OpenRead implements [stateipc.AsyncFileServerImpl].
func (ld *loader) OpenRead(name string) (stateio.AsyncReader, error) {
	about, ok := ld.files[name]
	ld.mu.Lock()
	ok = ok && !ld.open[name] && (name == gvisor.FileState || name == gvisor.FilePageMeta || name == checkpoint.FilePages)
	if ok { // the engine may ask for any name, any number of times
		ld.open[name] = true
	}
	ld.mu.Unlock()
	if !ok {
		return nil, fs.ErrNotExist
	}
	r := &reader{todo: make(chan read, reading), done: make(chan stateio.Completion, reading)}
	if name == checkpoint.FilePages {
		if err := failpoint.Reach(failpoint.Serve, ld.id); err != nil {
			ld.spoil(err)
			return nil, err
		}
		memory, err := checkpoint.OpenMemory(ld.dir, ld.all)
		if err != nil {
			ld.spoil(err)
			return nil, err
		}
		p := &pages{loader: ld, memory: memory, at: -1}
		if memory.Size == checkpoint.PageChunk {
			p.room = checkpoint.NewRoom()
		} else { // an older launcher wrote it
			p.room = make([]byte, memory.Size)
		}
		r.do, r.register, r.release = p.read, p.register, p.close
	} else {
		file, err := os.Open(filepath.Join(ld.dir, name))
		if err != nil {
			ld.spoil(err)
			return nil, err
		}
		w, err := readWhole(file, about)
		if err = errors.Join(err, file.Close()); err != nil {
			ld.spoil(err)
			return nil, err
		}
		r.do = w.read
	}
	r.worker.Go(r.run)
	return r, nil
}

// reader does the reads of one file, one after the other.
type reader struct {
	do       func(read) (n int, err error)
	register func(fd int, size uint64) (base uintptr, err error) // may be nil
	release  func() error                                        // may be nil

	worker sync.WaitGroup
	todo   chan read
	done   chan stateio.Completion
	known  int // destinations that were registered
}

// read asks for bytes of a file from off on, into ranges of a destination.
type read struct {
	id     int
	off    int64
	base   uintptr // of the destination in the engine's memory
	ranges []memmap.FileRange
	here   stateio.LocalClientRanges // the same in ours
}

func (r *reader) run() {
	for t := range r.todo {
		n, err := r.do(t)
		r.done <- stateio.Completion{ID: t.id, N: uint64(n), Err: err} //nolint:gosec // G115: a count
	}
}

// Close implements [stateio.AsyncReader].
func (r *reader) Close() error {
	close(r.todo)
	r.worker.Wait()
	if r.release != nil {
		return r.release()
	}
	return nil
}

// MaxReadBytes implements [stateio.AsyncReader].
func (*reader) MaxReadBytes() uint64 { return pageRead }

// MaxRanges implements [stateio.AsyncReader].
func (*reader) MaxRanges() int { return pageRead / os.Getpagesize() }

// MaxParallel implements [stateio.AsyncReader].
func (*reader) MaxParallel() int { return reading }

// NeedRegisterDestinationFD implements [stateio.AsyncReader].
func (*reader) NeedRegisterDestinationFD() bool { return true }

// RegisterDestinationFD implements [stateio.AsyncReader].
func (r *reader) RegisterDestinationFD(fd int32, size uint64, _ []stateio.ClientFileRangeSetting) (stateio.DestinationFile, error) {
	if r.known++; r.known > destinations {
		return nil, errors.New("too many destinations")
	}
	if r.register == nil {
		return uintptr(0), nil
	}
	return r.register(int(fd), size)
}

// AddRead implements [stateio.AsyncReader].
func (r *reader) AddRead(id int, off int64, to stateio.DestinationFile, at memmap.FileRange, here []byte) {
	base, _ := to.(uintptr) // register returns nothing else
	r.todo <- read{id, off, base, []memmap.FileRange{at}, stateio.LocalClientMapping(here)}
}

// AddReadv implements [stateio.AsyncReader].
func (r *reader) AddReadv(id int, off int64, _ uint64, to stateio.DestinationFile, at []memmap.FileRange, here []unix.Iovec) {
	base, _ := to.(uintptr)
	r.todo <- read{id, off, base, at, stateio.LocalClientMappings(here)}
}

// Wait implements [stateio.AsyncReader].
func (r *reader) Wait(done []stateio.Completion, least int) ([]stateio.Completion, error) {
	return stateio.CompletionChanWait(r.done, done, least)
}

// whole is a small file, read and compared at once.
type whole struct{ *bytes.Reader }

func readWhole(file io.Reader, about checkpoint.File) (whole, error) {
	if about.Bytes < 0 || about.Bytes > stateMax {
		return whole{}, fmt.Errorf("%w: %s has %d bytes", machine.ErrDamaged, about.Name, about.Bytes)
	}
	raw := make([]byte, about.Bytes+1) // a file that is longer is found out
	n, err := io.ReadFull(file, raw)
	if err == nil || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		err = about.Check(raw[:n])
	}
	return whole{bytes.NewReader(raw[:n])}, err
}

func (w whole) read(t read) (total int, err error) {
	for _, part := range t.here.Mappings {
		n, err := w.ReadAt(part, t.off+int64(total))
		if total += n; err != nil {
			return total, err
		}
	}
	return total, nil
}

// pages is the file with the memory.
type pages struct {
	*loader

	memory *checkpoint.Memory
	room   []byte // for a chunk
	chunk  []byte // the one that was read and compared last
	at     int64  // its number, or -1
}

func (p *pages) close() error {
	if p.memory.Size == checkpoint.PageChunk {
		checkpoint.FreeRoom(p.room)
	}
	return p.memory.Close()
}

// register finds out where the engine has mapped the memory that it wants to
// be filled.
func (p *pages) register(fd int, size uint64) (uintptr, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, fmt.Errorf("look at the memory: %w", err)
	}
	maps, err := os.Open(hostproc.Path(p.pid, "maps"))
	if err != nil {
		return 0, fmt.Errorf("look at the memory: %w", err)
	}
	defer func() { _ = maps.Close() }()
	return mapped(maps, st.Ino, size)
}

// mapped finds in /proc/PID/maps where the first size bytes of the file with
// this inode number are mapped, and writable. The kernel may show one mapping
// in pieces.
func mapped(maps io.Reader, inode, size uint64) (uintptr, error) {
	var base, end uint64 // of the pieces so far
	lines := bufio.NewScanner(maps)
	for lines.Scan() {
		fields := strings.Fields(lines.Text()) // 7f00-7f80 rw-s 00000000 00:01 1234 /memfd:runsc-memory (deleted)
		if len(fields) < 5 || fields[4] != strconv.FormatUint(inode, 10) || !strings.HasPrefix(fields[1], "rw") {
			continue
		}
		lower, upper, _ := strings.Cut(fields[0], "-")
		from, err1 := strconv.ParseUint(lower, 16, 64)
		to, err2 := strconv.ParseUint(upper, 16, 64)
		offset, err3 := strconv.ParseUint(fields[2], 16, 64)
		switch {
		case errors.Join(err1, err2, err3) != nil:
			return 0, fmt.Errorf("a line of the maps is %q", lines.Text())
		case offset == 0:
			base, end = from, to
		case end == 0 || from != end || offset != end-base:
			continue
		default:
			end = to
		}
		if end-base >= size {
			return uintptr(base), nil
		}
	}
	return 0, errors.Join(fmt.Errorf("the engine has no mapping of %d bytes", size), lines.Err())
}

// read hands over pages. They are written into the engine's own mapping, and
// not into one of ours, so that they count as its memory.
func (p *pages) read(t read) (int, error) {
	total := 0
	for _, r := range t.ranges {
		total += int(r.Length()) //nolint:gosec // G115: below pageRead
	}
	var c carry
	offset, end := t.off, t.off+int64(total)
	for _, r := range t.ranges {
		for to := r.Start; to < r.End; {
			at, follow := p.memory.Locate(offset)
			if follow == 0 {
				return 0, io.EOF
			}
			if err := p.load(at / p.memory.Size); err != nil {
				p.spoil(err)
				return 0, unix.EIO
			}
			rest := p.chunk[min(at%p.memory.Size, int64(len(p.chunk))):]
			if len(rest) == 0 {
				return 0, io.EOF
			}
			rest = rest[:min(int64(len(rest)), int64(r.End-to), follow)] //nolint:gosec // G115: below pageRead
			if offset += int64(len(rest)); offset < end {                // the next chunk may take this one's place
				rest = bytes.Clone(rest)
			}
			c.add(rest, t.base+uintptr(to))
			to += uint64(len(rest))
		}
	}
	if c.bytes == 0 {
		return total, nil
	}
	n, err := unix.ProcessVMWritev(p.pid, c.from, c.into, 0)
	if err == nil && n != c.bytes {
		err = io.ErrShortWrite
	}
	if err != nil {
		if !errors.Is(err, unix.ESRCH) { // the engine ended
			p.spoil(fmt.Errorf("fill the memory: %w", err))
		}
		return 0, err
	}
	return total, nil
}

// carry is what is handed over at a time: the pages with a bit set. The engine
// fills a file that is new, and loads only what is not zero, so that a page which
// nobody writes to is zero, and takes no memory.
type carry struct {
	from  []unix.Iovec
	into  []unix.RemoteIovec
	bytes int
}

// add adds memory that belongs to an address in the engine.
func (c *carry) add(some []byte, to uintptr) {
	size, open := os.Getpagesize(), false
	for len(some) > 0 {
		page := some[:min(size, len(some))]
		if some = some[len(page):]; checkpoint.Zero(page) {
			open = false
		} else {
			if !open {
				c.from = append(c.from, unix.Iovec{Base: &page[0]})
				c.into = append(c.into, unix.RemoteIovec{Base: to})
			}
			open = true
			last := len(c.from) - 1
			c.from[last].Len += uint64(len(page))
			c.into[last].Len += len(page)
			c.bytes += len(page)
		}
		to += uintptr(len(page))
	}
}

// load makes a chunk the one at hand.
func (p *pages) load(number int64) (err error) {
	if number == p.at {
		return nil
	}
	p.at = -1
	if p.chunk, err = p.memory.Load(uint32(number), p.room); err != nil { //nolint:gosec // G115: Locate returns what is in the memory
		return err
	}
	p.at = number
	return nil
}
