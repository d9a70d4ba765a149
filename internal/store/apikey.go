package store

import (
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"github.com/dozehq/doze"
)

// APIKey is the record of an API key. The key itself is not in it: Hash is its SHA-256,
// with which nobody can call.
type APIKey struct {
	doze.APIKey
	Workspace string
	Hash      [32]byte
	Scopes    []string
	Expires   time.Time // zero is never
	LastUsed  time.Time // zero is not yet; up to a minute old
}

const apiKeyColumns = `workspace, hash, scopes, expires_at, last_used_at, body`

// APIKeys returns the keys of a workspace, oldest first; of all workspaces for
// the empty name.
func (s *Store) APIKeys(ctx context.Context, workspace string) ([]APIKey, error) {
	all, err := collect(ctx, s.read, scanAPIKey, `SELECT `+apiKeyColumns+` FROM api_keys
		WHERE workspace = $1 OR $1 = '' ORDER BY created_at, id`, workspace)
	return all, wrap(err, "list API keys")
}

// APIKey returns a key of a workspace, or NotFound.
func (s *Store) APIKey(ctx context.Context, workspace, id string) (APIKey, error) {
	return one(ctx, s.read, scanAPIKey, "there is no such API key",
		`SELECT `+apiKeyColumns+` FROM api_keys WHERE workspace = $1 AND id = $2`, workspace, id)
}

// InsertAPIKey adds k. Whatever stands in k.Key is not written. More than the
// workspace may have are Exhausted.
func (s *Store) InsertAPIKey(ctx context.Context, k APIKey) error {
	k.Key = ""
	body, err := json.Marshal(k.APIKey) //nolint:gosec // the member that it sees is empty now
	if err != nil {
		return wrap(err, "encode API key")
	}
	scopes, err := json.Marshal(k.Scopes)
	if err != nil {
		return wrap(err, "encode scopes")
	}
	err = s.update(ctx, func(tx *sql.Tx) error {
		if err := s.checkQuota(ctx, tx, k.Workspace, doze.QuotaKeys, 1); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO api_keys
			(id, workspace, sub, hash, scopes, expires_at, created_at, last_used_at, body) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`,
			k.ID, k.Workspace, k.Sub, hex.EncodeToString(k.Hash[:]), string(scopes),
			millis(k.Expires), millis(k.CreatedAt.Time), millis(k.LastUsed), string(body))
		return err
	})
	return wrap(err, "insert API key")
}

// DeleteAPIKey removes a key of a workspace. One that is not there is NotFound.
func (s *Store) DeleteAPIKey(ctx context.Context, workspace, id string) error {
	res, err := s.write.ExecContext(ctx, `DELETE FROM api_keys WHERE workspace = $1 AND id = $2`, workspace, id)
	if err != nil {
		return wrap(err, "delete API key")
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return doze.Wrap(err, doze.NotFound, "there is no such API key")
	}
	return nil
}

// TouchAPIKeys records when keys were last used, by id.
func (s *Store) TouchAPIKeys(ctx context.Context, used map[string]time.Time) error {
	err := s.update(ctx, func(tx *sql.Tx) error {
		for id, at := range used {
			_, err := tx.ExecContext(ctx, `UPDATE api_keys SET last_used_at = $1 WHERE id = $2 AND last_used_at < $1`, millis(at), id)
			if err != nil {
				return err
			}
		}
		return nil
	})
	return wrap(err, "record the use of API keys")
}

func scanAPIKey(r row) (k APIKey, err error) {
	var hash, scopes, body string
	var expires, used int64
	if err := r.Scan(&k.Workspace, &hash, &scopes, &expires, &used, &body); err != nil {
		return k, err
	}
	sum, err := hex.DecodeString(hash)
	if err != nil || copy(k.Hash[:], sum) != len(k.Hash) {
		return k, fmt.Errorf("the hash of an API key is damaged")
	}
	k.Expires, k.LastUsed = moment(expires), moment(used)
	if err := json.Unmarshal([]byte(scopes), &k.Scopes); err != nil {
		return k, err
	}
	return k, json.Unmarshal([]byte(body), &k.APIKey)
}
