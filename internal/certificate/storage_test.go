package certificate

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze/internal/seal"
	"github.com/dozehq/doze/internal/store"
)

func newTestStorage(t *testing.T) *storage {
	t.Helper()
	cipher, err := seal.New()
	if err != nil {
		t.Fatal(err)
	}
	records, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "doze.db"), cipher)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = records.Close() })
	return newStorage(records)
}

// TestStorage is what the library expects of it.
func TestStorage(t *testing.T) {
	t.Parallel()
	s, ctx := newTestStorage(t), t.Context()
	for _, key := range []string{"ca/sites/a/a.crt", "ca/sites/a/a.key", "ca/sites/ab/ab.crt", "ca/users/ü", "ca/last.json"} {
		for _, value := range []string{"before", key} { // the last one stays
			if err := s.Store(ctx, key, []byte(value)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, tt := range map[string]struct {
		dir       string
		recursive bool
		want      []string
	}{
		"directories":       {"ca", false, []string{"ca/last.json", "ca/sites", "ca/users"}},
		"with slashes":      {"/ca/sites/", false, []string{"ca/sites/a", "ca/sites/ab"}},
		"files":             {"ca/sites/a", false, []string{"ca/sites/a/a.crt", "ca/sites/a/a.key"}},
		"all below":         {"ca/sites", true, []string{"ca/sites/a/a.crt", "ca/sites/a/a.key", "ca/sites/ab/ab.crt"}},
		"not only ASCII":    {"ca/users", true, []string{"ca/users/ü"}},
		"what is not there": {"ca/site", true, nil},
	} {
		got, err := s.List(ctx, tt.dir, tt.recursive)
		if tt.want == nil && !errors.Is(err, fs.ErrNotExist) || tt.want != nil && err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	if got, err := s.Load(ctx, "ca/sites/a/a.crt"); err != nil || string(got) != "ca/sites/a/a.crt" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := s.Load(ctx, "ca/sites/a"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a directory: %v", err)
	}
	info, err := s.Stat(ctx, "ca/users/ü")
	if err != nil || !info.IsTerminal || info.Size != int64(len("ca/users/ü")) || time.Since(info.Modified) > time.Hour {
		t.Errorf("%+v, %v", info, err)
	}
	if info, err := s.Stat(ctx, "ca/sites"); err != nil || info.IsTerminal {
		t.Errorf("%+v, %v", info, err)
	}
	for _, key := range []string{"ca/sites/a", "ca/last.json", "ca/never"} {
		if err := s.Delete(ctx, key); err != nil || s.Exists(ctx, key) {
			t.Errorf("%s is still there, or %v", key, err)
		}
	}
	if !s.Exists(ctx, "ca/sites/ab/ab.crt") {
		t.Error("too much was deleted")
	}
}

func TestLocks(t *testing.T) {
	t.Parallel()
	s := newTestStorage(t)
	if err := s.Lock(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if err := s.Lock(t.Context(), "b"); err != nil {
		t.Errorf("another one: %v", err)
	}
	impatient, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Lock(impatient, "a"); !errors.Is(err, context.Canceled) {
		t.Errorf("one that is taken: %v", err)
	}
	got := make(chan error, 1)
	go func() { got <- s.Lock(t.Context(), "a") }()
	for range 2 { // the second has nothing to give up, or what the other just took
		if err := s.Unlock(t.Context(), "a"); err != nil {
			t.Error(err)
		}
	}
	if err := <-got; err != nil {
		t.Error(err)
	}
}
