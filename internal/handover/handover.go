// Package handover keeps the address of a server open while the server is away. A small
// process, the holder, has a copy of the listening socket. When the server dies or is
// replaced, connections wait in the kernel until the next server accepts them. The
// holder reads nothing of them.
package handover

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// absence is how long a holder holds an address that nobody serves. After
	// that callers are better off refused.
	absence = time.Minute
	// patience is for what a holder does, which takes no time.
	patience = 10 * time.Second
	// addressMax bounds an address; a host name has 253 bytes at most.
	addressMax = 512
	// again is the pause before another holder is started for one that died.
	again = time.Second
)

const (
	// Command is the first argument of a program that shall call [Serve]. The flag
	// --socket FILE follows: it says to others whose holder that is.
	Command = "handover"
	// OldCommand is what Command was. A dozed of that version starts the program
	// that has taken its place with it, when its holder dies.
	OldCommand = "keep"

	socketFlag = "--socket"
)

// Serves reports whether the arguments of a program, each ended by a zero byte as in
// /proc, make it a holder whose socket is in a directory.
func Serves(arguments []byte, dir string) bool {
	for _, command := range []string{Command, OldCommand} {
		if bytes.HasPrefix(arguments, []byte(command+"\x00"+socketFlag+"\x00"+dir+"/")) {
			return true
		}
	}
	return false
}

// Given returns the unix socket that a holder is started with, for [Serve].
func Given() *os.File {
	const first = 3 // behind the standard streams
	return os.NewFile(first, "listener")
}

// What a caller says to a holder, in the first byte of a message. Behind give
// and in the answer to take is the address, as the server was told it; with it
// comes the socket. The caller is there until its connection ends.
const (
	give = 'g' // answered by itself
	take = 't' // answered by the address, which is empty if there is none
	shut = 'x' // answered by the end of the holder
)

// Listener is a listening socket, and the connection to the process that keeps it.
type Listener struct {
	net.Listener

	address string
	path    string // unix socket of the holder
	program string // becomes a holder
	fixed   bool   // somebody else keeps it

	accepting sync.RWMutex // held, for reading, while somebody may accept a caller

	mu     sync.Mutex
	holder *net.UnixConn // guarded by mu; nil without a holder
	ours   bool          // guarded by mu; what it keeps is our socket
	paused chan struct{} // guarded by mu; closed when Accept may go on, nil where it may
}

// Options say which address, and which process holds it.
type Options struct {
	Address string // host:port
	Path    string // unix socket of the holder; only root may enter its directory
	Program string // becomes a holder when it is started with [Command]
	// Inherited is a listening socket that the parent process made, and holds too. It
	// may be nil.
	Inherited *os.File
}

// Open returns the socket that a server before us had at this address, or a new
// one. It changes nothing for others: another server of that address may still run.
func Open(ctx context.Context, o Options) (*Listener, error) {
	d := &Listener{address: o.Address, path: o.Path, program: o.Program}
	if o.Inherited != nil {
		return d, d.inherit(o.Inherited)
	}
	held, address, err := d.ask(ctx)
	if err == nil && address == o.Address {
		d.Listener, d.ours = held, true
		if err := d.hear(); err != nil {
			return nil, errors.Join(err, d.Close())
		}
		return d, nil
	}
	if held != nil {
		_ = held.Close() // of another address
	}
	var listen net.ListenConfig
	listen.SetMultipathTCP(false) // Deafen cannot work with it
	if d.Listener, err = listen.Listen(ctx, "tcp", o.Address); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// inherit serves a socket that somebody else keeps.
func (d *Listener) inherit(f *os.File) (err error) {
	d.fixed = true
	if d.Listener, err = net.FileListener(f); err != nil {
		return fmt.Errorf("the socket that was inherited: %w", err)
	}
	if err := f.Close(); err != nil {
		return err
	}
	_, want, err := net.SplitHostPort(d.address)
	if err != nil {
		return err
	}
	_, got, err := net.SplitHostPort(d.Addr().String())
	if err == nil && got != want {
		err = fmt.Errorf("the socket that was inherited is at %s, and it should be at %s: make them agree", d.Addr(), d.address)
	}
	if err != nil {
		return errors.Join(err, d.Listener.Close())
	}
	return nil
}

// ask returns what the holder has, if there is one.
func (d *Listener) ask(ctx context.Context) (l net.Listener, address string, err error) {
	conn, err := dial(ctx, d.path)
	if err != nil {
		return nil, "", err
	}
	d.holder = conn
	if _, err := conn.Write([]byte{take}); err != nil {
		return nil, "", err
	}
	raw, socket, err := receive(conn)
	if err != nil || socket == none {
		return nil, "", err
	}
	f := os.NewFile(uintptr(socket), "listener")
	defer func() { _ = f.Close() }()
	l, err = net.FileListener(f) // it makes accepting not block again
	return l, string(raw), err
}

func dial(ctx context.Context, path string) (*net.UnixConn, error) {
	var d net.Dialer
	conn, err := d.DialUnix(ctx, "unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	return conn, conn.SetDeadline(time.Now().Add(patience))
}

// Hold makes sure that a holder has the socket. Preconditions: nobody else
// serves this address.
func (d *Listener) Hold(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fixed || d.ours {
		return nil
	}
	if d.holder != nil { // it keeps another address
		if err := d.dismiss(); err != nil {
			return err
		}
	}
	if err := d.start(); err != nil {
		return fmt.Errorf("start the handover process: %w", err)
	}
	conn, err := dial(ctx, d.path)
	if err != nil {
		return fmt.Errorf("reach the handover process: %w", err)
	}
	if err := d.hand(conn); err != nil {
		return errors.Join(fmt.Errorf("hand over the address: %w", err), conn.Close())
	}
	d.holder, d.ours = conn, true
	return nil
}

// start starts a holder. It is a process of its own session: it stays when we
// go. Its socket is there before it is.
func (d *Listener) start() error {
	if err := os.Remove(d.path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: d.path, Net: "unix"})
	if err != nil {
		return err
	}
	listener.SetUnlinkOnClose(false)
	defer func() { _ = listener.Close() }()
	if err := os.Chmod(d.path, 0o600); err != nil {
		return err
	}
	f, err := listener.File()
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	cmd := exec.Command(d.program, Command, socketFlag, d.path) //nolint:gosec,noctx // G204: our own binary; it must outlive every context of ours
	cmd.ExtraFiles = []*os.File{f}
	cmd.Env = []string{}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() { _ = cmd.Wait() }() // ends with the holder, or with us
	return nil
}

// hand gives the holder its copy of the socket.
func (d *Listener) hand(conn *net.UnixConn) error {
	err := d.control(func(fd int) error {
		_, _, err := conn.WriteMsgUnix(append([]byte{give}, d.address...), unix.UnixRights(fd), nil)
		return err
	})
	if err != nil {
		return err
	}
	answer := make([]byte, 1)
	_, err = conn.Read(answer)
	return err
}

// Run starts another holder whenever one dies, until ctx ends. Preconditions:
// Hold has returned.
func (d *Listener) Run(ctx context.Context) error {
	for !d.fixed && d.lost(ctx) {
		slog.WarnContext(ctx, "the handover process is gone: starting another")
		if err := d.Hold(ctx); err != nil {
			slog.ErrorContext(ctx, "start the handover process", "err", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(again):
		}
	}
	<-ctx.Done()
	return nil
}

// lost waits for the end of the holder and reports true, or false when ctx ends.
func (d *Listener) lost(ctx context.Context) bool {
	d.mu.Lock()
	conn := d.holder
	d.mu.Unlock()
	if conn == nil {
		return ctx.Err() == nil
	}
	_ = conn.SetDeadline(time.Time{})
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	_, _ = conn.Read(make([]byte, 1)) // it says nothing any more
	if ctx.Err() != nil {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	_ = conn.Close()
	d.holder, d.ours = nil, false
	return true
}

// Accept implements [net.Listener].
func (d *Listener) Accept() (net.Conn, error) {
	for {
		d.accepting.RLock()
		c, err := d.Listener.Accept()
		d.accepting.RUnlock()
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return c, err
		}
		d.mu.Lock()
		wait := d.paused
		d.mu.Unlock()
		if wait != nil {
			<-wait
		}
	}
}

// Pause stops accepting. New connections wait in the kernel until Resume, or until
// the next process accepts. Connections that were accepted before it returns go on.
func (d *Listener) Pause() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.paused == nil {
		d.paused = make(chan struct{})
	}
	if err := d.until(time.Unix(1, 0)); err != nil {
		return err
	}
	// Accept looks at the deadline before it asks the kernel. A call that was in
	// between may still accept a connection.
	d.accepting.Lock()
	defer d.accepting.Unlock()
	return nil
}

// Resume lets callers in again.
func (d *Listener) Resume() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	err := d.until(time.Time{})
	d.admit()
	return err
}

// until sets the time when Accept gives up, also one that waits already.
func (d *Listener) until(t time.Time) error {
	l, ok := d.Listener.(interface{ SetDeadline(t time.Time) error })
	if !ok {
		return errors.New("the listener cannot pause")
	}
	return l.SetDeadline(t)
}

// admit wakes an Accept that waits. Preconditions: mu is held.
func (d *Listener) admit() {
	if d.paused != nil {
		close(d.paused)
		d.paused = nil
	}
}

// Deafen has the kernel ignore new callers until the listener is closed. Accept still returns
// those that have called, so that the close cuts off nobody. Others find out that they are refused
// a second later, when their kernel calls again. It does nothing to a socket that somebody else
// keeps, since the next process listens to it.
func (d *Listener) Deafen() error {
	if d.fixed {
		return nil
	}
	return d.control(func(fd int) error {
		return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(noCalls)), Filter: &noCalls[0]})
	})
}

// hear ends what Deafen did. The server before us may have been killed after it.
func (d *Listener) hear() error {
	return d.control(func(fd int) error {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0); !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EOPNOTSUPP) {
			return err
		}
		return nil // it has no filter, or can have none
	})
}

// control does something with the descriptor of the socket.
func (d *Listener) control(do func(fd int) error) error {
	socket, ok := d.Listener.(syscall.Conn)
	if !ok {
		return errors.New("the listener has no socket")
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	var done error
	err = raw.Control(func(fd uintptr) { done = do(int(fd)) })
	return errors.Join(err, done)
}

// noCalls drops the first packet of each connection, and passes all others.
var noCalls = [...]unix.SockFilter{
	{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 13}, // the flags of TCP
	{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: synFlag | ackFlag},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: synFlag, Jf: 1},
	{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	{Code: unix.BPF_RET | unix.BPF_K, K: 1<<32 - 1},
}

// Flags of TCP.
const synFlag, ackFlag = 0x02, 0x10

// Shut ends the holder, so that callers are refused as soon as the listener is
// closed, too.
func (d *Listener) Shut() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.holder == nil {
		return nil
	}
	return d.dismiss()
}

// dismiss ends the holder. Preconditions: mu is held, there is one.
func (d *Listener) dismiss() error {
	conn := d.holder
	d.holder, d.ours = nil, false
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	_, _ = conn.Write([]byte{shut}) // it may have ended by itself
	if _, err := conn.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
		return errors.New("the handover process does not end")
	}
	return nil
}

// Close closes our copy of the socket. A holder goes on without us.
func (d *Listener) Close() (err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.holder != nil {
		err = d.holder.Close()
		d.holder = nil
	}
	if d.Listener != nil {
		defer d.admit() // it finds the listener closed
		if closed := d.Listener.Close(); !errors.Is(closed, net.ErrClosed) {
			err = errors.Join(err, closed)
		}
	}
	return err
}

// none is no descriptor.
const none = -1

// receive reads one message, and the descriptor that came with it, if one did.
// It stays a number: an [os.File] would make accepting block, for all who share
// the socket.
func receive(conn *net.UnixConn) (raw []byte, socket int, err error) {
	const one = 4 // bytes of a descriptor
	raw, rights := make([]byte, addressMax), make([]byte, unix.CmsgSpace(one))
	n, m, _, _, err := conn.ReadMsgUnix(raw, rights) // it sets close-on-exec
	if err != nil {
		return nil, none, err
	}
	messages, err := unix.ParseSocketControlMessage(rights[:m])
	if err != nil || len(messages) == 0 {
		return raw[:n], none, err
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return nil, none, err
	}
	return raw[:n], fds[0], nil
}
