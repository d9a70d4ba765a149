package httpx_test

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/dozehq/doze/internal/httpx"
)

// A client gets packed bytes in the form that it can read.
func TestWritePacked(t *testing.T) {
	t.Parallel()
	const want = "a text"
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := io.WriteString(z, want); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	for accepts, coding := range map[string]string{
		"gzip, br": "gzip", "br, GZIP;q=0.5": "gzip", "gzip;": "gzip", "": "", "br": "", "gzip; q=0, br": "", "x-gzip": "",
	} {
		r, w := httptest.NewRequest(http.MethodGet, "/", nil), httptest.NewRecorder()
		r.Header.Set("Accept-Encoding", accepts)
		if err := httpx.WritePacked(w, r, packed.Bytes()); err != nil {
			t.Fatal(err)
		}
		got := io.Reader(w.Body)
		if w.Header().Get("Content-Encoding") == "gzip" {
			var err error
			if got, err = gzip.NewReader(w.Body); err != nil {
				t.Fatal(err)
			}
		}
		b, err := io.ReadAll(got)
		if err != nil || string(b) != want || w.Header().Get("Content-Encoding") != coding || w.Header().Get("Vary") != "Accept-Encoding" {
			t.Errorf("accepting %q: %q with %v, %v", accepts, b, w.Header(), err)
		}
	}
}
