package agent

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/scratch"
	"github.com/dozehq/doze/internal/httpx"
)

const (
	// Proxies cut connections that are silent for too long.
	execKeepAlive = 5 * time.Second
	logsKeepAlive = 30 * time.Second

	// listOutputMax bounds the output in a list of all processes. The older
	// ones are listed without it.
	listOutputMax = 16 << 20
)

// stdinMax bounds one write to a process.
var stdinMax = bound{8 << 20, "write it in several requests"}

// runProcess starts a process and answers at once, when it serves its ports,
// when it ends, or with a stream of what it writes.
func (a *Agent) runProcess(w http.ResponseWriter, r *http.Request, _ string) error {
	b, err := body(w, r, bodyMax)
	if err != nil {
		return err
	}
	c, err := parseCommand(b, a.vars.list())
	if err != nil {
		return err
	}
	streams := strings.Contains(strings.Join(r.Header.Values("Accept"), ","), "text/event-stream")
	p, err := a.processes.run(c)
	if err != nil {
		if streams && doze.Public(err).Kind == doze.Unprocessable {
			out := newEvents(w)
			_ = out.tell("error", doze.Public(err).Message) && out.send() // else the caller is gone
			return nil
		}
		return err
	}
	auditExec(r, streams, p)
	if streams {
		streamProcess(r.Context(), w, p)
		return nil
	}

	ctx, cancel := r.Context(), context.CancelFunc(func() {})
	if patience := c.patience(); patience > 0 {
		ctx, cancel = context.WithTimeout(ctx, patience)
	}
	defer cancel()
	if err := awaitPorts(ctx, p); err != nil {
		return err
	}
	if !c.WaitForCompletion {
		httpx.WriteJSON(w, http.StatusOK, p.brief())
		return nil
	}
	if err := p.await(ctx, c.patience()); err != nil {
		return err
	}
	httpx.WriteJSON(w, http.StatusOK, p.info(logsMax))
	return nil
}

// events is a stream of JSON lines. They are sent with [batch.send].
type events struct {
	*batch

	enc *json.Encoder
}

type event struct {
	Type string `json:"type"`
	Data string `json:"data,omitempty"`
}

func newEvents(w http.ResponseWriter) events {
	b := startStream(w, "application/x-ndjson")
	return events{b, json.NewEncoder(b)}
}

// tell adds an event. It reports false when the caller is gone.
func (e events) tell(kind, data string) bool { return e.enc.Encode(event{kind, data}) == nil }

// streamProcess sends what p writes until it is over. A caller that leaves
// does not end the process.
func streamProcess(ctx context.Context, w http.ResponseWriter, p *process) {
	f := p.out.follow()
	defer f.close()
	out := newEvents(w)
	var text [2]carry
	whole := f.each(ctx, execKeepAlive, out.batch, func(piece piece) bool {
		switch {
		case piece.notice != "":
			return out.tell("stdout", piece.notice)
		case piece.lost && !out.tell(piece.of.String(), truncate):
			return false
		}
		for part := range slices.Chunk(piece.data, chunkMax) {
			if data := text[piece.of].add(part); data != "" && !out.tell(piece.of.String(), data) {
				return false
			}
		}
		return true
	}, func() bool { return out.tell("keepalive", "") })
	if !whole {
		return
	}
	<-p.done // at once
	for _, s := range streams {
		if rest := text[s].rest(); rest != "" && !out.tell(s.String(), rest) {
			return
		}
	}
	result, err := json.Marshal(p.info(logsMax))
	if err != nil {
		_ = out.tell("error", "the result cannot be encoded") && out.send()
		return
	}
	_ = out.tell("result", string(result)) && out.send() // else the caller is gone
}

// each calls take for every piece until the process is over, and idle when
// there was none for a while. What these add to out it sends once there is no
// other piece. It reports false when the caller is gone.
func (f *follower) each(ctx context.Context, silence time.Duration, out *batch, take func(piece) bool, idle func() bool) bool {
	quiet := time.NewTimer(silence)
	defer quiet.Stop()
	for {
		wait, ok := f.all(take)
		switch {
		case !ok || !out.send():
			return false
		case wait == nil:
			return true
		}
		select {
		case <-wait:
		case <-quiet.C:
			if !idle() {
				return false
			}
			quiet.Reset(silence)
		case <-ctx.Done():
			return false
		}
	}
}

// all calls take for every piece that there is. It returns what [follower.read]
// does without one, and false when take does.
func (f *follower) all(take func(piece) bool) (wait <-chan struct{}, ok bool) {
	var buf []byte
	if large := scratch.Lend(); large != nil {
		defer scratch.Return(large)
		buf = large[:pipeMax]
	} else {
		small, _ := chunks.Get().(*[chunkMax]byte)
		defer chunks.Put(small)
		buf = small[:]
	}
	for {
		p, wait, ok := f.read(buf)
		if !ok {
			return wait, true
		}
		if !take(p) {
			return nil, false
		}
	}
}

// followLogs sends the lines of a process, from the first that is kept to its
// last, each once and with the name of its stream in front.
func (a *Agent) followLogs(w http.ResponseWriter, r *http.Request, id string) error {
	p, err := a.processes.find(id)
	if err != nil {
		return err
	}
	audit(r, "process_logs_stream", p.Name)
	f := p.out.follow()
	defer f.close()
	out := startStream(w, "text/plain; charset=utf-8")
	var (
		cut  lines
		fail error
	)
	emit := func(s stream, line string) {
		if fail == nil {
			fail = out.add(s.String(), ":", line, "\n")
		}
	}
	whole := f.each(r.Context(), logsKeepAlive, out, func(p piece) bool {
		switch {
		case p.notice != "":
			var notice lines
			notice.add(stdout, []byte(p.notice), emit)
		case p.lost:
			cut.flush(p.of, emit)
			emit(p.of, strings.TrimSuffix(truncate, "\n"))
		}
		cut.add(p.of, p.data, emit)
		return fail == nil
	}, func() bool {
		return out.add("[keepalive]\n") == nil
	})
	if whole {
		cut.flush(stdout, emit)
		cut.flush(stderr, emit)
		_ = out.send() // else the caller is gone
	}
	return nil
}

// listProcesses describes all processes, the newest first.
func (a *Agent) listProcesses(*http.Request, string) ([]processInfo, error) {
	return a.describeProcesses(listOutputMax), nil
}

// describeProcesses describes all processes with at most limit bytes of output
// together.
func (a *Agent) describeProcesses(limit int64) []processInfo {
	a.processes.prune(time.Now())
	all := []processInfo{}
	left := limit
	for _, p := range slices.Backward(a.processes.list()) {
		i := p.info(min(tailMax, left/4)) // each byte is there twice
		left -= 2 * int64(len(*i.Logs))
		left = max(left, 0)
		if *i.CompletedAt == "" {
			i.CompletedAt = nil
		}
		all = append(all, i)
	}
	return all
}

func (a *Agent) readProcess(_ *http.Request, id string) (processInfo, error) {
	p, err := a.processes.find(id)
	if err != nil {
		return processInfo{}, err
	}
	return p.info(tailMax), nil
}

type processLogs struct {
	Stdout string `json:"stdout"`
	Stderr string `json:"stderr"`
	Logs   string `json:"logs"`
}

func (a *Agent) readLogs(r *http.Request, id string) (processLogs, error) {
	p, err := a.processes.find(id)
	if err != nil {
		return processLogs{}, err
	}
	audit(r, "process_logs_access", p.Name)
	i := p.info(logsMax)
	return processLogs{i.Stdout, i.Stderr, *i.Logs}, nil
}

func (a *Agent) stopProcess(r *http.Request, id string) (success, error) {
	audit(r, "process_stop", id)
	return a.finishProcess(id, syscall.SIGTERM, stopped, "Process stopped successfully")
}

func (a *Agent) killProcess(r *http.Request, id string) (success, error) {
	audit(r, "process_kill", id)
	return a.finishProcess(id, syscall.SIGKILL, killed, "Process killed successfully")
}

func (a *Agent) finishProcess(id string, sig syscall.Signal, s status, message string) (success, error) {
	p, err := a.processes.find(id)
	if err != nil {
		return success{}, err
	}
	return success{Message: message}, p.finish(sig, s)
}

// unwrittenHeader tells who writes to a slow process what to send again.
const unwrittenHeader = "Doze-Unwritten"

func (a *Agent) writeStdin(w http.ResponseWriter, r *http.Request, id string) error {
	p, err := a.processes.find(id)
	if err != nil {
		return err
	}
	b, err := body(w, r, stdinMax)
	if err != nil {
		return err
	}
	if left, err := p.feed(r.Context().Done(), b); err != nil {
		w.Header().Set(unwrittenHeader, strconv.Itoa(left))
		return err
	}
	httpx.WriteJSON(w, http.StatusOK, success{Message: "Input written successfully"})
	return nil
}

func (a *Agent) closeStdin(_ *http.Request, id string) (success, error) {
	p, err := a.processes.find(id)
	if err != nil {
		return success{}, err
	}
	return success{Message: "Input closed successfully"}, p.closeInput()
}
