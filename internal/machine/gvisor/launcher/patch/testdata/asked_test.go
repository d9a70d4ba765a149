package systrap

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/cpuid"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/memutil"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/pgalloc"
	"gvisor.dev/gvisor/pkg/sentry/platform"
	"gvisor.dev/gvisor/pkg/sentry/usage"
	"gvisor.dev/gvisor/pkg/usermem"
)

// asking is the program of a guest: cpuid; syscall.
var asking = []byte{0x0f, 0xa2, 0x0f, 0x05}

const (
	askingAt = 0x400000
	// pretended is an answer that no processor gives.
	pretended = 0xd02ed02e
)

// askingSpace is the memory of that guest.
type askingSpace struct {
	usermem.IO
	space platform.AddressSpace
}

func (a askingSpace) AddressSpace() platform.AddressSpace { return a.space }

func (askingSpace) MMap(context.Context, memmap.MMapOpts) (hostarch.Addr, error) {
	return 0, unix.ENOMEM
}

func (askingSpace) FindVMAByName(hostarch.AddrRange, string) (hostarch.Addr, uint64, error) {
	return 0, 0, unix.ENOENT
}

func (askingSpace) CopyIn(_ context.Context, at hostarch.Addr, to []byte, _ usermem.IOOpts) (int, error) {
	return copy(to, asking[at-askingAt:]), nil
}

// TestAsked: a program gets the answer of its processor, or that of gVisor if it began on
// another one. A stub of the one kind never serves the other.
func TestAsked(t *testing.T) {
	cpuid.Initialize()
	p, err := New(platform.Options{ApplicationCores: 2, DisableSyscallPatching: true})
	if err != nil {
		t.Fatal(err)
	}
	fd, err := memutil.CreateMemFD("asking", 0)
	if err != nil {
		t.Fatal(err)
	}
	file, err := pgalloc.NewMemoryFile(os.NewFile(uintptr(fd), "asking"), pgalloc.MemoryFileOpts{})
	if err != nil {
		t.Fatal(err)
	}
	pages, err := file.Allocate(hostarch.PageSize, pgalloc.AllocOpts{Kind: usage.Anonymous, Mode: pgalloc.AllocateAndWritePopulate})
	if err != nil {
		t.Fatal(err)
	}
	block, err := file.MapInternal(pages, hostarch.Write)
	if err != nil {
		t.Fatal(err)
	}
	copy(block.Head().ToSlice(), asking)
	question := cpuid.In{Eax: 1}
	answers := cpuid.Static{question: {Eax: pretended}}
	ctx := context.WithValue(context.Background(), cpuid.CtxFeatureSet, cpuid.FeatureSet{Function: answers})
	t.Cleanup(func() { cpuid.Emulated.Store(false) })
	for _, emulated := range []bool{false, true, false, true} {
		cpuid.Emulated.Store(emulated)
		space, err := p.NewAddressSpace()
		if err != nil {
			t.Fatal(err)
		}
		if err := space.MapFile(askingAt, file, pages, hostarch.ReadExecute, true); err != nil {
			t.Fatal(err)
		}
		guest, registers := p.NewContext(ctx), arch.New(arch.AMD64)
		guest.FullStateChanged()
		registers.SetIP(askingAt)
		registers.Regs.Rax, registers.Regs.Rcx = uint64(question.Eax), uint64(question.Ecx)
		err = platform.ErrContextInterrupt
		for errors.Is(err, platform.ErrContextInterrupt) {
			_, _, err = guest.Switch(ctx, askingSpace{space: space}, registers, -1)
		}
		if err != nil {
			t.Fatalf("emulated %v: %v", emulated, err)
		}
		host := cpuid.HostFeatureSet().Query(question).Eax
		want := host
		if emulated {
			want = pretended
		}
		if got := uint32(registers.Regs.Orig_rax); got != want {
			t.Errorf("emulated %v: the program found %#x, want %#x", emulated, got, want)
		}
		guest.Release()
		space.(*subprocess).Release()
	}
}
