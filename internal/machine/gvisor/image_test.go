package gvisor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze/internal/machine"
)

const someEngine = "engine-1"

// making returns a machine with the engine's files of an image, not committed.
func making(t *testing.T) Config {
	t.Helper()
	c := Config{ID: "a", Dir: t.TempDir(), Root: "/images/root.erofs", Agent: "/images/agent.erofs"}
	dir := filepath.Join(c.Dir, dirMaking)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, size := range map[string]int{FileState: 1000, FilePageMeta: 0, FilePages: 2*ImageChunk + 5} {
		if err := os.WriteFile(filepath.Join(dir, name), bytes.Repeat([]byte{7}, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func TestCommit(t *testing.T) {
	t.Parallel()
	c := making(t)
	if _, ok := hasImage(c); ok {
		t.Fatal("an image counts before it is committed")
	}
	if err := commit(t.Context(), new(sync.WaitGroup), c, someEngine, imageDir(c)); err != nil {
		t.Fatal(err)
	}
	size, ok := hasImage(c)
	if !ok || size < 2*ImageChunk+1005 {
		t.Errorf("a committed image: %d bytes, %v", size, ok)
	}
	m, err := readManifest(imageDir(c), c, []string{someEngine})
	if err != nil {
		t.Fatal(err)
	}
	if err := verify(t.Context(), imageDir(c), m); err != nil {
		t.Error(err)
	}
	if err := retire(c); err != nil {
		t.Fatal(err)
	}
	if _, ok := hasImage(c); ok {
		t.Error("a retired image counts")
	}
	if err := restoreImage(c); err != nil {
		t.Fatal(err)
	}
	if err := verify(t.Context(), imageDir(c), m); err != nil {
		t.Error("after it was taken back:", err)
	}
}

// dying is a context that ends at the n-th question whether it has.
type dying struct {
	context.Context //nolint:containedctx // it is one

	left int
}

func (d *dying) Err() error {
	if d.left--; d.left < 0 {
		return context.Canceled
	}
	return nil
}

// TestCommitStops stops a commit before each of its steps, as a crash would:
// there is a whole image or none, and what is left can be swept.
func TestCommitStops(t *testing.T) {
	t.Parallel()
	for step, done := 0, false; !done; step++ {
		if step > 100 {
			t.Fatal("a commit has no end")
		}
		c := making(t)
		err := commit(&dying{Context: t.Context(), left: step}, new(sync.WaitGroup), c, someEngine, imageDir(c))
		done = err == nil
		_, saved := hasImage(c)
		if saved != done {
			t.Errorf("stopped at step %d with %v: an image counts: %v", step, err, saved)
		}
		if !done && !errors.Is(err, context.Canceled) {
			t.Errorf("step %d: %v", step, err)
		}
		if err := sweepImages(c); err != nil {
			t.Error(err)
		}
		left, err := filepath.Glob(filepath.Join(c.Dir, "*"))
		if err != nil {
			t.Fatal(err)
		}
		if want := map[bool]int{false: 0, true: 1}[done]; len(left) != want {
			t.Errorf("step %d: %q is left", step, left)
		}
	}
}

func TestCommitIncomplete(t *testing.T) {
	t.Parallel()
	for _, name := range []string{FileState, FilePageMeta, FilePages} {
		c := making(t)
		if err := os.Remove(filepath.Join(c.Dir, dirMaking, name)); err != nil {
			t.Fatal(err)
		}
		if err := commit(t.Context(), new(sync.WaitGroup), c, someEngine, imageDir(c)); err == nil {
			t.Errorf("an image without %s was committed", name)
		}
		if _, ok := hasImage(c); ok {
			t.Errorf("an image without %s counts", name)
		}
	}
}

func TestVerify(t *testing.T) {
	t.Parallel()
	c := making(t)
	if err := commit(t.Context(), new(sync.WaitGroup), c, someEngine, imageDir(c)); err != nil {
		t.Fatal(err)
	}
	m, err := readManifest(imageDir(c), c, []string{someEngine})
	if err != nil {
		t.Fatal(err)
	}
	pages := filepath.Join(c.Dir, dirImage, FilePages)
	whole, err := os.ReadFile(pages)
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []int{0, ImageChunk - 1, ImageChunk, 2 * ImageChunk, len(whole) - 1} {
		damaged := bytes.Clone(whole)
		damaged[at]++
		if err := os.WriteFile(pages, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := verify(t.Context(), imageDir(c), m); !errors.Is(err, machine.ErrDamaged) {
			t.Errorf("altered at %d: %v, want ErrDamaged", at, err)
		}
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := verify(cancelled, imageDir(c), m); !errors.Is(err, context.Canceled) || errors.Is(err, machine.ErrDamaged) {
		t.Errorf("cancelled: %v, which is no damage", err)
	}
}

func seal(tb testing.TB, m manifest) []byte {
	tb.Helper()
	name := filepath.Join(tb.TempDir(), FileManifest)
	if err := writeManifest(name, m); err != nil {
		tb.Fatal(err)
	}
	raw, err := os.ReadFile(name)
	if err != nil {
		tb.Fatal(err)
	}
	return raw
}

func sound() manifest {
	return manifest{
		Format: formatWhole, ID: "a", Engine: someEngine, Root: "root.erofs", Agent: "agent.erofs",
		Files: []ImageFile{{Name: FileState, Bytes: 1, Chunks: []uint32{1}}, {Name: FilePageMeta}, {Name: FilePages}},
	}
}

func TestParseManifest(t *testing.T) {
	t.Parallel()
	c := Config{ID: "a", Root: "/other/place/root.erofs", Agent: "agent.erofs"}
	if _, err := parseManifest(seal(t, sound()), c, []string{someEngine}); err != nil {
		t.Error("a sound manifest:", err)
	}
	for name, change := range map[string]func(*manifest){
		"other format":  func(m *manifest) { m.Format = 4 },
		"other machine": func(m *manifest) { m.ID = "b" },
		"other root":    func(m *manifest) { m.Root = "b.erofs" },
		"other agent":   func(m *manifest) { m.Agent = "b.erofs" },
		"no files":      func(m *manifest) { m.Files = nil },
		"file twice":    func(m *manifest) { m.Files[1] = m.Files[0] },
		"foreign file":  func(m *manifest) { m.Files[1].Name = "../../" + FilePageMeta },
	} {
		m := sound()
		change(&m)
		if _, err := parseManifest(seal(t, m), c, []string{someEngine}); !errors.Is(err, machine.ErrDamaged) {
			t.Errorf("%s: %v, want ErrDamaged", name, err)
		}
	}
	if _, err := parseManifest(seal(t, sound()), c, []string{"engine-2"}); !errors.Is(err, machine.ErrNoEngine) || errors.Is(err, machine.ErrDamaged) {
		t.Errorf("of another engine: %v, want ErrNoEngine", err)
	}
	raw := seal(t, sound())
	for i := range raw {
		flipped := bytes.Clone(raw)
		for _, bit := range []byte{1, 0x20} { // 0x20 is the case of a letter
			flipped[i] = raw[i] ^ bit
			if _, err := parseManifest(flipped, c, []string{someEngine}); !errors.Is(err, machine.ErrDamaged) {
				t.Errorf("byte %d altered to %q: %v, want ErrDamaged", i, flipped[i], err)
			}
		}
	}
}

func FuzzParseManifest(f *testing.F) {
	f.Add(seal(f, sound()))
	f.Add([]byte(`{"manifest":{},"sum":0}`))
	f.Add([]byte(`{"manifest":null,"sum":1}`))
	f.Add([]byte(``))
	c := Config{ID: "a", Root: "root.erofs", Agent: "agent.erofs"}
	f.Fuzz(func(t *testing.T, raw []byte) {
		m, err := parseManifest(raw, c, []string{someEngine})
		if err != nil {
			if !errors.Is(err, machine.ErrDamaged) && !errors.Is(err, machine.ErrNoEngine) {
				t.Errorf("%v is neither ErrDamaged nor ErrNoEngine", err)
			}
			return
		}
		// What is accepted is what we would write.
		body, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		var again manifest
		if err := json.Unmarshal(body, &again); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(m, again); diff != "" {
			t.Error(diff)
		}
	})
}

func TestVouch(t *testing.T) {
	t.Parallel()
	d := &Driver{run: t.TempDir()}
	c := making(t)
	if err := commit(t.Context(), new(sync.WaitGroup), c, someEngine, imageDir(c)); err != nil {
		t.Fatal(err)
	}
	if d.vouched(imageDir(c)) {
		t.Error("vouched for before anybody did")
	}
	file := func(name string) string { return filepath.Join(c.Dir, dirImage, name) }
	for _, tc := range []struct {
		what  string
		touch func() error
	}{
		{"a byte", func() error {
			f, err := os.OpenFile(file(FilePages), os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			defer func() { _ = f.Close() }()
			_, err = f.WriteAt([]byte{1}, 7)
			return err
		}},
		{"another file", func() error {
			raw, err := os.ReadFile(file(FileState))
			if err != nil {
				return err
			}
			return errors.Join(os.WriteFile(file("new"), raw, 0o600), os.Rename(file("new"), file(FileState)))
		}},
		{"the manifest", func() error { return os.Truncate(file(FileManifest), 1) }},
		{"no file", func() error { return os.Remove(file(FilePageMeta)) }},
	} {
		if err := d.vouch(imageDir(c)); err != nil {
			t.Fatal(err)
		}
		if !d.vouched(imageDir(c)) {
			t.Errorf("%s: not vouched for", tc.what)
		}
		if err := tc.touch(); err != nil {
			t.Fatal(err)
		}
		if d.vouched(imageDir(c)) {
			t.Errorf("%s: still vouched for", tc.what)
		}
	}
	if err := d.sweepVouchers(); err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(filepath.Join(d.run, dirVouched)); len(left) > 0 {
		t.Errorf("%d vouchers are left", len(left))
	}
}
