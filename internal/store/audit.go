package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/audit"
	"github.com/dozehq/doze/internal/listing"
)

const (
	auditColumns = 11 // of a row
	// auditTrim is how many lines one statement removes: others write meanwhile.
	auditTrim = 5000
)

// WriteAudit implements [audit.Store].
func (s *Store) WriteAudit(ctx context.Context, add []audit.Record, settle []doze.AuditLine) error {
	return wrap(s.update(ctx, func(tx *sql.Tx) error {
		for len(add) > 0 {
			n := min(len(add), listMax/auditColumns)
			if err := insertAudit(ctx, tx, add[:n]); err != nil {
				return err
			}
			add = add[n:]
		}
		for _, l := range settle {
			body, err := json.Marshal(l)
			if err != nil {
				return err
			}
			if _, err := tx.ExecContext(ctx, `UPDATE audit SET phase = $1, object = $2, search = $3, body = $4 WHERE id = $5 AND phase = 'begun'`,
				l.Outcome, l.Object.Name, auditSearch(l), string(body), l.ID); err != nil {
				return err
			}
		}
		return nil
	}), "write the audit log")
}

func insertAudit(ctx context.Context, tx *sql.Tx, add []audit.Record) error {
	var rows []string
	var args []any
	for _, r := range add {
		body, err := json.Marshal(r.AuditLine)
		if err != nil {
			return err
		}
		marks := make([]string, auditColumns)
		for i := range marks {
			marks[i] = fmt.Sprintf("$%d", len(args)+i+1)
		}
		rows = append(rows, "("+strings.Join(marks, ", ")+")")
		args = append(args, r.ID, r.Workspace, string(r.Class), r.Outcome, millis(r.Time.Time), r.Actor.Sub, r.Action, r.Object.Name, r.Source,
			auditSearch(r.AuditLine), string(body))
	}
	const insert = `INSERT INTO audit (id, workspace, class, phase, created_at, actor, action, object, source, search, body) VALUES `
	_, err := tx.ExecContext(ctx, insert+strings.Join(rows, ", "), args...)
	return err
}

// auditSearch is what a list is searched for.
func auditSearch(l doze.AuditLine) string {
	return strings.ToLower(strings.Join([]string{l.Actor.Sub, l.Action, l.Object.Name}, "\n"))
}

// LastAudit implements [audit.Store].
func (s *Store) LastAudit(ctx context.Context) (string, error) {
	return one(ctx, s.read, scanText, "", `SELECT COALESCE(MAX(id), '') FROM audit`)
}

// TrimAudit implements [audit.Store]. Lines go in parts, the oldest first.
func (s *Store) TrimAudit(ctx context.Context, before time.Time, shelves map[audit.Shelf]int) error {
	remove := func(where string, args ...any) error {
		for {
			ids, err := collect(ctx, s.write, scanText, fmt.Sprintf(`DELETE FROM audit WHERE id IN
				(SELECT id FROM audit WHERE %s LIMIT %d) RETURNING id`, where, auditTrim), args...)
			if err != nil || len(ids) < auditTrim {
				return wrap(err, "trim the audit log")
			}
		}
	}
	if !before.IsZero() {
		if err := remove(`created_at < $1`, millis(before)); err != nil {
			return err
		}
	}
	for shelf, most := range shelves {
		first, err := collect(ctx, s.read, scanText, `SELECT id FROM audit WHERE workspace = $1 AND class = $2 ORDER BY id DESC LIMIT 1 OFFSET $3`,
			shelf.Workspace, string(shelf.Class), most)
		if err != nil {
			return wrap(err, "trim the audit log")
		}
		if len(first) == 0 {
			continue
		}
		if err := remove(`workspace = $1 AND class = $2 AND id <= $3`, shelf.Workspace, string(shelf.Class), first[0]); err != nil {
			return err
		}
	}
	return nil
}

// ListAudit returns a page of the audit log of a workspace; of the platform for
// the empty name.
func (s *Store) ListAudit(ctx context.Context, q listing.Query, now time.Time) (p listing.Page[doze.AuditLine], err error) {
	q.Terminated = true // every outcome
	total, err := countIn(ctx, s.read, "audit", q.Workspace)
	if err != nil {
		return p, err
	}
	p, err = s.auditPage(ctx, q, now)
	p.Total = total
	return p, wrap(err, "list the audit log")
}

// EachAudit hands the lines that q asks for to fn, a few hundred at a time, until
// fn returns an error.
func (s *Store) EachAudit(ctx context.Context, q listing.Query, now time.Time, fn func([]doze.AuditLine) error) error {
	for q.Terminated, q.Limit = true, listMax; ; {
		page, err := s.auditPage(ctx, q, now)
		if err == nil {
			err = fn(page.Records)
		}
		if err != nil || page.Next == "" {
			return err
		}
		q.Cursor = page.Next
	}
}

func (s *Store) auditPage(ctx context.Context, q listing.Query, now time.Time) (listing.Page[doze.AuditLine], error) {
	return pageOf(ctx, s.read, listed[doze.AuditLine]{
		table: "audit", columns: "body", key: "id",
		scan: func(r row) (l doze.AuditLine, err error) {
			var body string
			if err := r.Scan(&body); err != nil {
				return l, err
			}
			return l, json.Unmarshal([]byte(body), &l)
		},
		where: func(l doze.AuditLine) listing.Cursor { return listing.Cursor{UID: l.ID, Time: millis(l.Time.Time)} },
	}, q, now)
}
