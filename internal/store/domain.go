package store

import (
	"context"
	"database/sql"
	"encoding/json"

	"github.com/dozehq/doze"
)

const errNoDomain = "there is no such custom domain"

// Domains returns the custom domains of a workspace, by name; of all for the
// empty name.
func (s *Store) Domains(ctx context.Context, workspace string) ([]doze.CustomDomain, error) {
	all, err := collect(ctx, s.read, scanDomain, `SELECT body FROM custom_domains WHERE workspace = $1 OR $1 = '' ORDER BY name, workspace`, workspace)
	return all, wrap(err, "list custom domains")
}

// Domain returns one, or NotFound.
func (s *Store) Domain(ctx context.Context, workspace, name string) (doze.CustomDomain, error) {
	return one(ctx, s.read, scanDomain, errNoDomain, `SELECT body FROM custom_domains WHERE workspace = $1 AND name = $2`, workspace, name)
}

// InsertDomain adds a domain. A name that the workspace has is a Conflict.
func (s *Store) InsertDomain(ctx context.Context, d doze.CustomDomain) error {
	body, err := json.Marshal(d)
	if err != nil {
		return wrap(err, "encode custom domain")
	}
	_, err = s.write.ExecContext(ctx, `INSERT INTO custom_domains (workspace, name, verified, body) VALUES ($1, $2, NULL, $3)`,
		d.Metadata.Workspace, d.Metadata.Name, string(body))
	if duplicate(err) {
		return doze.Errorf(doze.Conflict, "the custom domain %s already exists", d.Metadata.Name)
	}
	return wrap(err, "insert custom domain")
}

// UpdateDomain writes d. If it is verified and another workspace has it, it is
// a Conflict.
func (s *Store) UpdateDomain(ctx context.Context, d doze.CustomDomain) error {
	body, err := json.Marshal(d)
	if err != nil {
		return wrap(err, "encode custom domain")
	}
	verified := sql.Null[string]{V: d.Metadata.Name, Valid: d.Spec.Status == doze.DomainVerified}
	res, err := s.write.ExecContext(ctx, `UPDATE custom_domains SET verified = $1, body = $2 WHERE workspace = $3 AND name = $4`,
		verified, string(body), d.Metadata.Workspace, d.Metadata.Name)
	if duplicate(err) {
		return doze.Errorf(doze.Conflict, "another workspace has this domain")
	}
	return gone(res, err)(errNoDomain)
}

// DeleteDomain removes a domain and returns it; NotFound if it is not there.
// While previews use it, or it is shared, it is a Conflict.
func (s *Store) DeleteDomain(ctx context.Context, workspace, name string) (d doze.CustomDomain, err error) {
	err = s.update(ctx, func(tx *sql.Tx) error {
		users, err := collect(ctx, tx, scanText, `SELECT name FROM previews WHERE workspace = $1 AND label LIKE '%.preview.' || $2
			AND uid IN (SELECT uid FROM sandboxes WHERE `+alive+`) LIMIT 1`, workspace, name)
		if err != nil {
			return err
		}
		if len(users) > 0 {
			return doze.Errorf(doze.Conflict, "the preview %s uses the domain: delete it first", users[0])
		}
		shares, err := collect(ctx, tx, scanText, `SELECT target FROM domain_shares WHERE workspace = $1 AND name = $2 LIMIT 1`, workspace, name)
		if err != nil {
			return err
		}
		if len(shares) > 0 {
			return doze.Errorf(doze.Conflict, "the domain is shared with %s: end that first", shares[0])
		}
		d, err = one(ctx, tx, scanDomain, errNoDomain, `DELETE FROM custom_domains WHERE workspace = $1 AND name = $2 RETURNING body`, workspace, name)
		return err
	})
	return d, err
}

func scanDomain(r row) (d doze.CustomDomain, err error) {
	var body string
	if err := r.Scan(&body); err != nil {
		return d, err
	}
	return d, json.Unmarshal([]byte(body), &d)
}
