package launcher

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/machine/checkpoint"
	"github.com/dozehq/doze/internal/machine/gvisor"
)

func TestMapped(t *testing.T) {
	t.Parallel()
	const other = "55d000000000-55d000001000 r-xp 00000000 08:01 77 /bin/x\n"
	for name, tc := range map[string]struct {
		maps string
		size uint64
		want uintptr
	}{
		"whole":        {other + "7f0000000000-7f0000100000 rw-s 00000000 00:01 1234 /memfd:m (deleted)\n", 1 << 20, 0x7f0000000000},
		"in pieces":    {"7f0000000000-7f0000001000 rw-s 00000000 00:01 1234 /m\n7f0000001000-7f0000003000 rw-s 00001000 00:01 1234 /m\n", 0x3000, 0x7f0000000000},
		"the larger":   {"7e0000000000-7e0000001000 rw-s 00000000 00:01 1234 /m\n7f0000000000-7f0000003000 rw-s 00000000 00:01 1234 /m\n", 0x3000, 0x7f0000000000},
		"a hole":       {"7f0000000000-7f0000001000 rw-s 00000000 00:01 1234 /m\n7f0000002000-7f0000003000 rw-s 00002000 00:01 1234 /m\n", 0x3000, 0},
		"too small":    {"7f0000000000-7f0000001000 rw-s 00000000 00:01 1234 /m\n", 0x3000, 0},
		"read only":    {"7f0000000000-7f0000003000 r--s 00000000 00:01 1234 /m\n", 0x3000, 0},
		"another file": {other, 0x1000, 0},
		"nothing":      {"", 0x1000, 0},
		"nonsense":     {"x rw-s 00000000 00:01 1234 /m\n", 0x1000, 0},
	} {
		got, err := mapped(strings.NewReader(tc.maps), 1234, tc.size)
		if got != tc.want || (err == nil) != (tc.want != 0) {
			t.Errorf("%s: %#x, %v; want %#x", name, got, err, tc.want)
		}
	}
}

// TestCarry: pages without a bit set are left out, and all others come where they
// belong.
func TestCarry(t *testing.T) {
	t.Parallel()
	page := os.Getpagesize()
	memory := make([]byte, 16*page)
	for _, n := range []int{0, 1, 3, 7, 8, 9, 15} {
		memory[n*page+n] = byte(n + 1)
	}
	for name, parts := range map[string][]int{ // lengths
		"at once": {16}, "by pages": slices.Repeat([]int{1}, 16), "in halves": {8, 8}, "somehow": {2, 5, 4, 5},
	} {
		into, at := make([]byte, len(memory)), 0
		base := uintptr(unsafe.Pointer(&into[0]))
		var c carry
		for _, n := range parts {
			c.add(memory[at:at+n*page], base+uintptr(at))
			at += n * page
		}
		if c.bytes != 7*page {
			t.Errorf("%s: %d pages, want 7", name, c.bytes/page)
		}
		if n, err := unix.ProcessVMWritev(os.Getpid(), c.from, c.into, 0); err != nil || n != c.bytes {
			t.Errorf("%s: %d bytes, %v", name, n, err)
		}
		if !bytes.Equal(into, memory) {
			t.Errorf("%s: the memory is another", name)
		}
	}
	var c carry
	if c.add(make([]byte, 3*page), 4096); len(c.from) > 0 {
		t.Error("zero pages are handed over")
	}
}

func TestReadWhole(t *testing.T) {
	t.Parallel()
	raw := bytes.Repeat([]byte("state"), 300_000)
	about := checkpoint.Describe(gvisor.FileState, raw)
	if w, err := readWhole(bytes.NewReader(raw), about); err != nil || w.Size() != int64(len(raw)) {
		t.Errorf("a sound file: %v", err)
	}
	empty := checkpoint.Describe(gvisor.FileState, nil)
	if _, err := readWhole(bytes.NewReader(nil), empty); err != nil {
		t.Errorf("an empty file: %v", err)
	}
	altered := bytes.Clone(raw)
	altered[len(altered)/2]++
	negative, huge := about, about
	negative.Bytes, huge.Bytes = -2, stateMax+1
	for name, tc := range map[string]struct {
		raw   []byte
		about checkpoint.File
	}{
		"shorter":        {raw[1:], about},
		"empty":          {nil, about},
		"longer":         {append(bytes.Clone(raw), 0), about},
		"altered":        {altered, about},
		"not empty":      {raw, empty},
		"a length below": {raw, negative},
		"a length above": {raw, huge},
	} {
		if _, err := readWhole(bytes.NewReader(tc.raw), tc.about); !errors.Is(err, machine.ErrDamaged) {
			t.Errorf("%s: %v, want that it is damaged", name, err)
		}
	}
}
