package launcher

import (
	"strconv"
	"strings"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"gvisor.dev/gvisor/runsc/container"

	"github.com/dozehq/doze/internal/machine/checkpoint"
	"github.com/dozehq/doze/internal/machine/gvisor/launcher/patch"
)

// An engine counts what its guest has on its disk, and refuses what is too much. The host
// does not know that size: the engine can write as much to the file as it likes. So the
// launcher looks at the file, and ends an engine that a guest took over.

const (
	// diskLook is how often it looks. An engine writes a few gigabytes in that time.
	diskLook = time.Second
	// diskSlack is for what the file system adds, and for blocks that are shared in part.
	diskSlack = 64 << 20
	// diskLate is for how many looks a disk may take more than its size. The engine gives
	// the blocks of removed files back a moment after the guest may write others.
	diskLate = 5

	whyExcess = "its files took more of the host's disk than its spec.runtime.storage"
)

// excess decides whether a disk takes too much of the host.
type excess struct {
	size int64 // of the disk, in bytes
	late int   // looks, one after the other, at which it took more
}

// is reports whether a disk that takes so many bytes now took too much.
func (e *excess) is(bytes int64) bool {
	if bytes <= e.size+diskSlack {
		e.late = 0
		return false
	}
	e.late++
	return e.late >= diskLate || bytes > 2*(e.size+diskSlack)
}

// diskOf returns the file and the size of the disk of a machine of this spec, if it has one.
func diskOf(spec *specs.Spec) (file string, size int64, ok bool) {
	file = spec.Annotations[patch.DiskAnnotation]
	size, err := strconv.ParseInt(strings.TrimPrefix(spec.Annotations[annotationOptions], "size="), 10, 64)
	return file, size, file != "" && err == nil
}

// disk is diskOf, of a machine that has a container or was about to get one. An earlier
// launcher may have made the container. Preconditions: mu is held.
func (s *sandbox) disk(c *container.Container) (file string, size int64, ok bool) {
	if c != nil {
		return diskOf(c.Spec)
	}
	return checkpoint.Disk(s.config), s.config.Disk, s.config.Disk > 0
}

// boundDisk ends the machine when its disk takes too much of the host. It returns when the
// machine has ended.
func (s *sandbox) boundDisk(file string, size int64) {
	e := excess{size: size}
	for look := time.NewTicker(diskLook); ; {
		select {
		case <-s.exited:
			look.Stop()
			return
		case <-look.C:
		}
		if bytes, ok := checkpoint.Allocated(file); ok && e.is(bytes) {
			s.Evict(whyExcess)
		}
	}
}
