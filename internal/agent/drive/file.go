package drive

import (
	"context"
	"sync"
	"time"

	"github.com/dozehq/doze/internal/drive/op"
)

const (
	// heldTime is how long a process's bytes wait for more of them. Then the host gets them,
	// though nobody asked for it.
	heldTime = time.Second
	// heldMost is how many bytes of all files of a mount may wait. Beyond that, each write waits
	// for the host.
	heldMost = 32 << 20
	// smallRoom is up to how many bytes of a file have memory of their own. So files that are
	// written to have at most twice as much memory as they hold.
	smallRoom = roomBytes / 2
)

// A file is one that processes of this sandbox have open for writing. Its bytes are held until
// there are as many as one call takes, or until somebody asks for them. The host has all
// other bytes, and nobody else writes to its draft. So we know how large the file is.
type file struct {
	s *server

	mu      sync.Mutex
	node    op.Node          // guarded by mu; with what is held
	users   int              // guarded by mu; handles
	handle  uint64           // guarded by mu; by which held was written
	at      int64            // guarded by mu; where held begins
	held    []byte           // guarded by mu
	room    *[roomBytes]byte // guarded by mu; where held is, if it is large
	sent    chan struct{}    // guarded by mu; closed when held is sent; nil while nobody waits for it
	sending chan struct{}    // guarded by mu; closed when the last call has ended; nil before the first

	failMu sync.Mutex
	failed error // guarded by failMu; of a call that no process waited for
}

// write takes data of a process. It fails with what an earlier write failed with that was
// not waited for.
func (f *file) write(ctx context.Context, handle uint64, at int64, data []byte) error {
	if err := f.fault(); err != nil || len(data) == 0 {
		return err
	}
	if f.hold(ctx, handle, at, data) {
		return nil
	}
	return f.drain(ctx)
}

// hold takes data that is to be sent later. It reports false if a mount holds too much.
func (f *file) hold(ctx context.Context, handle uint64, at int64, data []byte) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.held) > 0 && (f.handle != handle || at != f.at+int64(len(f.held)) || len(f.held)+len(data) > op.DataMax) {
		f.send(ctx)
	}
	if len(f.held) == 0 {
		f.handle, f.at = handle, at
	}
	if f.room == nil && len(f.held)+len(data) > smallRoom {
		f.room = newRoom()
		f.held = append(f.room[:0], f.held...)
	}
	f.held = append(f.held, data...)
	f.node.Size = max(f.node.Size, at+int64(len(data)))
	f.node.Modified = time.Now().UnixNano()
	if f.s.held.Add(int64(len(data))) > heldMost {
		return false
	}
	switch {
	case len(f.held) == op.DataMax:
		f.send(ctx)
	case f.sent == nil:
		f.sent = make(chan struct{})
		sent := f.sent
		f.s.tasks.Go(func() { f.sendLater(ctx, sent) })
	}
	return true
}

// sendLater sends what is held after a while, unless that is sent before, or the mount ends.
func (f *file) sendLater(ctx context.Context, sent <-chan struct{}) {
	select {
	case <-time.After(heldTime):
		f.mu.Lock()
		defer f.mu.Unlock()
		f.send(ctx)
	case <-sent:
	case <-ctx.Done():
	}
}

// send begins to give the host what is held. It waits until the call before has ended: the
// host gets all bytes in the order in which they were written. Preconditions: mu is held.
func (f *file) send(ctx context.Context) {
	if f.sent != nil {
		close(f.sent)
		f.sent = nil
	}
	if len(f.held) == 0 {
		return
	}
	c, data, room, before := op.Call{Op: op.Write, Handle: f.handle, Offset: f.at}, f.held, f.room, f.sending
	f.held, f.room = nil, nil
	if before != nil {
		<-before
	}
	ended := make(chan struct{})
	f.sending = ended
	f.s.busy.Add(1) // the sandbox does not sleep meanwhile
	f.s.tasks.Go(func() {
		defer close(ended)
		defer f.s.busy.Add(-1)
		defer f.s.held.Add(-int64(len(data)))
		if _, err := f.s.link.ask(ctx, c, data, &op.Answer{}); err != nil {
			f.failMu.Lock()
			f.failed = err
			f.failMu.Unlock()
			return // somebody may read the data still
		}
		if room != nil {
			rooms.Put(room)
		}
	})
}

// fault returns what a call failed with that nobody waited for, once.
func (f *file) fault() error {
	f.failMu.Lock()
	defer f.failMu.Unlock()
	err := f.failed
	f.failed = nil
	return err
}

// settle gives the host what is held, and waits for it. Nothing is held of a file that is
// nil: nobody writes to it. What a call failed with is told to those who wrote.
func (f *file) settle(ctx context.Context) error {
	if f == nil {
		return nil
	}
	f.mu.Lock()
	f.send(ctx)
	sending := f.sending
	f.mu.Unlock()
	if sending == nil {
		return nil
	}
	select {
	case <-sending:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// drain is settle for those who wrote.
func (f *file) drain(ctx context.Context) error {
	if err := f.settle(ctx); err != nil {
		return err
	}
	return f.fault()
}

// look returns how the file looks.
func (f *file) look() op.Node {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.node
}

// become notes what the host says of the file.
func (f *file) become(n op.Node) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.set(n)
}

// set is become, with what is held. Preconditions: mu is held.
func (f *file) set(n op.Node) {
	if f.node = n; len(f.held) > 0 {
		f.node.Size = max(n.Size, f.at+int64(len(f.held)))
	}
}

// writer returns the file of a number that a handle has open for writing from now on, of
// which the host says n.
func (s *server) writer(node uint64, n op.Node) *file {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.files[node]
	if f == nil {
		f = &file{s: s}
		s.files[node] = f
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.users++
	f.set(n)
	return f
}

// leave notes that a handle does not write any more.
func (s *server) leave(node uint64, f *file) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.users--; f.users == 0 && s.files[node] == f {
		delete(s.files, node)
	}
}

// written returns the file of a number, or nil if nobody has it open for writing.
func (s *server) written(node uint64) *file {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.files[node]
}

// writtenAt is written by the path.
func (s *server) writtenAt(path string) *file {
	if node, ok := s.names.known(path); ok {
		return s.written(node)
	}
	return nil
}
