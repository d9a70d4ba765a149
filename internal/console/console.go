// Package console is the page of a platform: an operator sees how its sandboxes sleep,
// and what they cost. A developer sees what a sandbox does.
//
// The page is a program in app, which runs in a browser. It calls the control API as every
// other client does, and this package gives it no way in besides. The target console of the
// Makefile builds the program into assets. These are committed, so that a build of dozed
// needs nothing but Go. LICENSE.parts has the licenses of what is built in.
package console

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"io/fs"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/httpx"
)

const (
	// Root is where the page is, for clients that show pages.
	Root = "/"
	// Path is what the paths of its parts are below.
	Path = "/console"
)

var (
	//go:embed page.html
	page string
	// assets are what the page loads. Those in chunk are parts of the program that a view
	// loads when it is opened. Their names have a hash, and the program has their names.
	//go:embed assets
	assets embed.FS
)

const scriptType = "text/javascript; charset=utf-8"

// policy has the browser load the parts below, call the API, and do nothing else. No script
// and no style is in the markup, and no script makes markup out of a text.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// part is a file that the page loads. The address has the hash of the content, so that a
// browser never asks for it again.
type part struct {
	path, kind, tag string
	packed          func() ([]byte, error)
}

// newPart is a file whose address gets the hash of its content.
func newPart(name, kind string, content []byte) part {
	stem, suffix, _ := strings.Cut(name, ".")
	hash := hashOf(content)
	return partAt(Path+"/"+stem+"."+hash+"."+suffix, kind, hash, content)
}

func hashOf(content []byte) string {
	sum := sha256.Sum256(content)
	return base64.RawURLEncoding.EncodeToString(sum[:9])
}

func partAt(path, kind, hash string, content []byte) part {
	return part{path, kind, `"` + hash + `"`, sync.OnceValues(func() ([]byte, error) {
		var b bytes.Buffer
		z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
		if err != nil {
			return nil, err
		}
		if _, err := z.Write(content); err != nil {
			return nil, err
		}
		err = z.Close()
		return b.Bytes(), err
	})}
}

// read returns the content of an asset.
func read(name string) []byte {
	content, err := assets.ReadFile("assets/" + name)
	if err != nil {
		panic(err) // it is part of this program
	}
	return content
}

// Page serves the page and its parts, to everybody: neither has a secret.
type Page struct {
	text, tag string
	parts     map[string]part // by path
}

// New returns the page.
func New() *Page {
	p := &Page{parts: map[string]part{}}
	var places []string
	for place, one := range map[string]part{
		"{{script}}": newPart("app.js", scriptType, read("app.js")),
		"{{style}}":  newPart("app.css", "text/css; charset=utf-8", read("app.css")),
		"{{icon}}":   newPart("icon.svg", "image/svg+xml", read("icon.svg")),
	} {
		p.parts[one.path] = one
		places = append(places, place, one.path)
	}
	chunks, err := fs.Glob(assets, "assets/chunk/*")
	if err != nil {
		panic(err) // the pattern is wrong
	}
	for _, file := range chunks {
		name := strings.TrimPrefix(file, "assets/")
		content := read(name)
		one := partAt(Path+"/"+name, scriptType, hashOf(content), content)
		p.parts[one.path] = one
	}
	p.text = strings.NewReplacer(places...).Replace(page)
	p.tag = `"` + hashOf([]byte(p.text)) + `"`
	return p
}

// ServeHTTP answers what is at [Root], and at or below [Path].
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
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	if r.URL.Path == Root {
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Content-Security-Policy", policy)
		h.Set("Cache-Control", "no-cache")
		h.Set("Etag", p.tag)
		h.Add("Vary", "Accept") // programs get an error there
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(p.text))
		return nil
	}
	one, ok := p.parts[r.URL.Path]
	if !ok {
		h.Set("Cache-Control", "no-store")
		return doze.Errorf(doze.NotFound, "there is no such part of the page: load %s again", Root)
	}
	h.Set("Content-Type", one.kind)
	h.Set("Cache-Control", "public, max-age=31536000, immutable")
	h.Set("Etag", one.tag)
	if r.Header.Get("If-None-Match") == one.tag {
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	packed, err := one.packed()
	if err != nil {
		return err
	}
	return httpx.WritePacked(w, r, packed)
}
