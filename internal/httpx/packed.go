package httpx

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// WritePacked answers with bytes that are packed with gzip: as they are to a client that
// can unpack them, and unpacked to any other. The caller has set the type of the content.
func WritePacked(w http.ResponseWriter, r *http.Request, packed []byte) error {
	h := w.Header()
	h.Add("Vary", "Accept-Encoding")
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
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
