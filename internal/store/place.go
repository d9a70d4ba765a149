package store

import (
	"context"
	"database/sql"
)

// Place says which node has a thing: a machine, a snapshot, a volume, a builder or an image.
type Place struct {
	Kind, ID, Node string
	Epoch          uint64 // grows with each node that gets it
}

// Places returns all places that are recorded.
func (s *Store) Places(ctx context.Context) ([]Place, error) {
	all, err := collect(ctx, s.read, scanPlace, `SELECT kind, id, node, epoch FROM places ORDER BY kind, id`)
	return all, wrap(err, "list places")
}

// machinePlace is the kind of the place of a machine.
const machinePlace = "machine"

// PutPlace records a place, or another node for a thing that has one. Each node counts its
// reports from where it began: the count of a machine begins anew with its node.
func (s *Store) PutPlace(ctx context.Context, p Place) error {
	err := s.update(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO places (kind, id, node, epoch) VALUES ($1, $2, $3, $4)
			ON CONFLICT (kind, id) DO UPDATE SET node = excluded.node, epoch = excluded.epoch`, p.Kind, p.ID, p.Node, int64(p.Epoch)) //nolint:gosec // G115: it counts nodes
		if err == nil && p.Kind == machinePlace {
			_, err = tx.ExecContext(ctx, `UPDATE sandboxes SET seq = 0 WHERE machine = $1`, p.ID)
		}
		return err
	})
	return wrap(err, "write a place")
}

// RemovePlace forgets the place of a thing. One that has none is no error.
func (s *Store) RemovePlace(ctx context.Context, kind, id string) error {
	_, err := s.write.ExecContext(ctx, `DELETE FROM places WHERE kind = $1 AND id = $2`, kind, id)
	return wrap(err, "remove a place")
}

func scanPlace(r row) (p Place, err error) {
	var epoch int64
	err = r.Scan(&p.Kind, &p.ID, &p.Node, &epoch)
	p.Epoch = uint64(epoch) //nolint:gosec // G115: it counts from 1
	return p, err
}
