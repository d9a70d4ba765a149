package disk

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

const week = 7 * 24 * time.Hour

// shared opens a library for an owner, whose directory is made.
func shared(t *testing.T, dir, owner string) *Library {
	t.Helper()
	library(t, Options{}) // or skip
	if err := os.MkdirAll(owner, 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := Open(dir, Options{PrivateRegistries: true, Owner: owner})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// age makes everything of a library older than images are kept, as if its clock had
// gone on.
func (l *Library) age(t *testing.T) {
	t.Helper()
	unlock, err := l.lock()
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	entries, err := os.ReadDir(l.userDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		name := filepath.Join(l.userDir(), e.Name())
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		this, last := time.Now().UTC().Format("2006"), time.Now().AddDate(-1, 0, 0).Format("2006")
		if err := os.WriteFile(name, bytes.ReplaceAll(b, []byte(`"`+this+"-"), []byte(`"`+last+"-")), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.started)
}

// collect returns the references that are gone.
func (l *Library) collect(t *testing.T, used, named []string) (refs []string) {
	t.Helper()
	gone, err := l.Collect(used, named, week)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range gone {
		if _, err := os.Stat(i.Path); !errors.Is(err, fs.ErrNotExist) || i.Bytes == 0 {
			t.Errorf("%s is still there: %v", i.Ref, err)
		}
		refs = append(refs, i.Ref[strings.Index(i.Ref, "/")+1:])
	}
	slices.Sort(refs)
	if left := leftovers(t, l); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	return refs
}

// TestCollect removes what nothing needs, and nothing else.
func TestCollect(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	dir := filepath.Join(top, "images")
	l, h := shared(t, dir, filepath.Join(top, "a")), newHub(t)
	images := map[string]Image{}
	for _, name := range []string{"used", "named", "unused", "pinned", "other"} {
		h.push(t, name, v1.Config{}, layer(t, entry{'f', 0o600, 0, "f", name}))
		img, err := l.Ensure(t.Context(), h.host+"/"+name, nil)
		if err != nil {
			t.Fatal(err)
		}
		images[name] = img
	}
	if _, err := l.ImportTar(t.Context(), "mine", bytes.NewReader(layer(t))); err != nil {
		t.Fatal(err)
	}
	h.push(t, "pin", v1.Config{}, layer(t, entry{'f', 0o600, 0, "f", "pin"}))
	pinned, _, err := l.Pin(t.Context(), h.host+"/pin", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	used, named := []string{"/somewhere/" + filepath.Base(images["used"].Path)}, []string{h.host + "/named", pinned}
	if gone := l.collect(t, nil, nil); len(gone) != 0 {
		t.Errorf("what was got just now is gone: %v", gone)
	}

	// The record of one goes: at once, but not before a sandbox could be on record.
	l.Release(h.host + "/pinned")
	if gone := l.collect(t, used, named); len(gone) != 0 {
		t.Errorf("what a sandbox may be starting with is gone: %v", gone)
	}
	l.mu.Lock()
	clear(l.started)
	l.mu.Unlock()
	l.Release(h.host + "/used")
	l.Hold(images["pinned"].Path)
	if gone := l.collect(t, used, named); len(gone) != 0 {
		t.Errorf("what a sandbox may be going on with is gone: %v", gone)
	}
	l.mu.Lock()
	clear(l.started)
	l.mu.Unlock()
	if diff := cmp.Diff([]string{"pinned:latest"}, l.collect(t, used, named)); diff != "" {
		t.Error(diff)
	}

	// Somebody else needs one too, and then is gone.
	b := shared(t, dir, filepath.Join(top, "b"))
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	c, err := readClaim(filepath.Join(b.userDir(), claimName(b.o.Owner)))
	if err != nil || len(c.Files) != 6 {
		t.Errorf("the first claim of another has %v, %v", c.Files, err)
	}
	c.Files = map[string]time.Time{filepath.Base(images["other"].Path): time.Now()}
	if err := b.writeClaim(c); err != nil {
		t.Fatal(err)
	}
	l.age(t)
	if diff := cmp.Diff([]string{"unused:latest"}, l.collect(t, used, named)); diff != "" {
		t.Error(diff)
	}
	if err := os.Remove(b.o.Owner); err != nil {
		t.Fatal(err)
	}
	l.age(t)
	if diff := cmp.Diff([]string{"other:latest"}, l.collect(t, used, named)); diff != "" {
		t.Error(diff)
	}
	if entries, err := os.ReadDir(l.userDir()); err != nil || len(entries) != 1 {
		t.Errorf("claims: %v, %v", entries, err)
	}

	// What is gone comes again when somebody wants it, and after a restart all is as
	// before.
	if img, err := l.Ensure(t.Context(), h.host+"/unused", nil); err != nil || img.Path != images["unused"].Path {
		t.Errorf("%+v, %v", img, err)
	}
	l.age(t)
	again := shared(t, dir, l.o.Owner)
	if diff := cmp.Diff([]string{"named:latest", "pin@" + pinned[strings.Index(pinned, "sha256:"):], "unused:latest"}, again.collect(t, used, nil)); diff != "" {
		t.Error(diff)
	}
	if img, err := again.Ensure(t.Context(), "mine", nil); err != nil {
		t.Errorf("what was imported is gone: %+v, %v", img, err)
	}
}

// TestCollectDamaged removes nothing as long as nobody knows what others need.
func TestCollectDamaged(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	l, h := shared(t, filepath.Join(top, "images"), filepath.Join(top, "a")), newHub(t)
	h.push(t, "a", v1.Config{}, layer(t, entry{'f', 0o600, 0, "f", "x"}))
	if _, err := l.Ensure(t.Context(), h.host+"/a", nil); err != nil {
		t.Fatal(err)
	}
	l.age(t)
	if err := os.WriteFile(filepath.Join(l.userDir(), "other.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if gone, err := l.Collect(nil, nil, week); !errors.Is(err, errClaim) || len(gone) != 0 {
		t.Errorf("%v, %v", gone, err)
	}
	if err := Disown(l.dir, filepath.Join(top, "a")); err != nil {
		t.Error(err)
	}
	if err := Disown(l.dir, filepath.Join(top, "a")); err != nil {
		t.Errorf("again: %v", err)
	}
}

// TestCollectRace has sandboxes begin with an image while it is collected: each gets
// one that is there.
func TestCollectRace(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	l, h := shared(t, filepath.Join(top, "images"), filepath.Join(top, "a")), newHub(t)
	h.push(t, "a", v1.Config{}, layer(t, entry{'f', 0o600, 0, "f", "x"}))
	var all sync.WaitGroup
	var starting sync.RWMutex // held while somebody has an image and no record
	begin := func() {
		starting.RLock()
		defer starting.RUnlock()
		img, err := l.Ensure(t.Context(), h.host+"/a", nil)
		if err != nil {
			t.Error(err)
		} else if _, err := os.Stat(img.Path); err != nil {
			t.Errorf("a sandbox would begin without its image: %v", err)
		}
	}
	for range 4 {
		all.Go(func() {
			for range 25 {
				begin()
				time.Sleep(time.Millisecond)
			}
		})
	}
	var removed int
	for range 40 {
		starting.Lock()
		l.mu.Lock()
		clear(l.started) // as if the last start was long ago
		l.mu.Unlock()
		starting.Unlock()
		l.Release(h.host + "/a")
		gone, err := l.Collect(nil, nil, week)
		if err != nil {
			t.Error(err)
		}
		removed += len(gone)
		time.Sleep(time.Millisecond)
	}
	all.Wait()
	if removed == 0 {
		t.Error("it was never removed")
	}
	t.Logf("it was removed %d times", removed)
}

// FuzzClaim reads what another process may have left.
func FuzzClaim(f *testing.F) {
	f.Add([]byte(`{"data":"/var/lib/doze","renewed":"2020-01-01T00:00:00Z","files":{"a.erofs":"2020-01-01T00:00:00Z"}}`))
	f.Add([]byte(`{"data":"x","files":null}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		file := filepath.Join(t.TempDir(), "claim")
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := readClaim(file)
		if err == nil && (c.Data == "" || c.Files == nil) || err != nil && !errors.Is(err, errClaim) {
			t.Errorf("%+v, %v", c, err)
		}
	})
}
