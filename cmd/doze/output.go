package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"go.yaml.in/yaml/v3"

	"github.com/dozehq/doze"
)

// The ways to print an answer.
const (
	formatTable = "table"
	formatWide  = "wide" // a table with all columns, and with times as RFC 3339 writes them
	formatJSON  = "json"
	formatYAML  = "yaml"
	formatName  = "name" // the first column, one line for each record
)

var formats = []string{formatTable, formatWide, formatJSON, formatYAML, formatName}

func checkFormat(f string) error {
	if !slices.Contains(formats, f) {
		return usagef("--output must be %s or %s, not %q", strings.Join(formats[:len(formats)-1], ", "), formats[len(formats)-1], f)
	}
	return nil
}

// whole reports whether answers are printed as the API gives them.
func (a *app) whole() bool { return a.format == formatJSON || a.format == formatYAML }

// printWhole writes v as the API gives it.
func (a *app) printWhole(v any) error {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return err
	}
	if a.format == formatYAML {
		return writeYAML(a.out, out.Bytes())
	}
	_, err := out.WriteTo(a.out)
	return err
}

// writeYAML writes JSON, which is YAML too, in the style of YAML. Members stay in their
// order.
func writeYAML(w io.Writer, raw []byte) error {
	var n yaml.Node
	if err := yaml.Unmarshal(raw, &n); err != nil {
		return err
	}
	plainStyle(&n)
	e := yaml.NewEncoder(w)
	e.SetIndent(2)
	return errors.Join(e.Encode(&n), e.Close())
}

// plainStyle takes the style of JSON off a node. The encoder quotes what needs it.
func plainStyle(n *yaml.Node) {
	n.Style = 0
	for _, in := range n.Content {
		plainStyle(in)
	}
}

// sayWhole tells the user of an error in the form of the API. Errors that are none
// of the API's have no code.
func (a *app) sayWhole(err error, text string, usage bool) {
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

// show prints v as the API gives it, or as rows.
func (a *app) show(v any, rows [][]string) error {
	if a.whole() {
		return a.printWhole(v)
	}
	return a.table(rows)
}

// extra begins the header of a column that only a wide table has.
const extra = "+"

// table prints rows under a header, or only the names of what they are about.
func (a *app) table(rows [][]string) error {
	if len(rows) == 0 {
		return nil
	}
	if a.format == formatName {
		for _, row := range rows[1:] {
			if err := copyOut(a.out, printable(row[0])+"\n"); err != nil {
				return err
			}
		}
		return nil
	}
	wide := a.format == formatWide
	now := a.now()
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	for n, row := range rows {
		var cells []string
		for i, cell := range row {
			if strings.HasPrefix(rows[0][i], extra) && !wide {
				continue
			}
			if n == 0 {
				cell = strings.TrimPrefix(cell, extra)
			}
			cells = append(cells, cmp.Or(printable(dated(cell, wide, now)), "-"))
		}
		if _, err := fmt.Fprintln(w, strings.Join(cells, "\t")); err != nil {
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

// stamp begins a cell that is a moment. The rest is as RFC 3339 writes it.
const stamp = "\x00"

// moment is the cell of a moment: empty for the zero one.
func moment(t doze.Time) string {
	if t.IsZero() {
		return ""
	}
	return stamp + t.UTC().Format(time.RFC3339)
}

// dated is the text of a cell. A moment is told by its distance from now, but in a wide
// table.
func dated(cell string, wide bool, now time.Time) string {
	text, is := strings.CutPrefix(cell, stamp)
	t, err := time.Parse(time.RFC3339, text)
	switch {
	case !is:
		return cell
	case wide || err != nil:
		return text
	}
	return ago(now.Sub(t))
}

// ago tells a distance in its largest unit: "5m ago", or "in 5m".
func ago(d time.Duration) string {
	if d < 0 {
		return "in " + span(-d)
	}
	return span(d) + " ago"
}

// span is a time in its largest unit, rounded down.
func span(d time.Duration) string {
	const day = 24 * time.Hour
	for _, u := range []struct {
		of   time.Duration
		name string
	}{{365 * day, "y"}, {day, "d"}, {time.Hour, "h"}, {time.Minute, "m"}} {
		if d >= u.of {
			return fmt.Sprintf("%d%s", d/u.of, u.name)
		}
	}
	return fmt.Sprintf("%ds", d/time.Second)
}

// copyOut writes text as it is.
func copyOut(w io.Writer, s string) error {
	_, err := io.WriteString(w, s)
	return err
}
