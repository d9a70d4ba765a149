package lease_test

import (
	"context"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dozehq/doze/internal/lease"
)

func TestFile(t *testing.T) {
	t.Parallel()
	f := lease.File(filepath.Join(t.TempDir(), "lease"))
	if _, ok := f.Left(); ok {
		t.Error("there is a lease without a file")
	}
	for name, until := range map[string]time.Duration{"soon": time.Minute, "over": -time.Minute} {
		if err := f.Write(time.Now().Add(until)); err != nil {
			t.Fatal(err)
		}
		if left, ok := f.Left(); !ok || left > until || left < until-5*time.Second {
			t.Errorf("%s: %s are left, %t", name, left, ok)
		}
	}
	if err := f.Write(time.Time{}); err != nil {
		t.Fatal(err)
	}
	if _, ok := f.Left(); ok {
		t.Error("a lease for ever ends")
	}
	for _, damaged := range []string{"", "x", "99999999999999999999999", "1 2"} {
		if err := os.WriteFile(string(f), []byte(damaged), 0o600); err != nil {
			t.Fatal(err)
		}
		if left, ok := f.Left(); !ok || left > 0 {
			t.Errorf("%q leaves %s, %t", damaged, left, ok)
		}
	}
}

// TestGuard: a guard stops what runs when nobody renews, also when the holder is stopped
// itself.
func TestGuard(t *testing.T) {
	t.Parallel()
	f := lease.File(filepath.Join(t.TempDir(), "lease"))
	var stops atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	if err := f.Write(time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(done)
		lease.Guard(ctx, f, func(context.Context) error { stops.Add(1); return nil })
	}()
	time.Sleep(300 * time.Millisecond)
	if stops.Load() > 0 {
		t.Error("it stops what has a lease")
	}
	if err := f.Write(time.Now()); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); stops.Load() < 2; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it does not stop what has no lease")
		}
	}
	cancel()
	<-done
}
