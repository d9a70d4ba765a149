package roster

import (
	"context"
	"strings"

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
		return r.claimShared(node, crew.Snapshot, m[1], machine)
	}
	if strings.HasPrefix(machine, doze.BuiltPrefix) {
		return r.claimShared(node, crew.Image, machine, fleet.ImageObject(machine))
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

// sharedEpoch is that of snapshots and images, which never change.
const sharedEpoch = 1

// claimShared is Claim for what several nodes may have. object is its name in the bucket.
func (r *Roster) claimShared(node string, k crew.Kind, id, object string) (fleet.Claim, error) {
	if !r.Crew.MayHave(node, k, id) {
		return fleet.Claim{}, doze.Errorf(doze.Conflict, "the %s %.200s is on another node, and this one begins nothing from it", k, id)
	}
	key, err := vault.Derive(r.Master, object)
	if err != nil {
		return fleet.Claim{}, err
	}
	return fleet.Claim{Epoch: sharedEpoch, Key: key.Reveal()}, nil
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
