package tool_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dozehq/doze/internal/agent/agenttest"
)

// toolNames is what clients expect to be there.
var toolNames = []string{
	"codegenCodebaseSearch", "codegenFileSearch", "codegenGrepSearch", "codegenListDir", "codegenParallelApply", "codegenReadFileRange", "codegenReapply",
	"fsDeleteFileOrDirectory", "fsEditFile", "fsGetWorkingDirectory", "fsListDirectory", "fsReadFile", "fsWriteFile",
	"processExecute", "processGet", "processGetLogs", "processKill", "processStop", "processesList",
}

// connect is a client of the endpoint, the one of the protocol's own library.
func connect(t *testing.T, s *agenttest.Sandbox) *mcp.ClientSession {
	t.Helper()
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	// A connection that was never used would hold up the end of the server.
	dial := &http.Transport{MaxConnsPerHost: 8}
	session, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: s.URL + "/mcp", HTTPClient: &http.Client{Transport: dial}, DisableStandaloneSSE: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { session.Close(); dial.CloseIdleConnections() })
	return session
}

func TestTools(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	session := connect(t, s)
	if got := session.InitializeResult(); got.ServerInfo.Name != "Sandbox API Server" || got.ServerInfo.Version != "1.0.0" || got.Capabilities.Tools == nil || !got.Capabilities.Tools.ListChanged {
		t.Errorf("the server is %+v with %+v", got.ServerInfo, got.Capabilities)
	}
	list, err := session.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, tool := range list.Tools {
		names = append(names, tool.Name)
		schema, _ := json.Marshal(tool.InputSchema)
		if tool.Description == "" || tool.OutputSchema == nil || !strings.Contains(string(schema), `"additionalProperties":false`) {
			t.Errorf("%s: %q, %s", tool.Name, tool.Description, schema)
		}
	}
	slices.Sort(names)
	if diff := cmp.Diff(toolNames, names); diff != "" {
		t.Error(diff)
	}
}

// use calls a tool by hand and returns its result. The text must be the same.
func use(t *testing.T, s *agenttest.Sandbox, name, arguments string) (result string, failed bool) {
	t.Helper()
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":"x","method":"tools/call","params":{"name":%q,"arguments":%s}}`, name, arguments)
	resp := agenttest.Get[struct {
		ID     string
		Result struct {
			StructuredContent json.RawMessage
			IsError           bool
			Content           []struct{ Type, Text string }
		}
	}](t, s, "POST", "/mcp", body)
	r := resp.Result
	if resp.ID != "x" || len(r.Content) != 1 || r.Content[0].Type != "text" || r.Content[0].Text == "" || !r.IsError && r.Content[0].Text != string(r.StructuredContent) {
		t.Errorf("%s %s: %+v", name, arguments, resp)
		return "", false
	}
	return r.Content[0].Text, r.IsError
}

// tool calls a tool that must succeed.
func tool[T any](t *testing.T, s *agenttest.Sandbox, name, arguments string) (v T) {
	t.Helper()
	result, failed := use(t, s, name, arguments)
	if failed {
		t.Fatalf("%s %s: %s", name, arguments, result)
	}
	if err := json.Unmarshal([]byte(result), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

type done struct {
	PID, Name, Status, Logs, Message string
	ExitCode                         int
	PollRequired                     bool
}

func TestProcessTools(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	got := tool[done](t, s, "processExecute", `{"command":"pwd; echo $A >&2; exit 3","name":"one","env":{"A":"b"},"waitForCompletion":true}`)
	if got.PID == "" || got.Name != "one" || got.Status != "failed" || got.ExitCode != 3 || got.Logs != "/\nb\n" || got.PollRequired {
		t.Errorf("got %+v", got)
	}
	// What is optional may be null.
	got = tool[done](t, s, "processExecute", `{"command":"sleep 60","name":"two","workingDir":null,"env":null,"waitForCompletion":null,"timeout":null,"waitForPorts":null,"restartOnFailure":null,"maxRestarts":null,"keepAlive":null}`)
	if got.Status != "running" || got.Logs != "" {
		t.Errorf("got %+v", got)
	}
	if list := tool[struct{ Processes []agenttest.Process }](t, s, "processesList", `{}`); len(list.Processes) != 2 || list.Processes[0].Name != "two" {
		t.Errorf("processes %+v", list)
	}
	if p := tool[agenttest.Process](t, s, "processGet", `{"identifier":"one"}`); p.Stdout != "/\n" || p.ExitCode != 3 {
		t.Errorf("process %+v", p)
	}
	if logs := tool[map[string]string](t, s, "processGetLogs", `{"identifier":"one"}`); logs["logs"] != "/\nb\n" {
		t.Errorf("logs %v", logs)
	}
	if st := tool[map[string]string](t, s, "processStop", `{"identifier":"two"}`); st["status"] != "stopped" {
		t.Errorf("status %v", st)
	}
	tool[done](t, s, "processExecute", `{"command":"sleep 60","name":"three","keepAlive":true}`)
	if p := tool[agenttest.Process](t, s, "processGet", `{"identifier":"three"}`); !p.KeepAlive {
		t.Errorf("process %+v", p)
	}
	if st := tool[map[string]string](t, s, "processKill", `{"identifier":"three"}`); st["status"] != "killed" {
		t.Errorf("status %v", st)
	}
}

func TestFileTools(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	if got := tool[map[string]string](t, s, "fsGetWorkingDirectory", `{}`); got["path"] != s.Dir {
		t.Errorf("it is %v", got)
	}
	tool[map[string]string](t, s, "fsWriteFile", `{"path":"a/f.txt","content":"one two one\nlast\n","permissions":"not octal"}`)
	tool[map[string]string](t, s, "fsWriteFile", `{"path":"a/dir","content":null,"isDirectory":true}`)
	if fi, err := os.Stat(filepath.Join(s.Dir, "a/dir")); err != nil || fi.Mode().Perm() != 0o755 {
		t.Errorf("%v, %v", fi, err)
	}
	if err := os.Chmod(filepath.Join(s.Dir, "a/f.txt"), 0o600); err != nil {
		t.Fatal(err)
	}
	type edited struct {
		Path                string
		OccurrencesReplaced int
	}
	if got := tool[edited](t, s, "fsEditFile", `{"path":"a/f.txt","oldString":"one","newString":"1","replaceAll":true}`); got != (edited{"a/f.txt", 2}) {
		t.Errorf("got %+v", got)
	}
	if got := tool[agenttest.File](t, s, "fsReadFile", `{"path":"a/f.txt"}`); got.Content != "1 two 1\nlast\n" || got.Permissions != "600" || got.Name != "f.txt" || len(got.LastModified) != len("2006-01-02T15:04:05Z") {
		t.Errorf("got %+v", got)
	}
	if got := tool[struct{ Directory agenttest.Directory }](t, s, "fsListDirectory", `{"path":"a"}`); len(got.Directory.Files) != 1 || len(got.Directory.Subdirectories) != 1 {
		t.Errorf("got %+v", got)
	}
	if got := tool[struct{ Content, File string }](t, s, "codegenReadFileRange", `{"targetFile":"a/f.txt","startLineOneIndexed":2,"endLineOneIndexedInclusive":9}`); got.Content != "last" || got.File != "a/f.txt" {
		t.Errorf("got %+v", got)
	}
	tool[map[string]string](t, s, "fsDeleteFileOrDirectory", `{"path":"a","recursive":true,"isDirectory":null}`)
	if _, err := os.Stat(filepath.Join(s.Dir, "a")); !os.IsNotExist(err) {
		t.Errorf("it is still there: %v", err)
	}
}

func TestCodeTools(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	s.Write(t, "src/main.go", "package main\n\nfunc main() {}\n")
	s.Write(t, "src/util.ts", "function main() {}\n")
	type found struct {
		Success bool
		Matches []string
		Query   string
	}
	want := found{true, []string{filepath.Join(s.Dir, "src/main.go")}, "main"}
	if diff := cmp.Diff(want, tool[found](t, s, "codegenFileSearch", `{"query":"main"}`)); diff != "" {
		t.Error(diff)
	}
	got := tool[struct{ Results string }](t, s, "codegenGrepSearch", `{"query":"^FUNC\\w* main","excludePattern":"*.ts"}`)
	line := `{"type":"match","data":{"path":{"text":"src/main.go"},"lines":{"text":"func main() {}\n"},"line_number":3,"absolute_offset":14,"submatches":[{"match":{"text":"func main"},"start":0,"end":9}]}}` + "\n"
	if got.Results != line {
		t.Errorf("got %s", got.Results)
	}
	if got := tool[struct{ Directory agenttest.Directory }](t, s, "codegenListDir", `{"relativeWorkspacePath":"src"}`); len(got.Directory.Files) != 2 {
		t.Errorf("got %+v", got)
	}
	if got, _ := use(t, s, "codegenCodebaseSearch", `{"query":"x"}`); got != `{"query":"x","results":[],"success":true}` && got != `{"success":true,"results":[],"query":"x"}` {
		t.Errorf("got %s", got)
	}
	for name, arguments := range map[string]string{
		"codegenReapply":       `{"targetFile":"x"}`,
		"codegenParallelApply": `{"editPlan":"x","editRegions":[{"relativeWorkspacePath":"x","startLine":1}]}`,
	} {
		if got := tool[map[string]any](t, s, name, arguments); got["success"] != false || got["message"] == "" {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestGrepToolIsBounded: it looks nowhere but in the working directory, and ends,
// however many lines match.
func TestGrepToolIsBounded(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	s.Write(t, "in/many", strings.Repeat("needle\n", 5000))
	outside := s.Write(t, "outside", "needle\n")
	s = agenttest.Start(t, "WORKDIR="+filepath.Join(filepath.Dir(outside), "in"))
	got := tool[struct{ Results string }](t, s, "codegenGrepSearch", `{"query":"needle"}`)
	if lines := strings.Count(got.Results, "\n"); lines != 100 || strings.Contains(got.Results, "outside") {
		t.Errorf("%d lines: %.200s", lines, got.Results)
	}
}

func TestToolErrors(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	s.Write(t, "f", "x x")
	s.Write(t, "large", strings.Repeat("x", 4<<20+1))
	for _, test := range []struct{ name, arguments, want string }{
		{"processExecute", `{}`, "command"},
		{"processExecute", `{"command":"true","unknown":1}`, "unknown"},
		{"processExecute", `{"command":7}`, "string"},
		{"processExecute", `{"command":" "}`, "command is required"},
		{"processExecute", `{"command":"sleep 60","waitForCompletion":true,"timeout":1}`, "process timed out after 1 seconds"},
		{"processExecute", `{"command":"true","waitForPorts":[1]}`, "ended before it served"},
		{"processGet", `{"identifier":"none"}`, "process not found"},
		{"processGetLogs", `{"identifier":"none"}`, "process not found"},
		{"processStop", `{"identifier":"none"}`, "process not found"},
		{"processKill", `{"identifier":"none"}`, "process not found"},
		{"fsListDirectory", `{"path":"f"}`, "not a directory"},
		{"fsReadFile", `{"path":"none"}`, "no such file"},
		{"fsReadFile", `{"path":"."}`, "is a directory"},
		{"fsReadFile", `{"path":"large"}`, "more than 4 MiB"},
		{"fsReadFile", `{"path":"/dev/zero"}`, "not a regular file"},
		{"fsWriteFile", `{"path":"f/x","content":""}`, "not a directory"},
		{"fsEditFile", `{"path":"f","oldString":"","newString":"y"}`, "oldString is empty"},
		{"fsEditFile", `{"path":"f","oldString":"x","newString":"x"}`, "the same"},
		{"fsEditFile", `{"path":"f","oldString":"z","newString":"y"}`, "not in f"},
		{"fsEditFile", `{"path":"f","oldString":"x","newString":"y"}`, "2 times"},
		{"fsDeleteFileOrDirectory", `{"path":"none"}`, "not found"},
		{"fsDeleteFileOrDirectory", `{"path":"/","recursive":true}`, "cannot be deleted"},
		{"codegenGrepSearch", `{"query":"nowhere"}`, "nothing matches"},
		{"codegenGrepSearch", `{"query":"("}`, "regular expression"},
		{"codegenFileSearch", `{"query":"x","directory":"/etc"}`, "outside of the workspace"},
		{"codegenListDir", `{"relativeWorkspacePath":"../.."}`, "outside of the workspace"},
		{"codegenReadFileRange", `{"targetFile":"f","startLineOneIndexed":2,"endLineOneIndexedInclusive":3}`, "has 1 lines"},
		{"codegenReadFileRange", `{"targetFile":"f","startLineOneIndexed":0,"endLineOneIndexedInclusive":3}`, "count from 1"},
	} {
		if got, failed := use(t, s, test.name, test.arguments); !failed || !strings.Contains(got, test.want) {
			t.Errorf("%s %s: %s", test.name, test.arguments, got)
		}
	}
}

// What is no call of a tool is answered by the protocol.
func TestMCPMessages(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	for name, test := range map[string]struct {
		body    string
		headers []string
		status  int
		want    string
	}{
		"initialize":     {`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-03-26","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`, nil, 200, `"protocolVersion":"2025-03-26"`},
		"number":         {`{"jsonrpc":"2.0","id":7,"method":"ping"}`, nil, 200, `{"jsonrpc":"2.0","id":7,"result":{}}`},
		"only JSON":      {`{"jsonrpc":"2.0","id":7,"method":"ping"}`, []string{"Accept: application/json"}, 200, `"result":{}`},
		"other type":     {`{"jsonrpc":"2.0","id":7,"method":"ping"}`, []string{"Content-Type: text/plain"}, 200, `"result":{}`},
		"notification":   {`{"jsonrpc":"2.0","method":"notifications/initialized"}`, nil, 202, ""},
		"unknown method": {`{"jsonrpc":"2.0","id":1,"method":"nope"}`, nil, 400, "nope"},
		"unknown tool":   {`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"nope","arguments":{}}}`, nil, 200, `"code":-32602`},
		"malformed":      {`{`, nil, 400, ""},
		"empty":          {``, nil, 400, ""},
		"other host":     {`{"jsonrpc":"2.0","id":7,"method":"ping"}`, []string{"Origin: https://elsewhere.example"}, 200, `"result":{}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			resp := s.Do(t, "POST", "/mcp", test.body, test.headers...)
			status, body := s.Call(t, "POST", "/mcp", test.body, test.headers...)
			if status != test.status || !strings.Contains(body, test.want) {
				t.Errorf("status %d: %s", status, body)
			}
			if kind := resp.Header.Get("Content-Type"); status == http.StatusOK && kind != "application/json" || resp.Header.Get("Mcp-Session-Id") != "" {
				t.Errorf("the answer is %s, in the session %q", kind, resp.Header.Get("Mcp-Session-Id"))
			}
		})
	}
}

func TestToolsInParallel(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	session := connect(t, s)
	var calls sync.WaitGroup
	for i := range 50 {
		calls.Go(func() {
			got, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "processExecute", Arguments: map[string]any{"command": fmt.Sprintf("echo %d", i), "waitForCompletion": true}})
			if err != nil || got.IsError {
				t.Errorf("%d: %+v, %v", i, got, err)
				return
			}
			if out, _ := got.StructuredContent.(map[string]any); out["logs"] != fmt.Sprintf("%d\n", i) {
				t.Errorf("%d: %v", i, out)
			}
		})
	}
	calls.Wait()
}

// FuzzMCP sends whatever may be a message. None may end the agent.
func FuzzMCP(f *testing.F) {
	s := agenttest.Start(f)
	for _, body := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"fsReadFile","arguments":{"path":"f"}}}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"fsEditFile","arguments":{"path":"f","oldString":"a","newString":"b","replaceAll":null}}}`,
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`, `[{"jsonrpc":"2.0","id":1,"method":"ping"}]`, `{"jsonrpc":"2.0","id":null,"method":"tools/list","params":{"cursor":"x"}}`,
	} {
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body string) {
		for _, risky := range []string{"processExecute", "fsWrite", "fsDelete"} {
			if strings.Contains(body, risky) {
				return // they do as they are told
			}
		}
		if status, answer := s.Call(t, "POST", "/mcp", body); status >= http.StatusInternalServerError {
			t.Errorf("status %d: %s", status, answer)
		}
	})
}
