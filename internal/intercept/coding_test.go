package intercept_test

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/dozehq/doze/internal/intercept"
)

// encode is a text as a destination encodes it.
func encode[W io.WriteCloser](open func(io.Writer) W, text string) string {
	var b bytes.Buffer
	w := open(&b)
	_, _ = io.WriteString(w, text)
	_ = w.Close()
	return b.String()
}

func gzipped(text string) string { return encode(gzip.NewWriter, text) }

func zlibbed(text string) string { return encode(zlib.NewWriter, text) }

func deflated(text string) string {
	return encode(func(w io.Writer) *flate.Writer {
		f, _ := flate.NewWriter(w, flate.BestCompression) // of the levels that there are
		return f
	}, text)
}

// TestEncodedAnswers: an answer that is encoded although it was to be plain comes
// without the secret, plain, or does not come.
func TestEncodedAnswers(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a line that is like the others "+secret+"\n", 10_000)
	masked := strings.ReplaceAll(long, secret, strings.Repeat("*", len(secret)))
	for name, tt := range map[string]struct {
		coding, body string
		status       int
		want         string
		cut          bool // it ends before its end
	}{
		"gzip":                    {"gzip", gzipped(long), 200, masked, false},
		"its old name":            {"X-Gzip", gzipped(long), 200, masked, false},
		"in two members":          {"gzip", gzipped(long[:1234]) + gzipped(long[1234:]), 200, masked, false},
		"deflate":                 {"deflate", zlibbed(long), 200, masked, false},
		"deflate without a frame": {"deflate", deflated(long), 200, masked, false},
		"twice":                   {"deflate, gzip", gzipped(zlibbed(long)), 200, masked, false},
		"nothing at all":          {"gzip", "", 200, "", false},
		"no coding":               {"identity", long, 200, masked, false},
		"three times":             {"gzip, deflate, gzip", gzipped(zlibbed(gzipped(long))), 503, "", false},
		"brotli":                  {"br", long, 503, "", false},
		"one that is not known":   {"gzip, rot13", gzipped(long), 503, "", false},
		"one that is a secret":    {secret, long, 503, "", false},
		"no gzip":                 {"gzip", long, 200, "", true},
		"cut off":                 {"gzip", gzipped(long)[:200], 200, masked, true},
		"more behind it":          {"deflate", zlibbed(long) + secret, 200, masked, true},
		"a bomb":                  {"gzip", gzipped(strings.Repeat("0", 32<<20)), 200, strings.Repeat("0", 32<<20), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := begin(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Encoding", tt.coding)
				w.Header().Set("Digest", "of what it was")
				w.Header().Set("Trailer", "X-End")
				_, _ = io.WriteString(w, tt.body)
				w.Header().Set("X-End", secret)
			}, func(w *world) { w.inject(bearer()) })
			resp, err := w.client(true).Do(w.request(http.MethodGet, "/", ""))
			if err != nil {
				if !tt.cut {
					t.Error(err)
				}
				return
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if resp.StatusCode != tt.status || (err != nil) != tt.cut {
				t.Fatalf("%s, %d bytes, %v", resp.Status, len(body), err)
			}
			if strings.Contains(string(body), secret) || strings.Contains(fmt.Sprint(resp.Trailer), secret) {
				t.Error("the secret is in it")
			}
			switch {
			case tt.status != http.StatusOK:
			case tt.cut && (len(body) >= len(tt.want) && tt.want != "" && tt.coding != "deflate" || !strings.HasPrefix(tt.want, string(body))):
				t.Errorf("%d bytes come of it", len(body))
			case !tt.cut && string(body) != tt.want:
				t.Errorf("it becomes %d bytes: %.100q", len(body), body)
			case !tt.cut && (resp.Header.Get("Content-Encoding") == "identity") != (tt.coding == "identity"),
				!tt.cut && tt.coding != "identity" && resp.Header.Get("Digest") != "":
				t.Errorf("it is described as %v", resp.Header)
			case !tt.cut && len(resp.Trailer.Get("X-End")) != len(secret):
				t.Errorf("its trailer is %v", resp.Trailer)
			}
		})
	}
}

// TestEncodedStream: what a destination flushes arrives before the end.
func TestEncodedStream(t *testing.T) {
	t.Parallel()
	more := make(chan struct{})
	w := begin(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		_, _ = io.WriteString(z, "data: one\n")
		_ = errors.Join(z.Flush(), http.NewResponseController(w).Flush())
		select {
		case <-more:
		case <-time.After(patience):
		}
		_, _ = io.WriteString(z, "data: two\n")
		_ = z.Close()
	}, func(w *world) { w.inject(bearer()) })
	resp, err := w.client(true).Do(w.request(http.MethodGet, "/", ""))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	first := make([]byte, len("data: one\n"))
	if _, err := io.ReadFull(resp.Body, first); err != nil || string(first) != "data: one\n" {
		t.Fatalf("%q, %v", first, err)
	}
	close(more)
	if rest, err := io.ReadAll(resp.Body); err != nil || string(rest) != "data: two\n" {
		t.Errorf("%q, %v", rest, err)
	}
}

// FuzzUndo: whatever comes, no more than a bound comes of it; and what was encoded
// is what comes of it, however it is read.
func FuzzUndo(f *testing.F) {
	for _, coding := range []string{"gzip", "deflate", "deflate, x-gzip", "br", "identity,,GZIP"} {
		for _, body := range []string{"", "\x78\x9c", gzipped("text"), zlibbed("text"), deflated("text"), gzipped(strings.Repeat("a", 1<<20))} {
			f.Add(coding, []byte(body))
		}
	}
	f.Fuzz(func(t *testing.T, coding string, body []byte) {
		if r, ok := intercept.Undo(iotest.OneByteReader(bytes.NewReader(body)), coding); ok {
			n, _ := io.Copy(io.Discard, r)
			if most := int64(max(intercept.RatioFree, len(body)*intercept.RatioMax*intercept.RatioMax)); n > most {
				t.Errorf("%d bytes become %d", len(body), n)
			}
		}
		for coding, encoded := range map[string]string{
			"gzip": gzipped(string(body)), "deflate": zlibbed(string(body)), "gzip, deflate": zlibbed(gzipped(string(body))),
		} {
			r, ok := intercept.Undo(strings.NewReader(encoded), coding)
			if !ok {
				t.Fatalf("%s is not known", coding)
			}
			if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, body) {
				t.Errorf("%s: %q became %q, %v", coding, body, got, err)
			}
		}
	})
}
