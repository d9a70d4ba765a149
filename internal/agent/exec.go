package agent

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dozehq/doze"
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

// processCalls answers the calls about processes.
type processCalls struct{ table *table }

// newProcessCalls returns the calls about the processes of a table.
func newProcessCalls(t *table) *processCalls { return &processCalls{t} }

// runProcess starts a process and answers at once, when it serves its ports,
// when it ends, or with a stream of what it writes.
func (c *processCalls) runProcess(w http.ResponseWriter, r *http.Request, _ string) error {
	b, err := body(w, r, bodyMax)
	if err != nil {
		return err
	}
	cmd, err := parseCommand(b, c.table.start.vars.list())
	if err != nil {
		return err
	}
	streams := strings.Contains(strings.Join(r.Header.Values("Accept"), ","), "text/event-stream")
	p, err := c.table.run(cmd)
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
	if patience := cmd.patience(); patience > 0 {
		ctx, cancel = context.WithTimeout(ctx, patience)
	}
	defer cancel()
	if err := p.awaitPorts(ctx); err != nil {
		return err
	}
	if !cmd.WaitForCompletion {
		httpx.WriteJSON(w, http.StatusOK, p.brief())
		return nil
	}
	if err := p.await(ctx, cmd.patience()); err != nil {
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
	whole := f.each(ctx, execKeepAlive, out.send, func(piece piece) bool {
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

// followLogs sends the lines of a process, from the first that is kept to its
// last, each once and with the name of its stream in front.
func (c *processCalls) followLogs(w http.ResponseWriter, r *http.Request, id string) error {
	p, err := c.table.find(id)
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
	whole := f.each(r.Context(), logsKeepAlive, out.send, func(p piece) bool {
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
func (c *processCalls) listProcesses(*http.Request, string) ([]processInfo, error) {
	return c.table.describe(listOutputMax), nil
}

// describe describes all processes, the newest first, with at most limit bytes of
// output together.
func (t *table) describe(limit int64) []processInfo {
	t.prune(time.Now())
	all := []processInfo{}
	left := limit
	for _, p := range slices.Backward(t.list()) {
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

func (c *processCalls) readProcess(_ *http.Request, id string) (processInfo, error) {
	p, err := c.table.find(id)
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

func (c *processCalls) readLogs(r *http.Request, id string) (processLogs, error) {
	p, err := c.table.find(id)
	if err != nil {
		return processLogs{}, err
	}
	audit(r, "process_logs_access", p.Name)
	i := p.info(logsMax)
	return processLogs{i.Stdout, i.Stderr, *i.Logs}, nil
}

func (c *processCalls) stopProcess(r *http.Request, id string) (success, error) {
	audit(r, "process_stop", id)
	return success{Message: "Process stopped successfully"}, c.table.stop(id)
}

func (c *processCalls) killProcess(r *http.Request, id string) (success, error) {
	audit(r, "process_kill", id)
	return success{Message: "Process killed successfully"}, c.table.kill(id)
}

// unwrittenHeader tells who writes to a slow process what to send again.
const unwrittenHeader = "Doze-Unwritten"

func (c *processCalls) writeStdin(w http.ResponseWriter, r *http.Request, id string) error {
	p, err := c.table.find(id)
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

func (c *processCalls) closeStdin(_ *http.Request, id string) (success, error) {
	p, err := c.table.find(id)
	if err != nil {
		return success{}, err
	}
	return success{Message: "Input closed successfully"}, p.closeInput()
}

// auditExec is audit for what runs a command.
func auditExec(r *http.Request, streams bool, p *process) {
	event := "process_exec"
	if streams {
		event = "process_exec_stream"
	}
	audit(r, event, p.Name+": "+p.Command)
}
