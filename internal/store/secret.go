package store

import (
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"

	"github.com/dozehq/doze"
)

const (
	secretPlace   = "secret/" // of what is sealed in a record
	errNoSecret   = "there is no such secret"
	secretColumns = `workspace, name, body, sealed`
)

// Secrets returns the secrets of a workspace with their values, by name.
func (s *Store) Secrets(ctx context.Context, workspace string) ([]doze.Secret, error) {
	all, err := collect(ctx, s.read, s.scanSecret, `SELECT `+secretColumns+` FROM secrets WHERE workspace = $1 ORDER BY name`, workspace)
	return all, wrap(err, "list secrets")
}

// Secret returns a secret with its values, or NotFound.
func (s *Store) Secret(ctx context.Context, workspace, name string) (doze.Secret, error) {
	return one(ctx, s.read, s.scanSecret, errNoSecret,
		`SELECT `+secretColumns+` FROM secrets WHERE workspace = $1 AND name = $2`, workspace, name)
}

// InsertSecret adds a secret. A name that is taken is a Conflict.
func (s *Store) InsertSecret(ctx context.Context, sec doze.Secret) error {
	body, sealed, err := s.encodeSecret(sec)
	if err != nil {
		return wrap(err, "encode secret")
	}
	_, err = s.write.ExecContext(ctx, `INSERT INTO secrets (workspace, name, body, sealed) VALUES ($1, $2, $3, $4)`,
		sec.Metadata.Workspace, sec.Metadata.Name, body, sealed)
	if duplicate(err) {
		return doze.Errorf(doze.Conflict, "the secret %s already exists", sec.Metadata.Name)
	}
	return wrap(err, "insert secret")
}

// ChangeSecret hands a secret to fn and writes what fn makes of it, in one
// transaction.
func (s *Store) ChangeSecret(ctx context.Context, workspace, name string, fn func(*doze.Secret) error) (sec doze.Secret, err error) {
	err = s.update(ctx, func(tx *sql.Tx) error {
		sec, err = one(ctx, tx, s.scanSecret, errNoSecret,
			`SELECT `+secretColumns+` FROM secrets WHERE workspace = $1 AND name = $2`, workspace, name)
		if err != nil {
			return err
		}
		if err := fn(&sec); err != nil {
			return err
		}
		body, sealed, err := s.encodeSecret(sec)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `UPDATE secrets SET body = $1, sealed = $2 WHERE workspace = $3 AND name = $4`, body, sealed, workspace, name)
		return err
	})
	return sec, err
}

// DeleteSecret removes a secret and returns it, or NotFound.
func (s *Store) DeleteSecret(ctx context.Context, workspace, name string) (doze.Secret, error) {
	return one(ctx, s.write, s.scanSecret, errNoSecret,
		`DELETE FROM secrets WHERE workspace = $1 AND name = $2 RETURNING `+secretColumns, workspace, name)
}

func (s *Store) encodeSecret(sec doze.Secret) (body, sealed string, err error) {
	plain, err := json.Marshal(sec.Data)
	if err != nil {
		return "", "", err
	}
	sec.Data = nil
	b, err := json.Marshal(sec)
	return string(b), hex.EncodeToString(s.cipher.Seal(plain, secretPlace+sec.Metadata.Workspace+"/"+sec.Metadata.Name)), err
}

func (s *Store) scanSecret(r row) (sec doze.Secret, err error) {
	var workspace, name, body, text string
	if err := r.Scan(&workspace, &name, &body, &text); err != nil {
		return sec, err
	}
	sec.Metadata.Plan = doze.Plan // records of earlier versions have none
	if err := json.Unmarshal([]byte(body), &sec); err != nil {
		return sec, err
	}
	sealed, err := hex.DecodeString(text)
	if err != nil {
		return sec, err
	}
	plain, err := s.cipher.Unseal(sealed, secretPlace+workspace+"/"+name)
	if err != nil {
		return sec, err
	}
	return sec, json.Unmarshal(plain, &sec.Data)
}
