package intercept_test

import (
	"bytes"
	"cmp"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"
	"unicode/utf8"

	diff "github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/intercept"
)

func target(headers map[string]string, destinations ...string) doze.ProxyTarget {
	return doze.ProxyTarget{Destinations: destinations, Headers: headers, Secrets: doze.Hide(map[string]string{"one": "value-one", "two": "value-two"})}
}

func TestRules(t *testing.T) {
	t.Parallel()
	rules, err := intercept.Compile([]doze.ProxyTarget{
		target(map[string]string{"X-All": "yes", "X-Key": "{{SECRET:one}}"}, "*"),
		target(map[string]string{"x-key": "{{SECRET:two}}-{{SECRET:one}}"}, "api.example.com", "*.svc.example.com"),
		target(map[string]string{"X-Port": "yes"}, "db.example.com:8443"),
		target(map[string]string{"X-Path": "yes"}, "POST:api.example.com/v1/*/items", "!*/v1/secret"),
	}, intercept.Defaults{})
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		host    string
		port    uint16
		request string            // empty is GET /
		want    map[string]string // nil is nothing
	}{
		"everything":        {"other.org", 443, "", map[string]string{"X-All": "yes", "X-Key": "value-one"}},
		"the last one":      {"api.example.com", 443, "", map[string]string{"X-All": "yes", "X-Key": "value-two-value-one"}},
		"a wildcard":        {"a.svc.example.com", 443, "", map[string]string{"X-All": "yes", "X-Key": "value-two-value-one"}},
		"its apex":          {"svc.example.com", 443, "", map[string]string{"X-All": "yes", "X-Key": "value-one"}},
		"another port":      {"api.example.com", 8443, "", nil},
		"plain":             {"api.example.com", 80, "", nil},
		"a path":            {"api.example.com", 443, "POST /v1/a/items/3", map[string]string{"X-All": "yes", "X-Key": "value-two-value-one", "X-Path": "yes"}},
		"an exception":      {"api.example.com", 443, "POST /v1/secret/items/3", map[string]string{"X-All": "yes", "X-Key": "value-two-value-one"}},
		"another method":    {"api.example.com", 443, "PUT /v1/a/items", map[string]string{"X-All": "yes", "X-Key": "value-two-value-one"}},
		"a port of its own": {"db.example.com", 8443, "", map[string]string{"X-Port": "yes"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := rules.For(doze.Address{Host: tt.host, Port: tt.port, Plain: tt.port == 80})
			if (in == nil) != (tt.want == nil) {
				t.Fatalf("it is %v", in)
			}
			if in == nil {
				return
			}
			method, path, _ := strings.Cut(cmp.Or(tt.request, "GET /"), " ")
			got, err := intercept.FillHeaders(in, method, path, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			if d := diff.Diff(tt.want, got); d != "" {
				t.Error(d)
			}
			for _, form := range []string{"%v", "%+v", "%s"} {
				if s := fmt.Sprintf(form+form, in, rules); strings.Contains(s, "value-") {
					t.Errorf("it prints as %s", s)
				}
			}
		})
	}
	if d := diff.Diff([]string{"one", "two"}, rules.For(doze.Address{Host: "api.example.com", Port: 443}).Secrets()); d != "" {
		t.Error(d)
	}
}

func TestRulesMistakes(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]doze.ProxyTarget{
		"a destination":         target(nil, "10.0.0.1"),
		"a template":            target(map[string]string{"X": "{{SECRET:one"}, "*"),
		"an unknown secret":     target(map[string]string{"X": "{{SECRET:three}}"}, "*"),
		"of another rule":       {Destinations: []string{"*"}, Body: map[string]string{"x": "{{SECRET:one}}"}},
		"a secret of two lines": {Destinations: []string{"*"}, Headers: map[string]string{"X": "{{SECRET:pem}}"}, Secrets: doze.Hide(map[string]string{"pem": "a\r\nb"})},
	} {
		if _, err := intercept.Compile([]doze.ProxyTarget{target(nil, "*"), tt}, intercept.Defaults{}); err == nil || !strings.Contains(err.Error(), "routing[1]") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTooManyFunctions(t *testing.T) {
	t.Parallel()
	six := map[string]string{"A": strings.Repeat("{{FUNC:uuid}}", 6)}
	other := target(map[string]string{"B": six["A"]}, "*")
	rules, err := intercept.Compile([]doze.ProxyTarget{target(six, "*"), other}, intercept.Defaults{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := intercept.FillHeaders(rules.For(doze.Address{Host: "a.example.com", Port: 443}), http.MethodGet, "/", time.Now()); doze.Public(err).Kind != doze.Invalid {
		t.Error(err)
	}
}

func TestFunctions(t *testing.T) {
	t.Parallel()
	const uuid = `[0-9a-f]{8}-[0-9a-f]{4}-%d[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}`
	now := time.Date(2031, time.May, 6, 7, 8, 9, 123456789, time.FixedZone("", 3600))
	want := map[string]string{
		"date": "2031-05-06", "datetime": "2031-05-06 06:08:09", "iso8601": `2031-05-06T06:08:09\.123Z`, "time": "06:08:09",
		"timestamp": "1935814089", "timestamp_ms": "1935814089123", "timestamp_ns": "1935814089123456789",
		"nonce": "[0-9a-f]{32}", "randhex": "[0-9a-f]{32}", "randint": "[0-9]{1,10}", "randstr": "[a-z2-7]{26}",
		"uuid": fmt.Sprintf(uuid, 4), "uuidv4": fmt.Sprintf(uuid, 4), "uuidv7": fmt.Sprintf(uuid, 7),
	}
	names := intercept.Functions()
	slices.Sort(names)
	if d := diff.Diff(doze.Functions, names); d != "" {
		t.Error(d)
	}
	for _, name := range names {
		if got := intercept.Call(name, now); !regexp.MustCompile("^(" + want[name] + ")$").MatchString(got) {
			t.Errorf("%s returns %q", name, got)
		}
	}
}

func TestRedaction(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		body   string
		traces []string
		want   string
	}{
		"nothing":          {"", []string{"secret"}, ""},
		"none":             {"a public text", []string{"secret"}, "a public text"},
		"one":              {"a secret text", []string{"secret"}, "a ****** text"},
		"at the ends":      {"secret, secret", []string{"secret"}, "******, ******"},
		"begun":            {"secre", []string{"secret"}, "secre"},
		"begun twice":      {"secsecret", []string{"secret"}, "sec******"},
		"overlaps itself":  {"xababax", []string{"aba"}, "x*****x"},
		"overlaps another": {"xabcdex", []string{"abc", "cde"}, "x*****x"},
		"one in another":   {"xabcdex", []string{"bcd", "abcde"}, "x*****x"},
		"as Go's JSON":     {`{"k":"a/b\u0026c\u003C"}`, []string{"a/b&c<"}, `{"k":"****************"}`},
		"as PHP's JSON":    {`{"k":"a\/b\u00e9\n"}`, []string{"a/bé\n"}, `{"k":"************"}`},
		"all of it in hex": {`\u0061\u002F\u0062 %61%2f%62`, []string{"a/b"}, `****************** *********`},
		"as URLs":          {"k=a%2fb%2Bc+%C3%a9", []string{"a/b+c é"}, "k=****************"},
		"as HTML":          {"<b>a&amp;b&#39;&#x27;&quot;</b>", []string{`a&b''"`}, "<b>************************</b>"},
		"as a literal":     {`'a\'b\x00\\'`, []string{"a'b\x00\\"}, `'**********'`},
		"a pair":           {`"\ud83d\uDE00!"`, []string{"😀!"}, `"*************"`},
		"of backslashes":   {`\\\\`, []string{`\\`}, `****`},
		"behind a half":    {`%%61%2fb \\/`, []string{"a/b"}, `%******* \\/`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for how, body := range map[string]io.Reader{
				"at once": strings.NewReader(tt.body), "by bytes": iotest.OneByteReader(strings.NewReader(tt.body)),
				"with the end": iotest.DataErrReader(strings.NewReader(tt.body)),
			} {
				got, err := io.ReadAll(intercept.Redacted(io.NopCloser(body), tt.traces...))
				if err != nil || string(got) != tt.want {
					t.Errorf("%s: %q, %v", how, got, err)
				}
			}
		})
	}
}

// TestRedactionOfMuch: secrets and answers of any length fit, whoever had the
// buffers before.
func TestRedactionOfMuch(t *testing.T) {
	t.Parallel()
	secret := strings.Repeat("0123456789abcde/", 512) // the longest that there is
	escaped := strings.ReplaceAll(url.QueryEscape(secret), "0", "%30")
	between := strings.Repeat("x", 100<<10)
	for range 3 {
		body := intercept.Redacted(io.NopCloser(strings.NewReader(between+escaped+secret+between)), secret)
		got, err := io.ReadAll(iotest.HalfReader(body))
		want := between + strings.Repeat("*", len(escaped)+len(secret)) + between
		if err != nil || string(got) != want {
			t.Fatalf("%d of %d bytes, %v", len(got), len(want), err)
		}
		if err := body.Close(); err != nil {
			t.Fatal(err)
		}
		if n, err := body.Read(make([]byte, 1)); n != 0 || !errors.Is(err, http.ErrBodyReadAfterClose) {
			t.Errorf("read after the end: %d, %v", n, err)
		}
	}
}

// FuzzRedaction: of a secret that goes by nothing is left, however it is cut, and
// nothing else changes.
func FuzzRedaction(f *testing.F) {
	f.Add([]byte("a secret text"), []byte("secret"), byte(3))
	f.Add([]byte("ababab"), []byte("aba"), byte(1))
	f.Fuzz(func(t *testing.T, body, trace []byte, cut byte) {
		if len(trace) == 0 || bytes.IndexByte(trace, '*') >= 0 {
			return
		}
		at := min(int(cut), len(body))
		parts := io.MultiReader(bytes.NewReader(body[:at]), bytes.NewReader(body[at:]))
		got, err := io.ReadAll(intercept.Redacted(io.NopCloser(parts), string(trace)))
		if err != nil || len(got) != len(body) || bytes.Contains(got, trace) {
			t.Fatalf("%q without %q is %q, %v", body, trace, got, err)
		}
		if !bytes.Contains(body, trace) && !bytes.ContainsAny(body, `\%&+`) && !bytes.Equal(got, body) {
			t.Errorf("%q became %q", body, got)
		}
	})
}

// peer is a connection of which only what comes matters.
type peer struct {
	io.Reader
	io.Writer
	io.Closer
}

// FuzzFrames: whatever a server sends, in whatever pieces, the same comes out, no
// longer than it was; and of a secret in a frame nothing is left.
func FuzzFrames(f *testing.F) {
	f.Add([]byte("a secret text"), []byte("secret"))
	f.Add([]byte("\x81\x7e\x00\x03abc\x8a\x00"), []byte("abc"))
	f.Add([]byte("\x82\x7f\xff\xff\xff\xff\xff\xff\xff\xff"), []byte("x"))
	f.Add([]byte("\x81\x83abcdxyz"), []byte("x"))
	f.Fuzz(func(t *testing.T, sent, trace []byte) {
		if len(trace) == 0 || bytes.IndexByte(trace, '*') >= 0 || len(sent) > math.MaxUint16 {
			return
		}
		frame := append([]byte{0x82, 126, byte(len(sent) >> 8), byte(len(sent))}, sent...)
		for _, stream := range [][]byte{sent, append(slices.Clone(frame), sent...)} {
			whole, err := io.ReadAll(intercept.Frames(peer{Reader: bytes.NewReader(stream)}, string(trace)))
			cut, cutErr := io.ReadAll(intercept.Frames(peer{Reader: iotest.OneByteReader(bytes.NewReader(stream))}, string(trace)))
			if !bytes.Equal(whole, cut) || (err == nil) != (cutErr == nil) || len(whole) > len(stream) {
				t.Fatalf("%q became %q, %v, and in pieces %q, %v", stream, whole, err, cut, cutErr)
			}
		}
		got, err := io.ReadAll(intercept.Frames(peer{Reader: bytes.NewReader(frame)}, string(trace)))
		if err != nil || len(got) != len(frame) || bytes.Contains(got[len(frame)-len(sent):], trace) {
			t.Errorf("%q without %q is %q, %v", frame, trace, got, err)
		}
	})
}

// FuzzAddMembers: what comes out is JSON with all that was in it and the member,
// or nothing has changed.
func FuzzAddMembers(f *testing.F) {
	for _, s := range []string{`{}`, ` {"a":1}`, `{"key":2}`, `[]`, `{`, `{"a":{"key":1},"a":2}`, ``} {
		f.Add([]byte(s), "value")
	}
	f.Fuzz(func(t *testing.T, body []byte, value string) {
		got, added, err := intercept.AddMembers(bytes.Clone(body), map[string]string{"key": value})
		if err != nil {
			if text := bytes.TrimLeft(body, " \t\r\n"); json.Valid(body) && text[0] == '{' {
				t.Errorf("%q: %v", body, err)
			}
			return
		}
		if !json.Valid(got) {
			t.Fatalf("%q became %q", body, got)
		}
		var was, now map[string]any
		if json.Unmarshal(body, &was) != nil || was == nil {
			if len(added) > 0 {
				t.Errorf("%q became %q", body, got)
			}
			return
		}
		if err := json.Unmarshal(got, &now); err != nil {
			t.Fatal(err)
		}
		if _, had := was["key"]; !had {
			was["key"] = strings.ToValidUTF8(value, "�")
			if _, ok := now["key"].(string); ok {
				was["key"] = now["key"]
			}
		}
		if d := diff.Diff(was, now); d != "" {
			t.Errorf("%q became %q: %s", body, got, d)
		}
	})
}

// FuzzReferences: a reference becomes its value, in JSON so that the text of a string
// has it, and everything else stays.
func FuzzReferences(f *testing.F) {
	f.Add("a {{SECRET:key}} b", "va\"lue", "application/json")
	f.Add("%7b%7BSECRET%3Akey%7d}", "%7B%7BSECRET%3Akey%7D%7D", "application/x-www-form-urlencoded")
	f.Fuzz(func(t *testing.T, text, value, contentType string) {
		secrets := map[string]string{"key": value}
		other := intercept.ResolveBody([]byte(text), contentType, map[string]string{"another": value})
		if !strings.Contains(text, "another") && string(other) != text {
			t.Errorf("%q became %q without a reference", text, other)
		}
		if !utf8.ValidString(text) || !utf8.ValidString(value) || strings.Contains(strings.ToUpper(text), "%7B") || strings.Contains(strings.ToUpper(text), "%3A") || strings.Contains(strings.ToUpper(text), "%7D") {
			intercept.ResolveBody([]byte(text), contentType, secrets)
			return
		}
		want := strings.ReplaceAll(text, "{{SECRET:key}}", value)
		body, err := json.Marshal(map[string]string{"text": text})
		if err != nil {
			t.Fatal(err)
		}
		var got struct{ Text string }
		if err := json.Unmarshal(intercept.ResolveBody(body, contentType, secrets), &got); err != nil || got.Text != want {
			t.Errorf("%s became %q, %v, want %q", body, got.Text, err, want)
		}
	})
}

func TestAuthorities(t *testing.T) {
	t.Parallel()
	now := time.Now()
	a, again, other := authorities(t, "seed"), authorities(t, "seed"), authorities(t, "other seed")
	leaf, err := a.Leaf("sandbox", host, now)
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		of   *intercept.Authorities
		name string
		at   time.Time
		want bool
	}{
		"its own":           {a, "sandbox", now, true},
		"its own years ago": {again, "sandbox", now, true},
		"another sandbox":   {a, "sandbox2", now, false},
		"another host":      {other, "sandbox", now, false},
		"a clock behind":    {a, "sandbox", now.Add(-12 * time.Hour), true},
		"long after":        {a, "sandbox", now.Add(30 * 24 * time.Hour), false},
	} {
		text, err := tt.of.Certificate(tt.name)
		if err != nil {
			t.Fatal(err)
		}
		block, rest := pem.Decode(text)
		root, err := x509.ParseCertificate(block.Bytes)
		if err != nil || len(rest) > 0 || !root.IsCA {
			t.Fatal(root, err)
		}
		pool := x509.NewCertPool()
		pool.AddCert(root)
		_, err = leaf.Leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: host, CurrentTime: tt.at})
		if (err == nil) != tt.want {
			t.Errorf("%s: %v", name, err)
		}
	}
	before, err := a.Certificate("sandbox")
	if after, err2 := again.Certificate("sandbox"); err != nil || err2 != nil || !bytes.Equal(before, after) {
		t.Errorf("a restart changes the authority: %v, %v", err, err2)
	}
	if same, err := a.Leaf("sandbox", host, now.Add(time.Hour)); err != nil || same != leaf {
		t.Errorf("an hour later there is another one: %v", err)
	}
	if fresh, err := a.Leaf("sandbox", host, now.Add(5*24*time.Hour)); err != nil || fresh == leaf {
		t.Errorf("days later it is the same: %v", err)
	}
	if theirs, err := a.Leaf("sandbox2", host, now); err != nil || theirs == leaf {
		t.Errorf("another sandbox has the same: %v", err)
	}
}
