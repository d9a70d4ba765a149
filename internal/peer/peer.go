// Package peer is what our own processes say to each other: the orders of
// control to a node, the reports of a node to control, and the directory in
// which the edge finds a sandbox. It runs no sandbox and keeps no record. In
// one process the interfaces are satisfied directly; between processes a
// client and a server of this package will carry the same calls.
package peer

import (
	"context"
	"net/http"
	"time"

	"doze"
)

// Order is what control asks a node to run.
type Order struct {
	UID       string // the identity of the sandbox; never reused, safe as a file name
	Name      string // its name, which becomes the host name inside
	Workspace string
	Region    string
	Image     string
	Memory    doze.Megabytes
	Env       []string // KEY=value, as the process inside gets them
	Grace     time.Duration
}

// Status is what a node knows about a sandbox at this moment.
type Status struct {
	Phase    doze.Phase
	Tier     string    // as machine.Tier names it; empty before the first boot
	LastUsed time.Time // the end of the last use, or now while InUse
	InUse    bool      // a request, stream, socket or keepAlive process is there
}

// Report is one transition of a sandbox, from the node that made it.
type Report struct {
	UID     string
	Seq     uint64 // grows per sandbox, over restarts too
	Phase   doze.Phase
	Message string // public: why, in one clause; may be empty
	At      time.Time
	// Note says that the phase did not change: something happened in it, such
	// as a process that ran out of memory.
	Note bool
}

// Node is what control asks of a process that runs sandboxes. Every call may
// be repeated: a second one finds the work done.
type Node interface {
	// CheckImage returns an Invalid error with the name INVALID_IMAGE for a
	// reference that can never be run here. It makes or pulls nothing.
	CheckImage(ctx context.Context, ref string) error
	// Create boots a sandbox and returns when its agent answers. On an error
	// nothing of it is left.
	Create(ctx context.Context, o Order) error
	// Delete ends a sandbox in any state and returns when nothing of it is
	// left. One that is not there is no error.
	Delete(ctx context.Context, uid string) error
	// Disable puts a sandbox to sleep on disk and refuses to wake it.
	Disable(ctx context.Context, uid string) error
	// Enable lets the next request wake a disabled sandbox.
	Enable(ctx context.Context, uid string) error
	// Status returns what is known of a sandbox now, or false.
	Status(uid string) (Status, bool)
}

// Gate is what the edge asks of a node.
type Gate interface {
	// Transport carries requests to a port of a sandbox. A request wakes the
	// sandbox, and keeps it awake until the body of its response is closed, or
	// the connection, if the response upgrades it. The scheme and host of a
	// request's URL are ignored; its path is sent byte for byte.
	Transport(uid string, port uint16) http.RoundTripper
}
