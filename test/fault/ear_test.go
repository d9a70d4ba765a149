package fault_test

import (
	"bufio"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/dozehq/doze/internal/failpoint"
)

// ear hears of every step of a platform, and stops it at one.
type ear struct {
	socket string

	mu    sync.Mutex
	trap  *trap          // guarded by mu; nil if no step is waited for
	held  *held          // guarded by mu; the last one that was stopped
	heard map[string]int // guarded by mu; how often each step was reached, by its line
}

// trap is a step that is waited for.
type trap struct {
	line   string     // what says that it is reached
	left   int        // how often it is let pass
	sprung chan *held // holds the one that was stopped
}

// held is a process that stands still at a step.
type held struct{ net.Conn }

// answer lets it go on.
func (h *held) answer(say string) {
	_, _ = fmt.Fprintln(h, say) // it may have been killed
	_ = h.Close()
}

func listen(t *testing.T, dir string) *ear {
	t.Helper()
	e := &ear{socket: filepath.Join(dir, "steps"), heard: map[string]int{}}
	l, err := net.Listen("unix", e.socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() { // ends with the listener
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go e.hear(conn)
		}
	}()
	return e
}

func (e *ear) hear(conn net.Conn) {
	h := &held{conn}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		h.answer("")
		return
	}
	if t := e.springs(strings.TrimSpace(line)); t != nil {
		e.mu.Lock()
		e.held = h
		e.mu.Unlock()
		t.sprung <- h
		return
	}
	h.answer(failpoint.Go)
}

// springs returns the trap, if it is for this step and for this time.
func (e *ear) springs(line string) *trap {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.heard[line]++
	t := e.trap
	if t == nil || t.line != line && t.line != strings.SplitN(line, " ", 2)[0]+" "+anyone {
		return nil
	}
	if t.left--; t.left >= 0 {
		return nil
	}
	e.trap = nil
	return t
}

// reached returns how often a machine was at a step.
func (e *ear) reached(at failpoint.Point, id string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.heard[at.String()+" "+id]
}

// ignore waits for nothing any more, and lets go on what stands still.
func (e *ear) ignore() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.trap = nil
	if e.held != nil {
		e.held.answer(failpoint.Go)
	}
}

// anyone is the id of a machine that has none yet.
const anyone = "*"

// wait makes the next time but so many that a machine is at a step a stop.
func (e *ear) wait(at failpoint.Point, id string, passes int) <-chan *held {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.trap = &trap{strings.TrimSpace(at.String() + " " + id), passes, make(chan *held, 1)}
	return e.trap.sprung
}
