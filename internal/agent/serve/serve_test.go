package serve

import (
	"net/http"
	"net/http/httptest"
	"runtime/metrics"
	"strings"
	"testing"

	"github.com/dozehq/doze/internal/agent/body"
	"github.com/dozehq/doze/internal/agent/environ"
	"github.com/dozehq/doze/internal/agent/route"
)

func TestPanicIsContained(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	func() {
		defer recovered(w, httptest.NewRequest(http.MethodGet, "/", nil))
		panic("a bug")
	}()
	if w.Code != 500 || w.Body.Len() != 0 {
		t.Errorf("status %d: %q", w.Code, w.Body)
	}
}

// collections counts those that were asked for: memory is given back by one.
func collections() uint64 {
	all := []metrics.Sample{{Name: "/gc/cycles/forced:gc-cycles"}}
	metrics.Read(all)
	return all[0].Value.Uint64()
}

// TestBodiesGiveBack: what large bodies have held goes back to the sandbox without
// a pause between requests, and not once more in the next one.
func TestBodiesGiveBack(t *testing.T) { //nolint:paralleltest // the heap belongs to the process
	const half = 4<<20 - 64<<10 // with what is read at once: half of what gives memory back
	read := func(w http.ResponseWriter, r *http.Request, _ string) error {
		_, err := body.Read(w, r, body.Max)
		return err
	}
	s := New(route.Table{{Method: http.MethodPost, Pattern: "/", Call: route.Call{Serve: read}}}, environ.New(nil), func() bool { return false }, 1<<30)
	for i := range 4 {
		was := collections()
		s.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/", strings.NewReader(strings.Repeat("x", half))))
		if gave := collections() != was; gave != (i == 2) {
			t.Errorf("after body %d: %v", i+1, gave)
		}
	}
}
