package e2e_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/testkit"
)

// stranger connects from one of many sources.
func stranger(t *testing.T, p *testkit.Platform, i int) (net.Conn, error) {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 77, byte(i>>8), byte(i))}, Timeout: 10 * time.Second}
	return d.DialContext(t.Context(), "tcp", strings.TrimPrefix(p.Address, "http://"))
}

// resident is the memory of dozed in bytes, and files its descriptors.
func resident(t *testing.T, p *testkit.Platform) (bytes int64) {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.PID()))
	if err != nil {
		t.Fatal(err)
	}
	var size, pages int64
	if _, err := fmt.Sscan(string(raw), &size, &pages); err != nil {
		t.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}

func files(t *testing.T, p *testkit.Platform) int {
	t.Helper()
	all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.PID()))
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// TestStrangers attacks dozed with headers and with bodies that do not end. The
// memory of dozed stays small, another caller does not notice, and all that the
// attack took is given back.
func TestStrangers(t *testing.T) {
	p, c := start(t, "--warm-pool", "0", "--key-requests", "0")
	if _, err := c.Sandbox(t.Context(), "none"); doze.Public(err).Kind != doze.NotFound {
		t.Fatal(err)
	}
	before, filesBefore := resident(t, p), files(t, p)

	t.Run("headers", func(t *testing.T) {
		const sockets, limit = 200, 150 << 20
		var flood strings.Builder
		flood.WriteString("GET / HTTP/1.1\r\n")
		for i := 0; flood.Len() < 1<<20; i++ {
			fmt.Fprintf(&flood, "%x:\n", i)
		}
		var senders sync.WaitGroup
		for i := range sockets {
			s, err := stranger(t, p, i%20)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			senders.Go(func() {
				_ = s.SetDeadline(time.Now().Add(20 * time.Second))
				_, _ = io.Copy(struct{ io.Writer }{s}, strings.NewReader(flood.String()))
				_, _ = io.Copy(io.Discard, s)
			})
		}
		sent := make(chan struct{})
		go func() { senders.Wait(); close(sent) }()
		most := resident(t, p)
		for done := false; !done; most = max(most, resident(t, p)) {
			select {
			case <-sent:
				done = true
			case <-time.After(20 * time.Millisecond):
			}
		}
		t.Logf("dozed takes %d MB, and %d MB at most under the attack", before>>20, most>>20)
		if most > limit {
			t.Errorf("%d MB, want at most %d", most>>20, limit>>20)
		}
	})

	t.Run("bodies", func(t *testing.T) {
		const sockets, sources = 9000, 1000 // more than dozed has room for
		victim := func() time.Duration {
			var took []time.Duration
			for range 200 {
				began := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				if _, err := c.Sandbox(ctx, "none"); doze.Public(err).Kind != doze.NotFound {
					t.Errorf("a caller: %v", err)
				}
				cancel()
				fresh := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
				resp, err := fresh.Get(p.Address + "/health")
				if err != nil {
					t.Errorf("a newcomer: %v", err)
				} else {
					_ = resp.Body.Close()
				}
				took = append(took, time.Since(began))
			}
			slices.Sort(took)
			return took[len(took)*99/100]
		}
		calm := victim()
		var attack []net.Conn
		for i := range sockets {
			s, err := stranger(t, p, i%sources)
			if err != nil {
				continue // it has no room
			}
			attack = append(attack, s)
			_, _ = fmt.Fprintf(s, "POST /v0/sandboxes HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: 1000\r\n\r\n", p.Key)
		}
		hurt := victim()
		t.Logf("p99 of two calls: %v, and %v under %d sockets; dozed takes %d MB and %d descriptors", calm, hurt, len(attack), resident(t, p)>>20, files(t, p))
		if most := max(200*time.Millisecond, 20*calm); hurt > most {
			t.Errorf("p99 %v, want at most %v", hurt, most)
		}
		for _, s := range attack {
			_ = s.Close()
		}
		end := time.Now().Add(10 * time.Second)
		for files(t, p) > filesBefore+20 || resident(t, p) > before+64<<20 {
			if time.Now().After(end) {
				t.Fatalf("10 s after the attack dozed takes %d descriptors and %d MB, before it %d and %d", files(t, p), resident(t, p)>>20, filesBefore, before>>20)
			}
			time.Sleep(100 * time.Millisecond)
		}
		t.Logf("%v after it dozed takes %d MB and %d descriptors", 10*time.Second-time.Until(end), resident(t, p)>>20, files(t, p))
	})
}
