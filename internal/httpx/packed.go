package httpx

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/dozehq/doze"
)

// Page begins the answer with a page, or with a part of one. The caller has set nothing yet.
// A page can only be read: any other method is a NotFound.
func Page(w http.ResponseWriter, r *http.Request) error {
	h := w.Header()
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		h.Set("Allow", "GET, HEAD")
		return doze.Errorf(doze.NotFound, "%s is to be read: use GET", r.URL.Path)
	}
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	return nil
}

// WritePacked answers with bytes that are packed with gzip: as they are to a client that
// can unpack them, and unpacked to any other. The caller has set the type of the content.
func WritePacked(w http.ResponseWriter, r *http.Request, packed []byte) error {
	h := w.Header()
	h.Add("Vary", "Accept-Encoding")
	if unpacks(strings.Join(r.Header.Values("Accept-Encoding"), ",")) {
		h.Set("Content-Encoding", "gzip")
		h.Set("Content-Length", strconv.Itoa(len(packed)))
		_, _ = w.Write(packed) // the caller went away: nobody is left to tell
		return nil
	}
	plain, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return err
	}
	_, _ = io.Copy(w, plain) //nolint:gosec // these bytes are ours; and the caller may go away, as above
	return nil
}

// unpacks reports whether a client says that it can unpack gzip. A weight of zero says
// that it cannot.
func unpacks(accepts string) bool {
	for part := range strings.SplitSeq(accepts, ",") {
		coding, weight, _ := strings.Cut(part, ";")
		if !strings.EqualFold(strings.TrimSpace(coding), "gzip") {
			continue
		}
		_, value, _ := strings.Cut(weight, "=")
		q, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		return err != nil || q > 0
	}
	return false
}
