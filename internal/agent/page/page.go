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
	"errors"
	"io"
	"strings"
)

//go:embed terminal.html
var terminal string

//go:embed xterm.css
var style string

//go:embed xterm.js.gz
var script []byte

// Policy is what a browser may do with the page: nothing but connect back.
const Policy = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; base-uri 'none'; form-action 'none'"

// Terminal writes the page. Its socket is expected at its own path with /ws
// behind.
func Terminal(w io.Writer) error {
	before, rest, _ := strings.Cut(terminal, "{{style}}")
	middle, after, _ := strings.Cut(rest, "{{script}}")
	emulator, err := gzip.NewReader(bytes.NewReader(script))
	if err != nil {
		return err
	}
	_, err = io.Copy(w, io.MultiReader(
		strings.NewReader(before), strings.NewReader(style), strings.NewReader(middle), emulator, strings.NewReader(after),
	))
	return errors.Join(err, emulator.Close())
}
