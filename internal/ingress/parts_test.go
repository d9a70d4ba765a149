package ingress

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze/internal/ratelimit"
)

func TestResolve(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		set                           Limits
		files                         int
		connections, source, loopback int
	}{
		"much room":          {Limits{}, 1 << 20, connectionsMax, perSourceMax, connectionsMax / 2},
		"20,000 descriptors": {Limits{}, 20000, (20000 - 4096) / 2, perSourceMax, (20000 - 4096) / 4},
		"1,024 descriptors":  {Limits{}, 1024, (1024 - 256) / 2, 192, 192},
		"none":               {Limits{}, 3, 1, 1, 1},
		"an operator's":      {Limits{Connections: 10000, PerSource: 9}, 1024, 10000, 9, 9},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := tt.set.resolve(tt.files)
			if l.Connections != tt.connections || l.PerSource != tt.source || l.perLocal != tt.loopback {
				t.Errorf("%+v", l)
			}
			if l.Header != DefaultHeader || l.BodyIdle != DefaultBodyIdle || l.WriteStall != DefaultWriteStall {
				t.Errorf("times: %+v", l)
			}
		})
	}
}

func TestParseRate(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Rate{
		"": {}, "off": {off: true}, "100": {limit: ratelimit.Limit{PerSecond: 100, Burst: 500}},
		"0.1": {limit: ratelimit.Limit{PerSecond: 0.1, Burst: 1}}, "2:7": {limit: ratelimit.Limit{PerSecond: 2, Burst: 7}},
	} {
		if got, err := ParseRate(text); err != nil || got != want {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"0", "-1", "NaN", "Inf", "1e300", "x", "1:", "1:0", "1:x", "1:2:3", "off:1", ":5"} {
		if got, err := ParseRate(text); err == nil {
			t.Errorf("%q is %+v", text, got)
		}
	}
}

// TestRoster: a source with few connections finds room at the cost of one with
// many, and never the other way round.
func TestRoster(t *testing.T) {
	t.Parallel()
	attacker, other, victim, local := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("127.0.0.1")
	ro := newRoster(Limits{Connections: 6, PerSource: 4, perLocal: 5})
	join := func(from netip.Addr, trusted, scarce bool) (c, evict *conn, why reason, ok bool) {
		c = &conn{}
		evict, why, ok = ro.add(c, from, trusted, scarce)
		return c, evict, why, ok
	}
	for range 4 {
		if _, evict, _, ok := join(attacker, false, false); !ok || evict != nil {
			t.Fatal("there is room")
		}
	}
	if _, _, why, ok := join(attacker, false, false); ok || why != crowdedSource {
		t.Errorf("a fifth one: %v", why)
	}
	if _, _, why, ok := join(netip.MustParseAddr("::ffff:192.0.2.1").Unmap(), false, false); ok || why != crowdedSource {
		t.Errorf("the same in another form: %v", why)
	}
	first, _, _, _ := join(other, false, false)
	join(other, false, false)
	own, evict, _, ok := join(victim, false, false)
	if !ok || evict == nil || evict.source.network.Addr() != attacker {
		t.Errorf("a newcomer got no room: %v, %+v", ok, evict)
	}
	if _, evict, _, ok := join(netip.MustParseAddr("2001:db8::2"), false, false); !ok || evict.source.network.Addr() != attacker {
		t.Error("the second one of a network costs the largest source")
	}
	// Now each has two, and nobody more than another would have.
	if _, _, why, ok := join(attacker, false, false); ok || why != noRoom {
		t.Errorf("the attacker pushed somebody out: %v", why)
	}
	ro.remove(first)
	ro.remove(first)
	if n := ro.len(); n != 5 {
		t.Errorf("%d are left, want 5", n)
	}
	if _, _, _, ok := join(local, true, false); !ok || ro.sources[netip.MustParsePrefix("127.0.0.1/32")] != nil {
		t.Error("a trusted proxy counts as a source")
	}
	ro.remove(own)
	if _, _, why, ok := join(local, false, true); !ok {
		t.Errorf("without descriptors a newcomer should take the place of the attacker: %v", why)
	}
	if _, _, why, ok := join(attacker, false, true); ok || why != noDescriptor {
		t.Errorf("without descriptors the attacker got room: %v", why)
	}
}

// TestRosterProtectsBusy: a request that waits for nothing of its client is not cut.
func TestRosterProtectsBusy(t *testing.T) {
	t.Parallel()
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	ro := newRoster(Limits{Connections: 3, PerSource: 3, perLocal: 3})
	var busy []*conn
	for range 3 {
		c := &conn{}
		c.active.Store(1)
		busy = append(busy, c)
		ro.add(c, a, false, false)
	}
	if evict, why, ok := ro.add(&conn{}, b, false, false); ok || why != noRoom {
		t.Errorf("%+v was cut", evict)
	}
	busy[1].waiting.Store(1)
	if evict, _, ok := ro.add(&conn{}, b, false, false); !ok || evict != busy[1] {
		t.Errorf("the one that waits for its client stays")
	}
}

// TestRosterForgets adds and removes in all orders, and compares with counting.
func TestRosterForgets(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	ro := newRoster(Limits{Connections: 40, PerSource: 12, perLocal: 12})
	here := map[*conn]netip.Addr{}
	for range 20000 {
		if r.IntN(2) == 0 {
			c, from := &conn{}, netip.AddrFrom4([4]byte{192, 0, 2, byte(r.IntN(9))})
			evict, _, ok := ro.add(c, from, false, false)
			delete(here, evict)
			if ok {
				here[c] = from
			}
		} else {
			for c := range here {
				ro.remove(c)
				delete(here, c)
				break
			}
		}
		counts := map[netip.Addr]int{}
		most := 0
		for _, from := range here {
			counts[from]++
			most = max(most, counts[from])
		}
		if ro.total != len(here) || len(ro.sources) != len(counts) || ro.top != most {
			t.Fatalf("total %d, sources %d, top %d; want %d, %d, %d", ro.total, len(ro.sources), ro.top, len(here), len(counts), most)
		}
		levels := 0
		for n, of := range ro.levels {
			for s := range of {
				if levels++; len(s.conns) != n || counts[s.network.Addr()] != n {
					t.Fatalf("a source with %d connections is among those with %d", len(s.conns), n)
				}
			}
		}
		if levels != len(counts) {
			t.Fatalf("%d sources have a level, want %d", levels, len(counts))
		}
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for r, name := range names {
		if name == "" || seen[name] {
			t.Errorf("reason %d is called %q", r, name)
		}
		seen[name] = true
	}
	in := &Ingress{roster: newRoster(Limits{})}
	c := in.Counts()
	if len(c.Refused)+len(c.Requests) != int(reasons) || len(c.Requests) != len(ofRequests) {
		t.Errorf("%+v", c)
	}
}

func TestOrigin(t *testing.T) {
	t.Parallel()
	in := &Ingress{limits: Limits{Proxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}}}
	for name, tt := range map[string]struct {
		fields []string
		want   string
	}{
		"one":                     {[]string{"192.0.2.1"}, "192.0.2.1"},
		"forged on the left":      {[]string{"198.51.100.7, 192.0.2.1"}, "192.0.2.1"},
		"through two proxies":     {[]string{"198.51.100.7, 192.0.2.1,10.1.2.3"}, "192.0.2.1"},
		"several fields":          {[]string{"198.51.100.7", "192.0.2.1", "10.1.2.3, fd00::1"}, "192.0.2.1"},
		"from inside":             {[]string{"10.9.9.9, 10.1.2.3"}, "10.9.9.9"},
		"with a port":             {[]string{"192.0.2.1:4711"}, "192.0.2.1"},
		"IPv6 with a port":        {[]string{"[2001:db8::1]:4711"}, "2001:db8::1"},
		"IPv6 in brackets":        {[]string{" [2001:db8::1] "}, "2001:db8::1"},
		"IPv6 with a zone":        {[]string{"fe80::1%eth0"}, "fe80::1"},
		"IPv4 in IPv6":            {[]string{"::ffff:192.0.2.1"}, "192.0.2.1"},
		"no address":              {[]string{"unknown"}, ""},
		"no address on the left":  {[]string{"unknown, 10.1.2.3"}, "10.1.2.3"},
		"no address on the right": {[]string{"192.0.2.1, unknown"}, ""},
		"an empty entry":          {[]string{"192.0.2.1,,10.1.2.3"}, "10.1.2.3"},
		"nothing":                 {nil, ""},
		"empty":                   {[]string{""}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want, _ := netip.ParseAddr(tt.want)
			if got := in.origin(tt.fields); got != want {
				t.Errorf("%v, want %v", got, want)
			}
		})
	}
}

// FuzzOrigin: what a stranger writes to the left of what a trusted proxy adds
// changes nothing.
func FuzzOrigin(f *testing.F) {
	for _, s := range []string{"", "1.2.3.4", ",", "10.0.0.1, 10.0.0.2", "[::1]:80", "x\x00,::", strings.Repeat("10.0.0.1,", 100)} {
		f.Add(s)
	}
	in := &Ingress{limits: Limits{Proxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}}
	const added = "192.0.2.1"
	want := netip.MustParseAddr(added)
	f.Fuzz(func(t *testing.T, forged string) {
		for _, fields := range [][]string{{forged, added}, {forged + "," + added}, {forged + ", " + added + " ,10.0.0.9"}, {forged, added, "10.0.0.9"}} {
			if got := in.origin(fields); got != want {
				t.Errorf("%q: %v", fields, got)
			}
		}
		if a := in.origin([]string{forged}); a.IsValid() && (a.Zone() != "" || a.Is4In6()) {
			t.Errorf("%q: %v is not in the form of httpx.Source", forged, a)
		}
	})
}

// scanned is what a guard says of pieces, and whether it is off then.
func scanned(pieces ...string) (fine, off bool) {
	g := &guard{}
	for _, p := range pieces {
		if !g.scan([]byte(p)) {
			return false, false
		}
		if g.off.Load() {
			return true, true
		}
	}
	return true, false
}

func TestScan(t *testing.T) {
	t.Parallel()
	fields := func(n int, end string) string { return "GET / HTTP/1.1" + end + strings.Repeat("a:"+end, n) }
	for name, tt := range map[string]struct {
		text      string
		fine, off bool
	}{
		"whole header":         {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", true, true},
		"bare line feeds":      {"GET / HTTP/1.1\nHost: x\n\n", true, true},
		"with a body of lines": {"POST / HTTP/1.1\r\nHost: x\r\n\r\n" + strings.Repeat("\n", 5000), true, true},
		"as many as there may": {fields(fieldsMax, "\r\n"), true, false},
		"one more":             {fields(fieldsMax+1, "\r\n"), false, false},
		"one more, and bare":   {fields(fieldsMax+1, "\n"), false, false},
		"one more, and an end": {fields(fieldsMax+1, "\r\n") + "\r\n", false, false},
		"folded":               {"GET / HTTP/1.1\r\n" + strings.Repeat(" x\r\n", fieldsMax+1), false, false},
		"HTTP/2":               {preface + strings.Repeat("\n", 5000), true, true},
		"almost HTTP/2":        {strings.TrimSuffix(preface, "\n") + "x" + fields(fieldsMax+1, "\n"), true, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if fine, off := scanned(tt.text); fine != tt.fine || off != tt.off {
				t.Errorf("at once: %v, %v", fine, off)
			}
			if fine, off := scanned(strings.Split(tt.text, "")...); fine != tt.fine || off != tt.off {
				t.Errorf("byte by byte: %v, %v", fine, off)
			}
		})
	}
}

// FuzzScan: where the network cuts a header makes no difference.
func FuzzScan(f *testing.F) {
	f.Add("GET / HTTP/1.1\r\nHost: x\r\n\r\nbody", 3, 7)
	f.Add(preface+"\n\n\n", 5, 20)
	f.Add(strings.Repeat("a\n", 300), 2, 299)
	f.Add("a\r\r\n\r\n", 2, 4)
	f.Fuzz(func(t *testing.T, text string, i, j int) {
		cut := []int{min(max(i, 0), len(text)), min(max(j, 0), len(text))}
		slices.Sort(cut)
		type verdict struct{ Fine, Off bool }
		var whole, pieces, each verdict
		whole.Fine, whole.Off = scanned(text)
		pieces.Fine, pieces.Off = scanned(text[:cut[0]], text[cut[0]:cut[1]], text[cut[1]:])
		var bytes []string
		for k := range len(text) {
			bytes = append(bytes, text[k:k+1])
		}
		each.Fine, each.Off = scanned(bytes...)
		if diff := cmp.Diff(whole, pieces); diff != "" {
			t.Errorf("%q, cut at %v: %s", text, cut, diff)
		}
		if diff := cmp.Diff(whole, each); diff != "" {
			t.Errorf("%q, byte by byte: %s", text, diff)
		}
	})
}
