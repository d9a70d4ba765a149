package port

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/proc"
	"github.com/dozehq/doze/internal/agent/process"
)

const (
	monitorsMax = 16
	// monitorPoll is as short as clients expect. A monitor ends with its
	// process, so an idle sandbox does not pay for it.
	monitorPoll     = 500 * time.Millisecond
	callbackTimeout = 10 * time.Second
	// callbackMax is what is read of an answer, which nobody looks at.
	callbackMax = 64 << 10
)

// Monitors report new ports of processes. Each is one goroutine.
type Monitors struct {
	processes *process.Table
	client    *http.Client
	tasks     sync.WaitGroup

	mu     sync.Mutex
	open   map[monitor]context.CancelFunc // guarded by mu
	closed bool                           // guarded by mu
}

// monitor is whose ports are reported where.
type monitor struct {
	pid      int
	callback string
}

// New returns monitors of the processes of a table.
func New(processes *process.Table) *Monitors {
	return &Monitors{
		processes: processes,
		open:      map[monitor]context.CancelFunc{},
		client: &http.Client{
			Timeout:       callbackTimeout,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
			Transport:     &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true},
		},
	}
}

// start begins to report the ports that a process serves; those that it serves
// already count as new. The same monitor twice is one. Of ctx only the values
// count.
func (m *Monitors) start(ctx context.Context, key monitor) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.open[key] != nil:
		return nil
	case m.closed:
		return doze.Errorf(doze.Unavailable, "the sandbox is stopping")
	case len(m.open) >= monitorsMax:
		return doze.Errorf(doze.Unprocessable, "%d monitors run, which is the most; stop some", monitorsMax)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	m.open[key] = cancel
	m.tasks.Go(func() {
		m.run(ctx, key)
		m.mu.Lock()
		defer m.mu.Unlock()
		if ctx.Err() == nil { // else somebody has removed it, and there may be another
			delete(m.open, key)
		}
		cancel()
	})
	return nil
}

// run follows one process until it is over.
func (m *Monitors) run(ctx context.Context, key monitor) {
	tick := time.NewTicker(monitorPoll)
	defer tick.Stop()
	told := map[uint16]bool{}
	var seen map[string]bool // of the last search
	for {
		serving, fresh := served(seen)
		// Whose sockets they are takes long to find out.
		if alive := m.processes.Alive(key.pid); fresh || !alive {
			family, over := m.processes.Family(key.pid)
			if over && len(family) == 0 {
				return
			}
			for _, p := range portsOf(family, serving) {
				if !told[p.LocalPort] {
					told[p.LocalPort] = true
					m.tell(ctx, key, p.LocalPort)
				}
			}
			seen = make(map[string]bool, len(serving))
			for _, s := range serving {
				seen[s.ID] = true
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// served returns the sockets that serve, and whether there are others among them
// than those that were seen.
func served(seen map[string]bool) (serving []proc.Socket, fresh bool) {
	all, _ := proc.Root.Sockets() // they may be there the next time
	for _, s := range all {
		if s.Serves() {
			serving = append(serving, s)
			fresh = fresh || !seen[s.ID]
		}
	}
	return serving, fresh
}

// tell calls back. Whether anybody hears it is not ours to repair.
func (m *Monitors) tell(ctx context.Context, key monitor, port uint16) {
	body, err := json.Marshal(map[string]int{"pid": key.pid, "port": int(port)})
	if err != nil {
		return
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, key.callback, bytes.NewReader(body))
	if err != nil {
		return
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := m.client.Do(req)
	if err != nil {
		return
	}
	_, _ = io.CopyN(io.Discard, resp.Body, callbackMax)
	_ = resp.Body.Close()
}

// stop ends all monitors of a pid.
func (m *Monitors) stop(pid int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key, cancel := range m.open {
		if key.pid == pid {
			cancel()
			delete(m.open, key)
		}
	}
}

// Close ends all monitors and waits for them.
func (m *Monitors) Close() {
	m.mu.Lock()
	m.closed = true
	for _, cancel := range m.open {
		cancel()
	}
	clear(m.open)
	m.mu.Unlock()
	m.tasks.Wait()
}
