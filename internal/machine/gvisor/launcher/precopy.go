package launcher

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/memmap"

	"github.com/dozehq/doze/internal/failpoint"
	"github.com/dozehq/doze/internal/machine/checkpoint"
	"github.com/dozehq/doze/internal/machine/gvisor"
	"github.com/dozehq/doze/internal/machine/gvisor/launcher/patch"
	"github.com/dozehq/doze/internal/machine/hostproc"
)

// A machine that runs on stands still while its memory is copied. So the launcher
// copies it first while the guest runs, and then, while it stands still, only what is
// not the same any more. Live migration calls this pre-copy. Nobody knows what the
// guest wrote to: the checkpoint compares the marks of what the guest may have written to.
// So nothing of this copy has to be right, and it takes no part of the engine's state.

// memoryFileName is what gVisor calls the file with the memory of its guest, as
// /proc/PID/fd shows it.
const memoryFileName = "/memfd:runsc-memory (deleted)"

// precopy copies the memory of the machine, whose guest runs meanwhile. When ctx ends,
// it stops at once.
func (s *sandbox) precopy(ctx context.Context, what gvisor.Precopy) (made gvisor.Made, err error) {
	if err := s.copied(ctx); err != nil {
		return made, err
	}
	if err := s.writeDisk(ctx); err != nil {
		return made, err
	}
	c := &capture{clock: true}
	begun, err := s.ahead(ctx, c, what.Base)
	if err != nil {
		return made, err
	}
	share := s.share(ctx, what.Base, what.Dir)
	if err := failpoint.Reach(failpoint.Precopy, s.id); err != nil {
		return made, err
	}
	if err = c.openPages(what.Dir, share); err == nil {
		err = c.nameAll(int(s.pid.Load()))
	}
	if err != nil {
		return made, errors.Join(err, c.close())
	}
	if err := s.copyOut(ctx, c, true); err != nil {
		return made, err
	}
	if made.Files, err = c.pages.Seal(what.Dir); err != nil {
		return made, err
	}
	s.makeRoom(ctx)
	hash, err := indexHash(what.Dir)
	if err != nil {
		return made, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if begun == s.watches {
		s.remember(hash, c.all())
	}
	return made, nil
}

// writeDisk writes what the guest has written to its disk, if it has one, while the guest
// runs. The copy of the disk has less to write then, and the machine stands still for less
// time. The kernel does not end that early, so it goes on when ctx ends.
func (s *sandbox) writeDisk(ctx context.Context) error {
	c, err := s.engine()
	if err != nil {
		return err
	}
	live := c.Spec.Annotations[patch.DiskAnnotation]
	if live == "" {
		return nil
	}
	if err := failpoint.Reach(failpoint.Flush, s.id); err != nil {
		return err
	}
	return s.apart(ctx, func() error { return background(func() error { return checkpoint.WriteDisk(live) }) })
}

// ahead does what the engine can do for the next checkpoint while its guest runs. It tells
// a capture how much memory it may name, and what it may leave out. It returns the number
// of the watch under which the capture runs, or none if the machine is not watched anew.
func (s *sandbox) ahead(ctx context.Context, c *capture, base *gvisor.Base) (begun int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.container == nil {
		return none, fmt.Errorf("%s: %w", s.id, errGone)
	}
	s.dropLeft()
	c.most = s.mostNamed()
	if begun = none; s.fresh {
		s.omit(c, base)
		begun, s.fresh = s.watches, false
	}
	return begun, s.count(ctx)
}

// none is the number of no watch.
const none = -1

// nameAll names all memory of the engine in a process that is not a hole.
func (c *capture) nameAll(pid int) error {
	fd, err := memoryFile(pid)
	if err != nil {
		return err
	}
	c.fds = append(c.fds, fd)
	from := source{fd: fd}
	return checkpoint.EachData(fd, 0, math.MaxInt64, func(start, end int64) error {
		return c.put(from, memmap.FileRange{Start: uint64(start), End: uint64(end)}) //nolint:gosec // G115: offsets of a file
	})
}

// memoryFile opens the file with the memory of the guest of an engine.
func memoryFile(pid int) (fd int, err error) {
	dir := hostproc.Path(pid, "fd")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return -1, fmt.Errorf("look for the memory: %w", err)
	}
	for _, e := range entries {
		name := dir + "/" + e.Name()
		if to, err := os.Readlink(name); err != nil || to != memoryFileName {
			continue
		}
		if fd, err = unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
			return -1, fmt.Errorf("open the memory: %w", err)
		}
		return fd, nil
	}
	return -1, errors.New("process " + strconv.Itoa(pid) + " has no file with memory")
}
