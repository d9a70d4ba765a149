package control

import (
	"context"
	"errors"

	"github.com/dozehq/doze"
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
