// Package mount knows which drives are mounted in one sandbox, and answers its agent
// about the files of one over a connection.
//
// A [Table] has no lock: the owner guards it.
package mount

import (
	"bufio"
	"context"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/dozehq/doze/internal/agentapi"
	"github.com/dozehq/doze/internal/fleet"
)

// callsMax is how many calls about one mount are answered at a time.
const callsMax = 64

// Files answers an agent about one part of a drive.
type Files interface {
	http.Handler
	// Close writes what is not in the bucket yet.
	Close(ctx context.Context) error
}

// A Mount is a drive that is mounted in a sandbox.
type Mount struct {
	fleet.DriveMount

	Files  Files // nil if the bucket is not there any more
	served bool  // a goroutine of the owner serves it
}

// Table is what is mounted in one sandbox.
type Table struct {
	mounts map[string]*Mount // by ID
}

// New returns a table in which nothing is mounted.
func New() Table { return Table{mounts: map[string]*Mount{}} }

// Add adds a mount.
func (t Table) Add(m fleet.DriveMount, files Files) {
	t.mounts[m.ID] = &Mount{DriveMount: m, Files: files}
}

// Get returns a mount by its ID, or nil.
func (t Table) Get(id string) *Mount { return t.mounts[id] }

// Has reports whether a mount is in the table still.
func (t Table) Has(m *Mount) bool { return t.mounts[m.ID] == m }

// Remove removes a mount by its ID.
func (t Table) Remove(id string) { delete(t.mounts, id) }

// Clear removes all mounts, and returns them.
func (t Table) Clear() []*Mount {
	all := slices.Collect(maps.Values(t.mounts))
	clear(t.mounts)
	return all
}

// List returns what is mounted, by path.
func (t Table) List() (all []fleet.DriveMount) {
	for _, m := range t.mounts {
		all = append(all, m.DriveMount)
	}
	slices.SortFunc(all, func(a, b fleet.DriveMount) int { return strings.Compare(a.MountPath, b.MountPath) })
	return all
}

// Serve has begin start a goroutine for each mount that can be served and is not. It
// reports false if it cannot.
func (t Table) Serve(begin func(*Mount) bool) {
	for _, m := range t.mounts {
		if !m.served && m.Files != nil {
			m.served = begin(m)
		}
	}
}

// Left takes note that nobody serves a mount any more.
func (m *Mount) Left() { m.served = false }

// Alike reports whether two mounts show the same part of a drive to a sandbox in the
// same place and in the same way.
func Alike(a, b fleet.DriveMount) bool {
	return a.MountPath == b.MountPath && a.DriveID == b.DriveID && a.DrivePath == b.DrivePath &&
		a.ReadOnly == b.ReadOnly && a.UIDMap == b.UIDMap && a.GIDMap == b.GIDMap
}

// Answer answers calls of the agent about a mount over one connection, until that
// ends.
func (m *Mount) Answer(ctx context.Context, conn net.Conn) error {
	from, err := agentapi.ServeDriveOver(ctx, conn, m.ID)
	if err != nil {
		return err
	}
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	one := &single{conn: make(chan net.Conn, 1), ended: make(chan struct{}), addr: conn.LocalAddr()}
	one.conn <- &singleConn{Conn: conn, from: from, end: sync.OnceFunc(func() { close(one.ended) })}
	srv := &http.Server{ //nolint:gosec // G112: the connection is our own, and silent until a process uses the drive
		Handler: m.Files, Protocols: &protocols,
		HTTP2:    &http.HTTP2Config{MaxConcurrentStreams: callsMax},
		ErrorLog: slog.NewLogLogger(slog.Default().Handler(), slog.LevelDebug),
	}
	defer func() { _ = srv.Close() }()
	return srv.Serve(one)
}

// single is a listener with one connection. It ends with that.
type single struct {
	conn  chan net.Conn
	ended chan struct{}
	addr  net.Addr
}

// Accept implements [net.Listener].
func (s *single) Accept() (net.Conn, error) {
	select {
	case c := <-s.conn:
		return c, nil
	case <-s.ended:
		return nil, net.ErrClosed
	}
}

// Close implements [net.Listener].
func (*single) Close() error { return nil }

// Addr implements [net.Listener].
func (s *single) Addr() net.Addr { return s.addr }

// singleConn is a connection of which a part was read already.
type singleConn struct {
	net.Conn

	from *bufio.Reader
	end  func()
}

func (c *singleConn) Read(b []byte) (int, error) { return c.from.Read(b) }

func (c *singleConn) Close() error {
	c.end()
	return c.Conn.Close()
}
