package process_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dozehq/doze/internal/agent/agenttest"
)

// A stream of much output has every byte once, in order, and so has a log.
func TestLargeStreams(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	var want strings.Builder
	for i := range 300_000 {
		fmt.Fprintf(&want, "line %d of it\n", i)
	}
	if err := os.WriteFile(filepath.Join(s.Dir, "text"), []byte(want.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	resp := s.Do(t, http.MethodPost, "/process", `{"command":"cat `+s.Dir+`/text","name":"large"}`, "Accept: text/event-stream")
	var got strings.Builder
	in := bufio.NewReader(resp.Body)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			t.Fatalf("after %d bytes: %v", got.Len(), err)
		}
		var e struct{ Type, Data string }
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatal(err)
		}
		if e.Type == "result" {
			break
		}
		if e.Type != "stdout" || len(e.Data) > 64<<10+3 {
			t.Errorf("an event %q has %d bytes", e.Type, len(e.Data))
		}
		got.WriteString(e.Data)
	}
	if got.String() != want.String() {
		t.Errorf("%d of %d bytes came, or others", got.Len(), want.Len())
	}
	log, err := io.ReadAll(s.Do(t, http.MethodGet, "/process/large/logs/stream", "").Body)
	lines := strings.ReplaceAll(string(log), "stdout:", "")
	if err != nil || lines != want.String() {
		t.Errorf("the log has %d bytes of %d, or others, %v", len(lines), want.Len(), err)
	}
}
