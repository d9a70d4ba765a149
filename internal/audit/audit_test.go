package audit_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/audit"
)

// shelf keeps lines in memory.
type shelf struct {
	mu    sync.Mutex
	fail  error
	last  string
	lines []audit.Record
	calls int
	trims []map[audit.Shelf]int
	slow  time.Duration
}

func (s *shelf) WriteAudit(ctx context.Context, add []audit.Record, settle []doze.AuditLine) error {
	time.Sleep(s.slow)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	if s.fail != nil {
		return s.fail
	}
	s.lines = append(s.lines, add...)
	for _, l := range settle {
		for i := range s.lines {
			if s.lines[i].ID == l.ID {
				s.lines[i].AuditLine = l
			}
		}
	}
	return ctx.Err()
}

func (s *shelf) LastAudit(context.Context) (string, error) { return s.last, nil }

func (s *shelf) TrimAudit(_ context.Context, _ time.Time, full map[audit.Shelf]int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trims = append(s.trims, full)
	return nil
}

func line(action string) doze.AuditLine {
	return doze.AuditLine{Workspace: "w", Action: action, Outcome: doze.AuditDenied}
}

// TestLinesShareTransactions: a slow disk is written to once for all that came
// meanwhile.
func TestLinesShareTransactions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &shelf{slow: 10 * time.Millisecond}
		j := audit.New(s, time.Hour)
		var all sync.WaitGroup
		for n := range 100 {
			all.Go(func() {
				e := &audit.Entry{AuditLine: line(fmt.Sprint(n))}
				if err := j.Begin(t.Context(), e); err != nil || !e.Begun || e.ID == "" {
					t.Errorf("%+v, %v", e, err)
				}
				e.Outcome = doze.AuditDone
				j.Settle(e)
			})
		}
		all.Wait()
		if err := j.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		if s.calls > 4 || len(s.lines) != 100 {
			t.Errorf("%d transactions for %d lines", s.calls, len(s.lines))
		}
		last := ""
		for _, l := range s.lines {
			if l.ID <= last || l.Outcome != doze.AuditDone {
				t.Errorf("%+v after %s", l, last)
			}
			last = l.ID
		}
	})
}

// TestIDsGrow: also when the clock was set back, over a start.
func TestIDsGrow(t *testing.T) {
	t.Parallel()
	s := &shelf{last: "00ffffffffffff00"}
	if err := audit.New(s, time.Hour).Write(t.Context(), line("a"), audit.Change); err != nil || s.lines[0].ID != "00ffffffffffff01" {
		t.Errorf("%+v, %v", s.lines, err)
	}
}

// TestWithoutRecords: nothing begins, and what waits is written later.
func TestWithoutRecords(t *testing.T) {
	t.Parallel()
	s := &shelf{fail: errors.New("on fire")}
	j := audit.New(s, time.Hour)
	j.Note(line("kept"), audit.Denial)
	e := &audit.Entry{AuditLine: line("refused")}
	if err := j.Begin(t.Context(), e); doze.Public(err).Kind != doze.Unavailable || e.Begun {
		t.Errorf("%+v, %v", e, err)
	}
	s.fail = nil
	if err := j.Flush(t.Context()); err != nil || len(s.lines) != 1 || s.lines[0].Action != "kept" {
		t.Errorf("%+v, %v", s.lines, err)
	}
}

// TestManySources: what all strangers together get is bounded, and each request is
// counted.
func TestManySources(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &shelf{}
		j := audit.New(s, time.Hour)
		ctx, stop := context.WithCancel(t.Context())
		var run sync.WaitGroup
		run.Go(func() { _ = j.Run(ctx) })
		const each, sources = 100, 5000
		for n := range sources {
			from := netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)})
			for range each {
				j.Tell(line("x"), netip.PrefixFrom(from, 32), audit.Stranger)
			}
		}
		stop()
		run.Wait()
		total := 0
		for _, l := range s.lines {
			total += max(1, l.Count)
		}
		if total != each*sources || len(s.lines) > 1000+100+10 {
			t.Errorf("%d lines count %d requests", len(s.lines), total)
		}
	})
}

// TestLinesAreBounded: whatever a caller sends.
func TestLinesAreBounded(t *testing.T) {
	t.Parallel()
	s := &shelf{}
	long := strings.Repeat("é\x00\xff", 10_000)
	l := doze.AuditLine{Action: long, Object: doze.AuditObject{Name: long, Kind: long}, ClientRequestID: long, Detail: long, Error: long, Source: long}
	if err := audit.New(s, time.Hour).Write(t.Context(), l, audit.Change); err != nil {
		t.Fatal(err)
	}
	if got := s.lines[0]; len(fmt.Sprintf("%+v", got)) > 2048 || strings.ContainsRune(got.Object.Name, 0) {
		t.Errorf("%d bytes", len(fmt.Sprintf("%+v", got)))
	}
}

// TestGrownShelvesAreTrimmed: after a thousand lines, and not at each.
func TestGrownShelvesAreTrimmed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &shelf{}
		j := audit.New(s, time.Hour)
		ctx, stop := context.WithCancel(t.Context())
		var run sync.WaitGroup
		run.Go(func() { _ = j.Run(ctx) })
		time.Sleep(2 * time.Second)
		for range 1000 {
			j.Note(line("x"), audit.System)
		}
		time.Sleep(5 * time.Second)
		stop()
		run.Wait()
		if len(s.trims) != 2 || s.trims[1][audit.Shelf{Workspace: "w", Class: audit.System}] != 20_000 {
			t.Errorf("%+v", s.trims)
		}
	})
}
