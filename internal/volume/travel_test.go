package volume_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/volume"
)

// carry receives the volume v in a pool that another one lends.
func carry(t *testing.T, from, to *volume.Pool, epoch uint64) error {
	t.Helper()
	const id = "v"
	return from.Lend(t.Context(), id, func(_ context.Context, file string) error {
		source, err := os.Open(file)
		if err != nil {
			return err
		}
		defer func() { _ = source.Close() }()
		info, err := source.Stat()
		if err != nil {
			return err
		}
		return to.Receive(id, epoch, info.Size(), func(f *os.File) error {
			_, err := io.Copy(f, source)
			return err
		})
	})
}

func epochOf(t *testing.T, p *volume.Pool, id string) uint64 {
	t.Helper()
	epoch, err := p.Epoch(id)
	must(t, err)
	return epoch
}

// TestTravel: a volume is on another host as it was, and says since which epoch. One that is in
// use neither goes nor comes.
func TestTravel(t *testing.T) {
	t.Parallel()
	a, b := open(t, t.TempDir()), open(t, t.TempDir())
	ctx := t.Context()
	if epoch := epochOf(t, a, "v"); epoch != 0 {
		t.Errorf("a volume that is not there has the epoch %d", epoch)
	}
	must(t, a.Make(ctx, "v", 32, ""))
	at := attach(t, a, "v", "first", false)
	must(t, os.WriteFile(filepath.Join(at, "kept"), []byte("one"), 0o600))
	if err := carry(t, a, b, 3); kind(err) != doze.Unavailable {
		t.Errorf("a volume that somebody has goes: %v", err)
	}
	must(t, a.Detach("first"))
	must(t, carry(t, a, b, 3))
	if epochOf(t, a, "v") != volume.FirstEpoch || epochOf(t, b, "v") != 3 {
		t.Errorf("they have it in the epochs %d and %d", epochOf(t, a, "v"), epochOf(t, b, "v"))
	}
	at = attach(t, b, "v", "second", false)
	if raw, err := os.ReadFile(filepath.Join(at, "kept")); string(raw) != "one" {
		t.Errorf("on the other host it has %q: %v", raw, err)
	}
	must(t, os.WriteFile(filepath.Join(at, "kept"), []byte("two"), 0o600))
	if err := carry(t, a, b, 4); kind(err) != doze.Unavailable || epochOf(t, b, "v") != 3 {
		t.Errorf("what comes replaces what somebody has: %v", err)
	}
	must(t, b.Detach("second"))
	must(t, carry(t, b, a, 4))
	must(t, a.Evict("v", 4)) // it has that epoch
	must(t, b.Evict("v", 4))
	must(t, b.Evict("v", 4))
	if epochOf(t, a, "v") != 4 || epochOf(t, b, "v") != 0 {
		t.Errorf("in the end they have it in the epochs %d and %d", epochOf(t, a, "v"), epochOf(t, b, "v"))
	}
	at = attach(t, a, "v", "third", false)
	if raw, err := os.ReadFile(filepath.Join(at, "kept")); string(raw) != "two" {
		t.Errorf("back on the first host it has %q: %v", raw, err)
	}
}

// TestReceiveFails: after half a volume came, there is the one of before, with its epoch.
func TestReceiveFails(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := open(t, dir)
	must(t, p.Make(t.Context(), "v", 32, ""))
	cut := errors.New("the bucket does not answer")
	if err := p.Receive("v", 5, 64<<20, func(*os.File) error { return cut }); !errors.Is(err, cut) {
		t.Errorf("half a volume: %v", err)
	}
	if epochOf(t, p, "v") != volume.FirstEpoch {
		t.Errorf("its epoch is %d", epochOf(t, p, "v"))
	}
	if _, size, err := p.Measure("v"); err != nil || size != 32<<20 {
		t.Errorf("it has %d bytes: %v", size, err)
	}
	attach(t, p, "v", "owner", false)
	if err := p.Receive("new", 5, 64<<20, func(*os.File) error { return cut }); !errors.Is(err, cut) || epochOf(t, p, "new") != 0 {
		t.Errorf("half of a new one: %v", err)
	}
	full, err := volume.Open(dir, newLedger(16<<20))
	must(t, err)
	wrote := false
	if err := full.Receive("large", 5, 64<<20, func(*os.File) error { wrote = true; return nil }); kind(err) != doze.Exhausted || wrote {
		t.Errorf("one that has no room: %v", err)
	}
}

// TestLend: whoever wants a volume that is being read gets it at once, and what was noted of its
// copy holds no more.
func TestLend(t *testing.T) {
	t.Parallel()
	p := open(t, t.TempDir())
	must(t, p.Make(t.Context(), "v", 32, ""))
	must(t, p.Lend(t.Context(), "v", func(context.Context, string) error { return p.SetSaved("v", "as it is") }))
	if saved, err := p.Saved("v"); saved != "as it is" {
		t.Errorf("it is noted as %q: %v", saved, err)
	}
	reads, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- p.Lend(t.Context(), "v", func(ctx context.Context, _ string) error {
			close(reads)
			<-ctx.Done()
			return ctx.Err()
		})
	}()
	<-reads
	if err := p.Lend(t.Context(), "v", func(context.Context, string) error { return nil }); kind(err) != doze.Unavailable {
		t.Errorf("it is lent twice: %v", err)
	}
	attach(t, p, "v", "owner", false)
	if err := <-ended; kind(err) != doze.Unavailable {
		t.Errorf("the reader hears %v", err)
	}
	must(t, p.Detach("owner"))
	if saved, err := p.Saved("v"); saved != "" || err != nil {
		t.Errorf("after somebody had it, it is noted as %q: %v", saved, err)
	}
	if err := p.Lend(t.Context(), "none", func(context.Context, string) error { return nil }); kind(err) != doze.NotFound {
		t.Errorf("one that is not there is lent: %v", err)
	}
}
