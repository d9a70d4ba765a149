package file_test

import (
	"bufio"
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/dozehq/doze/internal/agent/agenttest"
)

type change struct {
	Op, Name, Path string
	Error          *string
}

// watching opens a watch and returns a function that reads the next event.
func watching(t *testing.T, s *agenttest.Sandbox, path string) (next func() change) {
	t.Helper()
	resp := s.Do(t, "GET", path, "")
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/plain; charset=utf-8" || resp.Header.Get("Cache-Control") != "no-cache" || resp.Header.Get("X-Accel-Buffering") != "no" {
		t.Fatalf("status %d, %v", resp.StatusCode, resp.Header)
	}
	lines := bufio.NewReader(resp.Body)
	return func() (c change) {
		t.Helper()
		line, err := lines.ReadBytes('\n')
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(line, &c); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		return c
	}
}

// Writes through the API look like those of a program, although they are
// renames.
func TestWatch(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	if err := os.MkdirAll(s.Dir+"/w/sub", 0o755); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct{ path, file string }{
		"relative":            {"/watch/filesystem/w", "/w/1"},
		"absolute":            {"/watch/filesystem/" + s.Dir + "/w", "/w/2"},
		"escaped, recursive":  {"/watch/filesystem/" + strings.ReplaceAll(s.Dir, "/", "%2F") + "%2Fw%2F**", "/w/sub/3"},
		"doubled, recursive":  {"/watch/filesystem/" + s.Dir + "/w/**", "/w/sub/4"},
		"relative, recursive": {"/watch/filesystem/w/sub/**", "/w/sub/5"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			others := make([]string, 0, 5)
			for _, n := range []string{"1", "2", "3", "4", "5"} {
				if !strings.HasSuffix(test.file, n) {
					others = append(others, "/"+n)
				}
			}
			next := watching(t, s, test.path+"?ignore="+strings.Join(others, ","))
			for i, want := range []string{"CREATE", "WRITE", "WRITE", "REMOVE"} {
				switch i {
				case 0, 2:
					agenttest.Get[map[string]any](t, s, "PUT", "/filesystem/"+s.Dir+test.file, `{"content":"x"}`)
				case 3:
					agenttest.Get[map[string]any](t, s, "DELETE", "/filesystem/"+s.Dir+test.file, "")
				}
				if got := next(); got.Op != want || got.Path+"/"+got.Name != s.Dir+test.file || got.Error != nil {
					t.Errorf("event %d: %+v, want %s of %s", i, got, want, test.file)
				}
			}
		})
	}
	s.Write(t, "file", "")
	s.Fails(t, 400, "not a directory", "GET", "/watch/filesystem/file", "")
	s.Fails(t, 400, "no such directory", "GET", "/watch/filesystem/none/**", "")
	s.Fails(t, 400, "NUL", "GET", "/watch/filesystem/%00", "")
}

func TestWatchEndsWithItsDirectory(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	if err := os.Mkdir(s.Dir+"/w", 0o755); err != nil {
		t.Fatal(err)
	}
	resp := s.Do(t, "GET", "/watch/filesystem/w", "")
	if err := os.Remove(s.Dir + "/w"); err != nil {
		t.Fatal(err)
	}
	scan := bufio.NewScanner(resp.Body)
	var lines []string
	for scan.Scan() {
		lines = append(lines, scan.Text())
	}
	if scan.Err() != nil || len(lines) != 1 || !strings.Contains(lines[0], `"REMOVE","name":"w"`) {
		t.Errorf("%v, %v", lines, scan.Err())
	}
}

// An agent that is asked to end does not wait for those who watch; see start.
func TestWatchers(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	for range 64 {
		watching(t, s, "/watch/filesystem/")
	}
	s.Fails(t, 422, "which is the most", "GET", "/watch/filesystem/", "")
}
