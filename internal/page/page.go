// Package page is the page of a terminal. It needs nothing but the sandbox:
// the terminal emulator is part of it.
//
// xterm.js.gz is lib/xterm.js of @xterm/xterm 6.0.0 followed by lib/addon-fit.js
// of @xterm/addon-fit 0.11.0, without the names of their source maps, packed
// with gzip -9n; xterm.css is css/xterm.css of the former. LICENSE.xterm is
// theirs.
package page

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"encoding/json"
	"io"
	"net/http"
	"strings"
)

//go:embed terminal.html
var terminal string

//go:embed xterm.css
var style string

//go:embed xterm.js.gz
var script []byte

// headers keep a browser from doing anything with the page but connect back. Its
// address may have a credential: it stays in no cache, and no referrer or frame
// tells of it.
var headers = map[string]string{
	"Content-Type":            "text/html; charset=utf-8",
	"Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
	"Cache-Control":           "no-cache, no-store, must-revalidate",
	"Referrer-Policy":         "no-referrer",
	"X-Content-Type-Options":  "nosniff",
}

// Pass is what the page has in the place of a credential. It is in the page, and
// in no address that a browser shows.
type Pass struct {
	Ticket string `json:"ticket"` // opens the socket once
	Lease  string `json:"lease"`  // gets more of these, at the path of the page with /ticket behind
}

// Terminal answers with the page. Its socket is expected at its own path with
// /ws behind, and gets the query of its own address, with a ticket of the pass
// as the token.
func Terminal(w http.ResponseWriter, p Pass) error {
	pass, err := json.Marshal(p)
	if err != nil {
		return err
	}
	for name, value := range headers {
		w.Header().Set(name, value)
	}
	before, rest, _ := strings.Cut(terminal, "{{style}}")
	middle, after, _ := strings.Cut(rest, "{{script}}")
	after = strings.Replace(after, "{{pass}}", string(pass), 1) // JSON escapes <, so that it ends no script
	emulator, err := gzip.NewReader(bytes.NewReader(script))
	if err != nil {
		return err
	}
	// An error of writing is one of the caller, who went away.
	_, _ = io.Copy(w, io.MultiReader(
		strings.NewReader(before), strings.NewReader(style), strings.NewReader(middle), emulator, strings.NewReader(after),
	))
	return emulator.Close()
}
