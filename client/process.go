package client

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"

	"github.com/dozehq/doze"
)

// lineMax bounds one line of a stream, in bytes. The last line of an execution
// holds its whole output, escaped twice.
const lineMax = 128 << 20

// Command is what to run.
type Command struct {
	Command    string            `json:"command"` // for the shell
	Name       string            `json:"name,omitempty"`
	WorkingDir string            `json:"workingDir,omitempty"`
	Env        map[string]string `json:"env,omitempty"`
	KeepAlive  bool              `json:"keepAlive,omitempty"` // the sandbox stays awake while it runs
	Timeout    *int              `json:"timeout,omitempty"`   // seconds; ends a KeepAlive process, 0 means never
	Wait       bool              `json:"waitForCompletion,omitempty"`
	Stdin      bool              `json:"stdin,omitempty"` // WriteInput can write to it

	// Input is what [Agent.Run] writes to its standard input, up to its end. Nil is
	// no input. A read from it that is under way when Run returns goes on, since
	// nothing calls off a read: what it gets is lost.
	Input io.Reader `json:"-"`
}

// Process is a command that was started.
type Process struct {
	PID              string `json:"pid"`
	Name             string `json:"name"`
	Command          string `json:"command"`
	WorkingDir       string `json:"workingDir"`
	Status           string `json:"status"` // running, completed, failed, stopped or killed
	StartedAt        string `json:"startedAt"`
	CompletedAt      string `json:"completedAt"`
	ExitCode         int    `json:"exitCode"`
	Logs             string `json:"logs"`
	Stdout           string `json:"stdout"`
	Stderr           string `json:"stderr"`
	KeepAlive        bool   `json:"keepAlive"`
	RestartOnFailure bool   `json:"restartOnFailure"`
	MaxRestarts      int    `json:"maxRestarts"`
	RestartCount     int    `json:"restartCount"`
	Stdin            bool   `json:"stdin"`
	Signal           int    `json:"signal"` // that ended it, by its number in Linux; 0 for none
}

// Logs is what a process has written, as far as it is kept.
type Logs struct {
	Logs   string `json:"logs"`
	Stdout string `json:"stdout"`
	Stderr string `json:"stderr"`
}

// Channel is where output was written to.
type Channel string

// The channels of a process. Notice is what the sandbox says about it.
const (
	Stdout Channel = "stdout"
	Stderr Channel = "stderr"
	Notice Channel = "notice"
)

// Output receives what a process writes, in order. An error ends the call that
// it was given to.
type Output func(from Channel, data string) error

// event is a line of an execution.
type event struct {
	Type string `json:"type"`
	Data string `json:"data"`
}

// Start runs a command and does not wait for it, unless its Wait is set.
func (b *Agent) Start(ctx context.Context, cmd Command) (Process, error) {
	return exchange[Process](ctx, b.c, http.MethodPost, b.base+"/process", cmd)
}

// Run runs a command to its end and passes its output on as it comes. A
// command that fails is no error: its exit code says so. The command goes on
// if ctx ends, and after an [InputError]; stop it by its name.
func (b *Agent) Run(ctx context.Context, cmd Command, out Output) (Process, error) {
	cmd.Wait = true
	if cmd.Input != nil {
		cmd.Stdin, cmd.Name = true, cmp.Or(cmd.Name, "run-"+strings.ToLower(rand.Text()))
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	in, err := json.Marshal(cmd)
	if err != nil {
		return Process{}, doze.Wrap(err, doze.Invalid, "the command cannot be written as JSON")
	}
	resp, err := b.c.send(ctx, call{
		method: http.MethodPost, url: b.base + "/process", body: bytes.NewReader(in),
		header: http.Header{"Accept": {"text/event-stream"}, "Content-Type": {"application/json"}},
	})
	if err != nil {
		return Process{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	if cmd.Input != nil { // the answer has begun, so the command runs
		go func() { // see Command.Input for its end
			if err := b.sendInput(ctx, cmd.Name, cmd.Input); err != nil {
				cancel(&InputError{err})
			}
		}()
	}
	if kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); kind == "application/json" {
		return whole(ctx, resp, out)
	}
	return follow(ctx, resp.Body, out)
}

// whole takes the answer of a server that does not stream.
func whole(ctx context.Context, resp *http.Response, out Output) (Process, error) {
	p, err := decode[Process](ctx, resp)
	if err != nil {
		return p, err
	}
	if err := out(Stdout, p.Stdout); err != nil {
		return p, err
	}
	return p, out(Stderr, p.Stderr)
}

// follow reads the events of an execution up to its result.
func follow(ctx context.Context, body io.Reader, out Output) (p Process, err error) {
	ended := false
	err = lines(ctx, body, func(line []byte) error {
		if ended || len(bytes.TrimSpace(line)) == 0 {
			return nil
		}
		var ev event
		if err := json.Unmarshal(line, &ev); err != nil {
			return doze.Wrap(err, doze.Unavailable, "the sandbox did not answer as expected")
		}
		switch ev.Type {
		case "stdout", "stderr":
			return out(Channel(ev.Type), ev.Data)
		case "error":
			return doze.Errorf(doze.Unprocessable, "%s", ev.Data)
		case "result":
			ended = true
			if err := json.Unmarshal([]byte(ev.Data), &p); err != nil {
				return doze.Wrap(err, doze.Unavailable, "the sandbox did not answer as expected")
			}
		}
		return nil // keepalive, or something newer than this client
	})
	if err == nil && !ended {
		err = doze.Errorf(doze.Unavailable, "the sandbox broke off its answer; the command may still run")
	}
	return p, err
}

// Processes returns the running and the finished ones that are remembered.
func (b *Agent) Processes(ctx context.Context) ([]Process, error) {
	return exchange[[]Process](ctx, b.c, http.MethodGet, b.base+"/process", nil)
}

// Process returns one by its pid or name.
func (b *Agent) Process(ctx context.Context, id string) (Process, error) {
	return exchange[Process](ctx, b.c, http.MethodGet, b.process(id), nil)
}

// Stop asks a process to end, and its children.
func (b *Agent) Stop(ctx context.Context, id string) (Done, error) {
	return exchange[Done](ctx, b.c, http.MethodDelete, b.process(id), nil)
}

// Kill ends a process and its children at once.
func (b *Agent) Kill(ctx context.Context, id string) (Done, error) {
	return exchange[Done](ctx, b.c, http.MethodDelete, b.process(id)+"/kill", nil)
}

// Logs returns what a process has written so far.
func (b *Agent) Logs(ctx context.Context, id string) (Logs, error) {
	return exchange[Logs](ctx, b.c, http.MethodGet, b.process(id)+"/logs", nil)
}

// Follow passes on what a process has written and will write, line by line,
// until it ends. Each piece of data is a line with its newline.
func (b *Agent) Follow(ctx context.Context, id string, out Output) error {
	resp, err := b.c.send(ctx, call{method: http.MethodGet, url: b.process(id) + "/logs/stream"})
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	return lines(ctx, resp.Body, func(line []byte) error {
		text := string(line)
		if text == "" || text == "[keepalive]" {
			return nil
		}
		for _, from := range []Channel{Stdout, Stderr} {
			if rest, ok := strings.CutPrefix(text, string(from)+":"); ok {
				return out(from, rest+"\n")
			}
		}
		return out(Notice, text+"\n")
	})
}

func (b *Agent) process(id string) string { return b.base + "/process/" + url.PathEscape(id) }

// lines calls each with every line of a stream, without its newline.
func lines(ctx context.Context, r io.Reader, each func([]byte) error) error {
	s := bufio.NewScanner(r)
	s.Buffer(nil, lineMax)
	for s.Scan() {
		if err := each(s.Bytes()); err != nil {
			return err
		}
	}
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case s.Err() != nil:
		return doze.Wrap(s.Err(), doze.Unavailable, "the sandbox broke off its answer")
	}
	return nil
}
