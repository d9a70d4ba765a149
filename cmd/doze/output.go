package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"unicode"

	"github.com/dozehq/doze"
)

// The ways to print an answer.
const (
	formatTable = "table"
	formatJSON  = "json"
)

func checkFormat(f string) error {
	if f != formatTable && f != formatJSON {
		return usagef("--output must be %s or %s, not %q", formatTable, formatJSON, f)
	}
	return nil
}

// asJSON reports whether answers are printed as the API gives them.
func (a *app) asJSON() bool { return a.format == formatJSON }

func (a *app) printJSON(v any) error {
	e := json.NewEncoder(a.out)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// sayJSON tells the user of an error in the form of the API. Errors that are
// none of the API's have no code.
func (a *app) sayJSON(err error, text string, usage bool) {
	said := struct {
		Error   string `json:"error"`
		Code    int    `json:"code,omitempty"`
		Message string `json:"message"`
	}{"failed", 0, text}
	if usage {
		said.Error = "usage"
	} else if e, ok := errors.AsType[*doze.Error](err); ok {
		said.Error, said.Code = cmp.Or(e.Name, e.Kind.String()), e.Kind.Status()
	}
	e := json.NewEncoder(a.err)
	e.SetEscapeHTML(false)
	_ = e.Encode(said) // nothing can be done if that fails
}

// table prints rows under a header.
func (a *app) table(rows [][]string) error {
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			row[i] = cmp.Or(printable(cell), "-")
		}
		if _, err := fmt.Fprintln(w, strings.Join(row, "\t")); err != nil {
			return err
		}
	}
	return w.Flush()
}

// printable replaces what could move the cursor or change colours: text of
// others must not draw on the terminal of the one who lists it.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, s)
}

func moment(t doze.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05Z")
}

// copyOut writes text as it is.
func copyOut(w io.Writer, s string) error {
	_, err := io.WriteString(w, s)
	return err
}
