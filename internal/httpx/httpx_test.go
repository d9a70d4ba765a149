package httpx_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/httpx"
)

// TestErrorsSurviveTheWire is not parallel, for there is one log.
func TestErrorsSurviveTheWire(t *testing.T) {
	was := slog.Default()
	defer slog.SetDefault(was)
	ours := []doze.Kind{doze.Internal, doze.Unavailable, doze.Timeout}
	for k := doze.Internal; k <= doze.TooLarge; k++ {
		t.Run(k.String(), func(t *testing.T) {
			h := httpx.Handle(func(context.Context, *http.Request, httpx.None) (httpx.None, error) {
				return httpx.None{}, doze.Wrap(errors.New("disk sda is on fire"), k, "try later")
			})
			var log strings.Builder
			slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))

			resp := w.Result()
			defer resp.Body.Close()
			if resp.StatusCode != k.Status() {
				t.Errorf("status %d, want %d", resp.StatusCode, k.Status())
			}
			got := doze.Public(httpx.ReadError(resp))
			if got.Kind != k || got.Message != "try later" {
				t.Errorf("got %v %q", got.Kind, got.Message)
			}
			if strings.Contains(w.Body.String(), "sda") {
				t.Error("the cause left the process")
			}
			if logged := strings.Contains(log.String(), "sda"); logged != slices.Contains(ours, k) {
				t.Errorf("the log has the cause: %v", logged)
			}
		})
	}
}
