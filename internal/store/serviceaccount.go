package store

import (
	"context"
	"database/sql"
	"encoding/json"

	"github.com/dozehq/doze"
)

// ServiceAccount is the record of a service account. Its secret is not in it.
type ServiceAccount struct {
	doze.ServiceAccount
	Workspace string
	Hash      string // SHA-256 of the secret, hexadecimal
}

const (
	serviceColumns = `workspace, hash, scopes, body`
	errNoService   = "there is no such service account"
)

// ServiceAccounts returns those of a workspace, oldest first; all for the
// empty name.
func (s *Store) ServiceAccounts(ctx context.Context, workspace string) ([]ServiceAccount, error) {
	all, err := collect(ctx, s.read, scanService, `SELECT `+serviceColumns+` FROM service_accounts
		WHERE workspace = $1 OR $1 = '' ORDER BY created_at, client_id`, workspace)
	return all, wrap(err, "list service accounts")
}

// ServiceAccount returns one, or NotFound. The empty workspace is any.
func (s *Store) ServiceAccount(ctx context.Context, workspace, id string) (ServiceAccount, error) {
	return one(ctx, s.read, scanService, errNoService, `SELECT `+serviceColumns+` FROM service_accounts
		WHERE client_id = $1 AND (workspace = $2 OR $2 = '')`, id, workspace)
}

// InsertServiceAccount adds a. What stands in a.Secret is not written.
func (s *Store) InsertServiceAccount(ctx context.Context, a ServiceAccount) error {
	body, scopes, err := encodeService(a)
	if err != nil {
		return wrap(err, "encode service account")
	}
	_, err = s.write.ExecContext(ctx, `INSERT INTO service_accounts (client_id, workspace, hash, scopes, created_at, body)
		VALUES ($1, $2, $3, $4, $5, $6)`, a.ClientID, a.Workspace, a.Hash, scopes, millis(a.CreatedAt.Time), body)
	return wrap(err, "insert service account")
}

// UpdateServiceAccount writes the name, the description and the scopes of a.
func (s *Store) UpdateServiceAccount(ctx context.Context, a ServiceAccount) error {
	body, scopes, err := encodeService(a)
	if err != nil {
		return wrap(err, "encode service account")
	}
	return gone(s.write.ExecContext(ctx, `UPDATE service_accounts SET body = $1, scopes = $2 WHERE client_id = $3 AND workspace = $4`,
		body, scopes, a.ClientID, a.Workspace))(errNoService)
}

// DeleteServiceAccount removes an account with its keys, and returns it and
// the ids of the keys; or NotFound.
func (s *Store) DeleteServiceAccount(ctx context.Context, workspace, id string) (a ServiceAccount, keys []string, err error) {
	err = s.update(ctx, func(tx *sql.Tx) error {
		a, err = one(ctx, tx, scanService, errNoService, `DELETE FROM service_accounts
			WHERE client_id = $1 AND workspace = $2 RETURNING `+serviceColumns, id, workspace)
		if err != nil {
			return err
		}
		keys, err = collect(ctx, tx, scanText, `DELETE FROM api_keys WHERE sub = $1 RETURNING id`, id)
		return err
	})
	return a, keys, err
}

func encodeService(a ServiceAccount) (body, scopes string, err error) {
	list, err := json.Marshal(a.Scopes)
	if err != nil {
		return "", "", err
	}
	a.Secret, a.Scopes = "", nil
	b, err := json.Marshal(a.ServiceAccount) //nolint:gosec // the member that it sees is empty now
	return string(b), string(list), err
}

func scanService(r row) (a ServiceAccount, err error) {
	var scopes, body string
	if err := r.Scan(&a.Workspace, &a.Hash, &scopes, &body); err != nil {
		return a, err
	}
	if err := json.Unmarshal([]byte(body), &a.ServiceAccount); err != nil {
		return a, err
	}
	return a, json.Unmarshal([]byte(scopes), &a.Scopes)
}
