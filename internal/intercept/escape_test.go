package intercept_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"html"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/dozehq/doze/internal/intercept"
)

// writers write a character in the ways that an escape has. They have the names of
// escapes. Padding is a number of zeros, for those that may have them.
var writers = map[string]func(c rune, padding string) []string{
	"octal, as \\123, \\0123 and \\o{123}": func(c rune, padding string) []string {
		return append(eachByte(c, `\%03o`, `\0%03o`), fmt.Sprintf(`\o{%s%o}`, padding, c))
	},
	"hexadecimal, as \\x53, \\x0053 and \\x{53}": func(c rune, padding string) []string {
		return append(eachByte(c, `\x%02x`, `\X%02X`, `\x`+padding+`%02x`), fmt.Sprintf(`\x{%s%x}`, padding, c))
	},
	"a unit of UTF-16, as \\u0053, \\uu0053 and \\u{53}": func(c rune, padding string) []string {
		return append(eachUnit(c, `\u%04x`, `\u%04X`, `\uuu%04x`), fmt.Sprintf(`\u{%s%x}`, padding, c))
	},
	"a code point, as \\U00000053": func(c rune, _ string) []string { return []string{fmt.Sprintf(`\U%08x`, c)} },
	"a letter or a sign, as \\n and \\/": func(c rune, _ string) []string {
		const from, to = "\a\b\x1b\f\n\r\t\v", "abefnrtv"
		if i := strings.IndexRune(from, c); i >= 0 {
			return []string{`\` + to[i:i+1]}
		}
		if isSign(c) {
			return []string{`\` + string(c)}
		}
		return nil
	},
	"a byte of a URL, as %53":            func(c rune, _ string) []string { return eachByte(c, `%%%02x`, `%%%02X`) },
	"a unit of a URL, as %u0053":         func(c rune, _ string) []string { return eachUnit(c, `%%u%04x`, `%%u%04X`) },
	"a space of a form, as +":            func(c rune, _ string) []string { return map[rune][]string{' ': {"+"}}[c] },
	"a byte of quoted-printable, as =53": func(c rune, _ string) []string { return eachByte(c, `=%02X`, `=%02x`) },
	"the end of a line of quoted-printable": func(c rune, _ string) []string {
		return []string{string(c) + "=\r\n", string(c) + "=\n"}
	},
	"a number in HTML, as &#83; and &#83": func(c rune, padding string) []string {
		var all []string
		for _, end := range []string{";", ""} {
			all = append(all, fmt.Sprintf("&#%s%d%s", padding, c, end), fmt.Sprintf("&#x%s%x%s", padding, c, end), fmt.Sprintf("&#X%s%X%s", padding, c, end))
		}
		return all
	},
	"a name in HTML, as &quot;": func(c rune, _ string) (all []string) {
		for name, is := range intercept.EntityNames {
			if is == c {
				all = append(all, "&"+name+";")
			}
		}
		slices.Sort(all)
		return all
	},
}

func isSign(c rune) bool {
	return c > ' ' && c < 0x7f && !strings.ContainsRune("0123456789", c) && (c|0x20 < 'a' || c|0x20 > 'z')
}

// eachByte writes all bytes of a character in the same way.
func eachByte(c rune, forms ...string) (all []string) {
	for _, form := range forms {
		var s strings.Builder
		for _, b := range []byte(string(c)) {
			fmt.Fprintf(&s, form, b)
		}
		all = append(all, s.String())
	}
	return all
}

func eachUnit(c rune, forms ...string) (all []string) {
	for _, form := range forms {
		var s strings.Builder
		for _, u := range utf16.Encode([]rune{c}) {
			fmt.Fprintf(&s, form, u)
		}
		all = append(all, s.String())
	}
	return all
}

// redacted is a text in which a secret is masked, read in parts of such a length.
func redacted(text, secret string, part int) (string, error) {
	b, err := io.ReadAll(intercept.Redacted(io.NopCloser(&parts{strings.NewReader(text), part}), secret))
	return string(b), err
}

// parts reads at most so many bytes at a time.
type parts struct {
	io.Reader
	most int
}

func (p *parts) Read(b []byte) (int, error) { return p.Reader.Read(b[:min(len(b), p.most)]) }

// TestEscapes: each escape that there is hides no character of a secret, with or
// without zeros in front of its number, also where all of it is escaped once more.
func TestEscapes(t *testing.T) {
	t.Parallel()
	if have, want := slices.Sorted(maps.Keys(writers)), intercept.Escapes(); !slices.Equal(have, slices.Sorted(slices.Values(want))) {
		t.Fatalf("the test writes %q, and there are %q", have, want)
	}
	const before, behind = "key-Secret", "-behind-it"
	again := map[string]func(string) string{
		"once": func(s string) string { return s },
		"in JSON": func(s string) string {
			return strings.NewReplacer(`\`, `\\`, `"`, `\"`, `&`, `\u0026`, "\r", `\r`, "\n", `\n`).Replace(s)
		},
		"in HTML":         html.EscapeString,
		"in HTML, in URL": func(s string) string { return percent(html.EscapeString(s)) },
		"in a URL":        percent,
		"in two URLs":     func(s string) string { return percent(percent(s)) },
		"in quotes":       func(s string) string { return strings.ReplaceAll(s, "=", "=3D") },
	}
	for name, write := range writers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			written := 0
			for c := rune(1); c < 0x7f; c++ {
				written += escaped(t, again, before, behind, c, write)
			}
			for _, c := range []rune{'é', 'ÿ', '€', '😀'} {
				written += escaped(t, again, before, behind, c, write)
			}
			if written == 0 {
				t.Error("nothing was written")
			}
		})
	}
}

// escaped tries one character, and returns in how many ways.
func escaped(t *testing.T, again map[string]func(string) string, before, behind string, c rune, write func(rune, string) []string) (written int) {
	t.Helper()
	paddings, cuts := []string{"", "00000"}, []int{1, 1 << 20}
	if c == 'S' || c == '€' { // it takes long
		paddings, cuts = append(paddings, strings.Repeat("0", 1000)), []int{100, 1 << 20}
	}
	for _, padding := range paddings {
		for _, form := range write(c, padding) {
			written++
			for layer, wrap := range again {
				if c == '*' {
					continue
				}
				text := wrap(before + form + behind)
				for _, part := range cuts {
					if got, err := redacted("<"+text+">", before+string(c)+behind, part); err != nil || got != "<"+strings.Repeat("*", len(text))+">" {
						t.Errorf("%s, by %d: %.80q became %.80q, %v", layer, part, text, got, err)
					}
				}
			}
		}
	}
	return written
}

// percent escapes all that is special in a URL.
func percent(s string) string {
	var out strings.Builder
	for _, b := range []byte(s) {
		if b < 0x7f && b > ' ' && (!isSign(rune(b)) || strings.IndexByte("-_.~", b) >= 0) {
			out.WriteByte(b)
		} else {
			fmt.Fprintf(&out, "%%%02X", b)
		}
	}
	return out.String()
}

// TestEntityNames: names mean what HTML says, and every sign that has one is there.
func TestEntityNames(t *testing.T) {
	t.Parallel()
	for name, want := range intercept.EntityNames {
		if got := html.UnescapeString("&" + name + ";"); got != string(want) {
			t.Errorf("&%s; is %q in HTML, and not %q", name, got, want)
		}
	}
	const without = "-~" // those that HTML has are of other characters
	for c := rune('!'); c < 0x7f; c++ {
		if isSign(c) && !strings.ContainsRune(without, c) && !slices.Contains(slices.Collect(maps.Values(intercept.EntityNames)), c) {
			t.Errorf("%q has no name", c)
		}
	}
}

// TestBase64: a secret among other bytes is found in base64, wherever it begins and
// however lines are broken, but for bits at its ends.
func TestBase64(t *testing.T) {
	t.Parallel()
	const secret = "sk-\xfb\xff\xbe>>>???abcdefghijklmnop"
	for name, encoding := range map[string]*base64.Encoding{"usual": base64.StdEncoding, "of URLs": base64.URLEncoding, "without padding": base64.RawURLEncoding} {
		for before := range 7 {
			for behind := range 4 {
				text := encoding.EncodeToString([]byte(strings.Repeat("user:", before)[:before] + secret + "behind"[:behind]))
				for how, text := range map[string]string{
					"plain": text, "in lines": lines(text, 16, "\r\n"), "in short lines": lines(text, 5, "\n"),
					"in JSON": strings.ReplaceAll(lines(text, 16, `\n`), "/", `\/`), "in a URL": percent(text),
				} {
					got, err := redacted(text, secret, 3)
					if err != nil || len(got) != len(text) {
						t.Fatal(got, err)
					}
					const ends = 2 // characters with bits of others, on each side
					first, last := strings.IndexByte(got, '*'), strings.LastIndexByte(got, '*')
					if first < 0 || strings.Trim(got[first:last+1], "*") != "" {
						t.Fatalf("%s, %s, %d before: %q became %q", name, how, before, text, got)
					}
					rest := strings.TrimRight(strings.NewReplacer("\r\n", "", "\n", "", `\n`, "").Replace(got), "=")
					if n := strings.Count(rest, "*"); how != "in JSON" && how != "in a URL" && n < len(secret)*8/6-ends {
						t.Errorf("%s, %s, %d before: %q became %q", name, how, before, text, got)
					}
				}
			}
		}
	}
}

func lines(s string, length int, end string) string {
	return strings.Join(slices.Collect(func(yield func(string) bool) {
		for part := range slices.Chunk([]byte(s), length) {
			if !yield(string(part)) {
				return
			}
		}
	}), end)
}

// TestPadding: an answer that pads a secret without end breaks off, and keeps
// nobody busy.
func TestPadding(t *testing.T) {
	t.Parallel()
	began := time.Now()
	for name, text := range map[string]string{
		"zeros":           "Secret-k&#" + strings.Repeat("0", 1<<20),
		"zeros at first":  "&#x" + strings.Repeat("0", 1<<20) + "53;ecret-key",
		"in braces":       `\u{` + strings.Repeat("0", 1<<20),
		"encoded by URLs": "Secret-k%26%23" + strings.Repeat("0", 1<<20),
	} {
		got, err := redacted(text, "Secret-key", 1000)
		if err == nil || strings.Contains(got, "ecret") {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	}
	many := strings.Repeat(`%25%5c\\&amp;=\u005c\`, 50_000)
	if got, err := redacted(many, "Secret-key", 1<<20); err != nil || got != many {
		t.Errorf("escapes of nothing: %d bytes, %v", len(got), err)
	}
	if took := time.Since(began); took > patience {
		t.Errorf("it took %v", took)
	}
	h := http.Header{"X": {"Secret-k&#" + strings.Repeat("0", 100_000)}}
	intercept.RedactHeader(h, "Secret-key")
	if strings.Contains(h.Get("X"), "Secret") {
		t.Error("it is in a header")
	}
	if _, err := io.ReadAll(intercept.Redacted(io.NopCloser(iotest.ErrReader(errors.New("cut"))), "Secret-key")); err == nil {
		t.Error("the end of a body is lost")
	}
}

// FuzzEscapes: a secret whose characters are written in any mixture of ways never
// goes by, whatever is around it and however it is cut, nor over a WebSocket.
func FuzzEscapes(f *testing.F) {
	f.Add([]byte("Secret-123"), uint64(1), byte(1))
	f.Add([]byte(`a"b\c%d&e+f=g h`), uint64(2), byte(3))
	f.Add([]byte("0123456789\\\\%%&&;;##xx"), uint64(3), byte(200))
	f.Add([]byte("ÿé€😀aaaaaaa"), uint64(4), byte(0))
	names := slices.Sorted(maps.Keys(writers))
	f.Fuzz(func(t *testing.T, secret []byte, seed uint64, cut byte) {
		if len(secret) < 8 || len(secret) > 100 || !utf8.Valid(secret) || strings.ContainsAny(string(secret), "*\x00") {
			return
		}
		random := rand.New(rand.NewPCG(seed, 0))
		var text strings.Builder
		chars := []rune(string(secret))
		for i, c := range chars {
			forms := []string{string(c)}
			if random.IntN(4) > 0 {
				name := names[random.IntN(len(names))]
				forms = append(forms, writers[name](c, strings.Repeat("0", random.IntN(5)))...)
			}
			form := forms[random.IntN(len(forms))]
			// Digits behind a number without an end belong to it.
			if strings.HasPrefix(form, "&#") && !strings.HasSuffix(form, ";") || strings.HasPrefix(form, `\`) && i+1 < len(chars) {
				if i+1 == len(chars) || !strings.HasSuffix(form, "}") && strings.ContainsRune("0123456789abcdefABCDEF;", chars[i+1]) {
					form = string(c)
				}
			}
			text.WriteString(form)
		}
		written := text.String()
		got, err := redacted("<"+written+">", string(secret), int(cut)+1)
		if err != nil || len(got) != len(written)+2 || got[0] != '<' || strings.Trim(got[1:len(got)-1], "*") != "" && !strings.HasSuffix(written, "\n") {
			t.Errorf("%q as %q is %q, %v", secret, written, got, err)
		}
		frame := append([]byte{0x82, 126, byte(len(written) >> 8), byte(len(written))}, written...)
		framed, err := io.ReadAll(intercept.Frames(peer{Reader: strings.NewReader(string(frame))}, string(secret)))
		if err != nil || len(framed) != len(frame) || !strings.HasSuffix(written, "\n") && strings.Trim(string(framed[4:]), "*") != "" {
			t.Errorf("%q as %q is %q over a WebSocket, %v", secret, written, framed, err)
		}
	})
}

// BenchmarkRedaction compares the search in an answer of JSON with a copy of it.
func BenchmarkRedaction(b *testing.B) {
	text := strings.Repeat(`{"id":"item-12345","title":"The \"quick\" brown fox","url":"https:\/\/example.com\/a?b=c%20d&e=f","n":3.14159}`+"\n", 10_000)
	took := map[string]time.Duration{}
	for b.Loop() {
		for name, body := range map[string]io.Reader{
			"masked": intercept.Redacted(io.NopCloser(strings.NewReader(text)), "sk-proj-0123456789abcdefghijklmnopqrstuvwxyz"),
			"copied": struct{ io.Reader }{strings.NewReader(text)},
		} {
			began := time.Now()
			if n, err := io.Copy(struct{ io.Writer }{io.Discard}, body); err != nil || int(n) != len(text) {
				b.Fatal(n, err)
			}
			took[name] += time.Since(began)
		}
	}
	b.ReportMetric(float64(took["masked"])/float64(took["copied"]), "masked/copied")
	b.ReportMetric(float64(len(text)*b.N)/took["masked"].Seconds()/1e6, "masked-MB/s")
}
