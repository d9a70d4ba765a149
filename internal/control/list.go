package control

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"doze"
	"doze/internal/store"
)

// Limits of lists (section 4 of the public API). A bare list has no way to
// the next page, so it is long; beyond that, callers need a newer version.
const (
	limitDefault = 50
	limitMax     = 200
	limitBare    = 10_000
	searchMin    = 2 // shorter ones are ignored
	searchMax    = 200
)

// A listing is what callers may ask of a list.
type listing struct {
	phases      map[string][]string // behind each value of the status filter; nil: there is none
	limit, most int                 // of a page
	byTime      bool                // its only order
	// more, if set, reads what else there is.
	more func(url.Values, *store.Query, *doze.Problems)
}

// sandboxPhases are the phases behind each value that a status filter may have
// (spec 2.9), and behind those that clients know besides.
var sandboxPhases = func() map[string][]string {
	all := map[string][]string{"UPLOADING": nil, "BUILDING": nil, "BUILT": nil} // of image builds
	for p := doze.Pending; p <= doze.Failed; p++ {
		all[p.Status()] = append(all[p.Status()], p.String())
	}
	return all
}()

// envelope is a list in the paged form.
type envelope[T any] struct {
	Data []T  `json:"data"`
	Meta meta `json:"meta"`
}

type meta struct {
	HasMore    bool   `json:"hasMore"`
	NextCursor string `json:"nextCursor,omitempty"`
	Total      int    `json:"total"`
}

// listSandboxes answers an envelope or, in the oldest version, a bare array.
func (s *Server) listSandboxes(ctx context.Context, r *http.Request) (any, error) {
	return answerPage(ctx, r, sandboxPhases, s.Store.List, s.view)
}

// answerPage answers a list as the query of r wants it. The names of phases map
// a status to those that have it.
func answerPage[Record, View any](
	ctx context.Context, r *http.Request, phases map[string][]string,
	list func(context.Context, store.Query, time.Time) (store.Page[Record], error), view func(Record) View,
) (any, error) {
	return answerListing(ctx, r, listing{phases: phases, limit: limitDefault, most: limitMax}, list, view)
}

// answerListing is answerPage for a list that is not like most.
func answerListing[Record, View any](
	ctx context.Context, r *http.Request, of listing,
	list func(context.Context, store.Query, time.Time) (store.Page[Record], error), view func(Record) View,
) (any, error) {
	version, err := versionOf(r)
	if err != nil {
		return nil, err
	}
	q, err := of.parse(r.URL.Query(), version == bareLists)
	if err != nil {
		return nil, err
	}
	q.Workspace = callerOf(ctx).Workspace
	page, err := list(ctx, q, time.Now())
	if err != nil {
		return nil, err
	}
	data := make([]View, len(page.Records))
	for i, one := range page.Records {
		data[i] = view(one)
	}
	if version == bareLists {
		return data, nil
	}
	return envelope[View]{data, meta{page.Next != "", page.Next, page.Total}}, nil
}

// parse reads the parameters of a list and reports every mistake.
func (l listing) parse(v url.Values, bare bool) (store.Query, error) {
	var p doze.Problems
	q := store.Query{
		ExternalID: v.Get("externalId"), Terminated: showTerminated.in(v),
		Sort: store.NewestFirst, Cursor: v.Get("cursor"), Limit: l.limit,
	}
	most := l.most
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
		q.Sort = store.Sort(text)
		switch {
		case l.byTime && !q.Sort.ByTime():
			p.Add("sort", "must be createdAt:desc or createdAt:asc")
		case !q.Sort.Valid():
			p.Add("sort", "must be createdAt:desc, createdAt:asc, name:asc or name:desc")
		}
	}
	switch v.Get("anchor") {
	case "", "start":
	case "end":
		q.Tail = true
		if !q.Sort.ByTime() || q.Cursor != "" {
			p.Add("anchor", "end needs a sort by createdAt, and no cursor")
		}
	default:
		p.Add("anchor", "must be end or left out")
	}
	if text := v.Get("q"); len(text) > searchMax {
		p.Add("q", "is %d bytes long; at most %d are allowed", len(text), searchMax)
	} else if len(text) >= searchMin {
		q.Text = text
	}
	if q.Cursor != "" {
		if err := store.CheckCursor(q.Cursor, time.Now()); err != nil {
			p = append(p, doze.Public(err).Message)
		}
	}
	if q.ExternalID != "" {
		doze.CheckExternalID(&p, "externalId", q.ExternalID)
	}
	if text := v.Get("status"); text != "" && l.phases != nil {
		q.Phases = phasesOf(text, l.phases, &p)
	}
	if l.more != nil {
		l.more(v, &q, &p)
	}
	return q, p.Err()
}

// phasesOf reads a comma list of statuses. The result is never nil: a status
// that nothing can have gives an empty list.
func phasesOf(text string, known map[string][]string, p *doze.Problems) []string {
	phases := []string{}
	for part := range strings.SplitSeq(text, ",") {
		behind, ok := known[strings.ToUpper(strings.TrimSpace(part))]
		if !ok {
			p.Add("status", "has the value %q; known are %s", clip(part), strings.Join(slices.Sorted(maps.Keys(known)), ", "))
		}
		phases = append(phases, behind...)
	}
	return phases
}
