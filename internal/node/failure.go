package node

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/machine"
)

// failure is the public reason of a wake or of a move to disk that did not work.
func failure(err error) string {
	switch {
	case errors.Is(err, machine.ErrDamaged):
		return public(err, machine.ErrDamaged)
	case errors.Is(err, machine.ErrNoEngine):
		return public(err, machine.ErrNoEngine)
	case errors.Is(err, errNotFetched):
		return errNotFetched.Error() + ", and the node tries again"
	case errors.Is(err, context.DeadlineExceeded):
		return "it took too long"
	case strings.Contains(err.Error(), syscall.ENOSPC.Error()): // the engine has words for it only
		return "the disk of the node is full"
	case doze.Public(err).Kind == doze.Exhausted:
		return doze.Public(err).Message
	default:
		return "the engine reported an error; the node's log has it"
	}
}

// explained gives an error that is nobody's in particular its public reason.
func explained(err error) error {
	if doze.Public(err).Kind != doze.Internal {
		return err
	}
	return doze.Wrap(err, doze.Unavailable, "%s", failure(err))
}

// missing says, of an error that a missing engine is the cause of, which one
// that is. What did not work for it is a clause. Other errors stay as they are.
func missing(what string, err error) error {
	if !errors.Is(err, machine.ErrNoEngine) {
		return err
	}
	return doze.Wrap(err, doze.Unavailable, "%s: %s", what, public(err, machine.ErrNoEngine))
}

// public is what may be told of an error that wraps cause: that, and what follows
// it up to the first clause that names a path of the host.
func public(err, cause error) string {
	clause := cause.Error()
	_, text, _ := strings.Cut(err.Error(), clause)
	text, _, _ = strings.Cut(text, "\n")
	clauses := []string{clause}
	for _, more := range strings.Split(text, ": ")[1:] {
		if strings.ContainsRune(more, filepath.Separator) {
			break
		}
		clauses = append(clauses, more)
	}
	return strings.Join(clauses, ": ")
}
