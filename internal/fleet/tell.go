package fleet

import (
	"github.com/dozehq/doze"
)

// Tell decides what a caller hears of an error of the node. A mistake in
// an image or a Dockerfile is the caller's; where the node cannot help, the caller may try
// later; anything else is ours.
func Tell(err error, doing string) error {
	e := doze.Public(err)
	switch e.Kind { //nolint:exhaustive // the others are our own mistakes
	case doze.NotFound, doze.Conflict, doze.Exhausted, doze.Unavailable, doze.Unsupported, doze.TooLarge:
		return err
	case doze.Timeout:
		return doze.Wrap(err, doze.Timeout, "%s took too long", doing)
	case doze.Invalid:
		if e.Name == doze.NameInvalidImage || e.Name == NameBuildFailed {
			return err
		}
	}
	return doze.Wrap(err, doze.Internal, "%s did not work", doing)
}
