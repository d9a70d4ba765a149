package output

import (
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/dozehq/doze/internal/agent/pump"
)

const (
	// ringMax bounds the output that is kept of one stream.
	ringMax = 32 << 20
	// ringStep is how a ring grows: by the most that is written at once. The first step is always granted, so every
	// stream keeps at least its last ringStep bytes.
	ringStep = pump.Max
)

// Budget bounds what all rings together take of the disk, which in a sandbox
// is memory. Bytes below the floor of each ring are counted, but not refused.
type Budget struct {
	total int64
	used  atomic.Int64
	// free makes room by giving up old output; false means there is none.
	free func() bool
}

// NewBudget returns a budget of so many bytes.
func NewBudget(total int64, free func() bool) *Budget { return &Budget{total: total, free: free} }

// take asks for n more bytes.
func (b *Budget) take(n int64) bool {
	for b.used.Load()+n > b.total {
		if !b.free() {
			return false
		}
	}
	b.used.Add(n)
	return true
}

// ring keeps the last bytes of a stream in a file, at their offset modulo its
// size. It has one writer at a time; readers find out afterwards whether what
// they read was overwritten meanwhile.
type ring struct {
	path   string
	budget *Budget

	file *os.File // of the writer; nil before the first byte and after the last

	mu    sync.Mutex
	size  int64 // guarded by mu: bytes that the file may have
	start int64 // guarded by mu: offset of the oldest byte
	end   int64 // guarded by mu: offset after the newest byte
	gone  bool  // guarded by mu: dropped, takes nothing any more
}

// bounds returns the offsets of what is kept.
func (r *ring) bounds() (start, end int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.start, r.end
}

// reserve makes room for n bytes, n at most ringStep, and returns how far the
// start will have to move. Only the writer calls it.
func (r *ring) reserve(n int64) (start int64) {
	r.mu.Lock()
	size, end, gone := r.size, r.end, r.gone
	r.mu.Unlock()
	for !gone && size < ringMax && end <= size && end+n > size {
		if size == 0 {
			r.budget.used.Add(ringStep)
		} else if !r.budget.take(ringStep) {
			break
		}
		size += ringStep
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gone { // since we looked
		r.budget.used.Add(r.size - size)
		return end + n
	}
	r.size = size
	return max(r.start, end+n-size)
}

// write appends b, for which reserve made room. Without a disk the bytes are
// counted and lost, so that the process goes on.
func (r *ring) write(b []byte) {
	n := int64(len(b))
	r.mu.Lock()
	if r.gone {
		r.end += n
		r.start = r.end
		r.mu.Unlock()
		return
	}
	r.start = max(r.start, r.end+n-r.size)
	at, size := r.end%r.size, r.size
	r.mu.Unlock()

	err := r.open()
	if err == nil {
		first := min(n, size-at)
		if _, err = r.file.WriteAt(b[:first], at); err == nil {
			_, err = r.file.WriteAt(b[first:], 0)
		}
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	r.end += n
	if err != nil {
		r.start = r.end
	}
}

func (r *ring) open() (err error) {
	if r.file != nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(r.path), 0o700); err != nil {
		return err
	}
	r.file, err = os.OpenFile(r.path, os.O_CREATE|os.O_WRONLY, 0o600)
	return err
}

// close ends writing; what is kept can still be read.
func (r *ring) close() {
	if r.file != nil {
		_ = r.file.Close() // nothing is buffered
		r.file = nil
	}
}

// drop forgets what is kept and gives its space back.
func (r *ring) drop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gone, r.start = true, r.end
	if r.size > 0 {
		_ = os.Remove(r.path) // a writer goes on in the file without a name
		r.budget.used.Add(-r.size)
		r.size = 0
	}
}

// read fills b from offset off on. It returns what is left of it if the writer
// overtook the reader: the bytes from offset got on.
func (r *ring) read(f *os.File, b []byte, off int64) (left []byte, got int64) {
	r.mu.Lock()
	size := r.size
	r.mu.Unlock()
	if size == 0 {
		return nil, off + int64(len(b))
	}
	at := off % size
	first := min(int64(len(b)), size-at)
	_, err := f.ReadAt(b[:first], at)
	if err == nil && first < int64(len(b)) {
		_, err = f.ReadAt(b[first:], 0)
	}
	start, _ := r.bounds()
	if err != nil { // the file is gone
		start = off + int64(len(b))
	}
	lost := min(max(0, start-off), int64(len(b)))
	return b[lost:], off + lost
}

// tail returns the last bytes, at most limit, and whether there were more.
func (r *ring) tail(limit int64) (b []byte, cut bool) {
	start, end := r.bounds()
	from := max(start, end-limit)
	if from == end {
		return nil, end > 0
	}
	f, err := os.Open(r.path)
	if err != nil {
		return nil, true
	}
	defer func() { _ = f.Close() }()
	b, from = r.read(f, make([]byte, end-from), from)
	return b, from > 0
}
