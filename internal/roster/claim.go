package roster

import (
	"context"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/fleet/crew"
	"github.com/dozehq/doze/internal/vault"
)

// Claim implements [fleet.Control].
func (r *Roster) Claim(_ context.Context, node, machine string) (fleet.Claim, error) {
	if r.member(node) == nil {
		return fleet.Claim{}, fleet.ErrNotJoined
	}
	if m := fleet.SnapshotForm.FindStringSubmatch(machine); m != nil {
		return r.claimSnapshot(node, m[1])
	}
	kind, id := crew.Machine, machine
	if m := fleet.VolumeForm.FindStringSubmatch(machine); m != nil {
		kind, id = crew.Volume, m[1]
	}
	if at := r.Crew.Of(kind, id); at != node {
		return fleet.Claim{}, doze.Errorf(doze.Conflict, "the %s %s is on another node", kind, id)
	}
	key, err := vault.Derive(r.Master, machine)
	if err != nil {
		return fleet.Claim{}, err
	}
	return fleet.Claim{Epoch: r.Crew.Epoch(kind, id), Key: key.Reveal()}, nil
}

// snapshotEpoch is that of all snapshots, which never change.
const snapshotEpoch = 1

// claimSnapshot is Claim for a snapshot.
func (r *Roster) claimSnapshot(node, id string) (fleet.Claim, error) {
	if !r.Crew.MayHave(node, id) {
		return fleet.Claim{}, doze.Errorf(doze.Conflict, "the snapshot %s is on another node, and the node begins no sandbox from it", id)
	}
	key, err := vault.Derive(r.Master, fleet.SnapshotObject(id))
	if err != nil {
		return fleet.Claim{}, err
	}
	return fleet.Claim{Epoch: snapshotEpoch, Key: key.Reveal()}, nil
}

// FileKey implements [fleet.Control].
func (r *Roster) FileKey(_ context.Context, node, name string) ([]byte, error) {
	if r.member(node) == nil {
		return nil, fleet.ErrNotJoined
	}
	if !fleet.FileForm.MatchString(name) {
		return nil, doze.Errorf(doze.Invalid, "%.80q is no name of a file in the bucket", name)
	}
	key, err := vault.Derive(r.Master, name)
	if err != nil {
		return nil, err
	}
	return key.Reveal(), nil
}
