package volume_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/volume"
)

// open returns a pool that leaves nothing on the host.
func open(t *testing.T, dir string) *volume.Pool {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: volumes need root")
	}
	p, err := volume.Open(dir, newLedger(1<<40))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Sweep(func(string) bool { return false }); err != nil {
			t.Error(err)
		}
		mounts, err := os.ReadFile("/proc/self/mounts")
		if err != nil || strings.Contains(string(mounts), dir) {
			t.Errorf("mounts are left: %v\n%s", err, mounts)
		}
	})
	return p
}

// ledger reserves up to a sum.
type ledger struct {
	most int64

	mu   sync.Mutex
	sums map[string]int64 // guarded by mu
}

func newLedger(most int64) *ledger { return &ledger{most: most, sums: map[string]int64{}} }

func (l *ledger) Reserve(id string, size int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	total := size - l.sums[id]
	for _, n := range l.sums {
		total += n
	}
	if total > l.most {
		return doze.Errorf(doze.Exhausted, "there is no room")
	}
	l.sums[id] = size
	return nil
}

func (l *ledger) Record(id string, size int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sums[id] = size
}

func (l *ledger) Forget(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.sums, id)
}

func (l *ledger) reserved() map[string]int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.sums)
}

// TestLedger keeps the ledger right through all that happens to volumes, and
// after a restart.
func TestLedger(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	open(t, dir) // undoes all mounts in the end
	l := newLedger(200 << 20)
	p, err := volume.Open(dir, l)
	must(t, err)
	ctx := t.Context()
	must(t, p.Make(ctx, "a", 64, ""))
	must(t, p.Make(ctx, "a", 128, "")) // it is there, and stays
	if err := p.Make(ctx, "huge", doze.VolumeMax, ""); kind(err) != doze.Exhausted {
		t.Errorf("a huge one: %v", err)
	}
	if err := p.Make(ctx, "none", 64, "unknown"); kind(err) != doze.NotFound {
		t.Errorf("of nothing: %v", err)
	}
	must(t, p.Make(ctx, "b", 64, "a"))
	must(t, p.Resize("b", 100))
	if err := p.Resize("b", 300); kind(err) != doze.Exhausted {
		t.Errorf("growth beyond the disk: %v", err)
	}
	if _, size, err := p.Measure("b"); err != nil || size != 100<<20 {
		t.Errorf("it has %d bytes, %v", size, err)
	}
	want := map[string]int64{"a": 64 << 20, "b": 100 << 20}
	if diff := cmp.Diff(want, l.reserved()); diff != "" {
		t.Error(diff)
	}
	if _, err := p.Import(ctx, "c", 64, strings.NewReader("")); kind(err) != doze.Exhausted {
		t.Errorf("an import beyond the disk: %v", err)
	}
	must(t, p.Remove("a"))
	var tape bytes.Buffer
	w := tar.NewWriter(&tape)
	must(t, errors.Join(w.WriteHeader(&tar.Header{Name: "f", Typeflag: tar.TypeReg, Mode: 0o600}), w.Close()))
	whole := tape.Bytes()
	if _, err := p.Import(ctx, "c", 64, bytes.NewReader(whole[:300])); kind(err) != doze.Invalid {
		t.Errorf("half an upload: %v", err)
	}
	_, err = p.Import(ctx, "c", 64, bytes.NewReader(whole))
	must(t, err)
	want = map[string]int64{"b": 100 << 20, "c": 64 << 20}
	if diff := cmp.Diff(want, l.reserved()); diff != "" {
		t.Error(diff)
	}
	again := newLedger(0)
	_, err = volume.Open(dir, again)
	must(t, err)
	if diff := cmp.Diff(want, again.reserved()); diff != "" {
		t.Errorf("after a restart: %s", diff)
	}
	if n := p.Written(); n < 64<<10 || n > 64<<20 {
		t.Errorf("%d bytes are written", n)
	}
}

func kind(err error) doze.Kind { return doze.Public(err).Kind }

// attach attaches and fails t if that does not work.
func attach(t *testing.T, p *volume.Pool, id, owner string, readOnly bool) string {
	t.Helper()
	dir, err := p.Attach(t.Context(), id, owner, readOnly)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// megabytes is how much a file system has.
func megabytes(t *testing.T, dir string) int {
	t.Helper()
	var s unix.Statfs_t
	must(t, unix.Statfs(dir, &s))
	return int(s.Blocks * uint64(s.Bsize) >> 20)
}

// fill writes until nothing fits in, and returns how many MiB did.
func fill(t *testing.T, name string) (n int) {
	t.Helper()
	f, err := os.Create(name)
	must(t, err)
	for ; ; n++ {
		if _, err = f.Write(make([]byte, 1<<20)); err != nil {
			break
		}
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a full volume is %v", err)
	}
	must(t, f.Close())
	return n
}

func TestPool(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := open(t, dir)
	ctx := t.Context()
	must(t, p.Make(ctx, "a", 32, ""))
	must(t, p.Make(ctx, "a", 64, "")) // it is there

	at := attach(t, p, "a", "first", false)
	must(t, os.WriteFile(filepath.Join(at, "kept"), []byte("text"), 0o600))
	if n := fill(t, filepath.Join(at, "large")); n < 16 || n > 32 || megabytes(t, at) > 32 {
		t.Errorf("a volume of 32 MB takes %d, and says %d", n, megabytes(t, at))
	}
	if _, err := p.Attach(t.Context(), "a", "second", false); kind(err) != doze.Unavailable {
		t.Errorf("a second owner: %v", err)
	}
	if err := p.Remove("a"); kind(err) != doze.Unavailable {
		t.Errorf("removal of what is in use: %v", err)
	}
	must(t, p.Resize("a", 16)) // that is no growth
	must(t, p.Resize("a", 256))
	if again := attach(t, p, "a", "first", false); again != at {
		t.Errorf("attached again it is at %s, not %s", again, at)
	}
	must(t, p.Detach("first"))
	must(t, p.Detach("first"))

	at = attach(t, p, "a", "second", true)
	if raw, err := os.ReadFile(filepath.Join(at, "kept")); string(raw) != "text" {
		t.Errorf("the next owner reads %q, %v", raw, err)
	}
	if err := os.WriteFile(filepath.Join(at, "kept"), nil, 0o600); !errors.Is(err, syscall.EROFS) {
		t.Errorf("a write to what is read-only: %v", err)
	}
	if n := megabytes(t, at); n < 220 {
		t.Errorf("after it grew it has %d MB", n)
	}
	must(t, p.Detach("second"))
	must(t, p.Remove("a"))
	must(t, p.Remove("a"))
	if ids, err := p.IDs(); err != nil || len(ids) > 0 {
		t.Errorf("there are %v, %v", ids, err)
	}
}

// TestSweep has a process end at a bad moment: the next one finds what is
// attached, and removes what is nobody's or not complete.
func TestSweep(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := open(t, dir)
	for _, id := range []string{"a", "b"} {
		must(t, p.Make(t.Context(), id, 16, ""))
	}
	other := attach(t, p, "a", "kept", false)
	attach(t, p, "b", "gone", true)
	half := filepath.Join(dir, "images", "c.img.making")
	must(t, os.WriteFile(half, nil, 0o600))

	next := open(t, dir)
	must(t, next.Sweep(func(owner string) bool { return owner == "kept" }))
	if _, err := os.Stat(half); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what is half made is left: %v", err)
	}
	ids, err := next.IDs()
	must(t, err)
	if diff := cmp.Diff([]string{"a", "b"}, ids); diff != "" {
		t.Errorf("volumes (-want +got):\n%s", diff)
	}
	if _, err := next.Attach(t.Context(), "a", "other", false); kind(err) != doze.Unavailable {
		t.Errorf("the owner is forgotten: %v", err)
	}
	if at := attach(t, next, "a", "kept", false); at != other {
		t.Errorf("it moved to %s", at)
	}
	attach(t, next, "b", "other", false)
}

func TestClone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := open(t, dir)
	must(t, p.Make(t.Context(), "a", 64, ""))
	must(t, os.WriteFile(filepath.Join(attach(t, p, "a", "x", false), "kept"), []byte("text"), 0o600))
	must(t, p.Detach("x"))
	if err := p.Make(t.Context(), "b", 32, "a"); kind(err) != doze.Invalid {
		t.Errorf("a smaller clone: %v", err)
	}
	if err := p.Make(t.Context(), "b", 32, "missing"); kind(err) != doze.NotFound {
		t.Errorf("a clone of nothing: %v", err)
	}
	must(t, p.Make(t.Context(), "b", 256, "a"))
	var s unix.Stat_t
	must(t, unix.Stat(filepath.Join(dir, "images", "b.img"), &s))
	if s.Blocks*512 > 32<<20 {
		t.Errorf("a clone takes %d MB", s.Blocks*512>>20)
	}
	at := attach(t, p, "b", "x", false)
	if raw, err := os.ReadFile(filepath.Join(at, "kept")); string(raw) != "text" || megabytes(t, at) < 220 {
		t.Errorf("the clone has %q, %v, and %d MB", raw, err, megabytes(t, at))
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	p := open(t, t.TempDir())
	for _, name := range []string{"", "..", "../a", "a/b", "-a", "A", "a\x00", strings.Repeat("a", 129)} {
		for what, err := range map[string]error{
			"make": p.Make(t.Context(), name, 16, ""), "resize": p.Resize(name, 16), "remove": p.Remove(name), "detach": p.Detach(name),
		} {
			if kind(err) != doze.Invalid {
				t.Errorf("%s %q: %v", what, name, err)
			}
		}
		if _, err := p.Attach(t.Context(), "a", name, false); kind(err) != doze.Invalid {
			t.Errorf("attach to %q: %v", name, err)
		}
	}
	if _, err := p.Attach(t.Context(), "missing", "x", false); kind(err) != doze.NotFound {
		t.Errorf("attach what is missing: %v", err)
	}
	if err := p.Resize("missing", 16); kind(err) != doze.NotFound {
		t.Errorf("resize what is missing: %v", err)
	}
}

// TestImport bounds what an archive may hold by the size of its volume, and
// leaves nothing of one that is refused.
func TestImport(t *testing.T) {
	t.Parallel()
	p := open(t, t.TempDir())
	archive := func(megabytes int) io.Reader {
		var out bytes.Buffer
		w := tar.NewWriter(&out)
		must(t, w.WriteHeader(&tar.Header{Name: "a", Mode: 0o644, Size: int64(megabytes) << 20}))
		_, err := w.Write(make([]byte, megabytes<<20))
		must(t, errors.Join(err, w.Close()))
		return &out
	}
	for _, size := range []int{16, 17} { // the one is what the disk says, the other what we can tell before
		if _, err := p.Import(t.Context(), "t", 16, archive(size)); kind(err) != doze.TooLarge {
			t.Errorf("%d MB in 16: %v", size, err)
		}
	}
	if ids, err := p.IDs(); err != nil || len(ids) > 0 {
		t.Errorf("there are %v, %v", ids, err)
	}
	if n, err := p.Import(t.Context(), "t", 16, archive(4)); err != nil || n != 4<<20 {
		t.Fatalf("%d bytes, %v", n, err)
	}
	must(t, p.Make(t.Context(), "v", 32, "t"))
	if info, err := os.Stat(filepath.Join(attach(t, p, "v", "x", false), "a")); err != nil || info.Size() != 4<<20 {
		t.Errorf("the volume has %v, %v", info, err)
	}
}

// TestCopy: the copy of a volume that is mounted is clean, and has what was written. The
// volume can be written to again. The test runs by itself: a program that it starts has the
// files of other tests open for a moment, so that their unmounted volumes stay.
func TestCopy(t *testing.T) { //nolint:paralleltest // see above
	p := open(t, t.TempDir())
	ctx, to := t.Context(), t.TempDir()
	must(t, p.Make(ctx, "a", 64, ""))
	dir := attach(t, p, "a", "one", false)
	must(t, os.WriteFile(filepath.Join(dir, "x"), []byte("hello"), 0o600))
	copied := filepath.Join(to, "a.img")
	must(t, p.Copy(ctx, "a", copied))
	must(t, os.WriteFile(filepath.Join(dir, "y"), []byte("later"), 0o600))
	if out, err := exec.CommandContext(ctx, "e2fsck", "-fn", copied).CombinedOutput(); err != nil {
		t.Errorf("the copy: %v\n%s", err, out)
	}
	out, err := exec.CommandContext(ctx, "debugfs", "-R", "cat content/x", copied).Output()
	if err != nil || string(out) != "hello" {
		t.Errorf("the copy has %q, %v", out, err)
	}
	must(t, p.Detach("one"))
	must(t, p.Copy(ctx, "a", filepath.Join(to, "again.img")))
	attach(t, p, "a", "two", false) // nobody has it
	if err := p.Copy(ctx, "none", filepath.Join(to, "none")); kind(err) != doze.NotFound {
		t.Errorf("of nothing: %v", err)
	}
	if err := p.Copy(ctx, "../a", filepath.Join(to, "bad")); kind(err) != doze.Invalid {
		t.Errorf("of a path: %v", err)
	}
}
