package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"time"

	"github.com/dozehq/doze"
)

// Invitation is the record of an invitation. Its token is not in it.
type Invitation struct {
	doze.Invitation
	ID   string
	Hash string // SHA-256 of the token, hexadecimal
}

const (
	invitationColumns = `id, hash, body`
	errNoInvitation   = "there is no such invitation, or it is over"
)

// Invitations returns those of a workspace that are not over, by address.
func (s *Store) Invitations(ctx context.Context, workspace string, now time.Time) ([]Invitation, error) {
	all, err := collect(ctx, s.read, scanInvitation, `SELECT `+invitationColumns+` FROM invitations
		WHERE workspace = $1 AND expires_at > $2 ORDER BY email`, workspace, millis(now))
	return all, wrap(err, "list invitations")
}

// Invitation returns the one of an id, or NotFound.
func (s *Store) Invitation(ctx context.Context, id string, now time.Time) (Invitation, error) {
	return one(ctx, s.read, scanInvitation, errNoInvitation,
		`SELECT `+invitationColumns+` FROM invitations WHERE id = $1 AND expires_at > $2`, id, millis(now))
}

// InvitationOf returns the one of an address to a workspace, or NotFound.
func (s *Store) InvitationOf(ctx context.Context, workspace, email string, now time.Time) (Invitation, error) {
	return one(ctx, s.read, scanInvitation, errNoInvitation,
		`SELECT `+invitationColumns+` FROM invitations WHERE workspace = $1 AND email = $2 AND expires_at > $3`, workspace, email, millis(now))
}

// PutInvitation adds an invitation. One of the same address to the same
// workspace becomes void.
func (s *Store) PutInvitation(ctx context.Context, i Invitation) error {
	i.Token = ""
	body, err := json.Marshal(i.Invitation)
	if err != nil {
		return wrap(err, "encode invitation")
	}
	_, err = s.write.ExecContext(ctx, `INSERT INTO invitations (id, workspace, email, hash, expires_at, body) VALUES ($1, $2, $3, $4, $5, $6)
		ON CONFLICT (workspace, email) DO UPDATE SET id = excluded.id, hash = excluded.hash, expires_at = excluded.expires_at, body = excluded.body`,
		i.ID, i.Workspace, i.Email, i.Hash, millis(i.ExpiresAt.Time), string(body))
	return wrap(err, "insert invitation")
}

// AcceptInvitation uses an invitation: its user, who is added if fresh is set, becomes a
// member. An invitation that somebody used meanwhile is NotFound.
func (s *Store) AcceptInvitation(ctx context.Context, i Invitation, sub string, fresh *User) error {
	err := s.update(ctx, func(tx *sql.Tx) error {
		if err := gone(tx.ExecContext(ctx, `DELETE FROM invitations WHERE id = $1`, i.ID))(errNoInvitation); err != nil {
			return err
		}
		if fresh != nil {
			body, err := json.Marshal(fresh.User)
			if err != nil {
				return err
			}
			if _, err := tx.ExecContext(ctx, `INSERT INTO users (sub, email, password, epoch, created_at, body) VALUES ($1, $2, $3, 0, $4, $5)`,
				fresh.Sub, fresh.Email, fresh.Password, millis(fresh.Created.Time), string(body)); err != nil {
				return err
			}
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO members (workspace, sub, role) VALUES ($1, $2, $3)
			ON CONFLICT (workspace, sub) DO NOTHING`, i.Workspace, sub, i.Role)
		return err
	})
	if duplicate(err) {
		return doze.Errorf(doze.Conflict, "there is a user with this address already: log in and accept the invitation there")
	}
	return err
}

// DeleteInvitation removes an invitation, or is NotFound.
func (s *Store) DeleteInvitation(ctx context.Context, workspace, email string) error {
	return gone(s.write.ExecContext(ctx, `DELETE FROM invitations WHERE workspace = $1 AND email = $2`, workspace, email))(errNoInvitation)
}

func scanInvitation(r row) (i Invitation, err error) {
	var body string
	if err := r.Scan(&i.ID, &i.Hash, &body); err != nil {
		return i, err
	}
	return i, json.Unmarshal([]byte(body), &i.Invitation)
}
