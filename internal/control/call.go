package control

import (
	"context"
	"errors"
	"net/http"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
)

// These calls move a machine and change no record. A sandbox that was put to sleep wakes
// with the next request.
var (
	sleepSandbox = calling(func(ctx context.Context, s *Server, r *http.Request, machine string) error {
		return s.Node.Sleep(ctx, machine, r.URL.Query().Get("tier") == doze.SleepDisk)
	})
	wakeSandbox = calling(func(ctx context.Context, s *Server, _ *http.Request, machine string) error {
		return s.Node.Wake(ctx, machine)
	})
)

// calling is a handler that asks the node to move the sandbox of a path, and answers how
// it is then.
func calling(call func(ctx context.Context, s *Server, r *http.Request, machine string) error) func(*Server, context.Context, *http.Request) (doze.Sandbox, error) {
	return func(s *Server, ctx context.Context, r *http.Request) (doze.Sandbox, error) {
		sb, err := s.living(ctx, r.PathValue("name"))
		if err != nil {
			return doze.Sandbox{}, err
		}
		if sb.Phase.Status() != doze.Running.Status() { // the node would have other words for it, or does not know it
			return doze.Sandbox{}, doze.Errorf(doze.Conflict, "the sandbox is %s: only one that is %s sleeps and wakes", sb.Phase.Status(), doze.Running.Status())
		}
		if err := call(ctx, s, r, sb.Machine); errors.Is(err, fleet.ErrMoved) {
			return doze.Sandbox{}, doze.Wrap(err, doze.Unavailable, "the sandbox is not on its node yet: try again in a moment")
		} else if err != nil {
			return doze.Sandbox{}, err
		}
		return s.answer(ctx, sb.UID)
	}
}
