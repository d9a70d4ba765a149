// Package reference is the page of the APIs: what one can ask of the platform and of
// the sandboxes on it. The page needs no other origin.
//
// viewer.js.gz is dist/rapidoc-min.js of rapidoc 9.3.8 without the name of its source
// map, packed with gzip -9n. LICENSE.rapidoc is its license, and LICENSE.parts has those
// of its parts. renew.sh renews all three.
package reference

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/httpx"
	"github.com/dozehq/doze/internal/manual"
	"github.com/dozehq/doze/internal/openapi"
)

// Path is where the page is. What it loads is below.
const Path = "/docs"

// Document is where the description of both APIs is.
const Document = Path + "/openapi.json"

// script is where the page has its script.
const script = Path + "/viewer.js"

// sandboxBase is before the paths of the API of a sandbox, at the address of the control API.
const sandboxBase = "/run/{workspace}/sandboxes/{sandbox}"

// inside is before the tags of the API of a sandbox: both APIs know a network.
const inside = "Inside: "

//go:embed page.html
var page []byte

//go:embed viewer.js.gz
var viewer []byte

// policy has the browser load what is ours, and nothing else. The viewer has styles in
// its markup, and no script.
const policy = "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; connect-src 'self'; img-src 'self' data:; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// about is what the joined description says of itself.
const about = `Both APIs of one platform: that of the platform, below /v0, and that inside each sandbox, below its address.

The address of a sandbox is metadata.url of its record. Here it has the form /run/{workspace}/sandboxes/{sandbox}. On a platform with
a domain, each sandbox has a host besides.`

// Join makes one description of that of the control API, whose paths are below prefix, and
// that of the API inside a sandbox.
func Join(control openapi.Document, prefix string) (d openapi.Document, err error) {
	text, err := manual.Sandbox()
	if err != nil {
		return d, err
	}
	var sandbox openapi.Document
	if err := json.Unmarshal(text, &sandbox); err != nil {
		return d, fmt.Errorf("read the description of the sandbox API: %w", err)
	}
	for i := range sandbox.Tags {
		sandbox.Tags[i].Name = inside + sandbox.Tags[i].Name
	}
	for _, operations := range sandbox.Paths {
		for _, o := range operations {
			for i := range o.Tags {
				o.Tags[i] = inside + o.Tags[i]
			}
		}
	}
	name := &openapi.Schema{Type: "string"}
	return openapi.Join(
		openapi.Info{Title: "Doze", Version: control.Info.Version, Description: about},
		openapi.Part{Document: control, Base: prefix},
		openapi.Part{Document: sandbox, Base: sandboxBase, Variables: []openapi.Parameter{
			{Name: "workspace", In: "path", Required: true, Schema: name, Description: "the workspace of the sandbox", Example: "main"},
			{Name: "sandbox", In: "path", Required: true, Schema: name, Description: "the name of the sandbox", Example: "web"},
		}},
	)
}

// Page serves the page and what it loads, to everybody.
type Page struct {
	joined func() ([]byte, error) // packed
}

// New returns the page of a control API, whose paths are below prefix. The description
// is made when somebody first asks for it.
func New(control func() openapi.Document, prefix string) *Page {
	return &Page{sync.OnceValues(func() ([]byte, error) {
		d, err := Join(control(), prefix)
		if err != nil {
			return nil, err
		}
		var packed bytes.Buffer
		z := gzip.NewWriter(&packed)
		if err := json.NewEncoder(z).Encode(d); err != nil {
			return nil, err
		}
		err = z.Close()
		return packed.Bytes(), err
	})}
}

// ServeHTTP answers what is at or below [Path].
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := p.serve(w, r); err != nil {
		httpx.WriteError(w, r, err)
	}
}

func (p *Page) serve(w http.ResponseWriter, r *http.Request) error {
	if err := httpx.Page(w, r); err != nil {
		return err
	}
	h := w.Header()
	h.Set("Cache-Control", "no-cache")
	switch r.URL.Path {
	case Path, Path + "/":
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Content-Security-Policy", policy)
		_, _ = w.Write(page) // the caller went away: nobody is left to tell
		return nil
	case script:
		h.Set("Content-Type", "text/javascript; charset=utf-8")
		h.Set("Cache-Control", "max-age=3600")
		return httpx.WritePacked(w, r, viewer)
	case Document:
		packed, err := p.joined()
		if err != nil {
			return err
		}
		h.Set("Content-Type", httpx.JSONType)
		return httpx.WritePacked(w, r, packed)
	}
	return doze.Errorf(doze.NotFound, "there is no such page: the reference of the APIs is at %s", Path)
}
