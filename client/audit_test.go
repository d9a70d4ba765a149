package client_test

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/dozehq/doze/client"
)

// TestAudit: a filter becomes the query, and an export is copied as it is.
func TestAudit(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		if q.Get("action") != "a.create" || q.Get("since") != "2026-01-01T00:00:00Z" || q.Get("platform") != "true" || q.Has("actor") {
			t.Errorf("asked %s", r.URL)
		}
		switch {
		case r.URL.Path == "/v0/audit/export":
			_, _ = fmt.Fprint(w, "{\"id\":\"1\"}\n{\"id\":\"2\"}\n")
		case q.Get("cursor") == "":
			_, _ = fmt.Fprint(w, `{"data":[{"id":"2"}],"meta":{"hasMore":true,"nextCursor":"x"}}`)
		default:
			_, _ = fmt.Fprint(w, `{"data":[{"id":"1"}],"meta":{}}`)
		}
	}))
	defer s.Close()
	c, err := client.New(client.Config{Address: s.URL, Key: "k"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	f := client.AuditFilter{Action: "a.create", Since: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), Platform: true}
	ids := ""
	for l, err := range c.Audit(t.Context(), f) {
		if err != nil {
			t.Fatal(err)
		}
		ids += l.ID
	}
	var b bytes.Buffer
	if err := c.ExportAudit(t.Context(), f, &b); err != nil || ids != "21" || b.String() != "{\"id\":\"1\"}\n{\"id\":\"2\"}\n" {
		t.Errorf("%s, %q, %v", ids, b.String(), err)
	}
}
