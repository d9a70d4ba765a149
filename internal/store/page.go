package store

import (
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/listing"
)

// sorts says how each order is expressed.
var sorts = map[listing.Sort]struct {
	column string
	down   bool
}{
	listing.NewestFirst: {"created_at", true},
	listing.OldestFirst: {"created_at", false},
	listing.NameUp:      {"name", false},
	listing.NameDown:    {"name", true},
}

// listed is a table that is listed in pages. Besides its key it has the columns
// workspace, name, search, phase and created_at.
type listed[T any] struct {
	table   string
	columns string
	key     string
	ended   string // the phase of records that show only if they are asked for
	// phases are those besides ended, if it has an index of each, in every order.
	phases []string
	scan   func(row) (T, error)
	// pieces, if set, is the query for the keys of those records that may have a
	// text; workspace is an argument, and arg adds one.
	pieces func(workspace, text string, arg func(any) string) string
	// label, if the records have labels, is the condition that one of them is there.
	label func(key, value string) string
	where func(T) listing.Cursor // where a page is that ends with a record
}

// hasLabel is the condition that a record has a label. Key and value are arguments. The
// body of the record has the labels in its metadata.
func (s *Store) hasLabel(key, value string) string {
	if s.postgres {
		return "body::jsonb -> 'metadata' -> 'labels' ->> " + key + "::text = " + value
	}
	return "EXISTS (SELECT 1 FROM json_each(body, '$.metadata.labels') AS label WHERE label.key = " + key + " AND label.value = " + value + ")"
}

// List returns a page of the sandboxes of a workspace. A cursor that is
// damaged, older than a day, or of another query is Invalid.
func (s *Store) List(ctx context.Context, q listing.Query, now time.Time) (p listing.Page[Sandbox], err error) {
	total, err := s.Count(ctx, q.Workspace)
	if err != nil {
		return p, err
	}
	p, err = pageOf(ctx, s.read, listed[Sandbox]{
		table: "sandboxes", columns: sandboxColumns, key: "uid", ended: doze.Terminated.String(), phases: present, scan: s.scanSandbox, pieces: withPiece, label: s.hasLabel,
		where: func(sb Sandbox) listing.Cursor {
			return listing.Cursor{UID: sb.UID, Name: sb.Metadata.Name, Time: millis(sb.Metadata.CreatedAt.Time)}
		},
	}, q, now)
	p.Total = total
	return p, wrap(err, "list sandboxes")
}

// present are the phases of sandboxes that a list shows unasked.
var present = func() (all []string) {
	for _, p := range doze.Phases() {
		if p != doze.Terminated {
			all = append(all, p.String())
		}
	}
	return all
}()

// pageOf returns a page without its total.
func pageOf[T any](ctx context.Context, db querier, l listed[T], q listing.Query, now time.Time) (p listing.Page[T], err error) {
	if q.Sort == "" {
		q.Sort = listing.NewestFirst
	}
	for _, among := range searches(l, q) {
		text, args, err := statement(l, q, among, now)
		if err != nil {
			return p, err
		}
		if p.Records, err = collect(ctx, db, l.scan, text, args...); err != nil {
			return p, err
		}
		if len(p.Records) == rowsOf(&q) {
			break
		}
	}
	switch {
	case q.Tail:
		slices.Reverse(p.Records)
	case len(p.Records) > q.Limit:
		p.Records = p.Records[:q.Limit]
		p.Next = q.EncodeCursor(l.where(p.Records[q.Limit-1]), bound(l, q), now)
	}
	return p, nil
}

// countIn is how many records of a table a workspace has.
func countIn(ctx context.Context, q querier, table, workspace string) (int, error) {
	return one(ctx, q, scanNumber, "", `SELECT COUNT(*) FROM `+table+` WHERE workspace = $1`, workspace)
}

// checkRoom is Exhausted if a workspace has as many records of a table as it
// may have.
func checkRoom(ctx context.Context, q querier, table, workspace string, most int) error {
	n, err := countIn(ctx, q, table, workspace)
	if err == nil && n >= most {
		err = doze.Errorf(doze.Exhausted, "the workspace has %d %s, which is the limit: delete one first", n, strings.ReplaceAll(table, "_", " "))
	}
	return err
}

// rowsOf are those that a statement wants: one more than the page has, which tells
// whether there is a next one; exactly the page with Tail.
func rowsOf(q *listing.Query) int {
	if q.Tail {
		return q.Limit
	}
	return q.Limit + 1
}

// A domain is which records of a workspace a statement looks at.
type domain int

const (
	everyone domain = iota
	nearest         // the first ones of the list, [nearestMax] of them
	findable        // those that the index of pieces has
)

// nearestMax is how many records a search reads until it asks the index. What
// many records have, it finds among them; with the index it would have to sort
// them all. To read them takes about as long as to answer.
const nearestMax = 500

// searches are the domains in which a list looks for its records, one after the
// other until a page is full.
func searches[T any](l listed[T], q listing.Query) []domain {
	if l.pieces == nil || q.Text == "" || q.ExternalID != "" { // of an external id there are few
		return []domain{everyone}
	}
	return []domain{nearest, findable}
}

// statement is the one for the rows of a page; with Tail they come backwards.
func statement[T any](l listed[T], q listing.Query, among domain, now time.Time) (string, []any, error) {
	var args []any
	arg := func(v any) string {
		args = append(args, v)
		return fmt.Sprintf("$%d", len(args))
	}
	by := sorts[q.Sort]
	direction, after := "ASC", ">"
	if by.down != q.Tail {
		direction, after = "DESC", "<"
	}
	order := func(limit int) string {
		return fmt.Sprintf("ORDER BY %s %s, %s %s LIMIT %s", by.column, direction, l.key, direction, arg(limit))
	}
	workspace := arg(q.Workspace)
	where := []string{"workspace = " + workspace}
	if q.Cursor != "" {
		c, err := q.DecodeCursor(bound(l, q), now)
		if err != nil {
			return "", nil, err
		}
		last := any(c.Name)
		if q.Sort.ByTime() {
			last = c.Time
		}
		where = append(where, fmt.Sprintf("(%s, %s) %s (%s, %s)", by.column, l.key, after, arg(last), arg(c.UID)))
	}
	from := l.table
	switch among {
	case everyone:
	case nearest:
		from = fmt.Sprintf("(SELECT * FROM %s WHERE %s %s) AS near", l.table, strings.Join(where, " AND "), order(nearestMax))
		where = nil
	case findable: // without the workspace, lest the database reads all that is in it
		where[0] = fmt.Sprintf("%s IN (%s)", l.key, l.pieces(workspace, q.Text, arg))
	}
	where = append(where, filtersOf(&q, arg)...)
	for _, label := range q.Labels {
		// The text that a list is searched for is cheaper to read than the body.
		where = append(where, contains(between+label.Key+between+label.Value, arg), l.label(arg(label.Key), arg(label.Value)))
	}
	phases := q.Phases
	if phases == nil && !q.Terminated {
		phases = l.phases
	}
	// Of an external id there are few, whatever their phases; a search has its own way.
	merged := len(l.phases) > 0 && len(phases) > 0 && q.ExternalID == "" && q.Text == ""
	switch {
	case merged:
	case q.Phases != nil:
		names := []string{"''"} // an empty list is no SQL
		for _, p := range q.Phases {
			names = append(names, arg(p))
		}
		where = append(where, "phase IN ("+strings.Join(names, ", ")+")")
	case !q.Terminated:
		where = append(where, "phase <> '"+l.ended+"'")
	}
	page := order(rowsOf(&q))
	if !merged {
		return fmt.Sprintf("SELECT %s FROM %s WHERE %s %s", l.columns, from, strings.Join(where, " AND "), page), args, nil
	}
	// An index has the records of one phase in order, not those of several:
	// each phase gives as many as the page has at most, and the first of them
	// all are the page.
	var each []string
	for _, p := range slices.Compact(slices.Sorted(slices.Values(phases))) {
		each = append(each, fmt.Sprintf("SELECT * FROM (SELECT %s, %s FROM %s WHERE phase = %s AND %s %s) AS one",
			by.column, l.key, l.table, arg(p), strings.Join(where, " AND "), page))
	}
	return fmt.Sprintf("SELECT %s FROM %s WHERE %s IN (SELECT %s FROM (%s) AS every %s) %s",
		l.columns, l.table, l.key, l.key, strings.Join(each, " UNION ALL "), page, page), args, nil
}

// contains is the condition that what is searched has a text, in any case.
func contains(text string, arg func(any) string) string {
	escape := strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`)
	return "search LIKE " + arg("%"+escape.Replace(strings.ToLower(text))+"%") + ` ESCAPE '\'`
}

// filtersOf are the conditions of q but for workspace, labels and phases; arg adds an
// argument.
func filtersOf(q *listing.Query, arg func(any) string) (where []string) {
	if q.Text != "" {
		where = append(where, contains(q.Text, arg))
	}
	if q.ExternalID != "" {
		// The index leaves out records that have none, and serves those that have one too.
		where = append(where, "external_id <> ''", "external_id = "+arg(q.ExternalID))
	}
	for _, column := range slices.Sorted(maps.Keys(q.Only)) {
		where = append(where, column+" = "+arg(q.Only[column]))
	}
	if !q.Since.IsZero() {
		where = append(where, "created_at >= "+arg(millis(q.Since)))
	}
	if !q.Until.IsZero() {
		where = append(where, "created_at <= "+arg(millis(q.Until)))
	}
	return where
}

// bound identifies the list that a cursor belongs to.
func bound[T any](l listed[T], q listing.Query) uint64 {
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%s %q %q %q %q %q %t %t %q %d %d %q",
		l.table, q.Workspace, q.Text, q.ExternalID, q.Labels, q.Phases, q.Phases == nil, q.Terminated, q.Only, millis(q.Since), millis(q.Until), q.Sort)
	return h.Sum64()
}
