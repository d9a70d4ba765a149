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
)

// A file is one that processes of this sandbox have open for writing. Its bytes are held until
// there are as many as one call takes, or until somebody asks for them. The host has all
// other bytes, and nobody else writes to its draft. So we know how large the file is.
type file struct {
	s *server

	mu      sync.Mutex
	node    op.Node // guarded by mu; with what is held
	users   int     // guarded by mu; handles
	handle  uint64  // guarded by mu; by which held was written
	at      int64   // guarded by mu; where held begins
	held    []byte  // guarded by mu
	timer   *time.Timer
	sending chan struct{} // guarded by mu; closed when the last call has ended; nil before the first

	failMu sync.Mutex
	failed error // guarded by failMu; of a call that no process waited for
}

// write takes data of a process. It fails with what an earlier write failed with that was
// not waited for.
func (f *file) write(ctx context.Context, handle uint64, at int64, data []byte) error {
	if err := f.fault(); err != nil || len(data) == 0 {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.held) > 0 && (f.handle != handle || at != f.at+int64(len(f.held)) || len(f.held)+len(data) > op.DataMax) {
		f.send(ctx)
	}
	if len(f.held) == 0 {
		f.handle, f.at = handle, at
	}
	f.held = append(f.held, data...)
	f.node.Size = max(f.node.Size, at+int64(len(data)))
	f.node.Modified = time.Now().UnixNano()
	all := f.s.held.Add(int64(len(data)))
	switch {
	case all > heldMost:
		f.send(ctx)
		return f.settle(ctx)
	case len(f.held) == op.DataMax:
		f.send(ctx)
	case f.timer == nil:
		after := context.WithoutCancel(ctx)
		f.timer = time.AfterFunc(heldTime, func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.send(after)
		})
	}
	return nil
}

// send begins to give the host what is held. It waits until the call before has ended: the
// host gets all bytes in the order in which they were written. Preconditions: mu is held.
func (f *file) send(ctx context.Context) {
	if f.timer != nil {
		f.timer.Stop()
		f.timer = nil
	}
	if len(f.held) == 0 {
		return
	}
	c, data, before := op.Call{Op: op.Write, Handle: f.handle, Offset: f.at}, f.held, f.sending
	f.held = nil
	if before != nil {
		<-before
	}
	ended := make(chan struct{})
	f.sending = ended
	f.s.busy.Add(1) // the sandbox does not sleep meanwhile
	go func() {     // ends with the mount, see link.ask
		defer close(ended)
		defer f.s.busy.Add(-1)
		defer f.s.held.Add(-int64(len(data)))
		if _, err := f.s.link.ask(context.WithoutCancel(ctx), c, data, &op.Answer{}); err != nil {
			f.failMu.Lock()
			f.failed = err
			f.failMu.Unlock()
		}
	}()
}

// settle waits until the host has all that was sent. Preconditions: mu is held.
func (f *file) settle(ctx context.Context) error {
	if f.sending != nil {
		select {
		case <-f.sending:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return f.fault()
}

// fault returns what a call failed with that nobody waited for, once.
func (f *file) fault() error {
	f.failMu.Lock()
	defer f.failMu.Unlock()
	err := f.failed
	f.failed = nil
	return err
}

// drain gives the host what is held, and waits for it.
func (f *file) drain(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.send(ctx)
	return f.settle(ctx)
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

// drained has the host know all bytes of a file. What went wrong is told to those who wrote
// it.
func (s *server) drained(ctx context.Context, node uint64) {
	if f := s.written(node); f != nil {
		f.mu.Lock()
		f.send(ctx)
		sending := f.sending
		f.mu.Unlock()
		if sending != nil {
			select {
			case <-sending:
			case <-ctx.Done():
			}
		}
	}
}
