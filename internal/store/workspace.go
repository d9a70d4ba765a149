package store

import (
	"context"
	"database/sql"
	"encoding/json"

	"github.com/dozehq/doze"
)

const errNoWorkspace = "there is no such workspace"

// Workspaces returns every workspace, oldest first.
func (s *Store) Workspaces(ctx context.Context) ([]doze.Workspace, error) {
	all, err := collect(ctx, s.read, scanWorkspace, `SELECT body FROM workspaces ORDER BY created_at, id`)
	return all, wrap(err, "list workspaces")
}

// Workspace returns the workspace of a name, or NotFound.
func (s *Store) Workspace(ctx context.Context, name string) (doze.Workspace, error) {
	return one(ctx, s.read, scanWorkspace, errNoWorkspace, `SELECT body FROM workspaces WHERE name = $1`, name)
}

// InsertWorkspace adds w with the members that it has from the start. A name
// that is taken is a Conflict.
func (s *Store) InsertWorkspace(ctx context.Context, w doze.Workspace, members ...Member) error {
	body, err := json.Marshal(w)
	if err != nil {
		return wrap(err, "encode workspace")
	}
	err = s.update(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO workspaces (id, name, created_at, body) VALUES ($1, $2, $3, $4)`,
			w.ID, w.Name, millis(w.CreatedAt.Time), string(body))
		for _, m := range members {
			if err == nil {
				err = setMember(ctx, tx, m)
			}
		}
		return err
	})
	if duplicate(err) {
		return doze.Errorf(doze.Conflict, "the workspace %s already exists", w.Name)
	}
	return wrap(err, "insert workspace")
}

// UpdateWorkspace writes what can change of w.
func (s *Store) UpdateWorkspace(ctx context.Context, w doze.Workspace) error {
	body, err := json.Marshal(w)
	if err != nil {
		return wrap(err, "encode workspace")
	}
	return gone(s.write.ExecContext(ctx, `UPDATE workspaces SET body = $1 WHERE name = $2`, string(body), w.Name))(errNoWorkspace)
}

// DeleteWorkspace removes a workspace and all that is in it, and returns the
// ids of the API keys that went with it. While it has sandboxes or snapshots,
// it is a Conflict.
func (s *Store) DeleteWorkspace(ctx context.Context, name string) (keys []string, err error) {
	err = s.update(ctx, func(tx *sql.Tx) error {
		living, err := collect(ctx, tx, scanText, `SELECT name FROM sandboxes WHERE workspace = $1 AND phase <> 'terminated' LIMIT 1`, name)
		if err != nil {
			return err
		}
		if len(living) > 0 {
			return doze.Errorf(doze.Conflict, "the workspace still has sandboxes: delete them first")
		}
		for what, query := range map[string]string{
			"snapshots":        `SELECT name FROM snapshots WHERE workspace = $1 LIMIT 1`,
			"volumes":          `SELECT name FROM volumes WHERE workspace = $1 LIMIT 1`,
			"volume templates": `SELECT name FROM volume_templates WHERE workspace = $1 LIMIT 1`,
			"drives":           `SELECT name FROM drives WHERE workspace = $1 LIMIT 1`,
		} {
			held, err := collect(ctx, tx, scanText, query, name)
			if err != nil {
				return err
			}
			if len(held) > 0 {
				return doze.Errorf(doze.Conflict, "the workspace still has %s: delete them first", what)
			}
		}
		if keys, err = collect(ctx, tx, scanText, `DELETE FROM api_keys WHERE workspace = $1 RETURNING id`, name); err != nil {
			return err
		}
		for _, remove := range []string{
			`DELETE FROM secrets WHERE workspace = $1`, `DELETE FROM sandboxes WHERE workspace = $1`, `DELETE FROM sandbox_pieces WHERE workspace = $1`,
			`DELETE FROM counts WHERE workspace = $1`, `DELETE FROM workspace_quotas WHERE workspace = $1`, `DELETE FROM egress_days WHERE workspace = $1`,
			`UPDATE audit SET workspace = '' WHERE workspace = $1`, // the next workspace of this name is another one
			`DELETE FROM domain_shares WHERE target = $1`, `DELETE FROM image_shares WHERE target = $1`,
		} {
			if _, err := tx.ExecContext(ctx, remove, name); err != nil {
				return err
			}
		}
		return gone(tx.ExecContext(ctx, `DELETE FROM workspaces WHERE name = $1`, name))(errNoWorkspace)
	})
	return keys, err
}

func scanWorkspace(r row) (w doze.Workspace, err error) {
	var body string
	if err := r.Scan(&body); err != nil {
		return w, err
	}
	return w, json.Unmarshal([]byte(body), &w)
}
