package hostproc

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// iovMax is how many ranges the kernel takes at a time: UIO_MAXIOV.
	iovMax = 1024
	// presentPage marks an entry of /proc/PID/pagemap whose page is in RAM
	// (Documentation/admin-guide/mm/pagemap.rst).
	presentPage = 1 << 63
	entrySize   = 8
)

// mapping is one line of /proc/PID/maps: addresses, and what is there.
type mapping struct {
	from, to uint64
	kind     string // rw-p: readable, writable, private
	offset   uint64 // of from, in the file
	file     string // device and inode
}

// private reports whether it is memory that a process writes to and shares with
// nobody.
func (m mapping) private() bool { return m.kind == "rw-p" }

// changed reports whether what is private of it are changes to a file, of which
// the kernel's advice knows nothing.
func (m mapping) changed() bool { return m.private() && m.file != "00:00 0" }

// shared reports whether it is memory that a process writes to and may share.
func (m mapping) shared() bool { return m.kind == "rw-s" }

func (m mapping) iovec() unix.RemoteIovec {
	return unix.RemoteIovec{Base: uintptr(m.from), Len: int(m.to - m.from)} //nolint:gosec // G115: readMaps looked
}

// PageOut moves the private memory of a process to swap, whichever cgroup it is
// charged to: that of its start may belong to the process that started it. Written in the order of its addresses, it
// also comes back faster than in the kernel's.
func PageOut(pid int) error { return advisePrivate(pid, unix.MADV_PAGEOUT) }

// Fetch makes the kernel read all private memory of a process back from swap. It
// waits for none of it.
func Fetch(pid int) error { return advisePrivate(pid, unix.MADV_WILLNEED) }

// advisePrivate tells the kernel what to do with all private memory of a process.
func advisePrivate(pid int, advice uintptr) error {
	all, err := mappings(pid)
	if err != nil {
		return err
	}
	var private []unix.RemoteIovec
	for _, m := range all {
		// Of a file, the kernel would read all that nobody changed.
		if m.private() && (!m.changed() || advice != unix.MADV_WILLNEED) {
			private = append(private, m.iovec())
		}
	}
	return advise(pid, private, advice)
}

// PageIn makes the kernel read memory of a process back from swap. It waits for
// changes to files only.
func PageIn(pid int, pages []uint64) error {
	maps, err := mappings(pid)
	if err != nil {
		return err
	}
	var advised, read []uint64
	for _, page := range pages {
		at := slices.IndexFunc(maps, func(m mapping) bool { return page >= m.from && page < m.to })
		switch {
		case at < 0: // given back
		case maps[at].changed():
			read = append(read, page)
		default:
			advised = append(advised, page)
		}
	}
	return errors.Join(advise(pid, ranges(advised), unix.MADV_WILLNEED), touch(pid, ranges(read)))
}

// touch reads memory of a process, to have it in RAM.
func touch(pid int, ranges []unix.RemoteIovec) error {
	for some := range slices.Chunk(ranges, iovMax) {
		size := 0
		for _, r := range some {
			size += r.Len
		}
		all := make([]byte, size)
		into := unix.Iovec{Base: &all[0]}
		into.SetLen(size)
		if _, err := unix.ProcessVMReadv(pid, []unix.Iovec{into}, some, 0); err != nil {
			return fmt.Errorf("read memory of process %d: %w", pid, err)
		}
	}
	return nil
}

// advise tells the kernel what to do with memory of another process. Addresses
// may be given back meanwhile, and older kernels do not know the call.
func advise(pid int, ranges []unix.RemoteIovec, advice uintptr) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("open process %d: %w", pid, err)
	}
	defer func() { _ = unix.Close(fd) }()
	for len(ranges) > 0 {
		some := ranges[:min(len(ranges), iovMax)]
		n, _, errno := unix.Syscall6(unix.SYS_PROCESS_MADVISE, uintptr(fd), uintptr(unsafe.Pointer(&some[0])), uintptr(len(some)), advice, 0, 0) //nolint:gosec // G103: as x/sys would
		switch errno {
		case 0:
		case unix.ENOSYS:
			return nil
		case unix.ENOMEM: // of the first range
			n = 0
		default:
			return fmt.Errorf("move memory of process %d: %w", pid, errno)
		}
		ranges = ranges[done(some, int(n)):]
	}
	return nil
}

// done returns how many ranges are done with when the kernel came through the
// first n bytes: the one at which it stopped is none that it can do more with.
func done(ranges []unix.RemoteIovec, n int) int {
	for i, r := range ranges {
		if n -= r.Len; n < 0 {
			return i + 1
		}
	}
	return len(ranges)
}

// InUse returns which memory of a machine is in RAM, as addresses of pages in its
// engine. It has the memory that the guest's processes have mapped, all of which the
// engine can reach, and the engine's own.
func InUse(engine int) ([]uint64, error) {
	maps, err := mappings(engine)
	if err != nil {
		return nil, err
	}
	pages := map[uint64]bool{} // addresses in the engine
	for _, pid := range Tree(engine)[1:] {
		if err := borrowed(pid, maps, pages); err != nil && !Gone(err) {
			return nil, err
		}
	}
	guests := sorted(pages)
	clear(pages)
	for _, m := range maps {
		if !m.private() {
			continue
		}
		if err := present(engine, m, func(page uint64) { pages[page] = true }); err != nil {
			return nil, err
		}
	}
	return append(guests, sorted(pages)...), nil
}

// borrowed adds the pages that a process has of the engine's memory.
func borrowed(pid int, engine []mapping, pages map[uint64]bool) error {
	maps, err := mappings(pid)
	if err != nil {
		return err
	}
	for _, m := range maps {
		for _, e := range engine {
			if !e.shared() || e.file != m.file {
				continue
			}
			err := present(pid, m, func(page uint64) {
				at := page - m.from + m.offset // in the file
				if at >= e.offset && at-e.offset < e.to-e.from {
					pages[e.from+at-e.offset] = true
				}
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// present reports each page of a mapping that the process has in RAM.
func present(pid int, m mapping, report func(page uint64)) error {
	file, err := os.Open(Path(pid, "pagemap"))
	if err != nil {
		return fmt.Errorf("look at the memory: %w", err)
	}
	defer func() { _ = file.Close() }()
	size := uint64(os.Getpagesize()) //nolint:gosec // G115: it is positive
	entries := make([]byte, 4096)
	for page := m.from; page < m.to; {
		want := min(uint64(len(entries)), (m.to-page)/size*entrySize)
		n, err := file.ReadAt(entries[:want], int64(page/size*entrySize)) //nolint:gosec // G115: an address, divided
		if n < entrySize {
			return fmt.Errorf("look at the memory: %w", cmp.Or(err, io.ErrUnexpectedEOF))
		}
		for at := 0; at+entrySize <= n; at += entrySize {
			if binary.NativeEndian.Uint64(entries[at:])&presentPage != 0 {
				report(page)
			}
			page += size
		}
	}
	return nil
}

// ranges joins pages that follow each other.
func ranges(pages []uint64) (all []unix.RemoteIovec) {
	size := os.Getpagesize()
	for _, page := range slices.Sorted(slices.Values(pages)) {
		if last := len(all) - 1; last >= 0 && all[last].Base+uintptr(all[last].Len) == uintptr(page) {
			all[last].Len += size
			continue
		}
		all = append(all, unix.RemoteIovec{Base: uintptr(page), Len: size})
	}
	return all
}

// mappings returns the memory of a process.
func mappings(pid int) ([]mapping, error) {
	file, err := os.Open(Path(pid, "maps"))
	if err != nil {
		return nil, fmt.Errorf("look at the memory: %w", err)
	}
	defer func() { _ = file.Close() }()
	return readMaps(file)
}

// readMaps reads /proc/PID/maps.
func readMaps(r io.Reader) (all []mapping, err error) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		fields := strings.Fields(lines.Text()) // 7f00-7f80 rw-s 00001000 00:01 7 /memfd:memory (deleted)
		if len(fields) < 5 {
			return nil, fmt.Errorf("a line of the maps is %q", lines.Text())
		}
		lower, upper, _ := strings.Cut(fields[0], "-")
		from, err1 := strconv.ParseUint(lower, 16, 64)
		to, err2 := strconv.ParseUint(upper, 16, 64)
		offset, err3 := strconv.ParseUint(fields[2], 16, 63)
		if err := errors.Join(err1, err2, err3); err != nil || to < from || to-from > 1<<62 {
			return nil, fmt.Errorf("a line of the maps is %q", lines.Text())
		}
		all = append(all, mapping{from: from, to: to, kind: fields[1], offset: offset, file: fields[3] + " " + fields[4]})
	}
	return all, lines.Err()
}

func sorted(pages map[uint64]bool) []uint64 {
	all := make([]uint64, 0, len(pages))
	for page := range pages {
		all = append(all, page)
	}
	slices.Sort(all)
	return all
}

// Gone reports whether an error is that of a process that ended meanwhile.
func Gone(err error) bool { return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) }
