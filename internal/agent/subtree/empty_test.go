package subtree

import (
	"context"
	"errors"
	"io"
	"os"
	"testing"
)

// stubborn is a directory that lists names for ever, whether they are there or not.
type stubborn struct {
	names []string
	ends  bool // at the end of its names; they begin again after a seek
	at    int
	seeks int
}

func (d *stubborn) Readdirnames(int) ([]string, error) {
	if d.ends && d.at > 0 {
		return nil, io.EOF
	}
	d.at++
	return d.names, nil
}

func (d *stubborn) Seek(int64, int) (int64, error) {
	d.at = 0
	d.seeks++
	return 0, nil
}

// TestEmptyEnds: a walk ends, whatever a file system lists.
func TestEmptyEnds(t *testing.T) {
	t.Parallel()
	there := map[string]bool{"a": true}
	remove := func(name string) (bool, error) {
		gone := there[name]
		delete(there, name)
		return gone, nil
	}
	old := &stubborn{names: []string{"a", "b"}, ends: true}
	if err := empty(old, "dir", remove); err != nil || old.seeks != 1 || len(there) > 0 {
		t.Errorf("one that lists what is gone: %v, after %d seeks", err, old.seeks)
	}
	if err := empty(&stubborn{names: []string{"a"}}, "dir", remove); !errors.Is(err, errStale) {
		t.Errorf("one that never ends: %v", err)
	}
}

// TestRemoveEndsWithItsCaller: what is left when nobody waits any more stays.
func TestRemoveEndsWithItsCaller(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.MkdirAll(dir+"/tree/sub", 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Remove(ctx, dir+"/tree"); !errors.Is(err, context.Canceled) {
		t.Errorf("without a caller: %v", err)
	}
	if _, err := os.Stat(dir + "/tree/sub"); err != nil {
		t.Error(err)
	}
}
