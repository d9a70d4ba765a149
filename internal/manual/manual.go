// Package manual has the description of the API inside a sandbox, as package
// description makes it. Each agent serves it, so that it is compressed, and read
// from the file of the program when somebody asks.
package manual

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/dozehq/doze/internal/httpx"
)

//go:generate go test . -run Description -update

// sandbox is docs/openapi-sandbox.json without its blanks, packed with gzip.
//
//go:embed sandbox.json.gz
var sandbox []byte

// Sandbox returns the description of the API inside a sandbox, in JSON.
func Sandbox() ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(sandbox))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

// Serve answers with the description, packed for a client that can unpack it.
func Serve(w http.ResponseWriter, r *http.Request, _ string) error {
	h := w.Header()
	h.Set("Content-Type", httpx.JSONType)
	h.Add("Vary", "Accept-Encoding")
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		h.Set("Content-Encoding", "gzip")
		h.Set("Content-Length", strconv.Itoa(len(sandbox)))
		_, _ = w.Write(sandbox) // the caller went away: nobody is left to tell
		return nil
	}
	plain, err := gzip.NewReader(bytes.NewReader(sandbox))
	if err != nil {
		return err
	}
	_, _ = io.Copy(w, plain) //nolint:gosec // these bytes are ours; and the caller may go away, as above
	return nil
}
