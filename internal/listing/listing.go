// Package listing has what callers and records say to each other about lists: what
// a list is asked for, the page that answers it, and the cursor to the next one.
package listing

import (
	"encoding/base64"
	"encoding/json"
	"slices"
	"time"

	"github.com/dozehq/doze"
)

// cursorLife is how long a cursor is good for (section 4 of the public API).
const cursorLife = 24 * time.Hour

// Sort is the order of a list.
type Sort string

// The orders; the zero value is the newest first.
const (
	NewestFirst Sort = "createdAt:desc"
	OldestFirst Sort = "createdAt:asc"
	NameUp      Sort = "name:asc"
	NameDown    Sort = "name:desc"
)

// Valid reports whether s is one of the orders.
func (s Sort) Valid() bool {
	return slices.Contains([]Sort{NewestFirst, OldestFirst, NameUp, NameDown}, s)
}

// ByTime reports whether s orders by the moment of creation.
func (s Sort) ByTime() bool { return s == NewestFirst || s == OldestFirst }

// A Query says which records of a workspace to list.
type Query struct {
	Workspace  string
	Text       string   // substring of what is searched, in any case
	ExternalID string   // exactly; of sandboxes only
	Labels     []Label  // all of these
	Phases     []string // only these; nil is all but those that have ended
	Terminated bool     // with nil phases: those of sandboxes too that have ended
	// Only are the values of columns that the table has besides.
	Only         map[string]string
	Since, Until time.Time // bounds of the creation, both inclusive; zero is none
	Sort         Sort
	Limit        int
	Cursor       string // from the page before; empty is the first page
	Tail         bool   // the last page instead of the first
}

// Label is a label that records must have.
type Label struct{ Key, Value string }

// In reports whether a resource with these labels has l.
func (l Label) In(labels map[string]string) bool {
	value, ok := labels[l.Key]
	return ok && value == l.Value
}

// Page is a part of a list. Records have no events.
type Page[T any] struct {
	Records []T
	Next    string // cursor of the next page; empty on the last
	Total   int    // of the workspace, whatever the filters
}

// Cursor is where a page ended. A caller gets its text, and sends it back.
type Cursor struct {
	Time  int64  `json:"t,omitempty"` // by time: the last record's creation
	Name  string `json:"n,omitempty"` // by name: the last record's name
	UID   string `json:"u"`
	Bound uint64 `json:"b"` // hash of workspace, filters and order
	Made  int64  `json:"m"`
}

// EncodeCursor returns the text of c, with what the order needs of it. The bound identifies
// the list.
func (q *Query) EncodeCursor(c Cursor, bound uint64, now time.Time) string {
	c.Bound, c.Made = bound, now.UnixMilli()
	if q.Sort.ByTime() {
		c.Name = ""
	} else {
		c.Time = 0
	}
	b, _ := json.Marshal(c) // numbers and strings always encode
	return base64.RawURLEncoding.EncodeToString(b)
}

// CheckCursor returns what is wrong with a cursor, of whatever list it is: an
// Invalid error for one that is damaged or older than a day.
func CheckCursor(text string, now time.Time) error {
	_, err := parseCursor(text, now)
	return err
}

// parseCursor reads a cursor. It needs no signature: a forged cursor shows another part
// of the same list.
func parseCursor(text string, now time.Time) (c Cursor, err error) {
	b, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || json.Unmarshal(b, &c) != nil || c.UID == "" {
		return c, doze.Errorf(doze.Invalid, "cursor is not one of ours: start again without it")
	}
	if age := now.Sub(time.UnixMilli(c.Made)); age > cursorLife || age < -cursorLife {
		return c, doze.Errorf(doze.Invalid, "cursor is older than %s: start again without it", cursorLife)
	}
	return c, nil
}

// DecodeCursor reads the cursor of q, which must belong to the list that bound identifies.
func (q *Query) DecodeCursor(bound uint64, now time.Time) (Cursor, error) {
	c, err := parseCursor(q.Cursor, now)
	if err != nil {
		return c, err
	}
	if c.Bound != bound {
		return c, doze.Errorf(doze.Invalid, "cursor belongs to a list with other filters or another order: start again without it")
	}
	return c, nil
}

// Restrict has q list what has a value in a column, unless the value is empty.
func (q *Query) Restrict(column, value string) {
	if value == "" {
		return
	}
	if q.Only == nil {
		q.Only = map[string]string{}
	}
	q.Only[column] = value
}
