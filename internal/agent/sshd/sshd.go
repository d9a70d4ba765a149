// Package sshd lets ordinary SSH clients into a sandbox. The platform has proved the
// caller before a connection gets here, so that SSH asks for no other credential.
//
// The agent hands each connection to a program of its own, [Main], which runs as the user
// of the image. What a client asks for has the rights of that user, and a mistake in a
// protocol that is this large is not one of the agent's process.
package sshd

import (
	"errors"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/account"
	"github.com/dozehq/doze/internal/agent/child"
	"github.com/dozehq/doze/internal/agent/journal"
	"github.com/dozehq/doze/internal/agent/spawn"
)

const (
	// protocol is what a request becomes.
	protocol = "ssh"
	// switching is the answer to it.
	switching = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + protocol + "\r\n\r\n"
	// connectionsMax bounds the connections of a sandbox. Each is a process.
	connectionsMax = 16
	// endMax is what a program has to end what it has started.
	endMax = time.Second
	// Flag is the argument that makes the agent's program [Main].
	Flag = "ssh"
	// self is this program, whatever it is called in the sandbox.
	self = "/proc/self/exe"
	// directory has the host key. It belongs to the user of the image.
	directory = "/var/lib/doze/ssh"
)

// Server starts a program for each connection.
type Server struct {
	child.Launcher

	mu     sync.Mutex
	open   map[*child.Child]bool // guarded by mu
	closed bool                  // guarded by mu
	tasks  sync.WaitGroup
}

// New returns a server without connections.
func New(start child.Launcher) *Server {
	return &Server{Launcher: start, open: map[*child.Child]bool{}}
}

// Open makes the connection of a request one of SSH, until the client or its program
// ends.
func (s *Server) Open(w http.ResponseWriter, r *http.Request, _ string) error {
	if !strings.EqualFold(r.Header.Get("Upgrade"), protocol) {
		return doze.Errorf(doze.Invalid, "this is for clients of SSH: doze ssh NAME is one, and doze ssh --proxy NAME the ProxyCommand of others")
	}
	as, err := s.User.Credential()
	if err != nil {
		return err
	}
	who, err := s.User.Lookup()
	if err != nil {
		return err
	}
	if err := s.room(); err != nil {
		return err
	}
	prepare(who) // the program makes another key for itself if it cannot
	// The answer comes after the hijack: until then the client says nothing that the
	// server would read, and its program would miss.
	conn, sent, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if sent.Reader.Buffered() > 0 {
		return nil // it did not wait for the answer
	}
	if _, err := io.WriteString(conn, switching); err != nil {
		return nil // the client is gone
	}
	raw, ok := conn.(syscall.Conn)
	if !ok {
		return nil
	}
	c, err := s.start(raw, as)
	if err != nil {
		journal.Audit(r, "ssh_failed", err.Error())
		return nil // the client sees its connection end
	}
	id := strconv.Itoa(c.PID)
	journal.Audit(r, "ssh_connect", id)
	defer journal.Audit(r, "ssh_disconnect", id)
	select {
	case <-c.Exited:
	case <-r.Context().Done():
		s.end(c)
	}
	return nil
}

// end ends a program with what it has started, and waits for it. The user of the image
// may have stopped it.
func (s *Server) end(c *child.Child) {
	s.Children.Signal(c, syscall.SIGTERM)
	late := time.NewTimer(endMax)
	defer late.Stop()
	select {
	case <-c.Exited:
	case <-late.C:
		s.Children.Signal(c, syscall.SIGKILL)
		<-c.Exited
	}
}

// room reports whether another connection fits.
func (s *Server) room() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return doze.Errorf(doze.Unavailable, "the sandbox is stopping")
	case len(s.open) >= connectionsMax:
		return doze.Errorf(doze.Exhausted, "%d SSH connections are open, which is the most: close some", connectionsMax)
	}
	return nil
}

// start runs the program of a connection. It is forgotten when it ends.
func (s *Server) start(conn syscall.Conn, as *syscall.Credential) (*child.Child, error) {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = null.Close() }()
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var c *child.Child
	var failed error
	err = raw.Control(func(fd uintptr) {
		c, failed = s.Children.Start(self, []string{"doze-agent", "-" + Flag}, spawn.Attr{
			Dir: "/", Env: s.Vars.List(), Files: [3]int{int(fd), int(fd), int(null.Fd())}, As: as,
		})
	})
	if err := errors.Join(err, failed); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open[c] = true
	if s.closed {
		s.tasks.Go(func() { s.end(c) })
	}
	s.tasks.Go(func() {
		<-c.Exited
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.open, c)
	})
	return c, nil
}

// EndAll ends all connections.
func (s *Server) EndAll() {
	s.mu.Lock()
	all := slices.Collect(maps.Keys(s.open))
	s.mu.Unlock()
	var ending sync.WaitGroup
	for _, c := range all {
		ending.Go(func() { s.end(c) })
	}
	ending.Wait()
}

// Close ends all connections, takes no more, and waits for their programs.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.EndAll()
	s.tasks.Wait()
}

// prepare makes the directory of the host key.
func prepare(who account.Account) {
	if os.MkdirAll(filepath.Dir(directory), 0o755) == nil && os.MkdirAll(directory, 0o700) == nil { //nolint:gosec // G301: as all of /var/lib
		_ = os.Chown(directory, int(who.UID), int(who.GID))
	}
}
