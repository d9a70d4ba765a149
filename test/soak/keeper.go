package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"time"

	"doze/client"
)

// A keeper is a sandbox whose state we know at any time.
type keeper struct {
	r    *run
	name string
	url  string
	http *http.Client

	// n and chain are the state after the last step that was acknowledged;
	// open is how many more may have been made without an answer.
	n     uint64
	chain []byte
	open  uint64
}

const (
	stepTime = 30 * time.Second
	// clockMax is how far the clock of a sandbox that just woke may be off.
	clockMax  = 50 * time.Millisecond
	answerMax = 1 << 20
)

func (r *run) keeper(ctx context.Context, name string) (*keeper, error) {
	box, err := r.make(ctx, name)
	if err != nil {
		return nil, err
	}
	file, err := script()
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	if _, err := box.WriteFile(ctx, "/keeper.py", file, "0644"); err != nil {
		return nil, err
	}
	started, err := box.Start(ctx, client.Command{Command: fmt.Sprintf("exec python3 /keeper.py %s-%d %d", name, r.seed, r.megabytes)})
	if err != nil {
		return nil, err
	}
	for ready := false; !ready; {
		logs, err := box.Logs(ctx, started.PID)
		if err != nil {
			return nil, err
		}
		if ready = logs.Stdout == "ready\n"; !ready && !sleep(ctx, r.chance(0), 100*time.Millisecond) {
			return nil, context.Cause(ctx)
		}
	}
	c, err := r.p.Client()
	if err != nil {
		return nil, err
	}
	sb, err := c.Sandbox(ctx, name)
	if err != nil {
		return nil, err
	}
	return &keeper{r: r, name: name, url: sb.Metadata.URL + "/port/9000/step", http: &http.Client{Timeout: stepTime}}, nil
}

// live makes steps at random instants until ctx ends.
func (k *keeper) live(ctx context.Context, dice *rand.Rand) {
	defer k.http.CloseIdleConnections()
	for sleep(ctx, dice, restMax) {
		k.step(ctx)
	}
}

// step makes one step and compares its result with what it must be.
func (k *keeper) step(ctx context.Context) {
	before, start := k.r.epoch.Load(), time.Now()
	got, err := k.post(ctx)
	took := time.Since(start)
	k.r.mu.Lock()
	k.r.counts.requests++
	k.r.mu.Unlock()
	if err != nil {
		k.open++
		down := before%2 == 1 || k.r.epoch.Load() != before
		switch {
		case down || ctx.Err() != nil:
			k.r.mu.Lock()
			k.r.counts.excused++
			k.r.mu.Unlock()
		default:
			k.r.fault("%s: %v", k.name, err)
		}
		return
	}
	k.r.mu.Lock()
	k.r.counts.steps++
	k.r.counts.slowestStep = max(k.r.counts.slowestStep, took)
	k.r.mu.Unlock()
	k.check(got, start)
}

type stepped struct {
	N     uint64
	Chain string
	Wrong []string
	Wall  float64
}

func (k *keeper) check(got stepped, start time.Time) {
	if got.N <= k.n || got.N > k.n+k.open+1 {
		k.r.wrong("%s: step %d after %d, with %d without an answer", k.name, got.N, k.n, k.open)
		k.n, k.open = got.N, 0
		k.chain, _ = hex.DecodeString(got.Chain)
		return
	}
	for k.n < got.N {
		k.n++
		sum := sha256.Sum256(binary.BigEndian.AppendUint64(k.chain, k.n))
		k.chain = sum[:]
	}
	k.open = 0
	if got.Chain != hex.EncodeToString(k.chain) {
		k.r.wrong("%s: step %d has another result", k.name, k.n)
	}
	for _, what := range got.Wrong {
		k.r.wrong("%s: step %d: %s", k.name, k.n, what)
	}
	wall := time.Unix(0, int64(got.Wall*1e9))
	off := max(start.Sub(wall), time.Until(wall), 0)
	k.r.mu.Lock()
	k.r.counts.latest = max(k.r.counts.latest, off)
	k.r.mu.Unlock()
	if off > clockMax {
		k.r.wrong("%s: step %d: the clock is off by %v", k.name, k.n, off)
	}
}

// wrong takes note of a wrong byte.
func (r *run) wrong(format string, args ...any) {
	r.mu.Lock()
	r.counts.wrong++
	r.mu.Unlock()
	r.fault(format, args...)
}

func (k *keeper) post(ctx context.Context) (got stepped, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, k.url, http.NoBody)
	if err != nil {
		return got, err
	}
	r.Header.Set("Authorization", "Bearer "+k.r.key)
	resp, err := k.http.Do(r)
	if err != nil {
		return got, err
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, answerMax))
	if err != nil {
		return got, err
	}
	if resp.StatusCode != http.StatusOK {
		return got, fmt.Errorf("%s: %s", resp.Status, body)
	}
	return got, json.Unmarshal(body, &got)
}
