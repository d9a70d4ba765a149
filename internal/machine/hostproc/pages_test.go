package hostproc

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestReadMaps(t *testing.T) {
	t.Parallel()
	got, err := readMaps(strings.NewReader(`00400000-01431000 r-xp 00000000 fe:00 9 /bin/launcher
2bebdb000000-2bebdc400000 rw-p 00000000 00:00 0
7fc9b8400000-7fc9b8a0e000 rw-s 00003000 00:01 7 /memfd:memory (deleted)
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
`))
	want := []mapping{
		{from: 0x400000, to: 0x1431000, kind: "r-xp", file: "fe:00 9"},
		{from: 0x2bebdb000000, to: 0x2bebdc400000, kind: "rw-p", file: "00:00 0"},
		{from: 0x7fc9b8400000, to: 0x7fc9b8a0e000, kind: "rw-s", offset: 0x3000, file: "00:01 7"},
		{from: 0xffffffffff600000, to: 0xffffffffff601000, kind: "--xp", file: "00:00 0"},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(mapping{})); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	for _, line := range []string{"1-x rw-p 0 0:0 0", "2-1 rw-p 0 0:0 0", "0-ffffffffffffffff rw-p 0 0:0 0", "1-2 rw-p x 0:0 0", "- rw-p 0 0:0 0", "1-2 rw-p", " "} {
		if got, err := readMaps(strings.NewReader(line)); err == nil {
			t.Errorf("%q: %v", line, got)
		}
	}
}

func TestRanges(t *testing.T) {
	t.Parallel()
	size := uint64(os.Getpagesize())
	got := ranges([]uint64{9 * size, size, 2 * size, 8 * size, 4 * size})
	want := []unix.RemoteIovec{{Base: uintptr(size), Len: 2 * int(size)}, {Base: uintptr(4 * size), Len: int(size)}, {Base: uintptr(8 * size), Len: 2 * int(size)}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for n, count := range map[int]int{0: 1, 1: 1, 2*int(size) - 1: 1, 2 * int(size): 2, 3 * int(size): 3, 5 * int(size): 3} {
		if got := done(want, n); got != count {
			t.Errorf("%d bytes: done with %d ranges, want %d", n, got, count)
		}
	}
}

// TestInUse finds a page that was written, and none that nobody touched.
func TestInUse(t *testing.T) {
	t.Parallel()
	size := os.Getpagesize()
	memory, err := unix.Mmap(-1, 0, 3*size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(memory) }()
	memory[size] = 1
	at := func(page int) uint64 { return uint64(uintptr(unsafe.Pointer(&memory[page*size]))) }
	pages, err := InUse(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(pages, at(1)) {
		t.Error("a page that was written is not found")
	}
	if slices.Contains(pages, at(0)) || slices.Contains(pages, at(2)) {
		t.Error("a page that nobody touched is found")
	}
	if err := PageIn(os.Getpid(), pages); err != nil {
		t.Error(err)
	}
	if _, err := InUse(0); err == nil {
		t.Error("there is no such process")
	}
}

// TestPageOut takes any process; whether the host has swap or not, it lives on.
func TestPageOut(t *testing.T) {
	t.Parallel()
	child := exec.Command("cat")
	child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	if err := PageOut(child.Process.Pid); err != nil {
		t.Error(err)
	}
	if err := in.Close(); err != nil {
		t.Error(err)
	}
	if err := child.Wait(); err != nil {
		t.Error("it did not survive:", err)
	}
	if err := PageOut(child.Process.Pid); err == nil {
		t.Error("there is no such process")
	}
}
