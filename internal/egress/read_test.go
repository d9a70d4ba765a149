package egress

import (
	"bytes"
	"crypto/tls"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/miekg/dns"
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
		"a.example.com:0":     "",
		"a.example.com:http":  "",
		"a.example.com:99999": "",
		"16909060":            "", "0x1020304": "", "1.2.772": "", "01.02.03.04": "", "[::1]:80": "", "::ffff:1.2.3.4": "", "[::ffff:1.2.3.4]": "",
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

func TestAnswer(t *testing.T) {
	t.Parallel()
	n := newNames(pool)
	ask := func(name string, kind uint16) *dns.Msg { return n.answer(new(dns.Msg).SetQuestion(name, kind)) }
	m := ask("A.Example.com.", dns.TypeA)
	if len(m.Answer) != 1 || m.Answer[0].Header().Name != "A.Example.com." {
		t.Fatalf("%v", m)
	}
	a, _ := netip.AddrFromSlice(m.Answer[0].(*dns.A).A)
	if got := n.meaning(a); got != "a.example.com" || !pool.Contains(a) {
		t.Errorf("%s means %q", a, got)
	}
	if b := n.address("b.example.com"); b == a || n.address("a.example.com") != a {
		t.Error("an address stands for two names")
	}
	for _, kind := range []uint16{dns.TypeAAAA, dns.TypeHTTPS, dns.TypeSVCB, dns.TypeTXT, dns.TypeMX, dns.TypeANY, dns.TypePTR} {
		if m := ask("a.example.com.", kind); len(m.Answer)+len(m.Ns)+len(m.Extra) > 0 || m.Rcode != dns.RcodeSuccess {
			t.Errorf("%s: %v", dns.TypeToString[kind], m)
		}
	}
	for _, name := range []string{"localhost.", ".", "0x7f.1.", "a\\000b.com."} {
		if m := ask(name, dns.TypeA); m.Rcode != dns.RcodeNameError || len(m.Answer) > 0 {
			t.Errorf("%s: %v", name, m)
		}
	}
	two := new(dns.Msg).SetQuestion("a.example.com.", dns.TypeA)
	two.Question = append(two.Question, two.Question[0])
	if m := n.answer(two); m.Rcode != dns.RcodeFormatError {
		t.Errorf("two questions: %v", m)
	}
	for range 2 * questionBurst {
		if m = ask("a.example.com.", dns.TypeA); m.Rcode == dns.RcodeRefused {
			return
		}
	}
	t.Error("there is no bound for questions")
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
	f.Fuzz(func(t *testing.T, b []byte) {
		q := new(dns.Msg)
		if q.Unpack(b) != nil {
			return
		}
		m := newNames(pool).answer(q)
		if len(m.Answer) > 1 || len(m.Ns)+len(m.Extra) > 0 {
			t.Errorf("%v is answered with %v", q, m)
		}
		if _, err := m.Pack(); err != nil {
			t.Errorf("the answer to %v: %v", q, err)
		}
	})
}
