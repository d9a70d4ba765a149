package agentapi_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze/internal/agentapi"
)

// recorded answers as the agents of one version did: testdata has for each call
// that they know what they answered.
type recorded struct {
	version int
	answers map[string]json.RawMessage
	asked   []string // bodies, after method and path
}

func record(t *testing.T, version int) *recorded {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("testdata/v%d.json", version))
	if err != nil {
		t.Fatal(err)
	}
	r := &recorded{version: version}
	if err := json.Unmarshal(raw, &r.answers); err != nil {
		t.Fatal(err)
	}
	return r
}

// RoundTrip implements [http.RoundTripper].
func (a *recorded) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
	}
	call := r.Method + " " + strings.Replace(r.URL.Path, "/drives/one", "/drives/{id}", 1)
	asked := call
	if r.URL.RawQuery != "" {
		asked += "?" + r.URL.RawQuery
	}
	a.asked = append(a.asked, asked+" "+string(body))
	resp := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Request: r}
	if a.version > 0 {
		resp.Header.Set(agentapi.VersionHeader, strconv.Itoa(a.version))
	}
	text, known := a.answers[call]
	if !known {
		resp.StatusCode, text = http.StatusNotFound, []byte(`{"error":"no such route"}`)
	}
	resp.Body = io.NopCloser(strings.NewReader(string(text)))
	return resp, nil
}

// use makes every call of a client but the one that takes a connection, and
// returns what they returned.
func use(ctx context.Context, c agentapi.Client) map[agentapi.Call]any {
	either := func(out any, err error) any {
		if err != nil {
			return err
		}
		return out
	}
	return map[agentapi.Call]any{
		agentapi.AskState:     either(c.State(ctx)),
		agentapi.TellWoken:    c.Woken(ctx),
		agentapi.Identify:     either(c.IdentifyFirst(ctx, agentapi.Identity{Hostname: "box", Env: []string{"A=b"}})),
		agentapi.SetVariables: c.SetVariables(ctx, agentapi.Variables{Env: []string{"NO_PROXY=a"}}),
		agentapi.Quiesce:      either(c.Quiesce(ctx, 10*time.Second)),
		agentapi.Unpack:       c.Unpack(ctx, strings.NewReader("tar")),
		agentapi.Stop:         c.Stop(ctx),
		agentapi.PrepareDrive: either(c.PrepareDrive(ctx, agentapi.Mount{ID: "one", Path: "/mnt"})),
		agentapi.DropDrive:    c.DropDrive(ctx, "one"),
		agentapi.CollectLogs:  either(c.Collect(ctx, 16)),
		agentapi.AwaitLogs:    c.AwaitLogs(ctx, 16),
		agentapi.BeginImage: c.BeginImage(ctx, agentapi.Image{
			Program: []string{"serve", "-v"}, Waits: true, StopSignal: 2,
			Health: &agentapi.HealthCheck{Test: []string{"CMD", "check"}, IntervalMillis: 1, TimeoutMillis: 2, StartPeriodMillis: 3, StartIntervalMillis: 4, Retries: 5},
		}),
		agentapi.AwaitImage:    either(c.AwaitImage(ctx, 16)),
		agentapi.AskHealth:     c.Healthy(ctx),
		agentapi.StartProcess:  c.StartProcess(ctx, map[string]string{"name": "app"}),
		agentapi.ResumeArchive: c.ResumeArchive(ctx),
	}
}

// TestVersions: a client understands the agents of every version, and says of
// what one does not know that it was refused.
func TestVersions(t *testing.T) {
	t.Parallel()
	ago := int64(1500)
	want := []map[agentapi.Call]any{
		0: {
			agentapi.AskState: agentapi.State{KeepAlive: 1},
			agentapi.Identify: agentapi.Identified{Hostname: "box"},
		},
		1: {
			agentapi.AskState:     agentapi.State{KeepAlive: 2, KeptAgo: &ago, Blockers: agentapi.Blockers{Links: true, Namespaces: true}},
			agentapi.Identify:     agentapi.Identified{Hostname: "box"},
			agentapi.Quiesce:      agentapi.Quiesced{Processes: json.RawMessage(`[{"name": "app", "command": "run"}]`)},
			agentapi.PrepareDrive: agentapi.Prepared{Stale: true},
		},
		2: {
			agentapi.AskState:     agentapi.State{KeepAlive: 2, KeptAgo: &ago, Blockers: agentapi.Blockers{Links: true, Namespaces: true}},
			agentapi.Identify:     agentapi.Identified{Hostname: "box"},
			agentapi.Quiesce:      agentapi.Quiesced{Processes: json.RawMessage(`[{"name": "app", "command": "run"}]`)},
			agentapi.PrepareDrive: agentapi.Prepared{Stale: true},
		},
	}
	latest := maps.Clone(want[2])
	latest[agentapi.CollectLogs] = agentapi.Collected{Lost: 3, Chunks: []agentapi.Chunk{{At: 17, Process: "app", Stream: "stdout", Text: "hello\n"}}}
	want = append(want, latest)
	latest = maps.Clone(latest)
	latest[agentapi.AwaitImage] = agentapi.ImageState{
		Change: 17, Status: "failed", ExitCode: 1, Restarts: 2, Message: "no such program", Health: "unhealthy", Output: "refused", At: 1795600000000,
	}
	want = append(want, latest, latest) // version 5 answers nothing else; see TestConnectLoopback
	if len(want) != agentapi.Version+1 {
		t.Fatalf("what agents of %d versions answer is known, want %d", len(want), agentapi.Version+1)
	}
	for version, shapes := range want {
		old := record(t, version)
		for call, got := range use(t.Context(), agentapi.Client{Transport: old}) {
			_, known := old.answers[call.Method+" "+call.Path]
			if err, failed := got.(error); failed || !known {
				if known || !agentapi.Refused(err) {
					t.Errorf("version %d: %s %s: %v", version, call.Method, call.Path, got)
				}
				continue
			}
			if diff := cmp.Diff(shapes[call], got); diff != "" {
				t.Errorf("version %d: %s %s: %s", version, call.Method, call.Path, diff)
			}
		}
	}
}

// TestTable: the table has every call that the client makes, and each once.
func TestTable(t *testing.T) {
	t.Parallel()
	seen := map[agentapi.Call]bool{agentapi.ServeDrive: true, agentapi.ConnectLoopback: true} // see TestServeDrive and TestConnectLoopback
	for call := range use(t.Context(), agentapi.Client{Transport: record(t, agentapi.Version)}) {
		seen[call] = true
	}
	for _, call := range agentapi.Calls {
		if !seen[call] {
			t.Errorf("%s %s is twice in the table, or nobody makes it", call.Method, call.Path)
		}
		delete(seen, call)
		if call.Since > agentapi.Version {
			t.Errorf("%s %s is of version %d, which does not exist", call.Method, call.Path, call.Since)
		}
	}
	for call := range seen {
		t.Errorf("%s %s is not in the table", call.Method, call.Path)
	}
}

// TestRequests: what a node sends is what the agents of every version expect.
func TestRequests(t *testing.T) {
	t.Parallel()
	agent := record(t, agentapi.Version)
	use(t.Context(), agentapi.Client{Transport: agent})
	slices.Sort(agent.asked)
	want := []string{
		"DELETE /doze/drives/{id} ",
		"GET /doze/image?after=16 ",
		"GET /doze/keepalive ",
		"GET /doze/logs/new?after=16 ",
		"GET /doze/logs?after=16 ",
		"GET /health ",
		"POST /archive/resume ",
		`POST /doze/drives {"id":"one","path":"/mnt","uid":null,"gid":null}`,
		"POST /doze/files tar",
		`POST /doze/identity {"hostname":"box","env":["A=b"]}`,
		`POST /doze/image {"program":["serve","-v"],"waits":true,"stopSignal":2,"health":{"test":["CMD","check"],"intervalMillis":1,"timeoutMillis":2,"startPeriodMillis":3,"startIntervalMillis":4,"retries":5}}`,
		`POST /doze/quiesce {"stopTimeoutSeconds":10}`,
		"POST /doze/stop ",
		`POST /doze/variables {"env":["NO_PROXY=a"]}`,
		"POST /doze/wake ",
		`POST /process {"name":"app"}`,
	}
	if diff := cmp.Diff(want, agent.asked); diff != "" {
		t.Error(diff)
	}
}

// TestServeDrive: what the agent sends right behind its answer is not lost, and
// who does not have the mount says so.
func TestServeDrive(t *testing.T) {
	t.Parallel()
	for answer, want := range map[string]error{
		"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: doze-drive\r\n\r\nPRI": nil,
		"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n":                                       agentapi.ErrNoMount,
		"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n":                           new(agentapi.RefusalError),
	} {
		ours, theirs := net.Pipe()
		go func() {
			defer theirs.Close()
			if _, err := theirs.Read(make([]byte, 4096)); err == nil {
				_, _ = io.WriteString(theirs, answer)
			}
		}()
		from, err := agentapi.ServeDriveOver(t.Context(), ours, "one")
		switch {
		case want == nil && err == nil:
			if rest, err := io.ReadAll(from); string(rest) != "PRI" {
				t.Errorf("behind the answer comes %q, %v", rest, err)
			}
		case errors.Is(err, want), want != nil && agentapi.Refused(want) && agentapi.Refused(err):
		default:
			t.Errorf("%.12s: %v, want %v", answer, err, want)
		}
		_ = ours.Close()
	}
}

// TestConnectLoopback: what a server sends first is not lost, and a port where nobody
// listens is a refusal, as it is by an agent that does not know the call.
func TestConnectLoopback(t *testing.T) {
	t.Parallel()
	for answer, greeting := range map[string]string{
		"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: doze-loopback\r\n\r\nSSH-2.0": "SSH-2.0",
		"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n":                                    "",
		"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n":                                              "",
	} {
		ours, theirs := net.Pipe()
		go func() {
			defer theirs.Close()
			asked := make([]byte, 4096)
			n, err := theirs.Read(asked)
			if err != nil || !strings.HasPrefix(string(asked[:n]), "GET /doze/loopback/5432 HTTP/1.1\r\n") {
				t.Errorf("the agent was asked %q, %v", asked[:n], err)
			}
			_, _ = io.WriteString(theirs, answer)
		}()
		from, err := agentapi.ConnectLoopbackOver(t.Context(), ours, 5432)
		if greeting == "" {
			if !agentapi.Refused(err) {
				t.Errorf("%.12s: %v", answer, err)
			}
		} else if rest, err := io.ReadAll(from); string(rest) != greeting || err != nil {
			t.Errorf("behind the answer comes %q, %v", rest, err)
		}
		_ = ours.Close()
	}
}

// TestRefusalNamesVersions: a call that an agent is too old for says so.
func TestRefusalNamesVersions(t *testing.T) {
	t.Parallel()
	r := &agentapi.RefusalError{Call: agentapi.Call{Method: "POST", Path: "/doze/new", Since: 2}, Status: 404, Version: 1, Text: strings.Repeat("x", 1000)}
	if got := r.Error(); !strings.Contains(got, "the agent speaks version 1, and this came with 2") || len(got) > 500 {
		t.Error(got)
	}
}
