package handover

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// holder has a copy of a listening socket, and never accepts from it.
type holder struct {
	end context.CancelFunc // ends the holder

	mu      sync.Mutex
	address string // guarded by mu
	socket  int    // guarded by mu; none until somebody gives it
	callers int    // guarded by mu
	absent  *time.Timer
}

// Serve is the whole life of a holder: it serves the unix socket listener until
// somebody tells it to end, or until nobody was there for a minute.
func Serve(ctx context.Context, listener *os.File) error {
	l, err := net.FileListener(listener)
	if err != nil {
		return err
	}
	if err := listener.Close(); err != nil {
		return err
	}
	ctx, end := context.WithCancel(ctx)
	defer end()
	k := &holder{end: end, socket: none}
	k.absent = time.AfterFunc(absence, end)
	defer k.absent.Stop()
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	for {
		conn, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		caller, ok := conn.(*net.UnixConn)
		if !ok {
			return errors.New("the inherited socket is no unix socket")
		}
		go k.serve(caller) // ends with the caller
	}
}

// serve does what a caller says until it goes.
func (k *holder) serve(caller *net.UnixConn) {
	k.come()
	defer k.leave()
	defer func() { _ = caller.Close() }()
	for {
		said, socket, err := receive(caller)
		if err != nil || len(said) == 0 {
			return
		}
		if said[0] != give && socket != none { // nobody asked for it
			_ = unix.Close(socket)
		}
		switch said[0] {
		case give:
			k.put(string(said[1:]), socket)
			_, err = caller.Write([]byte{give})
		case take:
			err = k.show(caller)
		case shut:
			k.put("", none) // before the caller hears of the end
			k.end()
			return
		}
		if err != nil {
			return
		}
	}
}

func (k *holder) come() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.callers++
	k.absent.Stop()
}

func (k *holder) leave() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.callers--; k.callers == 0 {
		k.absent.Reset(absence)
	}
}

// put replaces what is kept.
func (k *holder) put(address string, socket int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.socket != none {
		_ = unix.Close(k.socket)
	}
	k.address, k.socket = address, socket
}

// show sends the address and the socket.
func (k *holder) show(caller *net.UnixConn) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.socket == none {
		_, err := caller.Write([]byte{' '}) // an empty message would be none
		return err
	}
	_, _, err := caller.WriteMsgUnix([]byte(k.address), unix.UnixRights(k.socket), nil)
	return err
}
