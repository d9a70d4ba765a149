package egress

import (
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// streamsMax is how many connections a sandbox may have to us at a time.
	streamsMax = 1024
	// socketsMax is how many descriptors the connections of a sandbox may take. A
	// stream takes two. A connection that carries requests takes one, and one for each
	// of its connections to destinations.
	socketsMax = 2 * streamsMax
	// socketsShare is the part of the descriptors of this process that all
	// sandboxes may take together, as a divisor. The rest is for everything else
	// that the process does: other requests, machines, files.
	socketsShare = 2
	// socketsLeast is what they may take whatever the process may open.
	socketsLeast = 64
	// tightPart is the part of its bound above which a sandbox loses a connection
	// that it does not use for each new one, as a divisor of what is left.
	tightPart = 8
	// idleLeast is how long a stream is idle that is ended then.
	idleLeast = time.Minute
)

// descriptors returns how many descriptors all sandboxes may take together.
func descriptors() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return socketsLeast
	}
	return int(max(socketsLeast, min(limit.Cur, 1<<30)/socketsShare))
}

// A budget is what the connections of all sandboxes may take together. A sandbox
// may have no more of it than is left for all others. So a sandbox alone gets
// half of it, two get a third each, and there is always some left for the next.
type budget struct {
	total int
	used  atomic.Int64
}

// left is what a sandbox may have in all.
func (b *budget) left() int {
	return min(socketsMax, b.total-int(b.used.Load()))
}

// sockets are the descriptors that the connections of one sandbox take.
type sockets struct {
	all *budget

	mu      sync.Mutex
	claimed int                   // guarded by mu; those that are not open yet, too
	streams int                   // guarded by mu; connections of the sandbox to us
	open    map[*net.TCPConn]bool // guarded by mu; whether they are streams
	gone    bool                  // guarded by mu
}

func newSockets(all *budget) *sockets {
	return &sockets{all: all, open: map[*net.TCPConn]bool{}}
}

// enter counts a connection of the sandbox to us, or returns why it may not have
// one more.
func (s *sockets) enter(c *net.TCPConn) (why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.streams >= streamsMax {
		return fmt.Sprintf("the sandbox has %d connections: close some first", streamsMax)
	}
	if why := s.take(); why != "" {
		return why
	}
	s.streams++
	s.open[c] = true
	return ""
}

// claim counts a connection that is going to be made for the sandbox, or returns
// why it may not have one more. It is followed by keep or by waive.
func (s *sockets) claim() (why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.take()
}

// Preconditions: mu is held.
func (s *sockets) take() (why string) {
	switch {
	case s.gone:
		return "it is gone"
	case s.claimed >= socketsMax:
		return fmt.Sprintf("its connections take %d file descriptors of the host: close some first", socketsMax)
	case s.claimed >= s.all.left():
		return fmt.Sprintf("sandboxes use nearly all file descriptors of the host, and this one uses %d: close some connections first", s.claimed)
	}
	s.all.used.Add(1)
	s.claimed++
	return ""
}

// track has a connection that was claimed end with the sandbox, or reports that the
// sandbox is gone.
func (s *sockets) track(c *net.TCPConn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.gone {
		s.open[c] = false
	}
	return !s.gone
}

// waive takes claim back.
func (s *sockets) waive() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.claimed--
	s.all.used.Add(-1)
}

// exit counts a connection no more, which is closed. It may be called again.
func (s *sockets) exit(c *net.TCPConn) {
	s.mu.Lock()
	stream, ok := s.open[c]
	delete(s.open, c)
	if stream {
		s.streams--
	}
	s.mu.Unlock()
	if ok {
		s.waive()
	}
}

// tight reports whether the sandbox is near its bound.
func (s *sockets) tight() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	left := s.all.left()
	return s.streams > streamsMax-streamsMax/tightPart || s.claimed > left-left/tightPart
}

// leave closes all, for ever.
func (s *sockets) leave() {
	s.mu.Lock()
	s.gone = true
	var all []*net.TCPConn
	for c := range s.open {
		all = append(all, c)
	}
	s.mu.Unlock()
	for _, c := range all {
		refuse(c)
		s.exit(c)
	}
}
