package checkup_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/checkup"
	"github.com/dozehq/doze/internal/doctor"
)

var findings = []doctor.Finding{
	{Check: "kernel", Text: "Linux"},
	{Check: "swap", Verdict: doctor.Advice, Text: "none", Remedy: "add some"},
	{Check: "disk", Verdict: doctor.Missing, Text: "noexec", Remedy: "choose another"},
}

// TestRead: callers at the same time share one look, and so do those of a minute.
func TestRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var looks atomic.Int32
		c := checkup.New("box", true, func() []doctor.Finding {
			time.Sleep(time.Second)
			looks.Add(1)
			return findings
		})
		var callers sync.WaitGroup
		for range 20 {
			callers.Go(func() {
				got, err := c.Read(t.Context())
				if err != nil || got.Host != "box" || !got.Sandboxes || len(got.Findings) != 2 ||
					got.Findings[0] != (doze.Finding{Name: "swap", Severity: "warning", Found: "none", Remedy: "add some"}) ||
					got.Findings[1].Severity != "error" {
					t.Errorf("%+v, %v", got, err)
				}
			})
		}
		callers.Wait()
		read := func(wait time.Duration, want int32) {
			t.Helper()
			time.Sleep(wait)
			if _, err := c.Read(t.Context()); err != nil || looks.Load() != want {
				t.Errorf("after %v: %d looks, %v", wait, looks.Load(), err)
			}
		}
		read(0, 1)
		read(59*time.Second, 1)
		read(2*time.Second, 2)
	})
}

// TestReadOfAHungHost: a look that does not end keeps nobody for long, and is the only one.
func TestReadOfAHungHost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		answers, looks := make(chan struct{}), 0
		c := checkup.New("", true, func() []doctor.Finding {
			looks++
			<-answers
			return findings
		})
		for range 2 {
			began := time.Now()
			if _, err := c.Read(t.Context()); doze.Public(err).Kind != doze.Unavailable || time.Since(began) > 5*time.Second {
				t.Errorf("%v after %v", err, time.Since(began))
			}
		}
		gone, leave := context.WithCancel(t.Context())
		leave()
		if _, err := c.Read(gone); !errors.Is(err, context.Canceled) {
			t.Errorf("a caller who left gets %v", err)
		}
		answers <- struct{}{}
		synctest.Wait()
		first, err := c.Read(t.Context())
		if err != nil || looks != 1 {
			t.Fatalf("%d looks, %v", looks, err)
		}
		time.Sleep(2 * time.Minute)
		second, err := c.Read(t.Context()) // the next look hangs
		if err != nil || second.CheckedAt != first.CheckedAt || looks != 2 {
			t.Errorf("%v, %v, %d looks", second.CheckedAt, err, looks)
		}
		answers <- struct{}{}
	})
}
