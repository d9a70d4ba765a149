package main

import (
	"bytes"
	"context"
	_ "embed" // for what runs in the sandbox
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
)

// A witness is a sandbox that tells the recorder all the time that it runs.
type witness struct {
	name string
	url  string    // of its server
	born string    // as its process says
	told time.Time // of the last notice
}

const (
	writeEvery = 50 * time.Millisecond
	witnessMB  = 8   // of its memory, which it verifies
	sandboxMB  = 256 // that it can have

	witnessPort = 9000 // of its server
)

//go:embed witness.py
var witnessScript []byte

// witness makes a sandbox.
func (f *fleet) witness(ctx context.Context, name string, every time.Duration) (*witness, error) {
	sb, err := f.client.Create(ctx, doze.Sandbox{Metadata: doze.Metadata{Name: name}, Spec: doze.SandboxSpec{Runtime: doze.Runtime{Memory: sandboxMB}}}, false)
	if err != nil {
		return nil, err
	}
	agent, err := f.client.Agent(sb)
	if err != nil {
		return nil, err
	}
	if _, err := agent.WriteFile(ctx, "/witness.py", bytes.NewReader(witnessScript), "0644"); err != nil {
		return nil, err
	}
	command := fmt.Sprintf("exec python3 /witness.py %s %s %s %d %g", name, f.wire.here(), recorderPort, witnessMB, every.Seconds())
	started, err := agent.Start(ctx, client.Command{Command: command})
	if err != nil {
		return nil, err
	}
	err = until(ctx, readyTime, func() error {
		logs, err := agent.Logs(ctx, started.PID)
		if err == nil && logs.Stdout != "ready\n" {
			err = fmt.Errorf("%s is not ready: %s%s", name, logs.Stdout, logs.Stderr)
		}
		return err
	})
	w := &witness{name: name, url: strings.TrimRight(sb.Metadata.URL, "/") + fmt.Sprintf("/port/%d", witnessPort)}
	if err == nil {
		var s said
		if s, err = f.visit(ctx, w, true); err == nil {
			w.born = s.Born
		}
	}
	return w, err
}

// said is what a witness answers.
type said struct {
	Name, Born string
	N          uint64
	Bad        []int
}

// visit asks a witness. With all, it looks at its memory.
func (f *fleet) visit(ctx context.Context, w *witness, all bool) (s said, err error) {
	url := w.url + "/"
	if all {
		url += "all"
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return s, err
	}
	r.Header.Set("Authorization", "Bearer "+f.key)
	resp, err := f.http.Do(r)
	if err != nil {
		return s, err
	}
	raw, err := io.ReadAll(io.LimitReader(resp.Body, answerMax))
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		return s, err
	}
	if resp.StatusCode != http.StatusOK {
		return s, fmt.Errorf("%s: %.300s", resp.Status, raw)
	}
	return s, json.Unmarshal(raw, &s)
}

// notices are those that a sandbox has of returns to checkpoints since the last call. The
// record has the last one; events have all.
func (f *fleet) notices(ctx context.Context, w *witness) (told []notice, err error) {
	sb, err := f.client.Sandbox(ctx, w.name)
	if err != nil {
		return nil, err
	}
	for _, e := range sb.Events {
		if e.Type != "notice" || !e.Time.After(w.told) || !strings.Contains(e.Message, goesOn) {
			continue
		}
		n := notice{at: e.Time.Time}
		_, after, _ := strings.Cut(e.Message, goesOn)
		text, _, _ := strings.Cut(after, ",")
		if n.checkpoint, err = time.Parse(time.RFC3339, text[strings.LastIndexByte(text, ' ')+1:]); err != nil {
			return nil, fmt.Errorf("the notice %q has no time: %w", e.Message, err)
		}
		told = append(told, n)
	}
	slices.SortFunc(told, func(a, b notice) int { return a.at.Compare(b.at) })
	if len(told) > 0 {
		w.told = told[len(told)-1].at
	}
	return told, nil
}

// goesOn is in each notice of a return to a checkpoint.
const goesOn = "it goes on from its"
