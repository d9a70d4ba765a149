package handover_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/dozehq/doze/internal/handover"
)

// patience is for what another process does.
const patience = 30 * time.Second

// TestMain is the holder, too.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == handover.Command {
		if err := handover.Serve(context.Background(), handover.Given()); err != nil { //nolint:forbidigo // a main
			panic(err)
		}
		return
	}
	os.Exit(m.Run()) //nolint:forbidigo // a test's main
}

// hosts numbers the addresses: nobody else gets a port of theirs that is free again.
var hosts atomic.Int64

// options are of an address that nobody has.
func options(t *testing.T) handover.Options {
	t.Helper()
	// Not t.TempDir: unix sockets in it would have too long a name.
	dir, err := os.MkdirTemp("", "handover") //nolint:usetesting // see above
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return handover.Options{Address: fmt.Sprintf("127.0.1.%d:0", hosts.Add(1)), Path: filepath.Join(dir, "door.sock"), Program: os.Args[0]}
}

// open is a server's way in: it has the address to itself.
func open(t *testing.T, o handover.Options) *handover.Listener {
	t.Helper()
	d, err := handover.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Hold(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = errors.Join(d.Shut(), d.Close()) })
	return d
}

// greet serves one connection.
func greet(t *testing.T, d *handover.Listener, text string) {
	t.Helper()
	c, err := d.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
}

func call(t *testing.T, address string) net.Conn {
	t.Helper()
	c, err := (&net.Dialer{Timeout: patience}).DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return c
}

func hears(t *testing.T, c net.Conn, want string) {
	t.Helper()
	got, err := io.ReadAll(c)
	if err != nil || string(got) != want {
		t.Errorf("the caller hears %q, %v, want %q", got, err, want)
	}
}

func refused(t *testing.T, address string) {
	t.Helper()
	c, err := new(net.Dialer).DialContext(t.Context(), "tcp", address)
	if err == nil {
		_ = c.Close()
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a call: %v, want that it is refused", err)
	}
}

// A server that ends without a word leaves its address open.
func TestSuccessor(t *testing.T) {
	t.Parallel()
	o := options(t)
	var waiting net.Conn
	address := ""
	for i := range 3 {
		d := open(t, o)
		if address == "" {
			address = d.Addr().String()
		}
		if waiting != nil {
			greet(t, d, strconv.Itoa(i))
			hears(t, waiting, strconv.Itoa(i))
		}
		c := call(t, address)
		greet(t, d, "now")
		hears(t, c, "now")
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		waiting = call(t, address)
	}
}

// One that shuts its address refuses callers at once.
func TestShut(t *testing.T) {
	t.Parallel()
	d := open(t, options(t))
	if err := errors.Join(d.Shut(), d.Close()); err != nil {
		t.Fatal(err)
	}
	refused(t, d.Addr().String())
	if err := errors.Join(d.Shut(), d.Close()); err != nil {
		t.Error("a second time:", err)
	}
}

// Another address is another listener, and nobody holds the old one.
func TestAnotherAddress(t *testing.T) {
	t.Parallel()
	o := options(t)
	first := open(t, o)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	o.Address = fmt.Sprintf("127.0.2.%d:0", hosts.Add(1))
	second := open(t, o)
	if first.Addr().String() == second.Addr().String() {
		t.Error("two addresses are one")
	}
	refused(t, first.Addr().String())
	c := call(t, second.Addr().String())
	greet(t, second, "here")
	hears(t, c, "here")
}

// Whoever looks in and goes away takes nothing with them.
func TestVisitor(t *testing.T) {
	t.Parallel()
	o := options(t)
	d := open(t, o)
	visitor, err := handover.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if err := visitor.Close(); err != nil {
		t.Fatal(err)
	}
	c := call(t, d.Addr().String())
	greet(t, d, "still here")
	hears(t, c, "still here")
}

// holders returns the processes that hold an address.
func holders(t *testing.T, o handover.Options) (pids []int) {
	t.Helper()
	names, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		raw, _ := os.ReadFile(name) // it may have ended
		if strings.Contains(string(raw), handover.Command+"\x00--socket\x00"+o.Path) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
			pids = append(pids, pid)
		}
	}
	return pids
}

// A holder that dies has a successor.
func TestHolderDies(t *testing.T) {
	t.Parallel()
	o := options(t)
	d := open(t, o)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	first := holders(t, o)
	if len(first) != 1 {
		t.Fatalf("the holders are %v", first)
	}
	if err := syscall.Kill(first[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	until(t, "there is another holder", func() error {
		if now := holders(t, o); len(now) != 1 || now[0] == first[0] {
			return fmt.Errorf("there is %v", now)
		}
		// It has the socket, too.
		visitor, err := handover.Open(t.Context(), o)
		if err != nil {
			return err
		}
		if visitor.Addr().String() != d.Addr().String() {
			err = errors.New("it keeps " + visitor.Addr().String())
		}
		return errors.Join(err, visitor.Close())
	})
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := errors.Join(d.Shut(), d.Close()); err != nil {
		t.Fatal(err)
	}
	until(t, "no holder is left", func() error {
		if left := holders(t, o); len(left) > 0 {
			return fmt.Errorf("there is %v", left)
		}
		return nil
	})
}

func until(t *testing.T, what string, check func() error) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if err = check(); err == nil {
			return
		}
	}
	t.Fatalf("it does not happen that %s: %v", what, err)
}

// What somebody else made is served as it is, and must be what was wanted.
func TestInherited(t *testing.T) {
	t.Parallel()
	for name, same := range map[string]bool{"the same": true, "another": false} {
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		f, err := l.(*net.TCPListener).File()
		if err != nil {
			t.Fatal(err)
		}
		o := options(t)
		o.Inherited = f
		if same {
			o.Address = l.Addr().String()
		}
		d, err := handover.Open(t.Context(), o)
		if same != (err == nil) {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil {
			continue
		}
		if err := d.Hold(t.Context()); err != nil {
			t.Fatal(err)
		}
		if left := holders(t, o); len(left) > 0 {
			t.Errorf("it has holders of its own: %v", left)
		}
		c := call(t, l.Addr().String())
		greet(t, d, "hello")
		hears(t, c, "hello")
		if err := errors.Join(d.Shut(), d.Close(), l.Close()); err != nil {
			t.Error(err)
		}
	}
}

// TestPause: who comes in a pause waits, and is let in after it.
func TestPause(t *testing.T) {
	t.Parallel()
	d := open(t, options(t))
	accepted, ended := make(chan net.Conn), make(chan error, 1)
	go func() { // ends with the listener
		for {
			c, err := d.Accept()
			if err != nil {
				ended <- err
				return
			}
			accepted <- c
		}
	}()
	dial := func() {
		c, err := new(net.Dialer).DialContext(t.Context(), "tcp", d.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
	}
	enter := func(when string) {
		select {
		case c := <-accepted:
			_ = c.Close()
		case <-time.After(patience):
			t.Fatal(when + ": nobody is let in")
		}
	}
	dial()
	enter("before")
	for range 2 {
		if err := errors.Join(d.Pause(), d.Pause()); err != nil {
			t.Fatal(err)
		}
		dial()
		select {
		case <-accepted:
			t.Error("somebody was let in during a pause")
		case <-time.After(100 * time.Millisecond): // enough to see it, if it happens
		}
		if err := d.Resume(); err != nil {
			t.Fatal(err)
		}
		enter("after a pause")
	}
	if err := errors.Join(d.Pause(), d.Close()); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Error("a listener that was closed in a pause still waits")
	}
}

// TestDeafen: a caller that was let in is served, though the listener is closed soon. A caller
// after that finds out that it is refused.
func TestDeafen(t *testing.T) {
	t.Parallel()
	d := open(t, options(t))
	address := d.Addr().String()
	before := call(t, address)
	if err := d.Deafen(); err != nil {
		t.Fatal(err)
	}
	late := make(chan error, 1)
	go func() { // ends with the call
		c, err := (&net.Dialer{Timeout: patience}).DialContext(t.Context(), "tcp", address)
		if err == nil {
			_ = c.Close()
		}
		late <- err
	}()
	greet(t, d, "hello")
	hears(t, before, "hello")
	select {
	case err := <-late:
		t.Errorf("a call to a listener that is deaf: %v", err)
	case <-time.After(deaf):
	}
	if err := errors.Join(d.Shut(), d.Close()); err != nil {
		t.Fatal(err)
	}
	if err := <-late; !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a call that nobody hears: %v, want that it is refused", err)
	}
}

// TestKilledDeaf: a server that was killed while it was deaf leaves an address that the next one
// serves.
func TestKilledDeaf(t *testing.T) {
	t.Parallel()
	o := options(t)
	d := open(t, o)
	address := d.Addr().String()
	if err := errors.Join(d.Deafen(), d.Close()); err != nil { // the holder has the socket
		t.Fatal(err)
	}
	next := open(t, o)
	if got := next.Addr().String(); got != address {
		t.Fatalf("the next one has %s, want %s", got, address)
	}
	c := call(t, address)
	greet(t, next, "hello")
	hears(t, c, "hello")
}

// deaf is for a call that would be taken at once.
const deaf = 300 * time.Millisecond
