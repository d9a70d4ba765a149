// Package image keeps the images of a workspace: names of its own for images of registries
// and of builds, and who else may use them. It finds out what a node is asked for when a sandbox names
// an image, and with which credentials.
package image

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/build"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/keylock"
	"github.com/dozehq/doze/internal/store"
)

// pullTimeout bounds a pull, of a large image over a slow line. It goes on when its caller
// goes away.
const pullTimeout = 10 * time.Minute

// Node is what a node does about images.
type Node interface {
	CheckImage(ctx context.Context, ref string) error
	PinImage(ctx context.Context, ref string, login *fleet.Login) (fleet.Pinned, error)
	ReleaseImage(ctx context.Context, ref string) error
	SaveImage(ctx context.Context, ref string, login *fleet.Login) (io.ReadCloser, error)
	LoadImage(ctx context.Context, id string, archive io.Reader) (fleet.Built, error)
}

// Config is what a Server works with. Every field is required.
type Config struct {
	Store  *store.Store
	Node   Node
	Builds *build.Server
}

// Server serves images.
type Server struct {
	Config
	locks *keylock.Locks

	mu        sync.Mutex
	transfers map[string]int // guarded by mu; archives on their way, by workspace
}

// New returns a server that serves at once.
func New(c Config) *Server {
	return &Server{Config: c, locks: keylock.New(), transfers: map[string]int{}}
}

// take waits for the turn of an image as long as its caller does. The context that it
// returns does not end with the caller: what is begun is completed.
func (s *Server) take(ctx context.Context, workspace, name string) (context.Context, func(), error) {
	held, release, err := s.locks.Take(ctx, workspace+"/"+name)
	if err != nil {
		return nil, nil, doze.Wrap(err, doze.Timeout, "another change of the sandbox takes too long")
	}
	life, cancel := context.WithTimeout(held, pullTimeout)
	return life, func() {
		cancel()
		release()
	}, nil
}
