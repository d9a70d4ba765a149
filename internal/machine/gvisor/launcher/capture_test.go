package launcher

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/loader/vdsodata"
	"gvisor.dev/gvisor/pkg/sentry/memmap"

	"github.com/dozehq/doze/internal/machine/checkpoint"
	"github.com/dozehq/doze/internal/machine/gvisor"
)

// memfd returns a memory file with some bytes at an offset.
func memfd(t *testing.T, size int64, at int64, raw []byte) int {
	t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if _, err := unix.Pwrite(fd, raw, at); err != nil {
		t.Fatal(err)
	}
	if err := unix.Ftruncate(fd, size); err != nil {
		t.Fatal(err)
	}
	return fd
}

func TestFindClock(t *testing.T) {
	t.Parallel()
	code, page := vdsodata.Binary, int64(os.Getpagesize())
	altered := bytes.Clone(code)
	altered[len(code)-1]++
	for name, c := range map[string]struct {
		size, at int64
		raw      []byte
		found    bool
	}{
		"first":     {1 << 30, 0, code, true},
		"later":     {1 << 30, 40 * page, code, true},
		"too late":  {1 << 30, clockSearch, code, false},
		"not there": {1 << 30, 0, []byte("\x7fELF"), false},
		"altered":   {1 << 30, 0, altered, false},
		"short":     {page, 0, code[:64], false},
		"empty":     {0, 0, nil, false},
	} {
		got := findClock(memfd(t, c.size, c.at, c.raw))
		if (got.Length() > 0) != c.found {
			t.Errorf("%s: %v", name, got)
		}
		// Its parameters are in a page right before or behind it.
		end := (c.at + int64(len(code)) + page - 1) / page * page
		if c.found && (got.End < uint64(end+page) || got.Start > uint64(max(0, c.at-page)) || got.Start%uint64(page) != 0 || got.End%uint64(page) != 0) {
			t.Errorf("%s: %v, and the code is at %d", name, got, c.at)
		}
	}
}

func TestCut(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		r, by memmap.FileRange
		want  []memmap.FileRange
	}{
		{memmap.FileRange{Start: 0, End: 9}, memmap.FileRange{Start: 3, End: 5}, []memmap.FileRange{{Start: 0, End: 3}, {Start: 3, End: 5}, {Start: 5, End: 9}}},
		{memmap.FileRange{Start: 4, End: 9}, memmap.FileRange{Start: 3, End: 5}, []memmap.FileRange{{Start: 4, End: 5}, {Start: 5, End: 9}}},
		{memmap.FileRange{Start: 0, End: 4}, memmap.FileRange{Start: 3, End: 5}, []memmap.FileRange{{Start: 0, End: 3}, {Start: 3, End: 4}}},
		{memmap.FileRange{Start: 3, End: 5}, memmap.FileRange{Start: 3, End: 5}, []memmap.FileRange{{Start: 3, End: 5}}},
		{memmap.FileRange{Start: 6, End: 9}, memmap.FileRange{Start: 3, End: 5}, []memmap.FileRange{{Start: 6, End: 9}}},
		{memmap.FileRange{Start: 0, End: 2}, memmap.FileRange{Start: 3, End: 5}, []memmap.FileRange{{Start: 0, End: 2}}},
		{memmap.FileRange{Start: 0, End: 2}, memmap.FileRange{}, []memmap.FileRange{{Start: 0, End: 2}}},
	} {
		if diff := cmp.Diff(c.want, cut(c.r, c.by)); diff != "" {
			t.Errorf("%v by %v: %s", c.r, c.by, diff)
		}
	}
}

// capturing returns a capture whose file of pages is open.
func capturing(t *testing.T, dir string, most uint64) *capture {
	t.Helper()
	return capturingOver(t, dir, nil, most)
}

// capturingOver returns a capture over a base, whose file of pages is open.
func capturingOver(t *testing.T, dir string, base *checkpoint.Base, most uint64) *capture {
	t.Helper()
	c, err := newCapture(dir, base, most)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.OpenWrite(checkpoint.FilePages); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.close() })
	return c
}

// sealed returns the memory of a checkpoint, of which it checks every byte.
func sealed(t *testing.T, c *capture, dir string, want []byte) *checkpoint.Memory {
	t.Helper()
	files, err := c.pages.Seal(dir)
	if err != nil {
		t.Fatal(err)
	}
	m, err := checkpoint.OpenMemory(dir, files)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	if m.Bytes != int64(len(want)) {
		t.Fatalf("the memory has %d bytes, want %d", m.Bytes, len(want))
	}
	room := make([]byte, m.Size)
	for number := range uint32((m.Bytes + m.Size - 1) / m.Size) {
		got, err := m.Load(number, room)
		if err != nil {
			t.Fatal(err)
		}
		at, _ := m.At(number)
		if !bytes.Equal(got, want[at:at+int64(len(got))]) {
			t.Fatalf("chunk %d is not what the engine named", number)
		}
		if chunk, ok := m.Find(number); ok && chunk.Name != sha256.Sum256(got) {
			t.Errorf("chunk %d has another name than its content", number)
		} else if !ok && !checkpoint.Zero(got) {
			t.Errorf("chunk %d is in no layer", number)
		}
	}
	return m
}

// TestCapture copies memory: late, but for the part that the engine may change.
func TestCapture(t *testing.T) {
	t.Parallel()
	const size = 5<<20 + 4096
	memory := make([]byte, size)
	random := rand.NewChaCha8([32]byte{})
	_, _ = random.Read(memory)
	copy(memory, vdsodata.Binary)
	fd := memfd(t, size, 0, memory)
	from := source{fd: fd, clock: findClock(fd)}
	clock := int(from.clock.End) - os.Getpagesize()

	dir := t.TempDir()
	c := capturing(t, dir, size)
	for _, r := range []memmap.FileRange{{Start: 0, End: 1 << 20}, {Start: 1 << 20, End: size}} {
		if err := c.put(from, r); err != nil {
			t.Fatal(err)
		}
	}
	if info, err := os.Stat(filepath.Join(dir, checkpoint.FilePages)); err != nil || info.Size() != 0 {
		t.Errorf("%d bytes were written before the engine had its answer, %v", info.Size(), err)
	}
	// The engine goes on with its clock.
	if _, err := unix.Pwrite(fd, []byte("later"), int64(clock)); err != nil {
		t.Fatal(err)
	}
	if err := c.copy(nil, false); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, checkpoint.FilePages)
	got, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, memory) {
		t.Error("the file is not what the engine named")
	}
	sealed(t, c, dir, memory)

	// An engine may not name more than its machine has.
	if err := c.put(from, memmap.FileRange{Start: 0, End: 4096}); err == nil {
		t.Error("it may name more than its machine has")
	}

	// The next one is like it but for two pages, and shorter.
	memory[3<<20]++
	if _, err := unix.Pwrite(fd, memory, 0); err != nil {
		t.Fatal(err)
	}
	c = capturing(t, dir, size)
	if err := c.put(from, memmap.FileRange{Start: 0, End: 5 << 20}); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	close(stop)
	if err := c.copy(stop, true); !errors.Is(err, errStopped) {
		t.Error("a copy that was stopped returned", err)
	}
	if err := c.copy(nil, false); err != nil {
		t.Fatal(err)
	}
	if got, err = os.ReadFile(name); err != nil || !bytes.Equal(got, memory[:5<<20]) {
		t.Errorf("the file of %d bytes is not what the engine named, %v", len(got), err)
	}
	same, _ := c.pages.Reused()
	if want := 5<<20/checkpoint.PageChunk - 1; same != want {
		t.Errorf("%d chunks were left alone, and one of %d had changed", same, want+1)
	}
	sealed(t, c, dir, memory[:5<<20])
}

// TestCaptureInPlace: memory that comes or goes does not move what follows it.
func TestCaptureInPlace(t *testing.T) {
	t.Parallel()
	const size = 6 << 20
	memory := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(memory)
	copy(memory, vdsodata.Binary)
	clear(memory[4<<20 : 4<<20+8192]) // two pages without a bit set
	fd := memfd(t, size, 0, memory)
	from, dir := source{fd: fd, clock: findClock(fd)}, t.TempDir()
	for round, c := range []struct {
		named []memmap.FileRange
		same  int
	}{
		{[]memmap.FileRange{{Start: 0, End: size}}, 0},
		{[]memmap.FileRange{{Start: 0, End: 4096}, {Start: 2<<20 + 4096, End: 5<<20 + 4096}}, 3 << 20 / checkpoint.PageChunk},
		{[]memmap.FileRange{{Start: 0, End: 4096}, {Start: 8192, End: 12288}, {Start: 2 << 20, End: 5<<20 + 4096}}, 3 << 20 / checkpoint.PageChunk},
	} {
		shot := capturing(t, dir, namedMost*size)
		want := make([]byte, c.named[len(c.named)-1].End)
		var pages []byte // as the engine reads them
		for _, r := range c.named {
			if err := shot.put(from, r); err != nil {
				t.Fatal(err)
			}
			copy(want[r.Start:r.End], memory[r.Start:r.End])
			pages = append(pages, memory[r.Start:r.End]...)
		}
		if err := shot.copy(nil, true); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(dir, checkpoint.FilePages))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d: the file of %d bytes is not what the engine named, %v", round, len(got), err)
		}
		about := sealed(t, shot, dir, want)
		if same, _ := shot.pages.Reused(); same != c.same {
			t.Errorf("%d: %d chunks were left alone, want %d", round, same, c.same)
		}
		for offset := int64(0); ; {
			at, n := about.Locate(offset)
			if n == 0 {
				if offset != int64(len(pages)) {
					t.Errorf("%d: the engine reads %d bytes and wrote %d", round, offset, len(pages))
				}
				break
			}
			if !bytes.Equal(got[at:at+n], pages[offset:offset+n]) {
				t.Errorf("%d: the engine reads something else at %d", round, offset)
			}
			offset += n
		}
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(dir, checkpoint.FilePages), &st); err != nil || st.Blocks*512 > int64(len(pages))+4096 {
			t.Errorf("%d: the file takes %d bytes of the disk, %v", round, st.Blocks*512, err)
		}
	}
	shot := capturing(t, dir, size)
	if err := shot.put(from, memmap.FileRange{Start: 4096, End: 8192}); err != nil {
		t.Fatal(err)
	}
	if err := shot.put(from, memmap.FileRange{Start: 0, End: 4096}); err == nil {
		t.Error("an engine names memory in any order")
	}
}

// TestCaptureWithoutClock copies all memory before the engine has its answer if
// nobody knows what it may change.
func TestCaptureWithoutClock(t *testing.T) {
	t.Parallel()
	memory := bytes.Repeat([]byte("some"), 1<<18)
	fd := memfd(t, int64(len(memory)), 0, memory)
	dir := t.TempDir()
	c := capturing(t, dir, 1<<30)
	if err := c.put(source{fd: fd, clock: findClock(fd)}, memmap.FileRange{Start: 0, End: uint64(len(memory))}); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Pwrite(fd, []byte("else"), 0); err != nil {
		t.Fatal(err)
	}
	if err := c.copy(nil, false); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, checkpoint.FilePages)); err != nil || !bytes.Equal(got, memory) {
		t.Errorf("the file has %d bytes, %v", len(got), err)
	}
}

// TestCaptureCannotOpen: a file that cannot be opened is known before the engine asks.
func TestCaptureCannotOpen(t *testing.T) {
	t.Parallel()
	for _, name := range []string{gvisor.FileState, gvisor.FilePageMeta, checkpoint.FilePages} {
		dir := t.TempDir()
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		if _, err := newCapture(dir, nil, 1); !errors.Is(err, unix.EISDIR) {
			t.Errorf("with a directory for %s: %v", name, err)
		}
	}
}

func TestCaptureOpens(t *testing.T) {
	t.Parallel()
	c, err := newCapture(t.TempDir(), nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"../x", "/etc/passwd", "manifest.json", ""} {
		if _, err := c.OpenWrite(name); err == nil {
			t.Errorf("an engine writes to %q", name)
		}
	}
	w, err := c.OpenWrite(gvisor.FileState)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.OpenWrite(gvisor.FileState); err == nil {
		t.Error("an engine opens its state twice")
	}
	if _, err := c.OpenRead(gvisor.FileState); err == nil {
		t.Error("an engine reads")
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}
