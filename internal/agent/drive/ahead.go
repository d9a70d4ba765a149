package drive

import (
	"context"
	"sync"

	"github.com/dozehq/doze/internal/drive/op"
)

const (
	// aheadParts is how many parts of a file are asked for at a time while a process reads it from
	// its beginning to its end. Each is as large as one call reads.
	aheadParts = 6
	// aheadMost is how many parts of all files of a mount are held.
	aheadMost = 96
	// sequential is how many reads in a row begin where the one before ended, until parts are
	// read ahead.
	sequential = 2
)

// An ahead reads a file for one open handle. What it has read ahead is as the file was when
// it was asked for. The next open sees what changed.
type ahead struct {
	s    *server
	size int64 // of the file, when it was opened

	mu    sync.Mutex
	next  int64           // guarded by mu; where the last read ended
	row   int             // guarded by mu; how many reads began there
	parts map[int64]*part // guarded by mu; by their offset
}

// A part is a piece of a file. Data and err are set when ready is closed.
type part struct {
	ready chan struct{}
	data  []byte
	err   error
}

func (s *server) newAhead(size int64) *ahead {
	return &ahead{s: s, size: size, parts: map[int64]*part{}}
}

// read returns size bytes from an offset on, or fewer at the end of the file, which has this
// path now.
func (a *ahead) read(ctx context.Context, path string, at, size int64) ([]byte, error) {
	direct := func() ([]byte, error) {
		return a.s.link.ask(ctx, op.Call{Op: op.Read, Path: path, Offset: at, Size: size}, nil, nil)
	}
	a.mu.Lock()
	if at != a.next {
		a.row = 0
		a.drop(-1)
	}
	a.row++
	a.next = at + size
	inRow := a.row > sequential
	a.mu.Unlock()
	if !inRow {
		return direct()
	}
	var out []byte
	for from := at; from < at+size; {
		begin := from / op.DataMax * op.DataMax
		data, err := a.part(ctx, path, begin)
		if err != nil {
			return nil, err
		}
		if int64(len(data)) <= from-begin {
			break // the file ends before
		}
		data = data[from-begin : min(int64(len(data)), at+size-begin)]
		out = append(out, data...)
		from += int64(len(data))
		if from%op.DataMax != 0 {
			break // the part ends, or all is there
		}
	}
	if len(out) == 0 {
		return direct() // the file may be longer than it was
	}
	return out, nil
}

// part returns the part at an offset, and asks for those behind it.
func (a *ahead) part(ctx context.Context, path string, begin int64) ([]byte, error) {
	a.mu.Lock()
	a.drop(begin)
	wanted := a.ask(ctx, path, begin)
	for i := int64(1); i < aheadParts && begin+i*op.DataMax < a.size && a.s.ahead.Load() < aheadMost; i++ {
		a.ask(ctx, path, begin+i*op.DataMax)
	}
	a.mu.Unlock()
	select {
	case <-wanted.ready:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if wanted.err != nil { // the next read asks again
		a.mu.Lock()
		defer a.mu.Unlock()
		a.drop(-1)
	}
	return wanted.data, wanted.err
}

// ask returns the part at an offset, which may not be ready. Preconditions: mu is held.
func (a *ahead) ask(ctx context.Context, path string, begin int64) *part {
	if p := a.parts[begin]; p != nil {
		return p
	}
	p := &part{ready: make(chan struct{})}
	a.parts[begin] = p
	a.s.ahead.Add(1)
	a.s.busy.Add(1)
	a.s.tasks.Go(func() {
		defer a.s.busy.Add(-1)
		p.data, p.err = a.s.link.ask(ctx, op.Call{Op: op.Read, Path: path, Offset: begin, Size: op.DataMax}, nil, nil)
		close(p.ready)
	})
	return p
}

// drop forgets the parts before an offset, or all if that is negative. Preconditions: mu is
// held.
func (a *ahead) drop(before int64) {
	for at := range a.parts {
		if before < 0 || at < before {
			delete(a.parts, at)
			a.s.ahead.Add(-1)
		}
	}
}

// close forgets everything.
func (a *ahead) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.drop(-1)
}
