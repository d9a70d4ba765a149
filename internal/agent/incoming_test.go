package agent

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
)

// TestBodies: what all bodies hold together has a bound; one alone, and small
// ones, have none.
func TestBodies(t *testing.T) {
	t.Parallel()
	all := &bodies{max: 1 << 20}
	body := func() *incoming { return &incoming{all: all} }
	text := func(n int) io.Reader { return strings.NewReader(strings.Repeat("x", n)) }

	alone := body()
	if b, err := alone.readAll(text(5 << 20)); err != nil || len(b) != 5<<20 {
		t.Fatalf("one alone: %d bytes, %v", len(b), err)
	}
	other := body()
	if _, err := other.readAll(text(1 << 20)); !errors.Is(err, errCrowded) {
		t.Errorf("another beside it: %v", err)
	}
	if b, err := body().readAll(text(bodyFree - 1)); err != nil || len(b) != bodyFree-1 {
		t.Errorf("a small one: %d bytes, %v", len(b), err)
	}
	alone.release()
	other.release()
	for _, in := range []*incoming{body(), body()} {
		if _, err := in.readAll(text(300 << 10)); err != nil { // with a copy, while it is put together
			t.Errorf("two that fit: %v", err)
		}
		defer func() {
			in.release()
			if all.held < 0 || all.held > 512<<10 {
				t.Errorf("%d bytes are held after a release", all.held)
			}
		}()
	}
	third := body()
	if _, err := third.readAll(text(400 << 10)); !errors.Is(err, errCrowded) {
		t.Errorf("a third: %v", err)
	}
	third.release()
}

// TestBodyIsNoGarbage: what has come of a body takes little more than its size,
// however long the rest takes. It counts what all tests take, so it runs alone.
func TestBodyIsNoGarbage(t *testing.T) {
	const size = 4 << 20
	in := &incoming{all: &bodies{max: 1 << 30}}
	src := io.MultiReader(io.LimitReader(zeros{}, size), iotest.ErrReader(io.ErrUnexpectedEOF))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := in.readAll(src)
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; !errors.Is(err, io.ErrUnexpectedEOF) || took > size*3/2 {
		t.Errorf("%d bytes take %d, %v", size, took, err)
	}
	if in.held < size || in.held > size*3/2 {
		t.Errorf("it holds %d", in.held)
	}
}

// zeros is an endless body.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// TestEveryBodyCounts: that of a message is one like all others, and so are the
// names of a tree.
func TestEveryBodyCounts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a := New(Config{Env: []string{"WORKDIR=" + dir}, LogDir: t.TempDir() + "/logs", UploadDir: t.TempDir() + "/uploads"})
	a.bodies.max = 1 << 20
	other := &incoming{all: &a.bodies}
	if !other.take(a.bodies.max) {
		t.Fatal("there is no room")
	}
	message := func(size int) string {
		return `{"jsonrpc":"2.0","id":1,"method":"ping"` + strings.Repeat(" ", size) + "}"
	}
	tree := func(names int) string {
		files := make([]string, names)
		for i := range files {
			files[i] = fmt.Sprintf(`"%d":""`, i)
		}
		return `{"files":{` + strings.Join(files, ",") + `}}`
	}
	content := `{"files":{"a":"` + strings.Repeat("x", 4*bodyFree) + `"}}`
	for name, test := range map[string]struct {
		method, path, body string
		status             int
	}{
		"small":          {"POST", "/mcp", message(bodyFree / 2), http.StatusOK},
		"large":          {"POST", "/mcp", message(2 * bodyFree), http.StatusTooManyRequests},
		"too large":      {"POST", "/mcp", message(int(mcpMax.bytes)), http.StatusRequestEntityTooLarge},
		"few names":      {"PUT", "/filesystem/tree" + dir + "/few", tree(10), http.StatusOK},
		"a large file":   {"PUT", "/filesystem/tree" + dir + "/large", content, http.StatusOK}, // on the disk
		"many names":     {"PUT", "/filesystem/tree" + dir + "/many", tree(10_000), http.StatusTooManyRequests},
		"much beside it": {"PUT", "/filesystem" + dir + "/file", `{"x":"` + strings.Repeat("x", besideMax/2) + `"}`, http.StatusOK},
	} {
		w := httptest.NewRecorder()
		a.ServeHTTP(w, httptest.NewRequest(test.method, test.path, strings.NewReader(test.body)))
		if w.Code != test.status {
			t.Errorf("%s: status %d: %.200s", name, w.Code, w.Body)
		}
		if after := w.Header().Get("Retry-After"); (after != "") != (test.status == http.StatusTooManyRequests) {
			t.Errorf("%s: it is to come back after %q", name, after)
		}
	}
	other.release()
	if a.bodies.held != 0 {
		t.Errorf("%d bytes are held after all", a.bodies.held)
	}
}

// TestBodiesGiveBack: what large bodies have held goes back to the sandbox without
// a pause between requests, and not once more in the next one.
func TestBodiesGiveBack(t *testing.T) { //nolint:paralleltest // the heap belongs to the process
	a := New(Config{Env: []string{"WORKDIR=" + t.TempDir()}, LogDir: t.TempDir() + "/logs", UploadDir: t.TempDir() + "/uploads"})
	body := strings.Repeat("x", giveBack/2-bodyPiece)
	for i := range 4 {
		was := a.trim.freed.Load()
		a.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/process", strings.NewReader(body)))
		if gave := a.trim.freed.Load() != was; gave != (i == 2) {
			t.Errorf("after body %d: %v", i+1, gave)
		}
	}
	a.trim.free()
	was := a.trim.freed.Load()
	a.trim.last.Store(0)
	if a.trim.check(); a.trim.freed.Load() != was {
		t.Error("memory was given back twice")
	}
}
