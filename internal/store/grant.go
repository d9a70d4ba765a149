package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"time"

	"github.com/dozehq/doze"
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
	Source   string    `json:"-"` // network of a device that waits; not read back

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

// Waiting bounds the devices that wait for their users: those of one network,
// and all of them.
type Waiting struct{ PerSource, All int }

// InsertDevice adds the grant of a device that waits for its user. Room is made
// for it by those that would be over first: among the devices of its own network
// if that has too many, else of the network that has the most.
func (s *Store) InsertDevice(ctx context.Context, g Grant, most Waiting, now time.Time) error {
	body, err := json.Marshal(g)
	if err != nil {
		return wrap(err, "encode grant")
	}
	err = s.update(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `DELETE FROM grants WHERE expires_at <= $1`, millis(now)); err != nil {
			return err
		}
		if err := dropWaiting(ctx, tx, g.Source, most.PerSource-1); err != nil {
			return err
		}
		all, err := one(ctx, tx, scanNumber, "", `SELECT COUNT(*) FROM grants WHERE phase = 'pending'`)
		if err != nil {
			return err
		}
		if all >= most.All {
			type network struct {
				source string
				n      int
			}
			largest, err := one(ctx, tx, func(r row) (in network, err error) { return in, r.Scan(&in.source, &in.n) }, "", `SELECT source, COUNT(*) FROM grants WHERE phase = 'pending' GROUP BY source ORDER BY COUNT(*) DESC, source LIMIT 1`)
			if err != nil {
				return err
			}
			if err := dropWaiting(ctx, tx, largest.source, largest.n-1); err != nil {
				return err
			}
		}
		_, err = tx.ExecContext(ctx, `INSERT INTO grants (id, sub, user_code, phase, expires_at, source, body) VALUES ($1, '', $2, $3, $4, $5, $6)`,
			g.ID, g.UserCode, GrantPending, millis(g.Expires), g.Source, string(body))
		return err
	})
	return wrap(err, "insert grant")
}

// dropWaiting keeps the n devices of a network that wait the longest from now.
func dropWaiting(ctx context.Context, tx *sql.Tx, source string, n int) error {
	oldest, err := collect(ctx, tx, scanText, `SELECT id FROM grants WHERE phase = 'pending' AND source = $1
		ORDER BY expires_at DESC, id DESC LIMIT $2 OFFSET $3`, source, listMax, n)
	if err != nil || len(oldest) == 0 {
		return err
	}
	marks, args := listOf(oldest)
	_, err = tx.ExecContext(ctx, `DELETE FROM grants WHERE id IN (`+marks+`)`, args...) //nolint:gosec // G202: what is added are the names of parameters
	return err
}

// TrimGrants revokes the active grants of a user but those n that were used last,
// and returns which. Their records stay until a moment, as long as their tokens
// may be there.
func (s *Store) TrimGrants(ctx context.Context, sub string, n int, until time.Time) ([]string, error) {
	ids, err := collect(ctx, s.write, scanText, `UPDATE grants SET phase = 'revoked', expires_at = $1 WHERE id IN
		(SELECT id FROM grants WHERE sub = $2 AND phase = 'active' ORDER BY expires_at DESC, id DESC LIMIT $3 OFFSET $4) RETURNING id`,
		millis(until), sub, listMax, n)
	return ids, wrap(err, "revoke grants")
}

const (
	// loginSourcesMax bounds the networks that are remembered of a user: at home,
	// at work, on the way.
	loginSourcesMax = 16
	// loginSourceStep is how exactly their last use is known.
	loginSourceStep = 24 * time.Hour
)

// LoginSource reports whether a user has logged in from a network since a moment.
func (s *Store) LoginSource(ctx context.Context, sub, network string, since time.Time) (bool, error) {
	n, err := one(ctx, s.read, scanNumber, "", `SELECT COUNT(*) FROM login_sources WHERE sub = $1 AND network = $2 AND used_at >= $3`,
		sub, network, millis(since))
	return n > 0, wrap(err, "read from where a user logs in")
}

// NoteLoginSource records that a user logged in from a network. The networks that
// were used last are kept.
func (s *Store) NoteLoginSource(ctx context.Context, sub, network string, now time.Time) error {
	fresh, err := s.LoginSource(ctx, sub, network, now.Add(-loginSourceStep))
	if err != nil || fresh {
		return err
	}
	return wrap(s.update(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `INSERT INTO login_sources (sub, network, used_at) VALUES ($1, $2, $3)
			ON CONFLICT (sub, network) DO UPDATE SET used_at = excluded.used_at`, sub, network, millis(now)); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `DELETE FROM login_sources WHERE sub = $1 AND network NOT IN
			(SELECT network FROM login_sources WHERE sub = $1 ORDER BY used_at DESC, network LIMIT $2)`, sub, loginSourcesMax)
		return err
	}), "record from where a user logs in")
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
