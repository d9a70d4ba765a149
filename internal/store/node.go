package store

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/dozehq/doze"
)

// Node is the record of a node of the fleet.
type Node struct {
	ID    string
	State doze.NodeState
	// Epoch grows when others may have what the node had: what it was told before counts
	// no more.
	Epoch     uint64
	CreatedAt time.Time
	// Leased says that the node knows of a lease which ends. Another one is never lost: it
	// would run on.
	Leased bool
	Body   NodeBody
}

// NodeBody is what of a node nobody searches for.
type NodeBody struct {
	URL     string         `json:"url"`
	Version string         `json:"version"`
	Driver  string         `json:"driver"`
	Memory  doze.Megabytes `json:"memory"`
}

// HomeNode is the setting with the id of the node that has what has no place on record.
const HomeNode = "node"

const errNoNode = "there is no such node"

// Nodes returns all nodes, by id.
func (s *Store) Nodes(ctx context.Context) ([]Node, error) {
	all, err := collect(ctx, s.read, scanNode, `SELECT id, state, epoch, created_at, leased, body FROM nodes ORDER BY id`)
	return all, wrap(err, "list nodes")
}

// Node returns a node, or NotFound.
func (s *Store) Node(ctx context.Context, id string) (Node, error) {
	return one(ctx, s.read, scanNode, errNoNode, `SELECT id, state, epoch, created_at, leased, body FROM nodes WHERE id = $1`, id)
}

// PutNode records what a node says of itself, and returns its record. A new one is ready,
// in the epoch 1. One that was lost is ready again, in the epoch that began with its loss.
func (s *Store) PutNode(ctx context.Context, id string, b NodeBody, now time.Time) (Node, error) {
	raw, err := json.Marshal(b)
	if err != nil {
		return Node{}, wrap(err, "encode a node")
	}
	return one(ctx, s.write, scanNode, errNoNode, `INSERT INTO nodes (id, state, epoch, created_at, body) VALUES ($1, $2, 1, $3, $4)
		ON CONFLICT (id) DO UPDATE SET body = excluded.body, state = CASE WHEN nodes.state = $5 THEN $2 ELSE nodes.state END
		RETURNING id, state, epoch, created_at, leased, body`, id, doze.NodeReady, millis(now), string(raw), doze.NodeLost)
}

// SetNodeState changes the state of a node, or is NotFound.
func (s *Store) SetNodeState(ctx context.Context, id string, to doze.NodeState) error {
	return gone(s.write.ExecContext(ctx, `UPDATE nodes SET state = $2 WHERE id = $1`, id, to))(errNoNode)
}

// SetNodeLeased records whether a node knows of a lease which ends, or is NotFound.
func (s *Store) SetNodeLeased(ctx context.Context, id string, leased bool) error {
	value := 0
	if leased {
		value = 1
	}
	return gone(s.write.ExecContext(ctx, `UPDATE nodes SET leased = $2 WHERE id = $1`, id, value))(errNoNode)
}

// LoseNode says that others may have from now on what a node had: its next epoch begins.
// The node must be in an epoch, or it is NotFound: somebody else was first.
func (s *Store) LoseNode(ctx context.Context, id string, epoch uint64) error {
	return gone(s.write.ExecContext(ctx, `UPDATE nodes SET state = $3, epoch = epoch + 1 WHERE id = $1 AND epoch = $2`, id, int64(epoch), doze.NodeLost))(errNoNode) //nolint:gosec // G115: it counts losses
}

// errHeld rejects the removal of a node that still has something.
func errHeld(kind, id string) error {
	return doze.Errorf(doze.Conflict, "the node still has the %s %s: drain it first, and delete what no drain moves", kind, id)
}

// CheckPlaced is a Conflict if something has no place on record. The home of such things has
// it then. Builders do not count: they are caches. Nor does what failed, of which nothing is left.
func (s *Store) CheckPlaced(ctx context.Context) error {
	placed := func(kind string) string { return ` NOT IN (SELECT id FROM places WHERE kind = '` + kind + `')` }
	for _, of := range []struct{ kind, query string }{
		{machinePlace, `SELECT machine FROM sandboxes WHERE ` + alive + ` AND phase NOT IN ('uploading', 'building', 'failed') AND machine <> '' AND machine` + placed(machinePlace)},
		{"snapshot", `SELECT id FROM snapshots WHERE phase <> '` + string(doze.SnapshotFailed) + `' AND id` + placed("snapshot")},
		{"volume", `SELECT id FROM volumes WHERE id` + placed("volume")},
	} {
		ids, err := collect(ctx, s.read, scanText, of.query+` LIMIT 1`)
		if err != nil {
			return wrap(err, "look what has no place")
		}
		if len(ids) > 0 {
			return errHeld(of.kind, ids[0])
		}
	}
	refs, err := s.BuiltRefs(ctx)
	if err != nil {
		return err
	}
	templates, err := s.TemplateDisks(ctx)
	if err != nil {
		return err
	}
	all, err := s.Places(ctx)
	if err != nil {
		return err
	}
	for _, ref := range refs {
		if !slices.ContainsFunc(all, func(p Place) bool { return p.Kind == "image" && p.ID == ref }) {
			return errHeld("image", ref)
		}
	}
	for _, id := range templates {
		if !slices.ContainsFunc(all, func(p Place) bool { return p.Kind == "volume" && p.ID == id }) {
			return errHeld("volume", id)
		}
	}
	return nil
}

// CheckEmpty is a Conflict if something is on a node. Builders do not count: they are caches.
func (s *Store) CheckEmpty(ctx context.Context, id string) error {
	held, err := collect(ctx, s.write, scanPlace, `SELECT kind, id, node, epoch FROM places WHERE node = $1 AND kind <> 'builder' LIMIT 1`, id)
	if err != nil {
		return wrap(err, "look what a node has")
	}
	if len(held) > 0 {
		return errHeld(held[0].Kind, held[0].ID)
	}
	return nil
}

// RemoveNode forgets a node that has nothing, or is NotFound. One that has something is a
// Conflict, as with [Store.CheckEmpty].
func (s *Store) RemoveNode(ctx context.Context, id string) error {
	if err := s.CheckEmpty(ctx, id); err != nil {
		return err
	}
	return gone(s.write.ExecContext(ctx, `DELETE FROM nodes WHERE id = $1`, id))(errNoNode)
}

func scanNode(r row) (n Node, err error) {
	var at, epoch, leased int64
	var raw string
	if err = r.Scan(&n.ID, &n.State, &epoch, &at, &leased, &raw); err != nil {
		return n, err
	}
	n.Leased = leased > 0
	n.CreatedAt, n.Epoch = time.UnixMilli(at), uint64(epoch) //nolint:gosec // G115: it counts from 1
	return n, json.Unmarshal([]byte(raw), &n.Body)
}

// PutJoinToken records a token by which nodes join, and forgets those that are over.
func (s *Store) PutJoinToken(ctx context.Context, id, hash string, expires, now time.Time) error {
	if _, err := s.write.ExecContext(ctx, `DELETE FROM join_tokens WHERE expires_at <= $1`, millis(now)); err != nil {
		return wrap(err, "forget old tokens")
	}
	_, err := s.write.ExecContext(ctx, `INSERT INTO join_tokens (id, hash, expires_at) VALUES ($1, $2, $3)`, id, hash, millis(expires))
	return wrap(err, "write a token")
}

// JoinToken returns the hash of a token that is good now, or NotFound.
func (s *Store) JoinToken(ctx context.Context, id string, now time.Time) (hash string, err error) {
	return one(ctx, s.read, scanText, "there is no such token, or it is over", `SELECT hash FROM join_tokens WHERE id = $1 AND expires_at > $2`, id, millis(now))
}
