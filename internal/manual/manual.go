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

// Serve answers with the description.
func Serve(w http.ResponseWriter, r *http.Request, _ string) error {
	w.Header().Set("Content-Type", httpx.JSONType)
	return httpx.WritePacked(w, r, sandbox)
}
