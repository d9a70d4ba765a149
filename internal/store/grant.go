package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"time"

	"doze"
)

// Phases of a grant.
const (
	GrantPending = "pending" // a device waits for its user
	GrantAgreed  = "agreed"  // a user agreed, the client has no token yet
	GrantActive  = "active"  // the client has a token
	GrantRevoked = "revoked" // refused, revoked, or a secret of it was used twice
)

// Grant is what a user allows a client: one record from the authorization
// code, or the device code, to the last refresh. It has hashes of secrets only.
type Grant struct {
	ID       string    `json:"-"`
	Sub      string    `json:"-"` // empty until a user agreed
	Phase    string    `json:"-"`
	UserCode string    `json:"-"` // of the device flow
	Expires  time.Time `json:"-"` // of the code, then of the refresh token

	Client    string   `json:"client"`
	Scopes    []string `json:"scopes"`
	Workspace string   `json:"workspace,omitempty"` // for requests that name none; of the moment at which the user agreed
	Redirect  string   `json:"redirect,omitempty"`
	Challenge string   `json:"challenge,omitempty"` // of PKCE, S256
	Code      string   `json:"code"`                // hash of the authorization or device code
	Refresh   string   `json:"refresh,omitempty"`   // hash of the refresh token
	Device    bool     `json:"device,omitempty"`
	Polled    int64    `json:"polled,omitempty"` // when the device asked last, in milliseconds
}

const (
	grantColumns = `id, sub, phase, COALESCE(user_code, ''), expires_at, body`
	errNoGrant   = "there is no such grant"
)

// Grant returns a grant that is not over, or NotFound.
func (s *Store) Grant(ctx context.Context, id string, now time.Time) (Grant, error) {
	return one(ctx, s.read, scanGrant, errNoGrant, `SELECT `+grantColumns+` FROM grants WHERE id = $1 AND expires_at > $2`, id, millis(now))
}

// GrantByUserCode returns the one that a device waits for, or NotFound.
func (s *Store) GrantByUserCode(ctx context.Context, code string, now time.Time) (Grant, error) {
	return one(ctx, s.read, scanGrant, errNoGrant, `SELECT `+grantColumns+` FROM grants
		WHERE user_code = $1 AND phase = 'pending' AND expires_at > $2`, code, millis(now))
}

// RevokedGrants returns those that were revoked and whose tokens may still be
// there.
func (s *Store) RevokedGrants(ctx context.Context, now time.Time) ([]Grant, error) {
	all, err := collect(ctx, s.read, scanGrant, `SELECT `+grantColumns+` FROM grants WHERE phase = 'revoked' AND expires_at > $1`, millis(now))
	return all, wrap(err, "read revoked grants")
}

// InsertGrant adds a grant, and removes those that are over.
func (s *Store) InsertGrant(ctx context.Context, g Grant, now time.Time) error {
	body, err := json.Marshal(g)
	if err != nil {
		return wrap(err, "encode grant")
	}
	err = s.update(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `DELETE FROM grants WHERE expires_at <= $1`, millis(now)); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO grants (id, sub, user_code, phase, expires_at, body) VALUES ($1, $2, $3, $4, $5, $6)`,
			g.ID, g.Sub, sql.Null[string]{V: g.UserCode, Valid: g.UserCode != ""}, g.Phase, millis(g.Expires), string(body))
		return err
	})
	return wrap(err, "insert grant")
}

// Grants counts the grants that wait for a user.
func (s *Store) Grants(ctx context.Context, now time.Time) (int, error) {
	return one(ctx, s.read, scanNumber, "",
		`SELECT COUNT(*) FROM grants WHERE phase = 'pending' AND expires_at > $1`, millis(now))
}

// ChangeGrant hands a grant that is not over to fn and writes what fn makes of
// it, in one transaction, so that a code is used once. What fn changed is
// written even if it returns an error.
func (s *Store) ChangeGrant(ctx context.Context, id string, now time.Time, fn func(*Grant) error) (g Grant, err error) {
	var verdict error
	err = s.update(ctx, func(tx *sql.Tx) error {
		g, err = one(ctx, tx, scanGrant, errNoGrant, `SELECT `+grantColumns+` FROM grants WHERE id = $1 AND expires_at > $2`, id, millis(now))
		if err != nil {
			return err
		}
		verdict = fn(&g)
		body, err := json.Marshal(g)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `UPDATE grants SET sub = $1, phase = $2, expires_at = $3, body = $4 WHERE id = $5`,
			g.Sub, g.Phase, millis(g.Expires), string(body), id)
		return err
	})
	if err != nil {
		return g, err
	}
	return g, verdict
}

// RevokeGrants revokes all grants of a user.
func (s *Store) RevokeGrants(ctx context.Context, sub string) error {
	_, err := s.write.ExecContext(ctx, `UPDATE grants SET phase = 'revoked' WHERE sub = $1`, sub)
	return wrap(err, "revoke grants")
}

func scanGrant(r row) (g Grant, err error) {
	var id, sub, phase, code, body string
	var expires int64
	if err := r.Scan(&id, &sub, &phase, &code, &expires, &body); err != nil {
		return g, err
	}
	err = json.Unmarshal([]byte(body), &g)
	g.ID, g.Sub, g.Phase, g.UserCode, g.Expires = id, sub, phase, code, moment(expires)
	return g, err
}

const errNoClient = "there is no such client"

// OAuthClients returns those of a workspace, by id.
func (s *Store) OAuthClients(ctx context.Context, workspace string) ([]doze.OAuthClient, error) {
	all, err := collect(ctx, s.read, scanClient, `SELECT body FROM oauth_clients WHERE workspace = $1 ORDER BY client_id`, workspace)
	return all, wrap(err, "list clients")
}

// OAuthClient returns the client of an id, of any workspace, or NotFound.
func (s *Store) OAuthClient(ctx context.Context, id string) (doze.OAuthClient, error) {
	return one(ctx, s.read, scanClient, errNoClient, `SELECT body FROM oauth_clients WHERE client_id = $1`, id)
}

// InsertOAuthClient adds a client.
func (s *Store) InsertOAuthClient(ctx context.Context, workspace string, c doze.OAuthClient) error {
	body, err := json.Marshal(c)
	if err != nil {
		return wrap(err, "encode client")
	}
	_, err = s.write.ExecContext(ctx, `INSERT INTO oauth_clients (client_id, workspace, body) VALUES ($1, $2, $3)`, c.ClientID, workspace, string(body))
	return wrap(err, "insert client")
}

// DeleteOAuthClient removes a client and returns it, or NotFound.
func (s *Store) DeleteOAuthClient(ctx context.Context, workspace, id string) (doze.OAuthClient, error) {
	return one(ctx, s.write, scanClient, errNoClient, `DELETE FROM oauth_clients WHERE client_id = $1 AND workspace = $2 RETURNING body`, id, workspace)
}

func scanClient(r row) (c doze.OAuthClient, err error) {
	var body string
	if err := r.Scan(&body); err != nil {
		return c, err
	}
	return c, json.Unmarshal([]byte(body), &c)
}
