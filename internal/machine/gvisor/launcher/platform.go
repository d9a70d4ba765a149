package launcher

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/cpuid"
	"gvisor.dev/gvisor/pkg/hostarch"
	glog "gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/memutil"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/pgalloc"
	"gvisor.dev/gvisor/pkg/sentry/platform"
	_ "gvisor.dev/gvisor/pkg/sentry/platform/platforms" // all of them
	"gvisor.dev/gvisor/pkg/sentry/usage"
	"gvisor.dev/gvisor/pkg/usermem"
)

const (
	// measuredCalls are timed together, for so many times. The best counts: a platform may take some calls until it
	// knows that they are many, and a busy host takes the processors away.
	measuredCalls, measuredTimes = 4_000, 20
	// guestCode is where the guest has its only page, and guestCall is what it asks for.
	guestCode, guestCall = 0x400000, unix.SYS_GETPID
)

// guestLoop makes a system call for ever: syscall; jmp -4.
var guestLoop = []byte{0x0f, 0x05, 0xeb, 0xfc}

// Measure returns what at best one intercepted system call takes on a platform of gVisor. Its error says why the platform does not
// work on this host. It leaves processes and virtual machines behind, which end some time after the calling process: call it
// once, in a process for that.
func Measure(name string) (_ time.Duration, err error) {
	defer func() {
		if why := recover(); why != nil { // a platform gives up so, within this call
			err = errors.Join(err, fmt.Errorf("%v", why))
		}
	}()
	constructor, err := platform.Lookup(name)
	if err != nil {
		return 0, err
	}
	device, err := constructor.OpenDevice("")
	if err != nil {
		return 0, err
	}
	glog.SetTarget(glog.GoogleEmitter{Writer: &glog.Writer{Next: io.Discard}}) // a platform tells how it starts
	cpuid.Initialize()
	p, err := constructor.New(platform.Options{DeviceFile: device, ApplicationCores: runtime.NumCPU(), DisableSyscallPatching: true})
	if err != nil {
		return 0, err
	}
	space, err := p.NewAddressSpace()
	if err != nil {
		return 0, err
	}
	file, pages, err := guestMemory()
	if err != nil {
		return 0, fmt.Errorf("memory of a guest: %w", err)
	}
	if err := space.MapFile(guestCode, file, pages, hostarch.ReadExecute, true); err != nil {
		return 0, fmt.Errorf("map a page: %w", err)
	}
	ctx := context.Background() //nolint:forbidigo // gVisor's, of a guest without a kernel
	guest, registers := p.NewContext(ctx), arch.New(arch.AMD64)
	guest.FullStateChanged()
	registers.SetIP(guestCode)
	call := func() error {
		registers.Regs.Rax, registers.Regs.Orig_rax = guestCall, guestCall
		for {
			info, _, err := guest.Switch(ctx, guestSpace{space: space}, registers, -1)
			switch {
			case errors.Is(err, platform.ErrContextInterrupt):
			case err != nil && info != nil:
				return fmt.Errorf("%w %d at %#x", err, info.Signo, info.Addr())
			default:
				return err
			}
		}
	}
	best := time.Duration(math.MaxInt64)
	for range measuredTimes {
		began := time.Now()
		for range measuredCalls {
			if err := call(); err != nil {
				return 0, fmt.Errorf("a system call: %w", err)
			}
		}
		best = min(best, time.Since(began)/measuredCalls)
	}
	return best, nil
}

// guestMemory has one page with the loop.
func guestMemory() (*pgalloc.MemoryFile, memmap.FileRange, error) {
	memory, err := memutil.CreateMemFD("measure", 0)
	if err != nil {
		return nil, memmap.FileRange{}, err
	}
	file, err := pgalloc.NewMemoryFile(os.NewFile(uintptr(memory), "measure"), pgalloc.MemoryFileOpts{})
	if err != nil {
		return nil, memmap.FileRange{}, err
	}
	pages, err := file.Allocate(hostarch.PageSize, pgalloc.AllocOpts{Kind: usage.Anonymous, Mode: pgalloc.AllocateAndWritePopulate})
	if err != nil {
		return nil, pages, err
	}
	block, err := file.MapInternal(pages, hostarch.Write)
	if err == nil {
		copy(block.Head().ToSlice(), guestLoop)
	}
	return file, pages, err
}

// guestSpace is a [platform.MemoryManager] of a guest that maps nothing itself.
type guestSpace struct {
	usermem.IO

	space platform.AddressSpace
}

// AddressSpace implements [platform.MemoryManager].
func (g guestSpace) AddressSpace() platform.AddressSpace { return g.space }

// MMap implements [platform.MemoryManager].
func (guestSpace) MMap(context.Context, memmap.MMapOpts) (hostarch.Addr, error) {
	return 0, unix.ENOMEM
}

// FindVMAByName implements [platform.MemoryManager].
func (guestSpace) FindVMAByName(hostarch.AddrRange, string) (hostarch.Addr, uint64, error) {
	return 0, 0, unix.ENOENT
}
