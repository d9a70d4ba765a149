package drive

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze/internal/drive/op"
)

// patience bounds every wait of a test.
const patience = 20 * time.Second

// host answers over a connection and keeps what it was asked.
type host struct {
	mu    sync.Mutex
	calls []op.Call               // guarded by mu
	serve func(op.Call) op.Answer // nil refuses
}

func (h *host) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c, err := op.Parse(r)
	h.mu.Lock()
	h.calls = append(h.calls, c)
	h.mu.Unlock()
	if err != nil || h.serve == nil {
		op.Refuse(w, syscall.ENOENT)
		return
	}
	_ = json.NewEncoder(w).Encode(h.serve(c)) // the test fails for what is missing
}

// connect has h answer for l, until the connection that it returns is closed.
func connect(t *testing.T, l *link, h http.Handler) net.Conn {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	srv := &http.Server{Handler: h, Protocols: &protocols}
	var tasks sync.WaitGroup
	tasks.Go(func() { _ = srv.Serve(ln) })
	conn, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	tasks.Go(func() { l.serve(ctx, conn) })
	t.Cleanup(func() {
		cancel()
		_ = srv.Close()
		tasks.Wait()
	})
	return conn
}

// kernel sends requests and reads their answers, as the one of a sandbox does.
type kernel struct {
	t      *testing.T
	file   *os.File
	unique uint64
}

// newKernel starts a server, which ends with the test.
func newKernel(t *testing.T, l *link) *kernel {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, device := os.NewFile(uintptr(fds[0]), "kernel"), os.NewFile(uintptr(fds[1]), "device")
	var tasks sync.WaitGroup
	var busy atomic.Int32
	ctx, cancel := context.WithCancel(t.Context())
	tasks.Go(func() { newServer(device, Owner{7, 8}, l, &busy).run(ctx) })
	t.Cleanup(func() {
		cancel()
		_ = device.Close()
		_ = ours.Close()
		tasks.Wait()
		if busy.Load() != 0 {
			t.Errorf("%d calls are under way", busy.Load())
		}
	})
	return &kernel{t: t, file: ours}
}

// ask makes a request.
func (k *kernel) ask(opcode uint32, node uint64, body string) (string, syscall.Errno) {
	k.t.Helper()
	k.unique++
	b := make([]byte, headerIn, headerIn+len(body))
	le.PutUint32(b, uint32(headerIn+len(body)))
	le.PutUint32(b[4:], opcode)
	le.PutUint64(b[8:], k.unique)
	le.PutUint64(b[16:], node)
	if _, err := k.file.Write(append(b, body...)); err != nil {
		k.t.Fatal(err)
	}
	if err := k.file.SetReadDeadline(time.Now().Add(patience)); err != nil {
		k.t.Fatal(err)
	}
	out := make([]byte, op.DataMax+pageBytes)
	n, err := k.file.Read(out)
	if err != nil {
		k.t.Fatal(err)
	}
	if n < headerOut || int(le.Uint32(out)) != n || le.Uint64(out[8:]) != k.unique {
		k.t.Fatalf("the answer is %q", out[:n])
	}
	return string(out[headerOut:n]), syscall.Errno(-int32(le.Uint32(out[4:])))
}

func TestServer(t *testing.T) {
	t.Parallel()
	var gone atomic.Bool // the file a
	h := &host{serve: func(c op.Call) op.Answer {
		switch {
		case c.Op == op.List && gone.Load():
			return op.Answer{}
		case c.Op == op.List:
			return op.Answer{Nodes: []op.Node{{Name: "a"}, {Name: "d", Dir: true}, {Name: ".."}, {Name: strings.Repeat("x", 300)}}}
		}
		return op.Answer{Node: op.Node{Size: 5, Modified: 3e9 + 4}}
	}}
	l := newLink()
	connect(t, l, h)
	k := newKernel(t, l)
	if got, errno := k.ask(opInit, 0, ""); errno != 0 || len(got) != 64 || le.Uint32([]byte(got)[20:]) != op.DataMax {
		t.Errorf("init: %q, %v", got, errno)
	}
	got, errno := k.ask(opLookup, rootID, "a\x00")
	if entry := []byte(got); errno != 0 || len(entry) != 128 || le.Uint64(entry) != 2 || le.Uint64(entry[48:]) != 5 || le.Uint32(entry[108:]) != 7 || le.Uint32(entry[112:]) != 8 {
		t.Errorf("lookup: %q, %v", got, errno)
	}
	for name, tt := range map[string]struct {
		op   uint32
		node uint64
		body string
		want syscall.Errno
	}{
		"a way out":          {opLookup, rootID, "..\x00", syscall.EINVAL},
		"a path":             {opLookup, rootID, "a/b\x00", syscall.EINVAL},
		"no end":             {opLookup, rootID, "a", syscall.EIO},
		"a number of nobody": {opGetattr, 99, strings.Repeat("\x00", 16), syscall.ESTALE},
		"too short":          {opWrite, 2, "x", syscall.EIO},
		"a handle of nobody": {opWrite, 2, strings.Repeat("\x00", 40), syscall.EBADF},
		"an attribute":       {opGetxattr, rootID, strings.Repeat("\x00", 8) + "user.a\x00", syscall.EOPNOTSUPP},
		"all attributes":     {opListxattr, rootID, strings.Repeat("\x00", 8), syscall.EOPNOTSUPP},
		"a new attribute":    {opSetxattr, rootID, strings.Repeat("\x00", 8) + "user.a\x00", syscall.EOPNOTSUPP},
		"no attribute more":  {opDelxattr, rootID, "user.a\x00", syscall.EOPNOTSUPP},
		"what we do not do":  {6, rootID, "", syscall.ENOSYS},
	} {
		if _, errno := k.ask(tt.op, tt.node, tt.body); errno != tt.want {
			t.Errorf("%s: %v, want %v", name, errno, tt.want)
		}
	}
	opened, errno := k.ask(opOpendir, rootID, "")
	if errno != 0 {
		t.Fatal(errno)
	}
	read := opened[:8] + "\x00\x00\x00\x00\x00\x00\x00\x00" + "\x00\x10\x00\x00"
	entries, errno := k.ask(opReaddir, rootID, read)
	if errno != 0 || len(entries) != 4*32 || !strings.Contains(entries, "a\x00") {
		t.Errorf("the directory reads %q, %v", entries, errno)
	}
	gone.Store(true)
	if again, errno := k.ask(opReaddir, rootID, read); errno != 0 || strings.Contains(again, "a\x00") {
		t.Errorf("from its beginning again it reads %q, %v", again, errno)
	}
	created, errno := k.ask(opCreate, rootID, "\x41\x00\x00\x00"+strings.Repeat("\x00", 12)+"new\x00")
	if errno != 0 || len(created) != 144 {
		t.Fatalf("create: %q, %v", created, errno)
	}
	handle := created[128:136]
	if _, errno := k.ask(opWrite, 2, handle+strings.Repeat("\x00", 8)+"\x05\x00\x00\x00"+strings.Repeat("\x00", 20)+"hello"); errno != 0 {
		t.Errorf("write: %v", errno)
	}
	if _, errno := k.ask(opRename, rootID, "\x01\x00\x00\x00\x00\x00\x00\x00new\x00old\x00"); errno != 0 {
		t.Errorf("rename: %v", errno)
	}
	if _, errno := k.ask(opRelease, 2, handle); errno != 0 {
		t.Errorf("release: %v", errno)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	var asked []op.Name
	for _, c := range h.calls {
		asked = append(asked, c.Op)
	}
	if diff := cmp.Diff([]op.Name{op.Stat, op.List, op.List, op.Open, op.Write, op.Rename, op.Release}, asked); diff != "" {
		t.Errorf("the host was asked (-want +got):\n%s", diff)
	}
}

// TestCallsOutliveConnections: a call that lost its connection is made again over
// the next, and says so.
func TestCallsOutliveConnections(t *testing.T) {
	t.Parallel()
	l := newLink()
	reached, hang := make(chan struct{}), make(chan struct{})
	defer close(hang)
	first := connect(t, l, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		close(reached)
		<-hang
	}))
	answered := make(chan error, 1)
	go func() { // ends with its answer
		_, err := l.ask(t.Context(), op.Call{Op: op.Mkdir, Path: "d"}, nil, &op.Answer{})
		answered <- err
	}()
	<-reached
	_ = first.Close()
	h := &host{serve: func(op.Call) op.Answer { return op.Answer{} }}
	connect(t, l, h)
	if err := <-answered; err != nil {
		t.Fatal(err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if diff := cmp.Diff([]op.Call{{Op: op.Mkdir, Path: "d", Again: true}}, h.calls); diff != "" {
		t.Errorf("the host was asked (-want +got):\n%s", diff)
	}
	l.set(nil, true)
	if _, err := l.ask(t.Context(), op.Call{Op: op.Stat}, nil, nil); !errors.Is(err, syscall.ENOTCONN) {
		t.Errorf("without a host: %v", err)
	}
}

// TestCallsShareAConnection: all calls that wait for a connection go over the one
// that comes.
func TestCallsShareAConnection(t *testing.T) {
	t.Parallel()
	l := newLink()
	var calls sync.WaitGroup
	for range requestsMax {
		calls.Go(func() {
			if _, err := l.ask(t.Context(), op.Call{Op: op.Stat, Path: "f"}, nil, &op.Answer{}); err != nil {
				t.Error(err)
			}
		})
	}
	time.Sleep(10 * time.Millisecond) // so that most of them wait
	connect(t, l, &host{serve: func(op.Call) op.Answer { return op.Answer{} }})
	calls.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.host == nil {
		t.Error("the connection is used no more")
	}
}

// TestCallsWaitTogether: without a host, all calls fail in the time that one has,
// even if the kernel makes some after another.
func TestCallsWaitTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLink()
		began := time.Now()
		for i, want := range []time.Duration{linkWait, linkWait + linkProbe, linkWait + 2*linkProbe} {
			if _, err := l.ask(t.Context(), op.Call{Op: op.Stat}, nil, nil); errnoOf(err) != syscall.EIO || time.Since(began) != want {
				t.Errorf("call %d ends after %v with %v", i, time.Since(began), err)
			}
		}
		l.set(nil, false) // there was a connection meanwhile
		began = time.Now()
		if _, err := l.ask(t.Context(), op.Call{Op: op.Stat}, nil, nil); errnoOf(err) != syscall.EIO || time.Since(began) != linkWait {
			t.Errorf("the next time it ends after %v with %v", time.Since(began), err)
		}
	})
}

// FuzzRequest answers whatever a kernel may send, or nothing.
func FuzzRequest(f *testing.F) {
	f.Add([]byte{})
	f.Add(append([]byte{47, 0, 0, 0, opLookup, 0, 0, 0}, make([]byte, 39)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := parseRequest(b)
		if err != nil {
			return
		}
		l := newLink()
		l.set(nil, true)
		var busy atomic.Int32
		s := newServer(nil, Owner{}, l, &busy)
		body, err := s.answer(t.Context(), r)
		if out := reply(nil, r.unique, errnoOf(err), body); int(le.Uint32(out)) != len(out) {
			t.Errorf("the answer says that it has %d bytes, and has %d", le.Uint32(out), len(out))
		}
	})
}
