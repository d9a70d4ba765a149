package store

import (
	"context"
	"encoding/json"

	"doze"
)

// Workspaces returns every workspace, oldest first.
func (s *Store) Workspaces(ctx context.Context) ([]doze.Workspace, error) {
	all, err := collect(ctx, s.read, scanWorkspace, `SELECT body FROM workspaces ORDER BY created_at, id`)
	return all, wrap(err, "list workspaces")
}

// Workspace returns the workspace of a name, or NotFound.
func (s *Store) Workspace(ctx context.Context, name string) (doze.Workspace, error) {
	return one(ctx, s.read, scanWorkspace, "there is no such workspace", `SELECT body FROM workspaces WHERE name = $1`, name)
}

// InsertWorkspace adds w. A name that is taken is a Conflict.
func (s *Store) InsertWorkspace(ctx context.Context, w doze.Workspace) error {
	body, err := json.Marshal(w)
	if err != nil {
		return wrap(err, "encode workspace")
	}
	_, err = s.write.ExecContext(ctx, `INSERT INTO workspaces (id, name, created_at, body) VALUES ($1, $2, $3, $4)`,
		w.ID, w.Name, millis(w.CreatedAt.Time), string(body))
	if duplicate(err) {
		return doze.Errorf(doze.Conflict, "the workspace %s already exists", w.Name)
	}
	return wrap(err, "insert workspace")
}

func scanWorkspace(r row) (w doze.Workspace, err error) {
	var body string
	if err := r.Scan(&body); err != nil {
		return w, err
	}
	return w, json.Unmarshal([]byte(body), &w)
}
