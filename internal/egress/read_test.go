package egress

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/testkit/dnstest"
)

// hello is the ClientHello of a client of TLS.
func hello(tb testing.TB, c *tls.Config) []byte {
	tb.Helper()
	here, there := net.Pipe()
	defer here.Close()
	defer there.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = tls.Client(there, c).HandshakeContext(tb.Context()) // nobody answers
	}()
	b := make([]byte, headMax)
	n, err := here.Read(b)
	if err != nil {
		tb.Fatal(err)
	}
	here.Close()
	<-done
	return b[:n]
}

// split puts a record into several of a size.
func split(record []byte, size int) (out []byte) {
	for body := record[recordHeader:]; len(body) > 0; {
		n := min(size, len(body))
		out = append(out, recordHandshake, 3, 1, byte(n>>8), byte(n))
		out = append(out, body[:n]...)
		body = body[n:]
	}
	return out
}

func TestServerName(t *testing.T) {
	t.Parallel()
	plain := hello(t, &tls.Config{ServerName: "a.example.com"})
	for name, tt := range map[string]struct {
		in   []byte
		want string
		more bool
		bad  bool
	}{
		"a name":               {plain, "a.example.com", false, false},
		"and more behind it":   {append(bytes.Clone(plain), "more"...), "a.example.com", false, false},
		"small records":        {split(plain, 3), "a.example.com", false, false},
		"old TLS":              {hello(t, &tls.Config{ServerName: "a.example.com", MaxVersion: tls.VersionTLS12}), "a.example.com", false, false},
		"no name":              {hello(t, &tls.Config{InsecureSkipVerify: true}), "", false, false},
		"nothing":              {nil, "", true, false},
		"half":                 {plain[:len(plain)/2], "", true, false},
		"a name that is twice": {twice(plain), "", false, true},
		"no handshake":         {append([]byte{23}, plain[1:]...), "", false, true},
		"another message":      {append(append(bytes.Clone(plain[:5]), 2), plain[6:]...), "", false, true},
		"an empty record":      {[]byte{22, 3, 1, 0, 0}, "", false, true},
		"too long":             {[]byte{22, 3, 1, 0, 4, 1, 255, 255, 255}, "", false, true},
		"cut off inside":       {[]byte{22, 3, 1, 0, 6, 1, 0, 0, 2, 3, 3}, "", false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, more, err := serverName(tt.in)
			if got != tt.want || more != tt.more || err != nil != tt.bad {
				t.Errorf("%q, %v, %v; want %q, %v, %v", got, more, err, tt.want, tt.more, tt.bad)
			}
		})
	}
}

// twice adds another name to that of a ClientHello.
func twice(record []byte) []byte {
	list := []byte("\x00\x10\x00\x00\x0da.example.com")
	more := []byte("\x00\x10\x00\x00\x0db.example.com")
	out := bytes.Clone(record)
	at := bytes.Index(out, list)
	// The list of names is longer by one name, and so are its extension, all
	// extensions, the message and the record.
	grown := append(bytes.Clone(out[:at+len(list)]), more[2:]...)
	grown = append(grown, out[at+len(list):]...)
	add := func(i int) {
		n := int(grown[i])<<8 | int(grown[i+1])
		n += len(more) - 2
		grown[i], grown[i+1] = byte(n>>8), byte(n)
	}
	add(at)
	add(at - 2)
	r := reader(out[recordHeader+handshakeHeader:])
	before := len(r)
	r.skip(34)
	r.skip(int(r.uint8()))
	r.skip(int(r.uint16()))
	r.skip(int(r.uint8()))
	add(recordHeader + handshakeHeader + before - len(r))
	add(7)
	add(3)
	return grown
}

func FuzzServerName(f *testing.F) {
	plain := hello(f, &tls.Config{ServerName: "a.example.com"})
	f.Add(plain)
	f.Add(split(plain, 7))
	f.Fuzz(func(t *testing.T, b []byte) {
		name, more, err := serverName(b)
		if more && err != nil || err != nil && name != "" {
			t.Errorf("%q, %v, %v", name, more, err)
		}
		if more || err != nil {
			return
		}
		// What comes behind it changes nothing.
		if again, more, err := serverName(append(bytes.Clone(b), 22, 3, 1, 0, 1, 1)); again != name || more || err != nil {
			t.Errorf("%q, and then %q, %v, %v", name, again, more, err)
		}
	})
}

func TestClassify(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]struct {
		kind kind
		more bool
	}{
		"":                                     {kindOther, true},
		"GET":                                  {kindOther, true},
		"GET ":                                 {kindHTTP, false},
		"PROPFIND / HTTP/1.1\r\n":              {kindHTTP, false},
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n":     {kindOther, false},
		"SSH-2.0-OpenSSH":                      {kindOther, false},
		" GET":                                 {kindOther, false},
		"\x16\x03\x01":                         {kindOther, true},
		"\x16\x02\x01\x00\x05":                 {kindOther, false},
		strings.Repeat("A", methodMax+1) + " ": {kindOther, false},
	} {
		if got, _, more := classify([]byte(in)); got != want.kind || more != want.more {
			t.Errorf("%q is %d, %v", in, got, more)
		}
	}
}

func TestAuthority(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"A.Example.com.":      "a.example.com 80",
		"a.example.com:8443":  "a.example.com 8443",
		"1.2.3.4":             "1.2.3.4 80",
		"1.2.3.4:81":          "1.2.3.4 81",
		"[::1]:81":            "::1 81",
		"[2600::1]":           "2600::1 80",
		"[fe80::1%eth0]:80":   "",
		"a.example.com:0":     "",
		"a.example.com:http":  "",
		"a.example.com:99999": "",
		"16909060":            "", "0x1020304": "", "1.2.772": "", "01.02.03.04": "", "::ffff:1.2.3.4": "", "[::ffff:1.2.3.4]": "",
		"localhost": "", "": "", "a b.com": "", "user@a.com": "", "a.com/b": "", "a.com:80:80": "", "1.2.3.4.": "",
	} {
		got := ""
		if to, ok := authority(in, 80); ok {
			got = strings.TrimSpace(to.host() + " " + netip.AddrPortFrom(netip.IPv4Unspecified(), to.Port).String()[len("0.0.0.0:"):])
		}
		if got != want {
			t.Errorf("%q is %q, want %q", in, got, want)
		}
	}
}

func FuzzAuthority(f *testing.F) {
	f.Add("a.example.com:443")
	f.Add("0x7f.1")
	f.Fuzz(func(t *testing.T, s string) {
		to, ok := authority(s, 0)
		if !ok {
			return
		}
		again, ok := authority(net.JoinHostPort(to.host(), "1"), 0)
		if again.Port = to.Port; !ok || again != to {
			t.Errorf("%q is %+v, and that is %+v", s, to, again)
		}
		if _, err := netip.ParseAddr(to.Name); err == nil {
			t.Errorf("%q is the name %q", s, to.Name)
		}
	})
}

var pool = netip.MustParsePrefix("198.18.0.0/15")

// asking returns an Egress that serves nobody, and one of its sandboxes. It asks a DNS.
func asking(tb testing.TB, z *dnstest.Zone, n *doze.Network) (*Egress, *guest) {
	tb.Helper()
	e := New(Options{
		Pool: pool, Resolver: z.Resolver(), Upstream: Servers{z.Address},
		Denied: func(_, a netip.Addr) bool { return a.IsPrivate() }, Decided: func(bool) {},
	})
	if err := e.Admit(Guest{UID: "a", IP: home}, n); err != nil {
		tb.Fatal(err)
	}
	return e, e.guests[home]
}

// TestAnswer: records of names that a sandbox may connect to are those of the DNS, but
// for addresses of version 4. The DNS is asked about no other names.
func TestAnswer(t *testing.T) {
	t.Parallel()
	z := dnstest.Serve(t)
	z.A("a.example.com", [4]byte{1, 2, 3, 4})
	z.AAAA("six.example.com", netip.MustParseAddr("2600::7").As16())
	z.AAAA("ula.example.com", netip.MustParseAddr("fd00::7").As16())
	z.TXT("a.example.com", "a text")
	z.MX("mail.example.com", "a.example.com")
	z.SRV("_sip._tcp.example.com", "a.example.com")
	z.CNAME("alias.example.com", "a.example.com")
	z.A("hidden.test", [4]byte{1, 2, 3, 4})
	z.TXT("hidden.test", "a text")
	z.Refuse("lame.example.com")
	e, g := asking(t, z, &doze.Network{AllowedDomains: []string{"*.example.com"}})
	ask := func(name string, kind uint16) *dns.Msg {
		return e.answer(t.Context(), g, new(dns.Msg).SetQuestion(name, kind))
	}
	m := ask("A.Example.com.", dns.TypeA)
	if len(m.Answer) != 1 || m.Answer[0].Header().Name != "A.Example.com." {
		t.Fatalf("%v", m)
	}
	a, _ := netip.AddrFromSlice(m.Answer[0].(*dns.A).A)
	if got := g.meaning(a); got != "a.example.com" || !pool.Contains(a) {
		t.Errorf("%s means %q", a, got)
	}
	if b := g.address("b.example.com"); b == a || g.address("a.example.com") != a {
		t.Error("an address stands for two names")
	}
	for _, tt := range []struct {
		name  string
		kind  uint16
		rcode int
		want  string // the end of the last record; none: there is none
	}{
		{"six.example.com.", dns.TypeAAAA, dns.RcodeSuccess, "2600::7"},
		{"six.example.com.", dns.TypeA, dns.RcodeSuccess, g.address("six.example.com").String()},
		{"ula.example.com.", dns.TypeAAAA, dns.RcodeSuccess, ""},
		{"a.example.com.", dns.TypeAAAA, dns.RcodeSuccess, ""},
		{"A.example.com.", dns.TypeTXT, dns.RcodeSuccess, `"a text"`},
		{"mail.example.com.", dns.TypeMX, dns.RcodeSuccess, "a.example.com."},
		{"mail.example.com.", dns.TypeA, dns.RcodeSuccess, ""},
		{"_sip._tcp.example.com.", dns.TypeSRV, dns.RcodeSuccess, "5060 a.example.com."},
		{"alias.example.com.", dns.TypeCNAME, dns.RcodeSuccess, "a.example.com."},
		{"alias.example.com.", dns.TypeA, dns.RcodeSuccess, g.address("alias.example.com").String()},
		{"none.example.com.", dns.TypeA, dns.RcodeNameError, ""},
		{"none.example.com.", dns.TypeAAAA, dns.RcodeNameError, ""},
		{"none.example.com.", dns.TypeTXT, dns.RcodeNameError, ""},
		{"lame.example.com.", dns.TypeTXT, dns.RcodeServerFailure, ""},
		{"lame.example.com.", dns.TypeA, dns.RcodeSuccess, g.address("lame.example.com").String()}, // the connection says what is wrong
		// A connection to what is not allowed is refused with a reason, and so it has an address.
		{"hidden.test.", dns.TypeA, dns.RcodeSuccess, g.address("hidden.test").String()},
		{"hidden.test.", dns.TypeAAAA, dns.RcodeSuccess, ""},
		{"hidden.test.", dns.TypeTXT, dns.RcodeRefused, ""},
		{"secret.tunnel.test.", dns.TypeA, dns.RcodeSuccess, g.address("secret.tunnel.test").String()},
		{"secret.tunnel.test.", dns.TypeMX, dns.RcodeRefused, ""},
		{"a.example.com.", dns.TypeHTTPS, dns.RcodeSuccess, ""},
		{"a.example.com.", dns.TypeSVCB, dns.RcodeSuccess, ""},
		{"a.example.com.", dns.TypeANY, dns.RcodeSuccess, ""},
		{"localhost.", dns.TypeA, dns.RcodeNameError, ""},
		{".", dns.TypeA, dns.RcodeNameError, ""},
		{"0x7f.1.", dns.TypeA, dns.RcodeNameError, ""},
		{"a\\000b.com.", dns.TypeA, dns.RcodeNameError, ""},
	} {
		m := ask(tt.name, tt.kind)
		last := ""
		if len(m.Answer) > 0 {
			last = m.Answer[len(m.Answer)-1].String()
		}
		if m.Rcode != tt.rcode || (last == "") != (tt.want == "") || !strings.HasSuffix(last, tt.want) || len(m.Ns)+len(m.Extra) > 0 {
			t.Errorf("%s %s: %v", tt.name, dns.TypeToString[tt.kind], m)
		}
	}
	for _, name := range []string{"hidden.test", "secret.tunnel.test"} {
		if z.Asked(name) {
			t.Errorf("the DNS was asked about %s", name)
		}
	}
	two := new(dns.Msg).SetQuestion("a.example.com.", dns.TypeA)
	two.Question = append(two.Question, two.Question[0])
	if m := e.answer(t.Context(), g, two); m.Rcode != dns.RcodeFormatError {
		t.Errorf("two questions: %v", m)
	}
	for range 2 * questionBurst {
		if m = ask("hidden.test.", dns.TypeA); m.Rcode == dns.RcodeRefused {
			return
		}
	}
	t.Error("there is no bound for questions")
}

// TestClosedAsksNobody: no name leaves a sandbox that reaches nothing, whatever its
// lists say, or one that is barred.
func TestClosedAsksNobody(t *testing.T) {
	t.Parallel()
	z := dnstest.Serve(t)
	e, _ := asking(t, z, &doze.Network{})
	for name, change := range map[string]func(){
		"closed.test": func() { e.Closed = true },
		"barred.test": func() { e.Closed, e.Barred = false, func(Guest) string { return "no more today" } },
	} {
		change()
		e.Forget(home)
		if err := e.Admit(Guest{UID: name, IP: home}, &doze.Network{AllowedDomains: []string{"*"}}); err != nil {
			t.Fatal(err)
		}
		for _, kind := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeTXT} {
			e.answer(t.Context(), e.guests[home], new(dns.Msg).SetQuestion(name+".", kind))
		}
		if z.Asked(name) {
			t.Errorf("the DNS was asked about %s", name)
		}
	}
}

// TestQuestionIsMadeAnew: nothing of a question leaves but its name and its type.
func TestQuestionIsMadeAnew(t *testing.T) {
	t.Parallel()
	z := dnstest.Serve(t)
	e, g := asking(t, z, nil)
	var asked *dns.Msg
	e.Upstream = upstream(func(q *dns.Msg) *dns.Msg { asked = q; return new(dns.Msg).SetReply(q) })
	q := new(dns.Msg).SetQuestion("a.example.com.", dns.TypeTXT)
	q.Extra = append(q.Extra, &dns.TXT{Hdr: dns.RR_Header{Name: "x.", Rrtype: dns.TypeTXT, Class: dns.ClassINET}, Txt: []string{"a secret"}})
	q.SetEdns0(4096, true)
	q.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_LOCAL{Code: dns.EDNS0LOCALSTART, Data: []byte("a secret")}}
	q.Zero, q.CheckingDisabled, q.AuthenticatedData = true, true, true
	e.answer(t.Context(), g, q)
	want := questionFor("a.example.com", dns.TypeTXT)
	if asked == nil || asked.Id == q.Id {
		t.Fatalf("%v", asked)
	}
	want.Id = asked.Id
	if asked.String() != want.String() {
		t.Errorf("%v is asked, want %v", asked, want)
	}
}

type upstream func(*dns.Msg) *dns.Msg

func (u upstream) Exchange(_ context.Context, q *dns.Msg) (*dns.Msg, error) { return u(q), nil }

// TestLookupsAreBounded: a sandbox has so many questions with the DNS, and the next one
// is not asked.
func TestLookupsAreBounded(t *testing.T) {
	t.Parallel()
	e, g := asking(t, dnstest.Serve(t), nil)
	for range lookupsMax {
		if !g.lookups.enter() {
			t.Fatal("there is room for fewer")
		}
	}
	for _, kind := range []uint16{dns.TypeA, dns.TypeTXT} {
		if m := e.answer(t.Context(), g, new(dns.Msg).SetQuestion("a.example.com.", kind)); m.Rcode != dns.RcodeServerFailure {
			t.Errorf("%v", m)
		}
	}
}

// TestTried: there is room for an address of version 6, behind those of version 4.
func TestTried(t *testing.T) {
	t.Parallel()
	for want, all := range map[string]string{
		"1.1.1.1 1.1.1.2 1.1.1.3 2600::1": "2600::1 1.1.1.1 1.1.1.2 1.1.1.3 1.1.1.4 2600::2",
		"1.1.1.1 1.1.1.2 1.1.1.3 1.1.1.4": "1.1.1.1 1.1.1.2 1.1.1.3 1.1.1.4 1.1.1.5",
		"2600::1 2600::2":                 "2600::1 2600::2",
		"1.1.1.1":                         "::ffff:1.1.1.1",
	} {
		var in []netip.Addr
		for s := range strings.FieldsSeq(all) {
			in = append(in, netip.MustParseAddr(s))
		}
		if got := strings.Trim(fmt.Sprint(tried(in)), "[]"); got != want {
			t.Errorf("of %s these are tried: %s", all, got)
		}
	}
}

// TestNamesAreBounded: the oldest name is forgotten, and its address is not used
// for another one at once.
func TestNamesAreBounded(t *testing.T) {
	t.Parallel()
	n := newNames(pool)
	first := n.address("first.test")
	for i := range namesMax {
		n.address("n" + strconv.Itoa(i) + ".test")
	}
	if len(n.meanings) > namesMax || len(n.addresses) != len(n.meanings) || len(n.order) != len(n.meanings) {
		t.Errorf("%d names, %d addresses, %d in order", len(n.addresses), len(n.meanings), len(n.order))
	}
	if n.meaning(first) != "" {
		t.Errorf("the oldest still means %q", n.meaning(first))
	}
}

func FuzzAnswer(f *testing.F) {
	raw, err := new(dns.Msg).SetQuestion("a.example.com.", dns.TypeA).Pack()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	e, g := asking(f, dnstest.Serve(f), &doze.Network{AllowedDomains: []string{"never.test"}})
	f.Fuzz(func(t *testing.T, b []byte) {
		q := new(dns.Msg)
		if q.Unpack(b) != nil {
			return
		}
		m := e.answer(t.Context(), g, q)
		if len(m.Answer) > 1 || len(m.Ns)+len(m.Extra) > 0 {
			t.Errorf("%v is answered with %v", q, m)
		}
		if _, err := m.Pack(); err != nil {
			t.Errorf("the answer to %v: %v", q, err)
		}
	})
}
