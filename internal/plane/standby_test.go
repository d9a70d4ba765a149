package plane_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/instance"
	"github.com/dozehq/doze/internal/plane"
	"github.com/dozehq/doze/internal/quota"
	"github.com/dozehq/doze/internal/settings"
	"github.com/dozehq/doze/internal/testkit/postgres"
)

func TestMain(m *testing.M) { postgres.Main(m) }

// said is a log that tells when it has a text.
type said struct {
	mu   sync.Mutex
	text bytes.Buffer  // guarded by mu
	more chan struct{} // has room for one
}

// Write implements [io.Writer].
func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case s.more <- struct{}{}:
	default:
	}
	return s.text.Write(p)
}

// wait waits until the log has a text.
func (s *said) wait(ctx context.Context, t *testing.T, text string) {
	t.Helper()
	for {
		s.mu.Lock()
		has := strings.Contains(s.text.String(), text)
		s.mu.Unlock()
		if has {
			return
		}
		select {
		case <-s.more:
		case <-ctx.Done():
			t.Fatalf("nobody said %q: %s", text, s.text.String())
		}
	}
}

// TestStandby: a control waits while another one is active, and while the database is away. It
// takes over what it can read, and nothing else.
func TestStandby(t *testing.T) { //nolint:paralleltest // it reads the log of the process
	log := &said{more: make(chan struct{}, 1)}
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(log, nil)))
	t.Cleanup(func() { slog.SetDefault(before) })
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	database := postgres.Database(t)
	open := func(data string) (*plane.Plane, error) {
		s := settings.Settings{Data: data, Database: database, Standby: true}
		return plane.OpenWhenFree(ctx, s, quota.New(quota.Options{}))
	}
	one, other := t.TempDir(), t.TempDir()
	active, err := open(one)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := open(other); err == nil || !strings.Contains(err.Error(), "copy seal.key") {
		t.Errorf("a control with another key stands by: %v", err)
	}
	if _, err := os.Lstat(instance.SealFile(other)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the key that is of no use stays: %v", err)
	}
	impatient := settings.Settings{Data: other, Database: database}
	if _, err := plane.OpenWhenFree(ctx, impatient, quota.New(quota.Options{})); doze.Public(err).Kind != doze.Unavailable || !strings.Contains(err.Error(), "start this one with --standby") {
		t.Errorf("a control that does not stand by: %v", err)
	}
	if _, err := os.Lstat(instance.SealFile(other)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the key of a control that did not begin stays: %v", err)
	}
	key, err := os.ReadFile(instance.SealFile(one))
	if err == nil {
		err = os.WriteFile(instance.SealFile(other), key, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	type opened struct {
		*plane.Plane
		err error
	}
	next := make(chan opened, 1)
	go func() {
		p, err := open(other)
		next <- opened{p, err}
	}()
	log.wait(ctx, t, "another control is active")
	postgres.Refuse(t, database)
	log.wait(ctx, t, "out of reach")
	postgres.Admit(t, database)
	if err := active.Store.Own(ctx); err != nil { // unless the other one was first
		t.Log(err)
	}
	if err := active.Close(); err != nil {
		t.Fatal(err)
	}
	got := <-next
	if got.err != nil {
		t.Fatal(got.err)
	}
	if err := errors.Join(got.Store.Own(ctx), got.Close()); err != nil {
		t.Error(err)
	}
}
