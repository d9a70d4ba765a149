package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/dozehq/doze"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// server speaks as much of both APIs as the commands need.
type server struct {
	*httptest.Server
	mu     sync.Mutex
	got    []string      // guarded by mu; requests, but for GET of a sandbox
	closed chan struct{} // closed at the end of a command's input
}

// calls are the requests so far.
func (s *server) calls() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.got
}

// testNow is the time at which commands of tests run.
func testNow() time.Time { return time.Date(2026, 1, 2, 3, 9, 6, 0, time.UTC) }

// generated is the name that exec gives a process.
var generated = regexp.MustCompile(`exec-[a-z2-7]{20,}`)

const sandboxJSON = `{"metadata":{"name":%q,"url":%q},"spec":{"runtime":{"image":"base","memory":4096}},"lastUsedAt":"2026-01-02T03:04:05.000Z","state":"STANDBY","status":"DEPLOYED"}`

func newServer(t *testing.T) *server {
	t.Helper()
	s := &server{closed: make(chan struct{})}
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(s.Close)
	return s
}

func (s *server) serve(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	var in struct {
		Command, Name string
		Stdin         bool
	}
	_ = json.Unmarshal(body, &in)
	call := generated.ReplaceAllString(strings.TrimSpace(r.Method+" "+r.RequestURI+" "+string(body)), "NAME")
	name := strings.TrimPrefix(r.URL.Path, "/v0/sandboxes/")
	inside := s.URL + "/run/w/sandboxes/web"
	w.Header().Set("Content-Type", "application/json")
	if r.Header.Get("Authorization") != "Bearer good" {
		w.WriteHeader(http.StatusUnauthorized)
		io.WriteString(w, `{"error":"unauthenticated","code":401,"message":"the API key is not valid"}`)
		return
	}
	if call != "GET /v0/sandboxes/web" {
		s.mu.Lock()
		s.got = append(s.got, call)
		s.mu.Unlock()
	}
	switch rest := strings.TrimPrefix(r.URL.Path, "/run/w/sandboxes/web"); {
	case r.URL.Path == "/v0/workspaces":
		io.WriteString(w, `[{"name":"w"}]`)
	case r.URL.Path == "/v0/sandboxes" && r.Method == http.MethodGet && r.FormValue("cursor") == "":
		fmt.Fprintf(w, `{"data":[`+sandboxJSON+`],"meta":{"nextCursor":"c"}}`, "web", inside)
	case r.URL.Path == "/v0/sandboxes" && r.Method == http.MethodGet:
		page := fmt.Sprintf(`{"data":[`+sandboxJSON+`],"meta":{}}`, "EVIL", inside)
		io.WriteString(w, strings.Replace(page, "EVIL", `\u001b[31m`, 1))
	case name == "web/schedules":
		io.WriteString(w, `{"id":"s","sandbox":"web","type":"cron","value":"0 3 * * *","input":{"command":"./run"}}`)
	case r.URL.Path == "/v0/observability/logs" && (r.FormValue("workloadIds") == "wep" || r.FormValue("search") == "nothing"):
		fmt.Fprintf(w, `{%q: {"totalCount": 0, "logs": []}}`, r.FormValue("workloadIds"))
	case strings.HasPrefix(r.URL.Path, "/v0/snapshots/s"):
		io.WriteString(w, `{"id":"s","name":"s"}`)
	case r.URL.Path == "/v0/platform/nodes/n1" && r.FormValue("force") == "true":
		io.WriteString(w, `{"total":3,"lost":[{"kind":"sandbox","workspace":"w","name":"web"},{"kind":"volume","workspace":"w","name":"data","older":true}]}`)
	case r.URL.Path == "/v0/platform/nodes/n3":
		w.WriteHeader(http.StatusConflict)
		io.WriteString(w, `{"error":"conflict","code":409,"message":"the node has a lease"}`)
	case r.URL.Path == "/v0/platform/nodes/settle" && r.FormValue("force") == "true":
		io.WriteString(w, `{"total":1,"lost":[{"kind":"sandbox","workspace":"w","name":"late"}]}`)
	case r.URL.Path == "/v0/platform/nodes/settle":
		w.WriteHeader(http.StatusConflict)
		io.WriteString(w, `{"error":"conflict","code":409,"message":"what is not on record is sandbox: 1 (w/late)"}`)
	case r.URL.Path == "/v0/platform/nodes/n1/sandboxes":
		io.WriteString(w, `{"total":3,"sandboxes":[{"workspace":"w","name":"web","status":"DEPLOYED","state":"STANDBY"},{"workspace":"v","name":"old","status":"ARCHIVED"}]}`)
	case r.URL.Path == "/v0/sandboxes/web/node":
		io.WriteString(w, `{"node":"n1"}`)
	case r.URL.Path == "/v0/platform/nodes":
		io.WriteString(w, `[{"id":"n1","state":"ready","present":true,"sandboxes":2,"unrecorded":1,"version":"1"},{"id":"n2","state":"ready","version":"1"}]`)
	case strings.HasPrefix(r.URL.Path, "/v0/platform/nodes/n"):
		io.WriteString(w, `{"total":0,"lost":[]}`)
	case name == "off":
		fmt.Fprintf(w, sandboxJSON, "off", s.URL+"/run/w/sandboxes/off")
	case strings.HasPrefix(r.URL.Path, "/run/w/sandboxes/off/"):
		w.WriteHeader(http.StatusNotFound)
		io.WriteString(w, `{"error":{"code":"WORKLOAD_UNAVAILABLE","status":404,"message":"the sandbox is disabled","retryable":true}}`)
	case r.URL.Path == "/v0/observability/logs":
		fmt.Fprintf(w, `{%q: {"totalCount": 2, "logs": [
			{"timestamp":"2026-01-31T12:00:01.000Z","severity":"ERROR","process":"app","stream":"stderr","message":"\u001b[31moops"},
			{"timestamp":"2026-01-31T12:00:00.000Z","severity":"INFO","message":"the sandbox is ready"}]}}`, r.FormValue("workloadIds"))
	case r.URL.Path == "/v0/schedule-executions":
		io.WriteString(w, `{"data":[{"scheduleId":"s","sandbox":"web","status":"failed","error":"sandbox web: no room"}],"meta":{}}`)
	case strings.HasPrefix(r.URL.Path, "/v0/vpcs"), strings.HasPrefix(r.URL.Path, "/v0/egress"):
		w.Write(networkAnswer(r.Method+" "+r.URL.Path, body))
	case name == "ruled" && r.Method == http.MethodGet:
		io.WriteString(w, ruledJSON)
	case name == "ruled":
		w.Write(body)
	case r.URL.Path == "/v0/sandboxes", name == "web":
		fmt.Fprintf(w, sandboxJSON, "web", inside)
	case rest == "/process" && r.Method == http.MethodGet:
		io.WriteString(w, `[{"pid":"7","name":"p","status":"running","command":"make"},{"pid":"8","name":"q","status":"failed","exitCode":2}]`)
	case rest == "/process" && r.Header.Get("Accept") != "text/event-stream":
		io.WriteString(w, `{"pid":"7","name":"p"}`)
	case rest == "/process":
		w.Header().Set("Content-Type", "application/x-ndjson")
		io.WriteString(w, `{"type":"stdout","data":"out\n"}`+"\n"+`{"type":"stderr","data":"err\n"}`+"\n")
		if in.Command == "forever" {
			http.NewResponseController(w).Flush()
			<-r.Context().Done()
			return
		}
		if in.Stdin {
			http.NewResponseController(w).Flush()
			select {
			case <-s.closed:
			case <-r.Context().Done():
				return
			}
		}
		code := map[string]int{"false": 1, "exit 42": 42, "killed": -1, "odd signal": -1, "old agent": -1, "wrap": 256}[in.Command]
		signal := map[string]int{"killed": 9, "odd signal": 64}[in.Command]
		result, _ := json.Marshal(map[string]string{"type": "result", "data": fmt.Sprintf(`{"pid":"7","name":"p","exitCode":%d,"signal":%d}`, code, signal)})
		w.Write(result)
	case r.Method == http.MethodPost && strings.HasSuffix(rest, "/stdin") && string(body) == "spoiled":
		w.WriteHeader(http.StatusInternalServerError)
		io.WriteString(w, `{"error":"write to stdin: no"}`)
	case r.Method == http.MethodPost && strings.HasSuffix(rest, "/stdin"):
		io.WriteString(w, `{"message":"written","path":""}`)
	case r.Method == http.MethodDelete && strings.HasSuffix(rest, "/stdin"):
		io.WriteString(w, `{"message":"closed","path":""}`)
		close(s.closed)
	case rest == "/process/p/logs":
		io.WriteString(w, `{"stdout":"out\n","stderr":"err\n","logs":"out\nerr\n"}`)
	case rest == "/process/p/logs/stream":
		io.WriteString(w, "stdout:out\nstderr:err\n")
	case r.Method == http.MethodDelete && strings.HasPrefix(rest, "/process/exec-"):
		io.WriteString(w, `{"message":"stopped","path":""}`)
	default:
		w.WriteHeader(http.StatusNotFound)
		io.WriteString(w, `{"error":"not_found","code":404,"message":"there is no such\nsandbox"}`)
	}
}

// command runs a command line as a user of s.
func (s *server) command(ctx context.Context, t *testing.T, in string, args ...string) (code int, out, errs string) {
	t.Helper()
	var o, e bytes.Buffer
	env := map[string]string{"DOZE_ADDRESS": s.URL, "DOZE_KEY": "good", "DOZE_WORKSPACE": "w", "HERE": "local"}
	a := app{out: &o, err: &e, getenv: func(k string) string { return env[k] }, now: testNow, config: filepath.Join(t.TempDir(), "c.json")}
	if in != "" {
		a.in = strings.NewReader(in)
	}
	code = a.run(ctx, args)
	return code, o.String(), e.String()
}

func TestCommands(t *testing.T) {
	const header = "NAME  STATUS    STATE    IMAGE  MEMORY  LAST USED  URL\n"
	const row = "web   DEPLOYED  STANDBY  base   4096    5m ago     BASE/run/w/sandboxes/web\n"
	runCommands(t, map[string]commandCase{
		"create": {
			"sandbox|create|web|--image|img|--memory|512|--env|A=b=c|-e|HERE|--label|k=v|--port|80|--port|81/tcp|--ttl|1h|--external-id|x|--if-not-exists",
			0, header + row, "",
			[]string{`POST /v0/sandboxes?createIfNotExist=true {"metadata":{"name":"web","externalId":"x","labels":{"k":"v"}},"spec":{"runtime":{"envs":[{"name":"A","value":"b=c"},{"name":"HERE","value":"local"}],"image":"img","memory":512,"ports":[{"target":80},{"target":81,"protocol":"TCP"}],"ttl":"1h"}}}`},
		},
		"create, no name": {"sandbox|create", 0, header + row, "", []string{`POST /v0/sandboxes {"metadata":{"name":""},"spec":{"runtime":{}}}`}},
		"create, with rules": {
			"sandbox|create|web|--allow|a.example|--allow|*.b.example|--forbid|c.example", 0, header + row, "",
			[]string{`POST /v0/sandboxes {"metadata":{"name":"web"},"spec":{"runtime":{},"network":{"proxy":{"forbiddenDomains":["c.example"],"allowedDomains":["a.example","*.b.example"]}}}}`},
		},
		"create, variable of none": {"sandbox|create|web|--env|NOT_SET", 2, "", "doze: --env must be NAME=value, or NAME of a variable that is set here, not \"NOT_SET\"; see --help\n", nil},
		"create, empty variable":   {"sandbox|create|web|--env|NOT_SET=", 0, header + row, "", []string{`POST /v0/sandboxes {"metadata":{"name":"web"},"spec":{"runtime":{"envs":[{"name":"NOT_SET","value":""}]}}}`}},
		"exec, variable of none":   {"exec|web|--env|NOT_SET|true", 2, "", "doze: --env must be NAME=value, or NAME of a variable that is set here, not \"NOT_SET\"; see --help\n", nil},
		"create, bad label":        {"sandbox|create|--label|k", 2, "", "doze: --label must be key=value, not \"k\"; see --help\n", nil},
		"create, no port":          {"sandbox|create|--port|80/", 2, "", "doze: --port must be like 3000 or 5432/tcp, not \"80/\"; see --help\n", nil},
		"create, no number":        {"sandbox|create|--memory|abc", 2, "", "doze: --memory must be a number, not \"abc\"; see --help\n", nil},
		"template of none":         {"volume|template|upload|t|/nonexist", 1, "", "doze: stat /nonexist: no such file or directory\n", nil},
		"template of links":        {"volume|template|upload|t|/proc/self/ns", 1, "", "doze: /proc/self/ns/cgroup is neither a file nor a directory: a template cannot have links or special files\n", nil},
		"get":                      {"sandbox|get|web", 0, header + row, "", nil},
		"get, unknown":             {"sandbox|get|nope", 3, "", "doze: there is no such sandbox\n", []string{"GET /v0/sandboxes/nope", "GET /v0/sandboxes?limit=200", "GET /v0/sandboxes?cursor=c&limit=200"}},
		"get, misspelt":            {"sandbox|get|wep", 3, "", "doze: there is no such sandbox; did you mean web?\n", []string{"GET /v0/sandboxes/wep", "GET /v0/sandboxes?limit=200", "GET /v0/sandboxes?cursor=c&limit=200"}},
		"get, as a name":           {"sandbox|get|web|-o|name", 0, "web\n", "", nil},
		"get, as JSON":             {"-o|json|sandbox|get|nope", 3, "", `{"error":"not_found","code":404,"message":"there is no such sandbox"}` + "\n", []string{"GET /v0/sandboxes/nope", "GET /v0/sandboxes?limit=200", "GET /v0/sandboxes?cursor=c&limit=200"}},
		"usage, as JSON":           {"sandbox|create|-o|json|--label|k", 2, "", `{"error":"usage","message":"--label must be key=value, not \"k\""}` + "\n", nil},
		"node rm":                  {"node|rm|n1", 0, "n1\n", "", []string{"DELETE /v0/platform/nodes/n1"}},
		"node rm, by force": {
			"node|rm|n1|n2|--force", 0, "n1\nn2\nLOST     WORKSPACE  NAME  LEFT\nsandbox  w          web   nothing\nvolume   w          data  an older state\n",
			"and 1 more: the log of control names them\n",
			[]string{"DELETE /v0/platform/nodes/n1?force=true", "DELETE /v0/platform/nodes/n2?force=true"},
		},
		"node rm, nothing was lost": {"node|rm|n2|--force", 0, "n2\n", "nothing was lost\n", []string{"DELETE /v0/platform/nodes/n2?force=true"}},
		"node rm, not removed": {
			"node|rm|n3|--force", 4, "", "doze: n3: the node has a lease\n", []string{"DELETE /v0/platform/nodes/n3?force=true"},
		},
		"node ls, of restored records": {
			"node|ls", 0, "NODE  STATE  HERE  SANDBOXES  AWAKE  MEMORY  RESERVED  HEARD OF  VERSION  UNRECORDED\n" +
				"n1    ready  yes   2          0      0       0         -         1        1\nn2    ready  no    0          0      0       0         -         1        0\n", "",
			[]string{"GET /v0/platform/nodes"},
		},
		"node sandboxes": {
			"node|sandboxes|n1", 0, "WORKSPACE  NAME  STATUS    STATE    LAST USED\nw          web   DEPLOYED  STANDBY  -\nv          old   ARCHIVED  -        -\nand 1 more\n", "",
			[]string{"GET /v0/platform/nodes/n1/sandboxes"},
		},
		"node of a sandbox":     {"sandbox|where|web", 0, "NAME  NODE\nweb   n1\n", "", []string{"GET /v0/sandboxes/web/node"}},
		"node settle":           {"node|settle", 4, "", "doze: what is not on record is sandbox: 1 (w/late)\n", []string{"POST /v0/platform/nodes/settle"}},
		"node settle, by force": {"node|settle|--force", 0, "LOST     WORKSPACE  NAME  LEFT\nsandbox  w          late  nothing\n", "", []string{"POST /v0/platform/nodes/settle?force=true"}},
		"rm, one is gone":       {"sandbox|rm|web|nope", 3, "web\n", "doze: nope: there is no such sandbox\n", []string{"DELETE /v0/sandboxes/web", "DELETE /v0/sandboxes/nope", "GET /v0/sandboxes?limit=200", "GET /v0/sandboxes?cursor=c&limit=200"}},
		"rm, the others are no suggestion": {
			"rm|web|wep", 3, "web\n", "doze: wep: there is no such sandbox\n",
			[]string{"DELETE /v0/sandboxes/web", "DELETE /v0/sandboxes/wep", "GET /v0/sandboxes?limit=200", "GET /v0/sandboxes?cursor=c&limit=200"},
		},
		"rm, one that is deleted is no mistake": {
			"rm|wep|we", 3, "", "doze: wep: there is no such sandbox we: there is no such sandbox; did you mean web?\n",
			[]string{"DELETE /v0/sandboxes/wep", "DELETE /v0/sandboxes/we", "GET /v0/sandboxes?limit=200", "GET /v0/sandboxes?cursor=c&limit=200"},
		},
		"update, nothing":       {"update|web", 2, "", "doze: nothing to change: use a flag such as --memory; see --help\n", nil},
		"exec, disabled":        {"exec|off|--|true", 4, "", "doze: the sandbox is disabled; enable it with: doze update NAME --enable\n", []string{"GET /v0/sandboxes/off", `POST /run/w/sandboxes/off/process {"command":"true","name":"NAME","waitForCompletion":true}`}},
		"preview, no port":      {"preview|create|web|p1", 2, "", "doze: --port is required; see --help\n", nil},
		"too few arguments":     {"preview|create|web", 2, "", "doze: doze preview create needs NAME; see --help\n", nil},
		"no arguments":          {"schedule|create", 2, "", "doze: doze schedule create needs SANDBOX and COMMAND; see --help\n", nil},
		"help about nothing":    {"help|sandbax", 2, "", "doze: doze has no help about \"sandbax\"; did you mean sandbox?; see --help\n", nil},
		"help about no command": {"help|sandbox|exit", 2, "", "doze: doze sandbox has no help about \"exit\"; did you mean exec?; see --help\n", nil},
		"snapshot rm": {
			"snapshot|rm|s1|s2", 0, "s1\ns2\n", "",
			[]string{"GET /v0/snapshots/s1", "GET /v0/snapshots/s2", "DELETE /v0/snapshots/s1", "DELETE /v0/snapshots/s2"},
		},
		"snapshot rm, of a sandbox": {
			"snapshot|rm|s1|web", 3, "", "doze: no snapshot was deleted: web: there is no such sandbox\n",
			[]string{"GET /v0/snapshots/s1", "GET /v0/snapshots/web"},
		},
		"logs, unknown": {
			"logs|wep", 3, "", "doze: there is no such sandbox; did you mean web?\n",
			[]string{"GET /v0/observability/logs?limit=100&resourceType=sandbox&workloadIds=wep", "GET /v0/sandboxes/wep", "GET /v0/observability/logs?limit=1&resourceType=sandbox&workloadIds=wep", "GET /v0/sandboxes?limit=200", "GET /v0/sandboxes?cursor=c&limit=200"},
		},
		"logs, none": {"logs|web|--search|nothing", 0, "", "", []string{"GET /v0/observability/logs?limit=100&resourceType=sandbox&search=nothing&workloadIds=web"}},
		"logs of a sandbox that ended, none": {
			"logs|gone|--search|nothing", 0, "", "",
			[]string{"GET /v0/observability/logs?limit=100&resourceType=sandbox&search=nothing&workloadIds=gone", "GET /v0/sandboxes/gone", "GET /v0/observability/logs?limit=1&resourceType=sandbox&workloadIds=gone"},
		},
		"exec, shell text": {"sandbox|exec|web|--|ls; wc -l", 0, "out\n", "err\n", []string{`POST /run/w/sandboxes/web/process {"command":"ls; wc -l","name":"NAME","waitForCompletion":true}`}},
		"exec, quoted": {
			"sandbox|exec|web|-w|/app|-e|A=b|--|echo|-n|it's|$HOME||*", 0, "out\n", "err\n",
			[]string{`POST /run/w/sandboxes/web/process {"command":"echo -n 'it'\\''s' '$HOME' '' '*'","name":"NAME","workingDir":"/app","env":{"A":"b"},"waitForCompletion":true}`},
		},
		"exec, no dashes": {
			"sandbox|exec|-w|/app|web|git|checkout|-b|--|x y", 0, "out\n", "err\n",
			[]string{`POST /run/w/sandboxes/web/process {"command":"git checkout -b -- 'x y'","name":"NAME","workingDir":"/app","waitForCompletion":true}`},
		},
		"exec, flags after the name": {
			"sandbox|exec|web|-w|/app|npm|test|-w", 0, "out\n", "err\n",
			[]string{`POST /run/w/sandboxes/web/process {"command":"npm test -w","name":"NAME","workingDir":"/app","waitForCompletion":true}`},
		},
		"exec, bad format late": {"sandbox|exec|web|-o|xml|true", 2, "", "doze: --output must be table, wide, json, yaml or name, not \"xml\"; see --help\n", nil},
		"exec, bad flag late":   {"sandbox|exec|web|--lout|true", 2, "", "doze: unknown flag: --lout; see --help\n", nil},
		"exec, tty of a pipe":   {"sandbox|exec|-it|web|sh", 2, "", "doze: standard input is not a terminal: leave out -t; see --help\n", nil},
		"exec, tty detached":    {"sandbox|exec|-dt|web|sh", 2, "", "doze: a detached command has neither input nor a terminal: leave out -i and -t; see --help\n", nil},
		"exec, exit code":       {"sandbox|exec|web|--|exit 42", 42, "out\n", "err\n", []string{`POST /run/w/sandboxes/web/process {"command":"exit 42","name":"NAME","waitForCompletion":true}`}},
		"exec, signal":          {"sandbox|exec|web|--|killed", 137, "out\n", "err\ndoze: the command was ended by signal 9, SIGKILL\n", []string{`POST /run/w/sandboxes/web/process {"command":"killed","name":"NAME","waitForCompletion":true}`}},
		"exec, odd signal":      {"sandbox|exec|web|--|odd signal", 192, "out\n", "err\ndoze: the command was ended by signal 64\n", []string{`POST /run/w/sandboxes/web/process {"command":"odd signal","name":"NAME","waitForCompletion":true}`}},
		"exec, old agent":       {"sandbox|exec|web|--|old agent", 255, "out\n", "err\ndoze: the command was ended by a signal\n", []string{`POST /run/w/sandboxes/web/process {"command":"old agent","name":"NAME","waitForCompletion":true}`}},
		"exec, odd code":        {"sandbox|exec|web|--|wrap", 1, "out\n", "err\n", []string{`POST /run/w/sandboxes/web/process {"command":"wrap","name":"NAME","waitForCompletion":true}`}},
		"exec, detached":        {"sandbox|exec|web|-d|--keep-alive|--|serve", 0, "p\n", "", []string{`POST /run/w/sandboxes/web/process {"command":"serve","keepAlive":true,"timeout":0}`}},
		"exec, timeout": {
			"sandbox|exec|web|--timeout|1s|--|forever", 124, "out\n", "err\ndoze: the command ran for longer than 1s and was stopped\n",
			[]string{`POST /run/w/sandboxes/web/process {"command":"forever","name":"NAME","waitForCompletion":true}`, "DELETE /run/w/sandboxes/web/process/NAME"},
		},
		"exec, no command":   {"sandbox|exec|web", 2, "", "doze: doze sandbox exec needs a command; see --help\n", nil},
		"exec, lost timeout": {"sandbox|exec|web|-d|--timeout|1s|--|x", 2, "", "doze: --timeout of a detached command needs --keep-alive; see --help\n", nil},
		"logs, stored": {
			"sandbox|logs|web", 0,
			"2026-01-31T12:00:00Z INFO    platform: the sandbox is ready\n2026-01-31T12:00:01Z ERROR   app: [31moops\n", "",
			[]string{"GET /v0/observability/logs?limit=100&resourceType=sandbox&workloadIds=web"},
		},
		"logs, selected": {
			"sandbox|logs|gone|-n|5|--since|2026-01-31T12:00:00Z|--until|2026-02-01T00:00:00Z|--severity|ERROR,WARNING|--search|oo ps|--process|app|--type|process", 0,
			"2026-01-31T12:00:00Z INFO    platform: the sandbox is ready\n2026-01-31T12:00:01Z ERROR   app: [31moops\n", "",
			[]string{"GET /v0/observability/logs?end=2026-02-01T00%3A00%3A00Z&limit=5&process=app&resourceType=sandbox&search=oo+ps&severity=ERROR%2CWARNING&start=2026-01-31T12%3A00%3A00Z&type=process&workloadIds=gone"},
		},
		"logs, mixed up":     {"sandbox|logs|web|p|--since|1h", 2, "", "doze: --since is for the stored log: leave out PROCESS, and use --process to select one; see --help\n", nil},
		"logs, too many":     {"sandbox|logs|web|-n|9999", 2, "", "doze: --lines must be 1 to 1000; see --help\n", nil},
		"logs":               {"sandbox|logs|web|p", 0, "out\n", "err\n", []string{"GET /run/w/sandboxes/web/process/p/logs"}},
		"logs, followed":     {"sandbox|logs|-f|web|p", 0, "out\n", "err\n", []string{"GET /run/w/sandboxes/web/process/p/logs/stream"}},
		"ps":                 {"sandbox|ps|web", 0, "PID  NAME  STATUS   EXIT  STARTED  COMMAND\n7    p     running  -     -        make\n8    q     failed   2     -        -\n", "", []string{"GET /run/w/sandboxes/web/process"}},
		"shell, no terminal": {"sandbox|shell|web", 1, "", "doze: standard input is not a terminal: use doze exec\n", nil},
		"schedule": {
			"schedule|create|web|--cron|0 3 * * *|--id|s|-e|HERE|--timeout|1m|--|./run|a b", 0,
			"SANDBOX ID TYPE WHEN COMMAND CREATED\nweb s cron 0 3 * * * ./run -\n", "",
			[]string{`POST /v0/sandboxes/web/schedules {"id":"s","type":"cron","value":"0 3 * * *","input":{"command":"./run 'a b'","env":{"HERE":"local"},"keepAlive":true,"timeout":60}}`},
		},
		"schedule, never":     {"schedule|create|web|--|x", 2, "", "doze: say when with --cron, --at or --in; see --help\n", nil},
		"schedule, too often": {"schedule|create|web|--at|a|--in|b|--|x", 2, "", "doze: choose one of --cron, --at and --in; see --help\n", nil},
		"runs": {
			"schedule|runs|web", 0, "SANDBOX SCHEDULE STARTED STATUS CODE PROCESS ERROR\nweb s - failed 0 - sandbox web: no room\n", "",
			[]string{"GET /v0/schedule-executions?limit=200&sandbox=web"},
		},
		"unknown command":      {"sandboxen", 2, "", "doze: doze has no command \"sandboxen\"; did you mean sandbox or sandboxes?; see --help\n", nil},
		"unknown subcommand":   {"sandbox|fly", 2, "", "doze: doze sandbox has no command \"fly\"; see --help\n", nil},
		"misspelt flag":        {"sandbox|ls|--lable|k=v", 2, "", "doze: unknown flag: --lable; did you mean --label?; see --help\n", nil},
		"unknown flag":         {"version|--loud", 2, "", "doze: unknown flag: --loud; see --help\n", nil},
		"unknown format":       {"version|-o|xml", 2, "", "doze: --output must be table, wide, json, yaml or name, not \"xml\"; see --help\n", nil},
		"too many arguments":   {"sandbox|get|a|b", 2, "", "doze: doze sandbox get has too many arguments; see --help\n", nil},
		"JSON of one":          {"sandbox|get|web|-o|json", 0, "", "", nil},
		"JSON of an execution": {"sandbox|exec|web|-o|json|--|false", 1, "", "", []string{`POST /run/w/sandboxes/web/process {"command":"false","name":"NAME","waitForCompletion":true}`}},
	})
}

// commandCase is a command line and what comes of it.
type commandCase struct {
	args      string // split at |
	code      int
	out, errs string
	calls     []string
}

func runCommands(t *testing.T, cases map[string]commandCase) {
	t.Helper()
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			code, out, errs := s.command(t.Context(), t, "", strings.Split(c.args, "|")...)
			if strings.Contains(c.args, "-o|json") && (code == 0 || out != "") {
				if !json.Valid([]byte(out)) {
					t.Errorf("no JSON: %s", out)
				}
				out = ""
			}
			if code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
			for what, d := range map[string]string{
				"stdout": cmp.Diff(columns(strings.ReplaceAll(c.out, "BASE", s.URL)), columns(out)), "stderr": cmp.Diff(c.errs, errs), "calls": cmp.Diff(c.calls, s.calls()),
			} {
				if d != "" {
					t.Errorf("%s: %s", what, d)
				}
			}
		})
	}
}

// columns makes the width of columns irrelevant: addresses differ in length.
func columns(s string) []string {
	var out []string
	for line := range strings.Lines(s) {
		out = append(out, strings.Join(strings.Fields(line), " "))
	}
	return out
}

func TestExecPassesInputOn(t *testing.T) {
	const process = "/run/w/sandboxes/web/process"
	start := func(command string) string {
		return "POST " + process + ` {"command":"` + command + `","name":"NAME","waitForCompletion":true,"stdin":true}`
	}
	cases := map[string]struct {
		in, args string // args are split at |
		code     int
		errs     string
		calls    []string
	}{
		"pipe":     {"hello\n", "web|--|cat", 0, "err\n", []string{start("cat"), "POST " + process + "/NAME/stdin hello", "DELETE " + process + "/NAME/stdin"}},
		"detached": {"hello\n", "web|-d|--|cat", 0, "", []string{"POST " + process + ` {"command":"cat"}`}},
		"it breaks": {
			"spoiled", "web|--|cat", 1, "err\ndoze: the command was stopped: standard input: write to stdin: no\n",
			[]string{start("cat"), "POST " + process + "/NAME/stdin spoiled", "DELETE " + process + "/NAME"},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			code, _, errs := s.command(t.Context(), t, c.in, append([]string{"sandbox", "exec"}, strings.Split(c.args, "|")...)...)
			if code != c.code || errs != c.errs {
				t.Errorf("exit code %d, %q", code, errs)
			}
			if diff := cmp.Diff(c.calls, s.calls()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestWhatIsInput: whatever is no terminal, for that has somebody behind it.
func TestWhatIsInput(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if a := (&app{in: null}); a.input(false) != io.Reader(null) {
		t.Error("a device that is no terminal is no input")
	}
	if a := (&app{}); a.input(true) != nil {
		t.Error("nothing is an input")
	}
	keyboard, terminal, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer keyboard.Close()
	defer terminal.Close()
	if a := (&app{in: terminal}); a.input(false) != nil || a.input(true) != io.Reader(terminal) {
		t.Error("a terminal is an input only if that is asked for")
	}
}

func TestListReadsAllPagesAndDrawsNothing(t *testing.T) {
	s := newServer(t)
	code, out, errs := s.command(t.Context(), t, "", "sandbox", "ls")
	if code != 0 || strings.Count(out, "\n") != 3 || strings.Contains(out, "\x1b") || errs != "" {
		t.Errorf("code %d\n%q\n%s", code, out, errs)
	}
	code, out, _ = s.command(t.Context(), t, "", "sandbox", "ls", "-o", "json")
	var all []doze.Sandbox
	if err := json.Unmarshal([]byte(out), &all); code != 0 || err != nil || len(all) != 2 {
		t.Errorf("code %d, %v, %s", code, err, out)
	}
}

func TestInterruptStopsTheCommand(t *testing.T) {
	s := newServer(t)
	ctx, cancel := context.WithCancel(t.Context())
	var out interrupting = func(p []byte) { cancel() }
	a := app{out: out, err: io.Discard, getenv: func(k string) string {
		return map[string]string{"DOZE_ADDRESS": s.URL, "DOZE_KEY": "good"}[k]
	}}
	if code := a.run(ctx, []string{"sandbox", "exec", "web", "--", "forever"}); code != exitInterrupted {
		t.Errorf("exit code %d", code)
	}
	if last := s.calls()[len(s.calls())-1]; last != "DELETE /run/w/sandboxes/web/process/NAME" {
		t.Errorf("the last call was %s", last)
	}
}

type interrupting func([]byte)

func (f interrupting) Write(p []byte) (int, error) { f(p); return len(p), nil }

func TestLogin(t *testing.T) {
	s := newServer(t)
	data := t.TempDir()
	if err := os.WriteFile(filepath.Join(data, "admin.key"), []byte("good\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct {
		in   string
		args []string
		code int
		errs string
	}{
		"key":             {"", []string{"--key", "good"}, 0, "logged in to BASE, workspace w\n"},
		"standard input":  {"good\n", nil, 0, "logged in to BASE, workspace w\n"},
		"no newline":      {"good", nil, 0, "logged in to BASE, workspace w\n"},
		"data":            {"", []string{"--data", data}, 0, "logged in to BASE, workspace w\n"},
		"workspace":       {"good", []string{"--workspace", "w"}, 0, "logged in to BASE, workspace w\n"},
		"other workspace": {"good", []string{"--workspace", "v"}, 1, "doze: the key has no access to the workspace \"v\"; it has: w\n"},
		"bad key":         {"", []string{"--key", "bad"}, 4, "doze: the API key is not valid (doze login stores a key)\n"},
		"nothing":         {"", nil, 2, "doze: give a key on standard input, or with --key or --data; see --help\n"},
		"both":            {"", []string{"--data", data, "--key", "k"}, 2, "doze: give --key or --data, not both; see --help\n"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var errs bytes.Buffer
			a := app{in: strings.NewReader(c.in), out: io.Discard, err: &errs, getenv: func(string) string { return "" }, now: testNow, config: filepath.Join(t.TempDir(), "doze", "config.json")}
			code := a.run(t.Context(), append([]string{"login", "--address", s.URL}, c.args...))
			if want := strings.ReplaceAll(c.errs, "BASE", s.URL); code != c.code || errs.String() != want {
				t.Errorf("code %d\n%s%s", code, errs.String(), want)
			}
			info, err := os.Stat(a.config)
			if c.code != 0 {
				if err == nil {
					t.Error("it was stored")
				}
				return
			}
			if err != nil || info.Mode().Perm() != 0o600 {
				t.Fatalf("%v %v", info, err)
			}
			a.out = &errs
			if code := a.run(t.Context(), []string{"sandbox", "get", "web"}); code != 0 {
				t.Errorf("afterwards: %s", errs.String())
			}
		})
	}
}

func TestLoginFindsTheServerOfADataDirectory(t *testing.T) {
	s := newServer(t)
	data := t.TempDir()
	for name, content := range map[string]string{"admin.key": "good\n", "instance.json": `{"address":"` + s.URL + `","run":"/run/x"}`} {
		if err := os.WriteFile(filepath.Join(data, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var errs bytes.Buffer
	a := app{out: io.Discard, err: &errs, getenv: func(string) string { return "" }, now: testNow, config: filepath.Join(t.TempDir(), "doze", "config.json")}
	// Another server that was used before is not meant.
	if err := a.save(settings{Address: "http://127.0.0.1:1", Key: "k"}); err != nil {
		t.Fatal(err)
	}
	if code := a.run(t.Context(), []string{"login", "--data", data}); code != 0 || !strings.Contains(errs.String(), s.URL) {
		t.Errorf("code %d, %s", code, errs.String())
	}
	for name, raw := range map[string]string{"damaged": "{", "of another kind": "[]"} {
		if err := os.WriteFile(filepath.Join(data, "instance.json"), []byte(raw), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := addressOf(data); got != "" {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestNobodyIsLoggedIn(t *testing.T) {
	var errs bytes.Buffer
	a := app{out: io.Discard, err: &errs, getenv: func(string) string { return "" }, now: testNow, config: filepath.Join(t.TempDir(), "none")}
	if code := a.run(t.Context(), []string{"sandbox", "ls"}); code != 1 || !strings.Contains(errs.String(), "run doze login") {
		t.Errorf("code %d, %s", code, errs.String())
	}
	if err := os.WriteFile(a.config, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	errs.Reset()
	if code := a.run(t.Context(), []string{"sandbox", "ls"}); code != 1 || strings.Count(errs.String(), "\n") != 1 {
		t.Errorf("code %d, %s", code, errs.String())
	}
}

// TestQuoting asks a real shell what it makes of our quotes.
func TestQuoting(t *testing.T) {
	for _, args := range [][]string{{"a", "b c", "it's", "$HOME `id` $(id)", "", "*", "\\", "\n", "é", "-n", "a=b", "~", "#x", "!x"}} {
		out, err := exec.CommandContext(t.Context(), "sh", "-c", shellText(append([]string{"printf", `%s\0`}, args...))).Output()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(args, strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")); diff != "" {
			t.Error(diff)
		}
	}
}

// TestUsageNamesArguments: whatever a command refuses for want of arguments, it names
// one, and takes as many as it names.
func TestUsageNamesArguments(t *testing.T) {
	t.Parallel()
	a := app{getenv: func(string) string { return "" }}
	found := 0
	var check func(cmd *cobra.Command)
	check = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			check(sub)
		}
		if cmd.Args == nil || cmd.Args(cmd, nil) == nil {
			return
		}
		found++
		names := missing(cmd, 0)
		if len(names) == 0 {
			t.Errorf("%s names no argument", cmd.CommandPath())
		} else if err := cmd.Args(cmd, names); err != nil {
			t.Error(err)
		}
	}
	if check(a.root()); found < 50 {
		t.Errorf("only %d commands need arguments", found)
	}
}

func TestHelpIsCurrent(t *testing.T) {
	a := app{out: io.Discard, err: io.Discard, getenv: func(string) string { return "" }}
	var b strings.Builder
	var show func(cmd *cobra.Command)
	show = func(cmd *cobra.Command) {
		fmt.Fprintf(&b, "$ %s --help\n", cmd.CommandPath())
		cmd.InitDefaultHelpFlag()
		cmd.SetOut(&b)
		if err := cmd.Help(); err != nil {
			t.Fatal(err)
		}
		b.WriteString("\n")
		for _, sub := range cmd.Commands() {
			show(sub)
		}
	}
	show(a.root())

	const file = "testdata/help.golden"
	if *update {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), b.String()); diff != "" {
		t.Errorf("%s is stale: run go test ./cmd/doze -update\n%s", file, diff)
	}
}
