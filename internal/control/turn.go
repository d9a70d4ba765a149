package control

import (
	"context"
	"errors"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/store"
)

// errDeleted ends what is being done to a sandbox that somebody deletes.
var errDeleted = doze.Errorf(doze.Conflict, "the sandbox was deleted meanwhile")

// unlessDeleted is err, which ended what was done in a turn. What a deletion cut
// off failed for that, whatever it met.
func unlessDeleted(life context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(life), errDeleted) {
		return errDeleted
	}
	return err
}

// Settled waits until nobody changes a sandbox: one that gets a fresh machine just now has it
// afterwards.
func (s *Server) Settled(ctx context.Context, uid string) error {
	_, release, err := s.locks.Take(ctx, uid)
	if err == nil {
		release()
	}
	return err
}

// Reroute has the node obey the network of a sandbox as the records have it now. A create or
// an update that is under way has its turn first.
func (s *Server) Reroute(ctx context.Context, found store.Sandbox) error {
	life, sb, release, err := s.occupy(ctx, found)
	if errors.Is(err, errDeleted) {
		return nil
	}
	if err != nil {
		return err
	}
	defer release()
	return unlessDeleted(life, s.setNetwork(life, s.Node, sb))
}
