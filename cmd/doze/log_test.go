package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
)

// TestLogsFollow: what is followed is printed once, also lines of the millisecond in
// which the first answer ended.
func TestLogsFollow(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	line := func(text string) string {
		return fmt.Sprintf(`{"timestamp":"2026-01-31T12:00:00.001Z","severity":"INFO","process":"app","stream":"stdout","message":%q}`, text)
	}
	answers := []struct{ asked, lines, next string }{
		{"limit=2&process=app&resourceType=sandbox&workloadIds=web", line("two") + "," + line("one"), "older"},
		{"limit=1000&order=asc&process=app&resourceType=sandbox&start=2026-01-31T12%3A00%3A00.001Z&workloadIds=web", line("two") + "," + line("three"), "a"},
		{"cursor=a&limit=1000&order=asc&process=app&resourceType=sandbox&start=2026-01-31T12%3A00%3A00.001Z&workloadIds=web", line("two"), "b"},
	}
	var asked []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.RawQuery)
		if len(asked) > len(answers) {
			cancel()
			return
		}
		a := answers[len(asked)-1]
		_, _ = fmt.Fprintf(w, `{"web": {"totalCount": %d, "logs": [%s], "nextCursor": %q}}`, strings.Count(a.lines, "message"), a.lines, a.next)
	}))
	defer s.Close()
	var out, errs bytes.Buffer
	env := map[string]string{"DOZE_ADDRESS": s.URL, "DOZE_KEY": "good", "DOZE_WORKSPACE": "w"}
	a := app{out: &out, err: &errs, getenv: func(k string) string { return env[k] }, now: testNow, config: filepath.Join(t.TempDir(), "c.json")}
	a.run(ctx, []string{"sandbox", "logs", "web", "-f", "-n", "2", "--process", "app"})
	var said []string
	for text := range strings.Lines(out.String()) {
		said = append(said, strings.TrimSpace(text[strings.LastIndex(text, ": ")+2:]))
	}
	if got := strings.Join(said, " "); got != "one two three two" { // the last one is another line
		t.Errorf("it printed %q, %s", got, errs.String())
	}
	for i, a := range answers {
		if i >= len(asked) || asked[i] != a.asked {
			t.Errorf("call %d asked %q, want %q", i, asked, a.asked)
		}
	}
}
