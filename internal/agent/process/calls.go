package process

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/batch"
	"github.com/dozehq/doze/internal/agent/body"
	"github.com/dozehq/doze/internal/agent/command"
	"github.com/dozehq/doze/internal/agent/journal"
	"github.com/dozehq/doze/internal/agent/output"
	"github.com/dozehq/doze/internal/agent/pump"
	"github.com/dozehq/doze/internal/agent/route"
	"github.com/dozehq/doze/internal/agent/text"
	"github.com/dozehq/doze/internal/agentapi"
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
var stdinMax = body.Bound{Bytes: 8 << 20, Advice: "write it in several requests"}

// Calls answers the calls about processes.
type Calls struct{ table *Table }

// NewCalls returns the calls about the processes of a table.
func NewCalls(t *Table) *Calls { return &Calls{t} }

// Collect returns what all processes wrote after a stamp. The host asks for it, and
// stores it.
func (c *Calls) Collect(r *http.Request, _ string) (out agentapi.Collected, err error) {
	after, err := stampOf(r)
	if err == nil {
		out = c.table.feed.Collect(after)
	}
	return out, err
}

// Await answers once a process has written something after a stamp.
func (c *Calls) Await(r *http.Request, _ string) (struct{}, error) {
	after, err := stampOf(r)
	if err == nil {
		c.table.feed.Await(r.Context(), after)
	}
	return struct{}{}, err
}

// ForgetOutput has the host collect nothing of what was written until now.
func (t *Table) ForgetOutput() { t.feed.Reset() }

func stampOf(r *http.Request) (int64, error) {
	after, err := strconv.ParseInt(r.URL.Query().Get("after"), 10, 64)
	if err != nil {
		return 0, doze.Errorf(doze.Invalid, "after must be a stamp")
	}
	return after, nil
}

// Run starts a process and answers at once, when it serves its ports,
// when it ends, or with a stream of what it writes.
func (c *Calls) Run(w http.ResponseWriter, r *http.Request, _ string) error {
	b, err := body.Read(w, r, body.Max)
	if err != nil {
		return err
	}
	cmd, err := command.Parse(b, c.table.start.Vars.List(), c.table.image.Load())
	if err != nil {
		return err
	}
	streams := strings.Contains(strings.Join(r.Header.Values("Accept"), ","), "text/event-stream")
	p, err := c.table.Start(cmd)
	if err != nil {
		if streams && doze.Public(err).Kind == doze.Unprocessable {
			out := newEvents(w)
			_ = out.tell("error", doze.Public(err).Message) && out.Send() // else the caller is gone
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
	if patience := cmd.Patience(); patience > 0 {
		ctx, cancel = context.WithTimeout(ctx, patience)
	}
	defer cancel()
	if err := p.AwaitPorts(ctx); err != nil {
		return err
	}
	if !cmd.WaitForCompletion {
		httpx.WriteJSON(w, http.StatusOK, p.Brief())
		return nil
	}
	if err := p.Await(ctx, cmd.Patience()); err != nil {
		return err
	}
	httpx.WriteJSON(w, http.StatusOK, p.Info(output.LogsMax))
	return nil
}

// events is a stream of JSON lines. They are sent with [batch.Batch.Send].
type events struct {
	*batch.Batch

	enc *json.Encoder
}

// Event is a line of the stream of a process that has just been started.
type Event struct {
	Type string `json:"type"`
	Data string `json:"data,omitempty"`
}

func newEvents(w http.ResponseWriter) events {
	b := batch.Start(w, "application/x-ndjson")
	return events{b, json.NewEncoder(b)}
}

// tell adds an event. It reports false when the caller is gone.
func (e events) tell(kind, data string) bool { return e.enc.Encode(Event{kind, data}) == nil }

// streamProcess sends what p writes until it is over. A caller that leaves
// does not end the process.
func streamProcess(ctx context.Context, w http.ResponseWriter, p *Process) {
	f := p.out.Follow()
	defer f.Close()
	out := newEvents(w)
	var text [2]text.Carry
	whole := f.Each(ctx, execKeepAlive, out.Send, func(piece output.Piece) bool {
		switch {
		case piece.Notice != "":
			return out.tell("stdout", piece.Notice)
		case piece.Lost && !out.tell(piece.Of.String(), output.Truncated):
			return false
		}
		for part := range slices.Chunk(piece.Data, pump.ChunkMax) {
			if data := text[piece.Of].Add(part); data != "" && !out.tell(piece.Of.String(), data) {
				return false
			}
		}
		return true
	}, func() bool { return out.tell("keepalive", "") })
	if !whole {
		return
	}
	<-p.done // at once
	for _, s := range output.Streams {
		if rest := text[s].Rest(); rest != "" && !out.tell(s.String(), rest) {
			return
		}
	}
	result, err := json.Marshal(p.Info(output.LogsMax))
	if err != nil {
		_ = out.tell("error", "the result cannot be encoded") && out.Send()
		return
	}
	_ = out.tell("result", string(result)) && out.Send() // else the caller is gone
}

// FollowLogs sends the lines of a process, from the first that is kept to its
// last, each once and with the name of its stream in front.
func (c *Calls) FollowLogs(w http.ResponseWriter, r *http.Request, id string) error {
	p, err := c.table.Find(id)
	if err != nil {
		return err
	}
	journal.Audit(r, "process_logs_stream", p.Name)
	f := p.out.Follow()
	defer f.Close()
	out := batch.Start(w, "text/plain; charset=utf-8")
	var (
		cut  output.Lines
		fail error
	)
	emit := func(s output.Stream, line string) {
		if fail == nil {
			fail = out.Add(s.String(), ":", line, "\n")
		}
	}
	whole := f.Each(r.Context(), logsKeepAlive, out.Send, func(p output.Piece) bool {
		switch {
		case p.Notice != "":
			var notice output.Lines
			notice.Add(output.Stdout, []byte(p.Notice), emit)
		case p.Lost:
			cut.Flush(p.Of, emit)
			emit(p.Of, strings.TrimSuffix(output.Truncated, "\n"))
		}
		cut.Add(p.Of, p.Data, emit)
		return fail == nil
	}, func() bool {
		return out.Add("[keepalive]\n") == nil
	})
	if whole {
		cut.Flush(output.Stdout, emit)
		cut.Flush(output.Stderr, emit)
		_ = out.Send() // else the caller is gone
	}
	return nil
}

// List describes all processes, the newest first.
func (c *Calls) List(*http.Request, string) ([]Info, error) {
	return c.table.Describe(listOutputMax), nil
}

// Read describes a process, with the end of its output.
func (c *Calls) Read(_ *http.Request, id string) (Info, error) {
	p, err := c.table.Find(id)
	if err != nil {
		return Info{}, err
	}
	return p.Info(output.TailMax), nil
}

// Written is the output of a process.
type Written struct {
	Stdout string `json:"stdout"`
	Stderr string `json:"stderr"`
	Logs   string `json:"logs"`
}

// Logs answers with the output of a process.
func (c *Calls) Logs(r *http.Request, id string) (Written, error) {
	p, err := c.table.Find(id)
	if err != nil {
		return Written{}, err
	}
	journal.Audit(r, "process_logs_access", p.Name)
	i := p.Info(output.LogsMax)
	return Written{i.Stdout, i.Stderr, *i.Logs}, nil
}

// Stop asks a process, and its group, to end.
func (c *Calls) Stop(r *http.Request, id string) (route.Success, error) {
	journal.Audit(r, "process_stop", id)
	return route.Success{Message: "Process stopped successfully"}, c.table.Stop(id)
}

// Kill ends a process, and its group, at once.
func (c *Calls) Kill(r *http.Request, id string) (route.Success, error) {
	journal.Audit(r, "process_kill", id)
	return route.Success{Message: "Process killed successfully"}, c.table.Kill(id)
}

// unwrittenHeader tells who writes to a slow process what to send again.
const unwrittenHeader = "Doze-Unwritten"

// WriteStdin writes a body to the standard input of a process.
func (c *Calls) WriteStdin(w http.ResponseWriter, r *http.Request, id string) error {
	p, err := c.table.Find(id)
	if err != nil {
		return err
	}
	b, err := body.Read(w, r, stdinMax)
	if err != nil {
		return err
	}
	if left, err := p.writeInput(r.Context().Done(), b); err != nil {
		w.Header().Set(unwrittenHeader, strconv.Itoa(left))
		return err
	}
	httpx.WriteJSON(w, http.StatusOK, route.Success{Message: "Input written successfully"})
	return nil
}

// CloseStdin ends the standard input of a process.
func (c *Calls) CloseStdin(_ *http.Request, id string) (route.Success, error) {
	p, err := c.table.Find(id)
	if err != nil {
		return route.Success{}, err
	}
	return route.Success{Message: "Input closed successfully"}, p.closeInput()
}

// auditExec is audit for what runs a command.
func auditExec(r *http.Request, streams bool, p *Process) {
	event := "process_exec"
	if streams {
		event = "process_exec_stream"
	}
	journal.Audit(r, event, p.Name+": "+p.Command)
}
