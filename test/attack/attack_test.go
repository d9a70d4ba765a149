// Package attack_test attacks a running platform: as an outsider without a key,
// as a tenant with a key of its own workspace, and from inside a sandbox. A victim
// in another workspace works all the while.
//
// What must hold during each attack: 99 of 100 requests of the victim are
// answered within [victimP99], on a machine that does nothing else; dozed stays under [dozedMax], and the victim's
// sandbox loses no process and no byte. Within [giveBack] after an attack, its
// descriptors and its memory are given back.
package attack_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"
)

// The promises.
const (
	victimP99 = 100 * time.Millisecond
	dozedMax  = 300 << 20
	giveBack  = 10 * time.Second
)

// busyP99 takes the place of victimP99 in make test, whose machine may be any: nobody
// is locked out. There this package runs alone, after all others.
const busyP99 = 3 * time.Second

const (
	shortTime = 3 * time.Second  // of one attack in make test
	wholeTime = 20 * time.Second // of one attack in make attack
	// extra is how many descriptors dozed may have more than before an attack:
	// connections of the victim and of its own that are kept alive.
	extra = 40
	// noise is how much memory dozed may have more than before an attack: what
	// Go's runtime keeps for later, and what limits remember about sources.
	noise = 64 << 20
	poll  = 100 * time.Millisecond
)

var (
	all  = flag.Bool("all", false, "every attack for 20 seconds, and not for 3")
	only = flag.String("only", "", "the attacks whose names contain this `text`")
)

// attack is one row of the table.
type attack struct {
	by   string // outsider, tenant or guest
	name string
	// run attacks until ctx ends or nothing is left to do, and fails the test if
	// the platform lets it do what it must not.
	run func(ctx context.Context, t *testing.T, w *world)
}

var attacks = slices.Concat(outsiders, tenants, guests)

// TestTable looks for attacks that cannot be told apart.
func TestTable(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, a := range attacks {
		if seen[a.name] {
			t.Errorf("two attacks are called %q", a.name)
		}
		seen[a.name] = true
	}
}

// TestAttack runs the table, one attack after the other, against one platform.
func TestAttack(t *testing.T) {
	if testing.Short() || os.Getuid() != 0 {
		t.Skip("SKIPPED: real sandboxes need root and time")
	}
	raise(t)
	w := newWorld(t)
	length := shortTime
	if *all {
		length = wholeTime
	}
	var report strings.Builder
	table := tabwriter.NewWriter(&report, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "by\tattack\tattempts\trefused\tvictim's requests\tp50\tp99\tmax\tdozed\tback after")
	for _, a := range attacks {
		if !strings.Contains(a.by+" "+a.name, *only) {
			continue
		}
		t.Run(a.by+" "+a.name, func(t *testing.T) {
			once := func() *watched {
				w.tried, w.refused = atomic.Int64{}, atomic.Int64{}
				before := w.cost(t)
				ctx, cancel := context.WithTimeout(t.Context(), length)
				defer cancel()
				watch := w.watch(t)
				a.run(ctx, t, w)
				seen := watch()
				back := w.settle(t, before)
				fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%d\t%v\t%v\t%v\t%d MB\t%v\n", a.by, a.name, w.tried.Load(), w.refused.Load(),
					len(seen.Took), seen.quantile(0.5), seen.quantile(0.99), seen.quantile(1), seen.Memory>>20, back.Round(poll))
				return seen
			}
			seen := once()
			if !*all && seen.quantile(0.99) > busyP99 {
				// What shares the host can stop it for seconds, too. What an attack does,
				// it does again.
				t.Logf("the victim's p99 is %v (%s): once more", seen.quantile(0.99), seen.slowness())
				seen.sound(t)
				seen = once()
			}
			seen.judge(t)
		})
	}
	if err := table.Flush(); err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + report.String())
}

// raise lets this process have as many sockets as the host allows.
func raise(t *testing.T) {
	t.Helper()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	limit.Cur = limit.Max
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
}

// cost is what dozed takes of the host.
type cost struct {
	memory      int64 // resident bytes
	descriptors int
}

func (w *world) cost(t *testing.T) cost {
	t.Helper()
	memory, err := resident(w.PID())
	if err != nil {
		t.Fatal(err)
	}
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", w.PID()))
	if err != nil {
		t.Fatal(err)
	}
	return cost{memory, len(open)}
}

// resident returns the bytes of memory that a process has in RAM.
func resident(pid int) (int64, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, err
	}
	var size, pages int64
	if _, err := fmt.Sscan(string(raw), &size, &pages); err != nil {
		return 0, fmt.Errorf("/proc/%d/statm is %q: %w", pid, raw, err)
	}
	return pages * int64(os.Getpagesize()), nil
}

// settle waits until what an attack took is given back, and returns how long
// that was.
func (w *world) settle(t *testing.T, before cost) time.Duration {
	t.Helper()
	began := time.Now()
	for {
		now := w.cost(t)
		took := time.Since(began)
		switch {
		case now.descriptors <= before.descriptors+extra && now.memory <= max(before.memory, dozedMax/3)+noise:
			return took
		case took > giveBack:
			t.Errorf("%v after the attack, dozed has %d descriptors and %d MB; it had %d and %d MB before",
				giveBack, now.descriptors, now.memory>>20, before.descriptors, before.memory>>20)
			return took
		}
		time.Sleep(poll)
	}
}

// from is a dialer whose connections come from the i-th address of a network of
// attackers. All of it is the loopback interface.
func from(i int) *net.Dialer {
	a := netip.AddrFrom4([4]byte{127, 66, byte(i >> 8), byte(i)})
	return &net.Dialer{Timeout: dialTime, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(a, 0))}
}

// elsewhere carries the requests of a tenant from an address that the victim does
// not share.
var elsewhere = &http.Transport{DialContext: from(tenantAddress).DialContext}

// tenantAddress is far from those of outsiders.
const tenantAddress = 1 << 15

// cut reports whether an error says that the other side ended a connection, or
// refused it.
func cut(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNREFUSED)
}
