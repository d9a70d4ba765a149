package attack_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/dozehq/doze"
)

// tenants have a key of their own workspace, of which they are administrators.
var tenants = []attack{
	{"tenant", "sandboxes without end", sandboxFlood},
	{"tenant", "sandboxes of all the memory of the host", giants},
	{"tenant", "volumes larger than the disk", hugeVolumes},
	{"tenant", "workspaces without end", workspaceFlood},
	{"tenant", "streams without end", streamFlood},
	{"tenant", "requests without end", requestFlood},
	{"tenant", "quotas of their own choice", raiseQuota},
}

const (
	callers  = 20 // at once
	smallest = 128
)

// each calls fn from some goroutines until ctx ends or fn says that it is done.
func each(ctx context.Context, n int, fn func(i int) (more bool)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			for ctx.Err() == nil && fn(i) {
			}
		})
	}
	wg.Wait()
}

func sandbox(name string, memory doze.Megabytes) doze.Sandbox {
	return doze.Sandbox{
		Metadata: doze.Metadata{Name: name},
		Spec:     doze.SandboxSpec{Runtime: doze.Runtime{Memory: memory}},
	}
}

// sandboxFlood creates sandboxes as fast as it can.
func sandboxFlood(ctx context.Context, t *testing.T, w *world) {
	t.Helper()
	each(ctx, callers, func(i int) bool {
		_, err := w.hostile.Create(ctx, sandbox("", smallest), false)
		w.denied(t, err)
		return true
	})
	w.forget(t)
}

// forget deletes what the attacker has made.
func (w *world) forget(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	remove(ctx, t, w.hostile)
}

// giants asks for sandboxes of which one alone would take all.
func giants(ctx context.Context, t *testing.T, w *world) {
	t.Helper()
	each(ctx, 2, func(int) bool {
		for memory := doze.Megabytes(1 << 20); memory >= 2048; memory /= 2 {
			_, err := w.hostile.Create(ctx, sandbox("", memory), false)
			if !w.denied(t, err) && ctx.Err() == nil {
				continue // once more of this size
			}
		}
		return false
	})
	w.forget(t)
}

// hugeVolumes asks for disks that the host could never fill.
func hugeVolumes(ctx context.Context, t *testing.T, w *world) {
	t.Helper()
	for i := range 20 {
		v := doze.Volume{Metadata: doze.Metadata{Name: fmt.Sprintf("huge-%d", i)}, Spec: doze.VolumeSpec{Size: 4 << 20}}
		if _, err := w.hostile.CreateVolume(ctx, v); !w.denied(t, err) {
			t.Errorf("volume %d of 4 TiB is accepted", i)
			if err := w.hostile.DeleteVolume(ctx, v.Metadata.Name); err != nil {
				t.Error(err)
			}
		}
	}
}

// workspaceFlood takes up the workspaces of the platform.
func workspaceFlood(ctx context.Context, t *testing.T, w *world) {
	t.Helper()
	for i := range 50 {
		status, _ := w.post(ctx, t, "/v0/workspaces", fmt.Sprintf(`{"name":"taken-%d"}`, i))
		w.tried.Add(1)
		if status != http.StatusForbidden && status != http.StatusTooManyRequests {
			t.Errorf("a workspace of a member is answered by %d", status)
			continue
		}
		w.refused.Add(1)
	}
}

// post sends a body as the attacker.
func (w *world) post(ctx context.Context, t *testing.T, path, body string) (status int, text string) {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, w.Address+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return w.send(t, r)
}

// send sends a request as the attacker. The status is 0 if there was no answer.
func (w *world) send(t *testing.T, r *http.Request) (status int, text string) {
	t.Helper()
	r.Header.Set("Authorization", "Bearer "+w.key)
	resp, err := elsewhere.RoundTrip(r)
	if err != nil {
		return 0, ""
	}
	defer resp.Body.Close()
	raw, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20)) // what came is enough
	return resp.StatusCode, string(raw)
}

// streamFlood opens streams to a sandbox of its own, and keeps them.
func streamFlood(ctx context.Context, t *testing.T, w *world) {
	t.Helper()
	sb, err := w.hostile.Create(t.Context(), sandbox("streams", 512), false)
	if err != nil {
		t.Fatal(err)
	}
	defer w.forget(t)
	// A request whose body does not come is open for as long as that lasts.
	each(ctx, manySockets/4, func(i int) bool {
		body, end := io.Pipe()
		stop := context.AfterFunc(ctx, func() { _ = end.Close() })
		defer stop()
		r, err := http.NewRequestWithContext(ctx, http.MethodPut, sb.Metadata.URL+fmt.Sprintf("/filesystem/tmp/%d", i), body)
		if err != nil {
			t.Error(err)
			return false
		}
		w.tried.Add(1)
		switch status, text := w.send(t, r); status {
		case http.StatusTooManyRequests, http.StatusServiceUnavailable:
			w.refused.Add(1)
			wait(ctx, poll)
		case http.StatusInternalServerError:
			t.Errorf("a stream too many is a fault of the platform: %s", text)
			return false
		}
		return true
	})
}

// requestFlood asks for lists as fast as it can.
func requestFlood(ctx context.Context, t *testing.T, w *world) {
	t.Helper()
	each(ctx, callers, func(int) bool {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, w.Address+"/v0/sandboxes?q=a", nil)
		if err != nil {
			t.Error(err)
			return false
		}
		w.tried.Add(1)
		if status, _ := w.send(t, r); status == http.StatusTooManyRequests {
			w.refused.Add(1)
			wait(ctx, poll)
		}
		return true
	})
}

// raiseQuota tries to give itself more.
func raiseQuota(ctx context.Context, t *testing.T, w *world) {
	t.Helper()
	for path, body := range map[string]string{
		"/v0/workspaces/" + attackers:             `{"quotas":{"sandboxes":1000000}}`,
		"/v0/workspaces/" + attackers + "/quotas": `{"quotas":{"sandboxes":1000000}}`,
		"/v0/workspaces/main/quotas":              `{"quotas":{"sandboxes":0}}`,
	} {
		r, err := http.NewRequestWithContext(ctx, http.MethodPut, w.Address+path, bytes.NewReader([]byte(body)))
		if err != nil {
			t.Fatal(err)
		}
		w.tried.Add(1)
		status, text := w.send(t, r)
		if status != http.StatusBadRequest && status != http.StatusForbidden && status != http.StatusNotFound {
			t.Errorf("PUT %s %s: %d %s", path, body, status, text)
			continue
		}
		w.refused.Add(1)
	}
}
