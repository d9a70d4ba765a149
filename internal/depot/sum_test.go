package depot_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/dozehq/doze/internal/depot"
	"github.com/dozehq/doze/internal/fleet"
)

// sums are what a host remembers of files, by path.
func (h *host) sums(t *testing.T) map[string]struct{ Sum string } {
	t.Helper()
	all := map[string]struct{ Sum string }{}
	raw, err := os.ReadFile(filepath.Join(h.dir, "foreign", depot.SumsFile))
	if err == nil {
		err = json.Unmarshal(raw, &all)
	}
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return all
}

// TestSumsAreRemembered: a file that is the same is not read again by the next process, and one
// that was changed is.
func TestSumsAreRemembered(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	a, b := y.host(t, "a", "root of a", nil), y.host(t, "b", "root of a", nil)
	y.rights.move("s", "a")
	a.memory["s"] = "one"
	if err := a.depot.Depart(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	y.rights.move("s", "b")
	again := func(want string) {
		t.Helper()
		o := depot.Options{Vault: y.vault, Rights: y.rights, ID: "b", Dir: filepath.Join(b.dir, "foreign"), Local: []string{filepath.Dir(b.files.Root)}}
		var err error
		if b.depot, err = depot.New(o, b); err != nil {
			t.Fatal(err)
		}
		if _, err := b.depot.Revive(t.Context(), fleet.Order{UID: "s"}, time.Time{}, false); err != nil {
			t.Fatal(err)
		}
		b.fetch(t)
		if got := b.has["s"].Root; got != want {
			t.Errorf("its root is %s, and not %s", got, want)
		}
		if b.sums(t)[want].Sum == "" {
			t.Error("the sum of its root is not remembered")
		}
	}
	again(b.files.Root)
	// Nobody does this to a file. It shows who reads it.
	info, err := os.Stat(b.files.Root)
	if err != nil {
		t.Fatal(err)
	}
	write := func(at time.Time) {
		if err := os.WriteFile(b.files.Root, []byte("ROOT of a"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(b.files.Root, at, at); err != nil {
			t.Fatal(err)
		}
	}
	write(info.ModTime())
	again(b.files.Root)
	write(info.ModTime().Add(time.Second))
	again(filepath.Join(b.dir, "foreign", b.sums(t)[b.files.Root].Sum, "root.erofs"))
	if err := os.WriteFile(filepath.Join(b.dir, "foreign", depot.SumsFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	again(b.has["s"].Root)
	if err := b.depot.Retain(func(string) bool { return true }); err != nil || len(b.sums(t)) == 0 {
		t.Errorf("they are gone: %v", err)
	}
}

// TestLearn: a node knows the files that sandboxes of others may need before it gets one of them:
// those that were used last, as far as they are not too large.
func TestLearn(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	b := y.host(t, "b", "root", func(o *depot.Options) { o.After = time.Hour })
	images := filepath.Dir(b.files.Root)
	old, large, note := filepath.Join(images, "old.erofs"), filepath.Join(images, "large.erofs"), filepath.Join(images, "root.json")
	for i, path := range []string{note, large, old} {
		at := time.Now().Add(-time.Duration(i+1) * time.Hour)
		if err := errors.Join(os.WriteFile(path, []byte("root"), 0o600), os.Chtimes(path, at, at)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Truncate(large, depot.LearnMost), os.Chtimes(large, time.Now().Add(-2*time.Hour), time.Now().Add(-2*time.Hour))); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() { _ = b.depot.Run(ctx) })
	for deadline := time.Now().Add(time.Minute); len(b.sums(t)) < 2; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it knows %v", b.sums(t))
		}
	}
	cancel()
	run.Wait()
	if all := b.sums(t); len(all) != 2 || all[b.files.Root].Sum == "" || all[b.files.Agent].Sum == "" {
		t.Errorf("it knows %v", all)
	}
}

// FuzzStamps: what remembers sums is read whatever it is, and has sums of absolute paths alone.
func FuzzStamps(f *testing.F) {
	f.Add([]byte(`{"/images/a.erofs":{"size":4,"modified":1,"inode":2,"sum":"` + "0000000000000000000000000000000000000000000000000000000000000000" + `"}}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		for path, sum := range depot.ParseSums(raw) {
			if !filepath.IsAbs(path) || len(sum) != 64 {
				t.Errorf("%q has the sum %q", path, sum)
			}
		}
	})
}
