package front

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dozehq/doze/internal/daemon"
	"github.com/dozehq/doze/internal/handover"
)

const (
	// callers are clients with a connection each, and far is how long what they send is on its
	// way.
	callers, far = 100, 20 * time.Millisecond
	// newcomers are clients with a connection for each request, which they send without a pause.
	newcomers = 10
	// idleMost bounds the pause between two requests of a caller: longer than leaveWait, so that
	// some connections are idle all that time. clientIdle is when callers close theirs, and
	// edgeIdle how long an edge waits for that.
	idleMost, clientIdle, edgeIdle = 3 * time.Second, 3 * time.Second, 4 * time.Second
	// requestMost bounds a request: callers may wait for the next edge.
	requestMost = 20 * time.Second
)

// TestMain is the process that holds an address, too.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == handover.Command {
		if err := handover.Serve(context.Background(), handover.Given()); err != nil { //nolint:forbidigo // a main
			panic(err)
		}
		return
	}
	os.Exit(m.Run()) //nolint:forbidigo // a test's main
}

// An edgeProcess is what an edge serves with, as cmd/dozed puts it together.
type edgeProcess struct {
	address string
	signals chan os.Signal
	stop    context.CancelCauseFunc
	ended   chan error
}

// echo answers with the body, after a moment.
type echo struct{}

func (echo) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	pause(r.Context(), time.Duration(rand.IntN(int(far))))
	_, _ = w.Write(raw)
}

func (echo) Lasts(*http.Request) bool { return false }

// startEdge serves an address, whose holder is at the given path.
func startEdge(t *testing.T, address, path string) *edgeProcess {
	t.Helper()
	d, err := handover.Open(t.Context(), handover.Options{Address: address, Path: path, Program: os.Args[0]})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Hold(t.Context()); err != nil {
		t.Fatal(err)
	}
	f, err := Open(Options{Listeners: &Listeners{api: d}, Handler: echo{}, Listen: address, Linger: EdgeLinger, Idle: edgeIdle})
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancelCause(t.Context())
	p := &edgeProcess{address: address, signals: make(chan os.Signal, 1), stop: end, ended: make(chan error, 1)}
	go func() { // ends with ctx
		p.ended <- daemon.Run(ctx, slices.Concat(f.Servers(), f.Listeners(ctx, p.signals, end))...)
	}()
	return p
}

// leave ends an edge, and waits for that.
func (p *edgeProcess) leave(t *testing.T, replaced bool) {
	t.Helper()
	if replaced {
		p.signals <- Replace
	} else {
		p.stop(nil)
	}
	select {
	case <-p.ended:
	case <-time.After(time.Minute):
		t.Fatal("the edge does not end")
	}
}

// slow is a connection to a host that is far away: what is sent, and what comes, is on its way
// for a time. So there is a moment in which one side closes while the other one sends.
type slow struct {
	net.Conn

	sent chan parcel

	mu     sync.Mutex
	closed bool // guarded by mu
}

type parcel struct {
	raw []byte
	at  time.Time
}

func newSlow(c net.Conn) *slow {
	const most = 64
	s := &slow{Conn: c, sent: make(chan parcel, most)}
	go func() { // ends with the connection
		for p := range s.sent {
			time.Sleep(time.Until(p.at.Add(far)))
			_, _ = c.Write(p.raw) // the reader notices
		}
		_ = c.Close()
	}()
	return s
}

func (s *slow) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, net.ErrClosed
	}
	s.sent <- parcel{bytes.Clone(p), time.Now()} // its reader never waits for long
	return len(p), nil
}

func (s *slow) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p)
	time.Sleep(far)
	return n, err
}

// Close sends what was written before.
func (s *slow) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.closed = true
		close(s.sent)
	}
	return nil
}

// TestNobodyFails: clients that keep their connections open send one POST after the other, while
// edges are stopped and replaced. No request fails, though no client sends a POST twice.
func TestNobodyFails(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("SKIPPED: edges take some seconds to leave")
	}
	for name, two := range map[string]bool{"HTTP/1": false, "HTTP/2": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nobodyFails(t, two)
		})
	}
}

func nobodyFails(t *testing.T, two bool) {
	t.Helper()
	dir, err := os.MkdirTemp("", "front") //nolint:usetesting // a unix socket needs a short name
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	var edges []*edgeProcess
	var addresses []string
	for i := range 2 {
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		addresses = append(addresses, l.Addr().String())
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		edges = append(edges, startEdge(t, addresses[i], filepath.Join(dir, fmt.Sprint(i))))
	}
	asking, end := context.WithCancel(t.Context())
	var tasks sync.WaitGroup
	var asked, failed, turn atomic.Int64
	many := callers + newcomers
	if two {
		many = callers // nobody makes a connection of HTTP/2 for one request
	}
	for i := range many {
		idle := idleMost
		if i >= callers {
			idle = time.Millisecond
		}
		var protocols http.Protocols
		protocols.SetHTTP1(!two)
		protocols.SetUnencryptedHTTP2(two)
		transport := &http.Transport{Protocols: &protocols, IdleConnTimeout: clientIdle, DisableKeepAlives: i >= callers, DialContext: func(ctx context.Context, _, _ string) (c net.Conn, err error) {
			first := int(turn.Add(1))
			for i := range addresses {
				if c, err = new(net.Dialer).DialContext(ctx, "tcp", addresses[(first+i)%len(addresses)]); err == nil {
					return newSlow(c), nil
				}
			}
			return nil, err
		}}
		client := &http.Client{Transport: transport, Timeout: requestMost}
		tasks.Go(func() {
			defer transport.CloseIdleConnections()
			for asking.Err() == nil {
				text := rand.N(int64(1 << 60))
				if err := post(context.WithoutCancel(asking), client, fmt.Sprint(text)); err != nil {
					failed.Add(1)
					t.Errorf("%v", err)
				}
				asked.Add(1)
				pause(asking, time.Duration(rand.Int64N(int64(idle))))
			}
		})
	}
	pause(t.Context(), idleMost)
	for _, replaced := range []bool{false, true} {
		for i, e := range edges {
			e.leave(t, replaced)
			edges[i] = startEdge(t, e.address, filepath.Join(dir, fmt.Sprint(i)))
		}
	}
	end()
	tasks.Wait()
	for _, e := range edges {
		e.leave(t, false)
	}
	t.Logf("%d requests, %d failed", asked.Load(), failed.Load())
	if asked.Load() < callers {
		t.Error("nothing was asked")
	}
}

// post sends a text, which has to come back.
func post(ctx context.Context, client *http.Client, text string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://edge.example/", strings.NewReader(text))
	if err != nil {
		return err
	}
	resp, err := client.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	if err == nil && string(raw) != text {
		err = fmt.Errorf("%s: %s came back, want %s", resp.Status, raw, text)
	}
	return err
}
