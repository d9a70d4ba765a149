package drive

import (
	"bytes"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/dozehq/doze/internal/drive/op"
)

// disk is a host that has one file, whatever its path.
type disk struct {
	mu      sync.Mutex
	content []byte          // guarded by mu
	calls   map[op.Name]int // guarded by mu
	fails   syscall.Errno   // guarded by mu; of writes
}

func (d *disk) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c, err := op.Parse(r)
	data, read := io.ReadAll(r.Body)
	if err != nil || read != nil {
		op.Refuse(w, syscall.EIO)
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls[c.Op]++
	switch c.Op { //nolint:exhaustive // the others change nothing
	case op.Write:
		if d.fails != 0 {
			op.Refuse(w, d.fails)
			return
		}
		if end := int(c.Offset) + len(data); end > len(d.content) {
			d.content = append(d.content, make([]byte, end-len(d.content))...)
		}
		copy(d.content[c.Offset:], data)
	case op.Truncate:
		d.content = append(d.content, make([]byte, max(0, int(c.Size)-len(d.content)))...)[:c.Size]
	case op.Open:
		if c.Truncate {
			d.content = nil
		}
	case op.Read:
		from := min(int(c.Offset), len(d.content))
		_, _ = w.Write(d.content[from:min(from+int(c.Size), len(d.content))])
		return
	}
	_ = json.NewEncoder(w).Encode(op.Answer{Node: op.Node{Size: int64(len(d.content)), Modified: 1e9}})
}

// asked is how often the host was asked.
func (d *disk) asked(name op.Name) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.calls[name]
}

// newDisk serves a kernel whose host is a disk.
func newDisk(t *testing.T, content []byte) (*disk, *kernel) {
	t.Helper()
	d := &disk{content: content, calls: map[op.Name]int{}}
	l := newLink()
	connect(t, l, d)
	return d, newKernel(t, l)
}

func words(all ...uint64) string {
	var b []byte
	for _, w := range all {
		b = le.AppendUint64(b, w)
	}
	return string(b)
}

// must is ask that has to work.
func (k *kernel) must(opcode uint32, node uint64, body string) string {
	k.t.Helper()
	out, errno := k.ask(opcode, node, body)
	if errno != 0 {
		k.t.Fatalf("request %d: %v", opcode, errno)
	}
	return out
}

// create opens a new file, and returns its number and a handle.
func (k *kernel) create() (node uint64, handle string) {
	k.t.Helper()
	out := k.must(opCreate, rootID, "\x42\x00\x00\x00"+strings.Repeat("\x00", 12)+"f\x00")
	return le.Uint64([]byte(out)), out[128:136]
}

func (k *kernel) open(node uint64) (handle string) {
	k.t.Helper()
	return k.must(opOpen, node, strings.Repeat("\x00", 8))[:8]
}

func (k *kernel) write(node uint64, handle string, at int, data string) syscall.Errno {
	k.t.Helper()
	size := le.AppendUint32(nil, uint32(len(data)))
	_, errno := k.ask(opWrite, node, handle+words(uint64(at))+string(size)+strings.Repeat("\x00", 20)+data)
	return errno
}

func (k *kernel) read(node uint64, handle string, at, size int) string {
	k.t.Helper()
	return k.must(opRead, node, handle+words(uint64(at))+string(le.AppendUint32(nil, uint32(size))))
}

func (k *kernel) size(node uint64) int {
	k.t.Helper()
	out := k.must(opGetattr, node, strings.Repeat("\x00", 16))
	return int(le.Uint64([]byte(out)[24:]))
}

// TestWriteBack: small writes reach the host together, and everybody inside sees them at once.
func TestWriteBack(t *testing.T) {
	t.Parallel()
	d, k := newDisk(t, nil)
	node, handle := k.create()
	const pieces, piece = 1024, 4 << 10
	for i := range pieces {
		if errno := k.write(node, handle, i*piece, strings.Repeat(string(rune('a'+i%26)), piece)); errno != 0 {
			t.Fatal(errno)
		}
	}
	if got := k.size(node); got != pieces*piece {
		t.Errorf("its size is %d", got)
	}
	reader := k.open(node)
	if got := k.read(node, reader, (pieces-1)*piece, piece); got != strings.Repeat(string(rune('a'+(pieces-1)%26)), piece) {
		t.Errorf("another handle reads %.10q…", got)
	}
	if got, most := d.asked(op.Write), pieces*piece/op.DataMax+1; got > most {
		t.Errorf("%d writes are %d calls, and not %d", pieces, got, most)
	}
	if d.asked(op.Stat) != 0 {
		t.Error("the host is asked for a size that is known")
	}
	if errno := k.write(node, handle, 3, "X"); errno != 0 {
		t.Fatal(errno)
	}
	k.must(opFsync, node, handle+words(0))
	d.mu.Lock()
	got := string(d.content[:6])
	d.mu.Unlock()
	if got != "aaaXaa" || d.asked(op.Flush) != 1 {
		t.Errorf("after a sync the host has %q", got)
	}
	k.must(opRelease, node, handle+words(0, 0))
	if d.asked(op.Release) != 1 {
		t.Error("the host was not told of the end")
	}
}

// TestHeldForASecond: what nobody asks for reaches the host soon.
func TestHeldForASecond(t *testing.T) {
	t.Parallel()
	d, k := newDisk(t, nil)
	node, handle := k.create()
	k.write(node, handle, 0, "hello")
	if d.asked(op.Write) != 0 {
		t.Skip("SKIPPED: this machine took a second for a write")
	}
	for deadline := time.Now().Add(patience); d.asked(op.Write) == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the host never got it")
		}
	}
}

// TestLateErrors: who writes hears of what failed later, once.
func TestLateErrors(t *testing.T) {
	t.Parallel()
	d, k := newDisk(t, nil)
	node, handle := k.create()
	d.fails = syscall.ENOSPC
	if errno := k.write(node, handle, 0, "hello"); errno != 0 {
		t.Fatal(errno)
	}
	if _, errno := k.ask(opFlush, node, handle+words(0, 0)); errno != syscall.ENOSPC {
		t.Errorf("a close says %v", errno)
	}
	if _, errno := k.ask(opFlush, node, handle+words(0, 0)); errno != 0 {
		t.Errorf("the next close says %v", errno)
	}
	k.write(node, handle, 0, "hello")
	k.write(node, handle, 100, "hello") // elsewhere: the first one is sent
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		if errno := k.write(node, handle, 105, "hello"); errno == syscall.ENOSPC {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("no later write says so")
		}
	}
}

// TestAsAFile has one handle write, another one read, and the file truncated, at random. It
// is what a file in memory would be.
func TestAsAFile(t *testing.T) {
	t.Parallel()
	d, k := newDisk(t, nil)
	node, writer := k.create()
	reader := k.open(node)
	var want []byte
	random := rand.New(rand.NewPCG(1, 2))
	at := 0
	for range 3000 {
		switch n := random.IntN(10); {
		case n < 6:
			if random.IntN(3) == 0 {
				at = random.IntN(len(want) + 5000)
			}
			data := bytes.Repeat([]byte{byte(random.IntN(256))}, 1+random.IntN(20_000))
			if errno := k.write(node, writer, at, string(data)); errno != 0 {
				t.Fatal(errno)
			}
			if end := at + len(data); end > len(want) {
				want = append(want, make([]byte, end-len(want))...)
			}
			at += copy(want[at:], data)
		case n < 9 && len(want) > 0:
			from := random.IntN(len(want))
			size := min(1+random.IntN(30_000), len(want)-from)
			if got := k.read(node, [...]string{reader, writer}[n%2], from, size); got != string(want[from:from+size]) {
				t.Fatalf("%d bytes from %d on are not those that were written", size, from)
			}
		case n == 9 && random.IntN(10) == 0:
			size := random.IntN(len(want) + 1000)
			k.must(opSetattr, node, string(le.AppendUint32(nil, attrSize))+strings.Repeat("\x00", 12)+words(uint64(size))+strings.Repeat("\x00", 64))
			want = append(want, make([]byte, max(0, size-len(want)))...)[:size]
		}
		if got := k.size(node); got != len(want) {
			t.Fatalf("its size is %d, want %d", got, len(want))
		}
	}
	k.must(opRelease, node, writer+words(0, 0))
	d.mu.Lock()
	defer d.mu.Unlock()
	if !bytes.Equal(d.content, want) {
		t.Error("the host has something else")
	}
}

// TestReadAhead: who reads a file from its beginning to its end asks the host seldom, and
// reads what is there, and what comes.
func TestReadAhead(t *testing.T) {
	t.Parallel()
	content := make([]byte, 5<<20+123)
	for i := range content {
		content[i] = byte(i * i >> 7)
	}
	d, k := newDisk(t, content)
	node := le.Uint64([]byte(k.must(opLookup, rootID, "f\x00")))
	handle := k.open(node)
	const piece = 10_000
	var got []byte
	for len(got) < len(content) {
		got = append(got, k.read(node, handle, len(got), min(piece, len(content)-len(got)))...)
	}
	if !bytes.Equal(got, content) {
		t.Error("it reads something else")
	}
	if asked, most := d.asked(op.Read), len(content)/op.DataMax+1+sequential+1; asked > most {
		t.Errorf("the host was asked %d times, and not %d", asked, most)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		from := random.IntN(len(content))
		size := min(1+random.IntN(100_000), len(content)-from) // which a socket takes
		for range random.IntN(5) {
			if got := k.read(node, handle, from, size); got != string(content[from:from+size]) {
				t.Fatalf("%d bytes from %d on are others", size, from)
			}
			if from += size; from+size > len(content) {
				break
			}
		}
	}
	// It grows, as a log does.
	handle = k.open(node)
	for i := range 4 {
		k.read(node, handle, len(content)-(4-i)*100, 100)
	}
	d.mu.Lock()
	d.content = append(d.content, "more"...)
	d.mu.Unlock()
	if got := k.read(node, handle, len(content), 4); got != "more" {
		t.Errorf("behind its end there is %q", got)
	}
	k.must(opRelease, node, handle+words(0, 0))
}
