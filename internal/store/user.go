package store

import (
	"context"
	"database/sql"
	"encoding/json"

	"github.com/dozehq/doze"
)

// User is the record of a user. Role is not in it: see [Member].
type User struct {
	doze.User
	Password string // argon2id in the PHC form; empty is none
	Epoch    int64  // tokens of an earlier one are void
	Created  doze.Time
}

// Member is a user's place in a workspace.
type Member struct{ Workspace, Sub, Role string }

const (
	userColumns = `u.password, u.epoch, u.created_at, u.body`
	errNoUser   = "there is no such user"
)

// Users returns every user, oldest first.
func (s *Store) Users(ctx context.Context) ([]User, error) {
	all, err := collect(ctx, s.read, scanUser, `SELECT `+userColumns+` FROM users u ORDER BY u.created_at, u.sub`)
	return all, wrap(err, "list users")
}

// User returns the user of a sub or an e-mail address, or NotFound.
func (s *Store) User(ctx context.Context, subOrEmail string) (User, error) {
	return one(ctx, s.read, scanUser, errNoUser, `SELECT `+userColumns+` FROM users u WHERE u.sub = $1 OR u.email = $1`, subOrEmail)
}

// InsertUser adds a user and puts them into workspaces. An address that is
// taken is a Conflict.
func (s *Store) InsertUser(ctx context.Context, u User, in ...Member) error {
	body, err := json.Marshal(u.User)
	if err != nil {
		return wrap(err, "encode user")
	}
	err = s.update(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO users (sub, email, password, epoch, created_at, body) VALUES ($1, $2, $3, $4, $5, $6)`,
			u.Sub, u.Email, u.Password, u.Epoch, millis(u.Created.Time), string(body))
		for _, m := range in {
			if err == nil {
				err = setMember(ctx, tx, m)
			}
		}
		return err
	})
	if duplicate(err) {
		return doze.Errorf(doze.Conflict, "there is a user with this address already")
	}
	return wrap(err, "insert user")
}

// SetPassword replaces a password and makes every token of the user void. It
// returns the new epoch.
func (s *Store) SetPassword(ctx context.Context, sub, password string) (int64, error) {
	return one(ctx, s.write, func(r row) (n int64, err error) { return n, r.Scan(&n) }, errNoUser,
		`UPDATE users SET password = $1, epoch = epoch + 1 WHERE sub = $2 RETURNING epoch`, password, sub)
}

// UpdateUser writes what can change of a user besides their password.
func (s *Store) UpdateUser(ctx context.Context, u doze.User) error {
	body, err := json.Marshal(u)
	if err != nil {
		return wrap(err, "encode user")
	}
	return gone(s.write.ExecContext(ctx, `UPDATE users SET body = $1 WHERE sub = $2`, string(body), u.Sub))(errNoUser)
}

// Members returns the members of a workspace; of all for the empty name.
func (s *Store) Members(ctx context.Context, workspace string) ([]Member, error) {
	all, err := collect(ctx, s.read, func(r row) (m Member, err error) { return m, r.Scan(&m.Workspace, &m.Sub, &m.Role) },
		`SELECT workspace, sub, role FROM members WHERE workspace = $1 OR $1 = '' ORDER BY sub, workspace`, workspace)
	return all, wrap(err, "list members")
}

// SetMember puts a user into a workspace, or changes their role.
func (s *Store) SetMember(ctx context.Context, m Member) error {
	return wrap(s.update(ctx, func(tx *sql.Tx) error { return setMember(ctx, tx, m) }), "set member")
}

func setMember(ctx context.Context, tx *sql.Tx, m Member) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO members (workspace, sub, role) VALUES ($1, $2, $3)
		ON CONFLICT (workspace, sub) DO UPDATE SET role = excluded.role`, m.Workspace, m.Sub, m.Role)
	return err
}

// RemoveMember takes a user out of a workspace. It reports NotFound for one
// that is not in it, and Conflict for its last admin.
func (s *Store) RemoveMember(ctx context.Context, workspace, sub string) error {
	return s.update(ctx, func(tx *sql.Tx) error {
		if err := leavesAdmin(ctx, tx, workspace, sub); err != nil {
			return err
		}
		return gone(tx.ExecContext(ctx, `DELETE FROM members WHERE workspace = $1 AND sub = $2`, workspace, sub))(errNoUser)
	})
}

// SetRole changes the role of a member. The last admin of a workspace stays
// one: that is a Conflict.
func (s *Store) SetRole(ctx context.Context, m Member) error {
	return s.update(ctx, func(tx *sql.Tx) error {
		if m.Role != doze.RoleAdmin {
			if err := leavesAdmin(ctx, tx, m.Workspace, m.Sub); err != nil {
				return err
			}
		}
		return gone(tx.ExecContext(ctx, `UPDATE members SET role = $3 WHERE workspace = $1 AND sub = $2`, m.Workspace, m.Sub, m.Role))(errNoUser)
	})
}

// leavesAdmin is a Conflict if nobody but sub is an admin of a workspace.
func leavesAdmin(ctx context.Context, tx *sql.Tx, workspace, sub string) error {
	admins, err := collect(ctx, tx, scanText, `SELECT sub FROM members WHERE workspace = $1 AND role = 'admin'`, workspace)
	if err != nil {
		return err
	}
	if len(admins) == 1 && admins[0] == sub {
		return doze.Errorf(doze.Conflict, "the workspace would have no admin: make another member admin first")
	}
	return nil
}

// gone turns the result of a change of no row into NotFound.
func gone(res sql.Result, err error) func(message string) error {
	return func(message string) error {
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n == 0 {
			return doze.Wrap(err, doze.NotFound, "%s", message)
		}
		return nil
	}
}

func scanUser(r row) (u User, err error) {
	var body string
	var created int64
	if err := r.Scan(&u.Password, &u.Epoch, &created, &body); err != nil {
		return u, err
	}
	u.Created = doze.Time{Time: moment(created)}
	return u, json.Unmarshal([]byte(body), &u.User)
}
