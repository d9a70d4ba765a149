package testkit

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed" // for what runs in the sandbox
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
)

// A Canary is a sandbox whose state we know at any time: it keeps memory and
// files, changes some of both at each step, and says whether they are what they
// were.
type Canary struct {
	Name string
	// Crashed, if set, is asked with every answer: whether the sandbox may have
	// gone back to its last checkpoint since it was asked before.
	Crashed func() bool

	floor    state     // what it has at least after a crash
	saved    bool      // in a checkpoint of its own
	answered time.Time // when the last request ended
	url, key string
	http     *http.Client
	state
}

// state is what a canary is known to have.
type state struct {
	// n and chain are the state after the last step that was acknowledged;
	// open is how many more may have been made without an answer.
	n     uint64
	chain []byte
	open  uint64
}

// Stepped is what came of one step.
type Stepped struct {
	N     uint64        // how many there were
	Wrong []string      // what is not as it must be; it is empty
	Off   time.Duration // by how much its clock is off, at least
	Lost  uint64        // how many steps it went back, of those that were answered
	// Told says that the answer tells how old the state is that the sandbox went
	// back to.
	Told bool
}

const (
	canaryMemory = 512 // MB of a sandbox
	canaryPort   = "/port/9000"
	canaryFull   = 16 // steps after which it looks at everything
	canaryPoll   = 50 * time.Millisecond
	stepTime     = 30 * time.Second
	stepMax      = 1 << 20 // bytes of an answer
)

//go:embed canary.py
var canaryScript []byte

// Canary makes a canary of so many megabytes. A seed tells it from others. With storage, its
// files are on disk: it keeps as much in a file as in memory. With few, it looks at all of
// them at each step.
func (p *Platform) Canary(ctx context.Context, name, seed string, megabytes int, storage doze.Megabytes) (*Canary, error) {
	c, err := p.Client()
	if err != nil {
		return nil, err
	}
	sb, agent, err := Make(ctx, c, name, doze.Runtime{Memory: canaryMemory, Storage: storage})
	if err != nil {
		return nil, err
	}
	if _, err := agent.WriteFile(ctx, "/canary.py", bytes.NewReader(canaryScript), "0644"); err != nil {
		return nil, err
	}
	filed, full := 0, canaryFull
	if storage > 0 {
		filed, full = min(megabytes, int(storage)/2), min(canaryFull, megabytes)
	}
	started, err := agent.Start(ctx, client.Command{Command: fmt.Sprintf("exec python3 /canary.py %s %d %d %d", seed, megabytes, filed, full)})
	if err != nil {
		return nil, err
	}
	k := &Canary{Name: name, url: sb.Metadata.URL + canaryPort, key: p.Key, http: &http.Client{Timeout: stepTime}, answered: time.Now()}
	for {
		logs, err := agent.Logs(ctx, started.PID)
		if err != nil {
			return nil, err
		}
		if logs.Stdout == "ready\n" {
			return k, nil
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(canaryPoll):
		}
	}
}

// Close ends the connections to a canary.
func (k *Canary) Close() { k.http.CloseIdleConnections() }

// Rewind returns a function after which k may have what it has now, or any of
// the steps since: it may have gone back.
func (k *Canary) Rewind() (back func()) {
	was := k.state
	return func() { k.back(was) }
}

// back makes k one that has what it was, or any of the steps since.
func (k *Canary) back(was state) {
	if k.n > was.n { // it may have gone back further by now
		was.open = k.n - was.n + k.open
		k.state = was
	}
}

// Observe looks whether k has a checkpoint with all that it has now, and reports
// that. From then on a crash may take nothing of it. No request of k may be under
// way.
func (k *Canary) Observe(p *Platform) bool {
	if !p.checkpointed(k.Name, k.answered) {
		return false
	}
	k.floor, k.saved = k.state, true
	return true
}

// Doubt lets k have less than it had, if it crashed since somebody asked.
func (k *Canary) Doubt() {
	if k.Crashed != nil && k.Crashed() {
		k.back(k.floor)
	}
}

// Unsure takes note that nobody knows whether k has a checkpoint of its own. One
// that is there already says nothing: it may be a copy that k began with.
func (k *Canary) Unsure() { k.saved, k.answered = false, time.Now() }

// Saved reports whether k has a checkpoint that was seen: it may not fail.
func (k *Canary) Saved() bool { return k.saved }

// Copy returns a canary with the state that k has now. With the URL of a sandbox, it is
// that sandbox, which was made of a snapshot since the last step. Without a URL, it is
// k itself after it went back to the snapshot.
func (k *Canary) Copy(name, url string) *Canary {
	c := &Canary{
		Name: name, url: k.url, key: k.key, http: &http.Client{Timeout: stepTime},
		state: k.state, floor: k.state, Crashed: k.Crashed, answered: time.Now(),
	}
	if url != "" {
		c.url = url + canaryPort
	}
	return c
}

// Step makes one step and compares its result with what it must be. If it has
// no answer, nobody knows whether the step was made.
func (k *Canary) Step(ctx context.Context) (Stepped, error) {
	start := time.Now()
	got, told, err := k.post(ctx)
	answered := k.n
	k.answered = time.Now()
	k.Doubt()
	if err != nil {
		k.open++
		return Stepped{}, err
	}
	s := k.check(got, start)
	s.N, s.Told = got.N, told
	if got.N <= answered {
		s.Lost = answered + 1 - got.N
	}
	return s, nil
}

// told is what a canary answers.
type told struct {
	N     uint64
	Chain string
	Wrong []string
	Wall  float64
}

func (k *Canary) check(got told, start time.Time) (s Stepped) {
	if got.N <= k.n || got.N > k.n+k.open+1 {
		s.Wrong = append(s.Wrong, fmt.Sprintf("step %d after %d, with %d without an answer", got.N, k.n, k.open))
		k.n, k.open = got.N, 0
		k.chain, _ = hex.DecodeString(got.Chain)
		return s
	}
	for k.n < got.N {
		k.n++
		sum := sha256.Sum256(binary.BigEndian.AppendUint64(k.chain, k.n))
		k.chain = sum[:]
	}
	k.open = 0
	if got.Chain != hex.EncodeToString(k.chain) {
		s.Wrong = append(s.Wrong, fmt.Sprintf("step %d has another result", k.n))
	}
	for _, what := range got.Wrong {
		s.Wrong = append(s.Wrong, fmt.Sprintf("step %d: %s", k.n, what))
	}
	wall := time.Unix(0, int64(got.Wall*1e9))
	s.Off = max(start.Sub(wall), time.Until(wall), 0)
	return s
}

// stateAge is the header of the first answer after a sandbox went back.
const stateAge = "X-Doze-State-Age"

// post asks for a step, and reports whether the answer says that the sandbox went
// back to a checkpoint.
func (k *Canary) post(ctx context.Context) (got told, back bool, err error) {
	resp, err := k.ask(ctx, http.MethodPost)
	if err != nil {
		return got, false, err
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	return got, resp.Header.Get(stateAge) != "", json.NewDecoder(io.LimitReader(resp.Body, stepMax)).Decode(&got)
}

// Hold keeps the sandbox awake until release is called.
func (k *Canary) Hold(ctx context.Context) (release func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	resp, err := k.ask(ctx, http.MethodGet) //nolint:bodyclose // release closes it
	if err != nil {
		cancel()
		return nil, err
	}
	return func() {
		cancel()
		_ = resp.Body.Close() // it was cut short
	}, nil
}

// ask sends a request and returns an answer that is a success.
func (k *Canary) ask(ctx context.Context, method string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, k.url, http.NoBody)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer "+k.key)
	resp, err := k.http.Do(r)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, stepMax))
	return nil, errors.Join(fmt.Errorf("%s: %s", resp.Status, body), err, resp.Body.Close())
}
