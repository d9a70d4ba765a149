package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/listing"
)

const errNoPolicy = "there is no such policy"

// policy is a record of a policy.
type policy struct {
	doze.Policy
	id string
}

// ListPolicies returns a page of those of a workspace, in the manner of
// [Store.List].
func (s *Store) ListPolicies(ctx context.Context, q listing.Query, now time.Time) (p listing.Page[doze.Policy], err error) {
	q.ExternalID, q.Terminated = "", false // of sandboxes only
	total, err := countIn(ctx, s.read, "policies", q.Workspace)
	if err != nil {
		return p, wrap(err, "count policies")
	}
	found, err := pageOf(ctx, s.read, listed[policy]{
		table: "policies", columns: "id, body", key: "id", label: s.hasLabel,
		scan: func(r row) (one policy, err error) {
			var body string
			if err := r.Scan(&one.id, &body); err != nil {
				return one, err
			}
			one.Metadata.Plan = doze.Plan // records of earlier versions have none
			return one, json.Unmarshal([]byte(body), &one.Policy)
		},
		where: func(one policy) listing.Cursor {
			return listing.Cursor{UID: one.id, Name: one.Metadata.Name, Time: millis(one.Metadata.CreatedAt.Time)}
		},
	}, q, now)
	p.Next, p.Total = found.Next, total
	for _, one := range found.Records {
		p.Records = append(p.Records, one.Policy)
	}
	return p, wrap(err, "list policies")
}

// Policy returns one, or NotFound.
func (s *Store) Policy(ctx context.Context, workspace, name string) (doze.Policy, error) {
	return policyOf(ctx, s.read, workspace, name)
}

func policyOf(ctx context.Context, q querier, workspace, name string) (doze.Policy, error) {
	return one(ctx, q, scanPolicy, errNoPolicy, `SELECT body FROM policies WHERE workspace = $1 AND name = $2`, workspace, name)
}

// InsertPolicy adds a policy. A name that is taken is a Conflict; more than
// [doze.PoliciesOfWorkspaceMax] are Exhausted.
func (s *Store) InsertPolicy(ctx context.Context, p doze.Policy) error {
	body, err := json.Marshal(p)
	if err != nil {
		return wrap(err, "encode policy")
	}
	err = s.update(ctx, func(tx *sql.Tx) error {
		if err := checkRoom(ctx, tx, "policies", p.Metadata.Workspace, doze.PoliciesOfWorkspaceMax); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO policies (id, workspace, name, search, phase, created_at, body) VALUES ($1, $2, $3, $4, $5, $6, $7)`,
			NewID(), p.Metadata.Workspace, p.Metadata.Name, searchText(p.Metadata), p.Spec.Type, millis(p.Metadata.CreatedAt.Time), string(body))
		return err
	})
	if duplicate(err) {
		return doze.Errorf(doze.Conflict, "the policy %s already exists", p.Metadata.Name)
	}
	return wrap(err, "insert policy")
}

// ChangePolicy hands a policy to fn and writes what fn makes of it, in one
// transaction.
func (s *Store) ChangePolicy(ctx context.Context, workspace, name string, fn func(*doze.Policy) error) (p doze.Policy, err error) {
	err = s.update(ctx, func(tx *sql.Tx) error {
		if p, err = policyOf(ctx, tx, workspace, name); err != nil {
			return err
		}
		if err := fn(&p); err != nil {
			return err
		}
		body, err := json.Marshal(p)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `UPDATE policies SET search = $1, phase = $2, body = $3 WHERE workspace = $4 AND name = $5`,
			searchText(p.Metadata), p.Spec.Type, string(body), workspace, name)
		return err
	})
	return p, wrap(err, "change policy")
}

// DeletePolicy removes a policy and returns it, or NotFound.
func (s *Store) DeletePolicy(ctx context.Context, workspace, name string) (doze.Policy, error) {
	return one(ctx, s.write, scanPolicy, errNoPolicy, `DELETE FROM policies WHERE workspace = $1 AND name = $2 RETURNING body`, workspace, name)
}

func scanPolicy(r row) (p doze.Policy, err error) {
	var body string
	if err := r.Scan(&body); err != nil {
		return p, err
	}
	p.Metadata.Plan = doze.Plan // likewise
	return p, json.Unmarshal([]byte(body), &p)
}
