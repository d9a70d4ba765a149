package api

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/listing"
	"github.com/dozehq/doze/internal/openapi"
)

// Limits of lists (section 4 of the public API). A bare list has no way to
// the next page, so it is long; beyond that, callers need a newer version.
const (
	LimitDefault = 50
	LimitMax     = 200
	limitBare    = 10_000
	searchMin    = 2 // characters; shorter ones are ignored
	searchMax    = 200
)

// A Listing is what callers may ask of a list.
type Listing struct {
	Phases      map[string][]string // behind each value of the status filter; nil: there is none
	Limit, Most int                 // of a page
	ByTime      bool                // its only order
	Labels      bool                // the records have labels
	// More, if set, reads what else there is.
	More func(url.Values, *listing.Query, *doze.Problems)
}

// specStatuses, of 2.9, are good in the filter of every list of what has one,
// also where nothing can be in it.
var specStatuses = []string{"DELETING", "TERMINATED", "FAILED", "DEACTIVATED", "DEACTIVATING", "UPLOADING", "BUILDING", "DEPLOYING", "DEPLOYED", "BUILT"}

// StatusesWith are the values that a status filter may have, and the phases
// behind each: those of the spec, and what records of a kind are in.
func StatusesWith(own map[string][]string) map[string][]string {
	all := map[string][]string{}
	for _, s := range specStatuses {
		all[s] = nil
	}
	maps.Copy(all, own)
	return all
}

// List is a list in the form of the version that a caller asked for.
type List[T any] struct {
	Data []T      `json:"data"`
	Meta listMeta `json:"meta"`
	bare bool
}

// MarshalJSON writes an envelope or, in the oldest version, a bare array.
func (l List[T]) MarshalJSON() ([]byte, error) {
	if l.bare {
		return json.Marshal(l.Data)
	}
	type envelope List[T]
	return json.Marshal(envelope(l))
}

// Schema says that of both.
func (l List[T]) Schema(of func(reflect.Type) *openapi.Schema) *openapi.Schema {
	data := of(reflect.TypeOf(l.Data))
	return &openapi.Schema{OneOf: []*openapi.Schema{
		data,
		{
			Type: "object", Required: []string{"data", "meta"},
			Properties: map[string]*openapi.Schema{"data": data, "meta": of(reflect.TypeOf(l.Meta))},
		},
	}}
}

// parameters are those that every list has.
func (List[T]) parameters() []string { return []string{"q", "sort", "anchor", "limit", "cursor"} }

type listMeta struct {
	HasMore    bool   `json:"hasMore"`
	NextCursor string `json:"nextCursor,omitempty"`
	Total      int    `json:"total"`
}

// AnswerPage answers a list of resources with labels as the query of r wants it. The names of phases map
// a status to those that have it.
func AnswerPage[Record, View any](
	ctx context.Context, r *http.Request, phases map[string][]string,
	list func(context.Context, listing.Query, time.Time) (listing.Page[Record], error), view func(Record) View,
) (List[View], error) {
	return AnswerListing(ctx, r, Listing{Phases: phases, Limit: LimitDefault, Most: LimitMax, Labels: true}, list, view)
}

// AnswerListing is AnswerPage for a list that is not like most.
func AnswerListing[Record, View any](
	ctx context.Context, r *http.Request, of Listing,
	list func(context.Context, listing.Query, time.Time) (listing.Page[Record], error), view func(Record) View,
) (out List[View], err error) {
	version, err := versionOf(r)
	if err != nil {
		return out, err
	}
	q, err := of.parse(r.URL.Query(), version == bareLists, Mistakes(ctx))
	if err != nil {
		return out, err
	}
	q.Workspace = Caller(ctx).Workspace
	page, err := list(ctx, q, time.Now())
	if err != nil {
		return out, err
	}
	out.Data, out.Meta, out.bare = make([]View, len(page.Records)), listMeta{page.Next != "", page.Next, page.Total}, version == bareLists
	for i, one := range page.Records {
		out.Data[i] = view(one)
	}
	return out, nil
}

// parse reads the parameters of a list and reports every mistake, with those that
// are known.
func (l Listing) parse(v url.Values, bare bool, p doze.Problems) (listing.Query, error) {
	q := listing.Query{
		ExternalID: v.Get("externalId"), Terminated: ShowTerminated.In(v),
		Sort: listing.NewestFirst, Cursor: v.Get("cursor"), Limit: l.Limit,
	}
	most := l.Most
	if bare {
		q.Limit, most = limitBare, limitBare
	}
	if text := v.Get("limit"); text != "" {
		n, err := strconv.Atoi(text) // out of range it is the nearest that fits
		if err != nil && !errors.Is(err, strconv.ErrRange) || n < 1 {
			p.Add("limit", "must be a whole number from 1 to %d; more counts as %d", most, most)
		}
		q.Limit = min(n, most)
	}
	if text := v.Get("sort"); text != "" {
		q.Sort = listing.Sort(text)
		if l.ByTime && q.Sort.Valid() && !q.Sort.ByTime() {
			p.Add("sort", "must be createdAt:desc or createdAt:asc")
		}
	}
	if q.Tail = v.Get("anchor") == "end"; q.Tail && (!q.Sort.ByTime() || q.Cursor != "") {
		p.Add("anchor", "end needs a sort by createdAt, and no cursor")
	}
	switch text, n := v.Get("q"), utf8.RuneCountInString(v.Get("q")); {
	case n > searchMax:
		p.Add("q", "is %d characters long; at most %d are allowed", n, searchMax)
	case n >= searchMin:
		q.Text = text
	}
	if q.Cursor != "" {
		if err := listing.CheckCursor(q.Cursor, time.Now()); err != nil {
			p = append(p, doze.Public(err).Message)
		}
	}
	if q.ExternalID != "" {
		doze.CheckExternalID(&p, "externalId", q.ExternalID)
	}
	if text := v.Get("status"); text != "" && l.Phases != nil {
		q.Phases = phasesOf(text, l.Phases, &p)
	}
	if l.Labels {
		q.Labels = labelsOf(v, &p)
	}
	if l.More != nil {
		l.More(v, &q, &p)
	}
	return q, p.Err()
}

// labelsOf reads the labels that a caller filters by. Each is key=value, where the value
// may have an equals sign.
func labelsOf(v url.Values, p *doze.Problems) (all []listing.Label) {
	if n := len(v["labels"]); n > doze.LabelsMax {
		p.Add("labels", "is there %d times; at most %d are allowed", n, doze.LabelsMax)
		return nil
	}
	for _, text := range v["labels"] {
		key, value, ok := strings.Cut(text, "=")
		if !ok || key == "" {
			p.Add("labels", "has %q; it must be key=value", Clip(text))
		}
		all = append(all, listing.Label{Key: key, Value: value})
	}
	return all
}

// Labelled keeps those of a list that have the labels that the query of r asks for.
func Labelled[T any](r *http.Request, all []T, labels func(T) map[string]string) ([]T, error) {
	var p doze.Problems
	want := labelsOf(r.URL.Query(), &p)
	if err := p.Err(); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(one T) bool {
		return slices.ContainsFunc(want, func(l listing.Label) bool { return !l.In(labels(one)) })
	}), nil
}

// phasesOf reads a comma list of statuses. The result is never nil: a status
// that nothing can have gives an empty list.
func phasesOf(text string, known map[string][]string, p *doze.Problems) []string {
	phases := []string{}
	for part := range strings.SplitSeq(text, ",") {
		behind, ok := known[strings.ToUpper(strings.TrimSpace(part))]
		if !ok {
			p.Add("status", "has the value %q; known are %s", Clip(part), strings.Join(slices.Sorted(maps.Keys(known)), ", "))
		}
		phases = append(phases, behind...)
	}
	return phases
}

// MomentOf reads a moment of a query; the zero time if there is none.
func MomentOf(v url.Values, name string, p *doze.Problems) time.Time {
	text := v.Get(name)
	if text == "" {
		return time.Time{}
	}
	at, err := doze.ParseTime(text)
	if err != nil {
		p.Add(name, "%v", err)
	}
	return at
}
