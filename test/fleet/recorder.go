package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"
)

const (
	// lineMax bounds a message, in bytes.
	lineMax = 4 << 10
	// witnessesMax bounds the sandboxes that a recorder knows.
	witnessesMax = 1024
	// writesMax bounds what is known of one: 14 hours of writes.
	writesMax = 1 << 20
	// stallMax is for how long a connection may say nothing.
	stallMax = time.Minute
)

// A message is what an instance of a sandbox says, all the time. What it says is in its
// memory, and nowhere else.
type message struct {
	Name string `json:"name"`
	Born string `json:"born"` // made at random when its process began
	// N counts its writes that were accepted, with this one.
	N uint64 `json:"n"`
	// Token is the answer to its last write that was accepted, or 0.
	Token uint64 `json:"token"`
	// Heard is the last thing that it heard: Token, or a challenge since.
	Heard uint64 `json:"heard"`
}

// An answer has one of both.
type answer struct {
	Token     uint64 `json:"token,omitempty"`     // the write is accepted
	Challenge uint64 `json:"challenge,omitempty"` // it is not, yet: say it again, with this in Heard
}

// A recorder tells whether a sandbox ever runs twice. It trusts no clock: it numbers all that
// it says, and nobody can repeat a number before it was said.
//
// The writes of a sandbox are a tree. Each has the token of the write before it, and the
// last write that was accepted is the head. A write after the head is the usual case. A write
// after an older one means that its instance does not know what came later: it goes on from a
// copy. But a message may also arrive late, after its sender ended. So such a write
// counts only if its sender heard something that was said after the head was written. Until
// then, it gets a challenge, and it is not late when it comes back with that.
//
//   - If its token is of an ancestor of the head, it is a rewind: the write becomes the head.
//     What followed the ancestor before is dead.
//   - If its token is of a dead write, it is an overlap. Its sender ran before the head's
//     branch began and runs after that: A, B, A.
//   - Suppose that the sender answered two challenges, and the head moved on between them. If
//     the writer of the head heard something between them, it is an overlap: B, A, B.
//
// A rewind is legal if a notice of a takeover or a crash says so: see [recorder.settle].
// It is safe for concurrent use.
type recorder struct {
	mu    sync.Mutex
	said  uint64            // guarded by mu; the last number
	known map[string]*trail // guarded by mu; by name of the sandbox
	conns map[net.Conn]bool // guarded by mu; open ones
	log   func(string)      // hears of each rewind and overlap
}

// trail is what is known of a sandbox.
type trail struct {
	born    string
	writes  map[uint64]*write // by token
	head    *write
	asked   map[uint64]*asked // writers that were challenged, by the token they had
	rewinds []rewind          // that were not settled
	wrong   []string
}

// write is one that was accepted.
type write struct {
	token  uint64
	n      uint64
	parent *write
	at     time.Time
	dead   bool
}

// asked is the writer of a branch that is not accepted.
type asked struct {
	proved uint64 // when it answered a challenge
	passed uint64 // when the head moved on after that, by a writer that ran after that
}

// A rewind is a return to an older write.
type rewind struct {
	first time.Time // when the first write was accepted that is lost
	last  time.Time // the same of the last one
	lost  uint64    // writes whose answers the sandbox may have heard
	// stood is for a sandbox that wrote nothing for a lease, and then a little. It is when the last
	// write before that was accepted. See lateMost.
	stood time.Time
}

// lateMost is for how long a sandbox may run on whose host stood still as a whole, and whose lease
// ended meanwhile. Its guard looks five times in a second, and may wait for a processor. The
// notice of the node that has the sandbox now may be from before that.
const lateMost = time.Second

func newRecorder(log func(string)) *recorder {
	return &recorder{known: map[string]*trail{}, conns: map[net.Conn]bool{}, log: log}
}

// take answers a message.
func (r *recorder) take(m message, now time.Time) (answer, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.known[m.Name]
	if t == nil {
		if len(r.known) >= witnessesMax {
			return answer{}, errors.New("there are too many sandboxes")
		}
		t = &trail{born: m.Born, writes: map[uint64]*write{}, asked: map[uint64]*asked{}}
		t.head = &write{}
		t.writes[0] = t.head
		r.known[m.Name] = t
	}
	r.said++
	before := t.writes[m.Token]
	switch {
	case m.Born != t.born:
		return answer{}, t.fault(r, "%s began anew: %s was %s", m.Name, m.Born, t.born)
	case before == nil || m.Heard >= r.said:
		return answer{}, t.fault(r, "%s says what nobody told it: token %d, heard %d", m.Name, m.Token, m.Heard)
	case len(t.writes) >= writesMax:
		return answer{}, t.fault(r, "%s wrote too often: end the run earlier", m.Name)
	case m.N != before.n+1:
		return answer{}, t.fault(r, "%s counts %d after %d", m.Name, m.N, before.n)
	case before == t.head:
		return t.accept(r.said, before, m, now), nil
	case m.Heard < t.head.token:
		if a := t.asked[m.Token]; a != nil && a.passed != 0 && m.Heard > a.passed {
			return answer{}, t.fault(r, "OVERLAP: %s runs after %d, and its head %d moves on", m.Name, m.Token, t.head.token)
		}
		if a := t.asked[m.Token]; a == nil && m.Heard > m.Token {
			t.asked[m.Token] = &asked{proved: r.said}
		}
		return answer{Challenge: r.said}, nil
	case before.dead:
		return answer{}, t.fault(r, "OVERLAP: %s runs after %d, which is dead, and after its head %d", m.Name, m.Token, t.head.token)
	}
	back := rewind{last: t.head.at, lost: t.head.n - before.n}
	if back.lost == 1 { // nobody may have heard the answer
		back.lost = 0
	}
	for w := t.head; w != before; w = w.parent {
		w.dead, back.first = true, w.at
		if late := back.last.Sub(w.at); late <= lateMost && w.at.Sub(w.parent.at) >= nodeLease {
			back.stood = w.parent.at
		}
	}
	if back.lost > 0 {
		t.rewinds = append(t.rewinds, back)
		r.log(fmt.Sprintf("%s goes on after %d and loses %d writes", m.Name, m.Token, back.lost))
	}
	clear(t.asked)
	return t.accept(r.said, before, m, now), nil
}

// accept makes a write the head.
func (t *trail) accept(token uint64, before *write, m message, now time.Time) answer {
	t.head = &write{token: token, n: m.N, parent: before, at: now}
	t.writes[token] = t.head
	for _, a := range t.asked {
		if a.passed == 0 && m.Heard > a.proved {
			a.passed = token
		}
	}
	return answer{Token: token}
}

// fault takes note of what must not be.
func (t *trail) fault(r *recorder, format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	if len(t.wrong) < faultsMax {
		t.wrong = append(t.wrong, text)
	}
	r.log(text)
	return errors.New(text)
}

// faultsMax bounds what is kept of one sandbox, or printed.
const faultsMax = 20

// A notice says that a sandbox went back to a checkpoint.
type notice struct{ checkpoint, at time.Time }

// clockSlack is by how much two moments may differ that are one: that of a checkpoint, and that
// of the last write in it.
const clockSlack = 2 * time.Second

// settle returns what is wrong with a sandbox, and forgets it. Each rewind since the last call
// needs a notice from after the last write that is lost. Its checkpoint is from before the first
// one: a sandbox may lose less than it says, and not more. One notice is enough for two
// rewinds if a node ended before it could tell of the first.
func (r *recorder) settle(name string, told []notice) (wrong []string, rewinds int, lost uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.known[name]
	if t == nil {
		return nil, 0, 0
	}
	wrong, t.wrong = t.wrong, nil
	for _, b := range t.rewinds {
		lost += b.lost
		if !slices.ContainsFunc(told, b.covered) {
			wrong = append(wrong, fmt.Sprintf("%s lost %d writes of %s to %s, and its notices do not say so: %v",
				name, b.lost, b.first.Format(clockForm), b.last.Format(clockForm), told))
		}
	}
	rewinds, t.rewinds = len(t.rewinds), nil
	return wrong, rewinds, lost
}

// covered reports whether a notice tells of a rewind.
func (b rewind) covered(n notice) bool {
	after := !n.at.Before(b.last.Add(-clockSlack)) || !b.stood.IsZero() && !n.at.Before(b.stood.Add(-clockSlack))
	return after && !b.first.Before(n.checkpoint.Add(-clockSlack))
}

// String implements [fmt.Stringer].
func (n notice) String() string {
	return fmt.Sprintf("at %s, back to %s", n.at.Format(clockForm), n.checkpoint.Format(clockForm))
}

// clockForm is how moments of a run are printed.
const clockForm = "15:04:05.000"

// last returns the number of the last write of a sandbox that was accepted.
func (r *recorder) last(name string) (n uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if t := r.known[name]; t != nil {
		return t.head.n
	}
	return 0
}

// told reports whether notices tell of all rewinds that were not settled.
func (r *recorder) told(name string, told []notice) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.known[name]
	return t == nil || !slices.ContainsFunc(t.rewinds, func(b rewind) bool { return !slices.ContainsFunc(told, b.covered) })
}

// serve answers sandboxes until ctx ends.
func (r *recorder) serve(ctx context.Context, l net.Listener) {
	var tasks sync.WaitGroup
	defer tasks.Wait()
	stop := context.AfterFunc(ctx, func() {
		_ = l.Close()
		r.mu.Lock()
		defer r.mu.Unlock()
		for c := range r.conns {
			_ = c.Close()
		}
	})
	defer stop()
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		r.mu.Lock()
		r.conns[c] = true
		r.mu.Unlock()
		tasks.Go(func() {
			r.converse(c)
			r.mu.Lock()
			delete(r.conns, c)
			r.mu.Unlock()
			_ = c.Close()
		})
	}
}

// converse answers one connection until it ends.
func (r *recorder) converse(c net.Conn) {
	in := bufio.NewReader(io.Reader(c))
	for {
		if err := c.SetDeadline(time.Now().Add(stallMax)); err != nil {
			return
		}
		line, err := in.ReadSlice('\n')
		if err != nil {
			return
		}
		m, err := parse(line)
		if err != nil {
			r.log(err.Error())
			return
		}
		a, err := r.take(m, time.Now())
		if err != nil {
			return
		}
		raw, err := json.Marshal(a)
		if err != nil {
			return
		}
		if _, err := c.Write(append(raw, '\n')); err != nil {
			return
		}
	}
}

// parse reads a message.
func parse(line []byte) (m message, err error) {
	if len(line) > lineMax {
		return m, errors.New("a message is too long")
	}
	if err := json.Unmarshal(line, &m); err != nil {
		return m, fmt.Errorf("%.200q is no message: %w", line, err)
	}
	if m.Name == "" || m.Born == "" || m.N == 0 || m.Heard < m.Token {
		return m, fmt.Errorf("%.200q is no message", line)
	}
	return m, nil
}
