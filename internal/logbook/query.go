package logbook

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/dozehq/doze/internal/fleet"
)

const (
	// scansMax bounds the searches at a time: each takes a processor. A workspace has
	// one.
	scansMax = 2
	// scanMax bounds the text that one search reads, in bytes. The next one goes on
	// where it ended.
	scanMax = 32 << 20
	// beyond sorts after every origin.
	beyond = "~"
)

// part is a segment of a log that a search may read.
type part struct {
	machine string
	segment
}

// Lines answers a query.
func (b *Book) Lines(ctx context.Context, q fleet.LogQuery) (p fleet.LogPage, err error) {
	if err := b.ready(ctx); err != nil {
		return p, err
	}
	if oldest := time.Now().Add(-b.o.Retention); q.From.Before(oldest) {
		q.From = oldest
	}
	_, release, err := b.asking.Take(ctx, q.Workspace)
	if err != nil {
		return p, err
	}
	defer release()
	select {
	case b.scans <- struct{}{}:
		defer func() { <-b.scans }()
	case <-ctx.Done():
		return p, context.Cause(ctx)
	}
	var found []fleet.LogLine
	scanned := 0
	for _, part := range b.parts(&q) {
		if len(found) > q.Limit && !reaches(&q, found[len(found)-1], part) {
			break
		}
		if scanned >= scanMax {
			return q.Page(found, new(before(&q, part))), nil
		}
		if ctx.Err() != nil {
			return p, context.Cause(ctx)
		}
		raw, err := b.content(part)
		if err != nil {
			return p, err
		}
		scanned += len(raw)
		found = scan(&q, part, raw, found)
	}
	return q.Page(found, nil), nil
}

// parts are the segments that may have lines of a query, in its order.
func (b *Book) parts(q *fleet.LogQuery) (all []part) {
	from, to := q.Bounds()
	b.mu.Lock()
	for _, l := range b.named[name{q.Workspace, q.Name}] {
		for _, s := range l.segments {
			if s.first <= to && s.last >= from {
				all = append(all, part{l.machine, s})
			}
		}
	}
	b.mu.Unlock()
	slices.SortFunc(all, func(x, y part) int {
		if q.OldestFirst {
			return cmp.Compare(x.first, y.first)
		}
		return cmp.Compare(y.last, x.last)
	})
	return all
}

// reaches reports whether a part, or one behind it, may have lines before the last one
// that was found.
func reaches(q *fleet.LogQuery, last fleet.LogLine, p part) bool {
	if q.OldestFirst {
		return p.first <= last.At
	}
	return p.last >= last.At
}

// before is the position after which a search goes on with a part.
func before(q *fleet.LogQuery, p part) fleet.LogPosition {
	if q.OldestFirst {
		return fleet.LogPosition{At: p.first - 1, Origin: beyond}
	}
	return fleet.LogPosition{At: p.last + 1}
}

// content reads a part. One that is gone meanwhile has nothing.
func (b *Book) content(p part) ([]byte, error) {
	raw, err := os.ReadFile(filepath.Join(b.dir(p.machine), p.file))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil || !strings.HasSuffix(p.file, packed) {
		return raw, err
	}
	return b.unpack.DecodeAll(raw, nil)
}

// scan adds the lines of a part that are asked for, and returns the first of all. It
// returns one more than the limit, so that the page knows that there is more.
func scan(q *fleet.LogQuery, p part, raw []byte, found []fleet.LogLine) []fleet.LogLine {
	origin := p.machine
	if p.file == eventsName {
		origin = fleet.EventOrigin(p.machine)
	}
	top := *q
	top.Limit, top.Bytes = q.Limit+1, int(^uint(0)>>1)
	for len(raw) > 0 {
		e, rest, ok := parse(raw)
		if !ok {
			break
		}
		raw = rest
		line := kinds[e.kind]
		line.At, line.Origin, line.Process = e.at, origin, e.process
		for text := range bytes.Lines(e.text) {
			line.Text = strings.TrimSuffix(strings.TrimSuffix(string(text), "\n"), "\r")
			if q.Takes(line) {
				found = append(found, line)
			}
			if line.At++; len(found) > 4*top.Limit {
				found = top.Page(found, nil).Lines
			}
		}
	}
	return top.Page(found, nil).Lines
}
