package batch

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestBatch(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	b := Start(w, "text/plain")
	if w.Code != http.StatusOK || !w.Flushed || w.Header().Get("Content-Type") != "text/plain" {
		t.Errorf("the caller sees %d, %v, %v", w.Code, w.Flushed, w.Header())
	}
	if err := b.Add("a", "b"); err != nil || w.Body.Len() > 0 {
		t.Errorf("%q was sent at once, %v", w.Body, err)
	}
	if !b.Send() || w.Body.String() != "ab" {
		t.Errorf("%q was sent", w.Body)
	}
	if !b.Send() || w.Body.String() != "ab" {
		t.Errorf("without more, %q was sent", w.Body)
	}
	if _, err := b.Write([]byte(strings.Repeat("x", batchMax))); err != nil || w.Body.Len() != len("ab")+batchMax {
		t.Errorf("of much, %d bytes were sent, %v", w.Body.Len(), err)
	}
}

// gone is a caller that hung up.
type gone struct{ http.ResponseWriter }

func (gone) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

func TestGone(t *testing.T) {
	t.Parallel()
	b := Start(gone{httptest.NewRecorder()}, "text/plain")
	if err := b.Add("x"); err != nil {
		t.Error(err)
	}
	if b.Send() {
		t.Error("somebody got it")
	}
}
