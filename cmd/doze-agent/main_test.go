package main

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze/internal/testkit/freeport"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// patience bounds every wait of a test.
const patience = 20 * time.Second

// A new dependency is paid for in every sandbox, so it is a line in a review.
func TestDependencies(t *testing.T) {
	t.Parallel()
	const golden = "../../testdata/agent-deps.golden"
	list := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", ".")
	list.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	deps := strings.Fields(string(out))
	slices.Sort(deps)
	got := strings.Join(deps, "\n") + "\n"
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s is stale: run go test ./cmd/doze-agent -update\n%s", golden, diff)
	}
}

// programDir is where the binary of all tests is. TestMain makes and removes it.
var programDir string

// program is the static binary, which is built once for all tests.
var program = sync.OnceValues(func() (string, error) {
	bin := filepath.Join(programDir, "doze-agent")
	build := exec.Command("go", "build", "-ldflags", "-X main.version=v1", "-o", bin, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build: %w\n%s", err, out)
	}
	return bin, nil
})

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "doze-agent-test-")
	if err != nil {
		panic(err)
	}
	defer func() {
		if err := os.RemoveAll(dir); err != nil {
			panic(err)
		}
	}()
	programDir = dir
	m.Run()
}

// boot runs the static binary as the first process of a namespace whose root
// script has prepared, and returns its address.
func boot(t *testing.T, script string) (url string, agent *exec.Cmd) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("a namespace of processes needs root")
	}
	bin, err := program()
	if err != nil {
		t.Fatal(err)
	}
	addr, err := freeport.Address(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	agent = exec.CommandContext(t.Context(), "/bin/sh", "-ec", "mount --make-rprivate /; mount -t proc none /proc; "+script, "boot", bin, addr, t.TempDir())
	agent.Env = []string{"WORKDIR=/tmp"}
	agent.Stderr = os.Stderr
	agent.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWUTS, Pdeathsig: syscall.SIGKILL}
	if err := agent.Start(); err != nil {
		t.Skipf("this system has no namespaces: %v", err)
	}
	t.Cleanup(func() { // both fail if the test has ended it
		_ = agent.Process.Kill()
		_ = agent.Wait()
	})
	deadline := time.Now().Add(patience)
	for {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			conn.Close()
			return "http://" + addr, agent
		}
		if time.Now().After(deadline) {
			t.Fatalf("the agent does not answer: %v", err)
		}
		time.Sleep(2 * time.Millisecond) // there is no event for a listener in another process
	}
}

// call sends a request and decodes the answer.
func call(t *testing.T, method, url, body string) (int, map[string]any) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	client := http.Client{Timeout: patience}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var v map[string]any
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatalf("%s %s: %s", method, url, b)
	}
	return resp.StatusCode, v
}

// shell runs a command in the sandbox to its end.
func shell(t *testing.T, url, command string) string {
	t.Helper()
	body, _ := json.Marshal(map[string]any{"command": command, "waitForCompletion": true})
	status, p := call(t, "POST", url+"/process", string(body))
	if status != 200 || p["exitCode"] != 0.0 {
		t.Fatalf("%s: status %d, %v", command, status, p)
	}
	out, _ := p["stdout"].(string)
	return out
}

func TestFirstProcess(t *testing.T) {
	t.Parallel()
	url, agent := boot(t, `hostname box; mount -t tmpfs none /etc; mount -t tmpfs none /var/log; exec "$1" -listen "$2"`)
	if _, h := call(t, "GET", url+"/health", ""); h["version"] != "v1" {
		t.Errorf("health %v", h)
	}
	if got := shell(t, url, "cat /etc/hostname; grep -c localhost /etc/hosts; grep -c nameserver /etc/resolv.conf"); got != "box\n2\n1\n" {
		t.Errorf("the files are %q", got)
	}
	// Without CAP_SYS_RESOURCE nobody may lower a score: then it stays.
	scores := shell(t, url, "cat /proc/1/oom_score_adj; cat /proc/$$/oom_score_adj; echo $HOME $PPID")
	if _, rest, _ := strings.Cut(scores, "\n"); rest != "500\n/root 1\n" || scores[0] != '-' && scores[0] != '0' {
		t.Errorf("the scores are %q", scores)
	}
	// Orphans are collected, and the agent's own children keep their status. What
	// it has open of them is closed again.
	const many, slack = 50, 10
	files := func() (n int) {
		_, _ = fmt.Sscan(shell(t, url, "ls /proc/1/fd | wc -l"), &n)
		return n
	}
	open := files()
	for i := range many {
		body := fmt.Sprintf(`{"command":"( ( true & ) ; sleep 0.01 & ) ; exit %d","waitForCompletion":true}`, i)
		if _, p := call(t, "POST", url+"/process", body); p["exitCode"] != float64(i) {
			t.Fatalf("exit %d came as %v", i, p["exitCode"])
		}
	}
	if now := files(); open == 0 || now > open+slack {
		t.Errorf("the agent had %d files open, and %d after %d processes", open, now, many)
	}
	deadline := time.Now().Add(patience)
	for {
		out := shell(t, url, `for s in /proc/[0-9]*/stat; do read -r line < $s && echo "$line"; done 2>/dev/null; true`)
		if strings.Count(out, "\n") == 2 && !strings.Contains(out, ") Z ") { // the agent and the shell
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("still there:\n%s", out)
		}
	}

	// A signal does not end it: it could be one of its own processes that sent it.
	dir := t.TempDir()
	up, bye := filepath.Join(dir, "up"), filepath.Join(dir, "bye")
	call(t, "POST", url+"/process", `{"command":"trap 'echo bye > `+bye+`; exit 0' TERM; echo > `+up+`; while :; do sleep 0.01; done","name":"p"}`)
	for deadline := time.Now().Add(patience); ; { // until then, a signal ends it without a word
		if _, err := os.Stat(up); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the process does not begin")
		}
		time.Sleep(time.Millisecond)
	}
	if err := agent.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	shell(t, url, "true")
	if _, err := os.Stat(bye); err == nil {
		t.Error("a signal to the agent ends its processes")
	}
	// Told to stop by its node, it asks its processes to.
	if status, _ := call(t, "POST", url+"/doze/stop", ""); status != http.StatusOK {
		t.Errorf("stop is answered by %d", status)
	}
	if _, err := os.Stat(bye); err != nil {
		t.Errorf("the process was not asked to end: %v", err)
	}
}

// TestStopSignals: told to stop, the first process asks the program of the image by its own
// signal, and all others by SIGTERM, also those that left their session.
func TestStopSignals(t *testing.T) {
	t.Parallel()
	url, _ := boot(t, `exec "$1" -listen "$2"`)
	dir := t.TempDir()
	said := func(name string) string {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		return string(b)
	}
	loop := func(name string) string {
		file := filepath.Join(dir, name)
		return fmt.Sprintf(`trap 'echo INT >>%[1]s; exit 0' INT; trap 'echo TERM >>%[1]s; exit 0' TERM; echo up >>%[1]s; while :; do sleep 0.01; done`, file)
	}
	begin, err := json.Marshal(map[string]any{"program": []string{"/bin/sh", "-c", loop("image")}, "stopSignal": 2})
	if err != nil {
		t.Fatal(err)
	}
	call(t, "POST", url+"/doze/image", string(begin))
	shell(t, url, "setsid sh -c \""+loop("daemon")+"\" >/dev/null 2>&1 &")
	for deadline := time.Now().Add(patience); said("image") == "" || said("daemon") == ""; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the processes do not begin")
		}
	}
	if status, _ := call(t, "POST", url+"/doze/stop", ""); status != http.StatusOK {
		t.Errorf("stop is answered by %d", status)
	}
	for name, want := range map[string]string{"image": "up\nINT\n", "daemon": "up\nTERM\n"} {
		if got := said(name); got != want {
			t.Errorf("%s says %q, want %q", name, got, want)
		}
	}
}

// An agent that has nothing to do does nothing: what it touched would have to be
// kept in memory, and saved with every sleep.
func TestIdle(t *testing.T) {
	t.Parallel()
	url, agent := boot(t, `exec "$1" -listen "$2"`)
	shell(t, url, "true")
	switches := func() (n int) {
		files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", agent.Process.Pid))
		if err != nil || len(files) == 0 {
			t.Fatalf("the agent has %d threads, %v", len(files), err)
		}
		for _, file := range files {
			b, _ := os.ReadFile(file)
			_, rest, _ := strings.Cut(string(b), "\nvoluntary_ctxt_switches:")
			var of int
			_, _ = fmt.Sscan(rest, &of)
			n += of
		}
		return n
	}
	// The runtime may still have to put its threads to rest.
	const still, waits = time.Second, 10
	for range waits {
		before := switches()
		time.Sleep(still) // nothing must happen: there is no event for that
		if switches() == before {
			return
		}
	}
	t.Errorf("it never rests for %v", still)
}

// storage takes uploads, and may be told to refuse them.
type storage struct {
	*httptest.Server

	mu      sync.Mutex
	bodies  map[string]string // by method and path
	failing bool
}

func newStorage(t *testing.T) *storage {
	t.Helper()
	s := &storage{bodies: map[string]string{}}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.failing || err != nil || r.ContentLength != int64(len(b)) || r.Method == http.MethodPut && r.Header.Get("X-Class") != "cold" {
			w.WriteHeader(http.StatusForbidden)
		}
		w.Header().Set("ETag", `"tag<`+r.URL.Path+`"`)
		s.bodies[r.Method+" "+r.URL.Path] = string(b)
	}))
	t.Cleanup(s.Close)
	return s
}

// has reports whether a request came.
func (s *storage) has(request string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.bodies[request]
	return ok
}

// TestExport archives what is different from an image, and nothing changes
// meanwhile.
func TestExport(t *testing.T) {
	t.Parallel()
	url, _ := boot(t, `for d in usr bin lib lib64; do [ -d /$d ] && mkdir -p "$3/$d" && mount --bind /$d "$3/$d"; done
mkdir -p "$3/proc" "$3/dev" "$3/tmp" "$3/image/etc"; mount -t proc none "$3/proc"; mount --bind /dev "$3/dev"; cp "$1" "$3/agent"; echo old > "$3/image/etc/gone"; exec chroot "$3" /agent -listen "$2"`)
	store := newStorage(t)
	export := func(over map[string]any) (int, map[string]any) {
		body := map[string]any{
			"imageMountPoint": "/image", "excludes": []string{"/usr", "bin", "lib", "lib64", "agent", "tmp", "run", "etc/hosts", "etc/hostname", "etc/resolv.conf", "var"},
			"headers": map[string]string{"X-Class": "cold"}, "stopTimeoutSeconds": 1,
		}
		maps.Copy(body, over)
		b, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		return call(t, "POST", url+"/archive/export", string(b))
	}
	state := func() string {
		_, v := call(t, "GET", url+"/archive/status", "")
		return fmt.Sprint(v["state"])
	}
	call(t, "PUT", url+"/filesystem//new/file", `{"content":"content"}`)
	call(t, "POST", url+"/process", `{"command":"trap '' TERM; sleep 60 & wait; sleep 60","name":"deaf","keepAlive":true}`)

	for name, over := range map[string]map[string]any{
		"no address": {}, "bad address": {"url": "x"}, "no image": {"url": store.URL, "imageMountPoint": ""}, "image is a file": {"dryRun": true, "imageMountPoint": "/agent"},
		"no parts": {"multipart": map[string]any{"partSize": 1}}, "bad time": {"dryRun": true, "stopTimeoutSeconds": -1},
	} {
		if status, v := export(over); status != http.StatusBadRequest || v["error"] == "" {
			t.Errorf("%s: status %d, %v", name, status, v)
		}
	}

	status, dry := export(map[string]any{"dryRun": true})
	changes, _ := json.Marshal(dry["changes"])
	if want := `[{"kind":"deleted","path":"etc/gone","size":0},{"kind":"added","path":"new","size":0},{"kind":"added","path":"new/file","size":7}]`; status != 200 || string(changes) != want || dry["uploaded"] != false || state() != "active" {
		t.Errorf("dry run: status %d, %v", status, dry)
	}

	// A storage that refuses does not learn its way into the error.
	store.failing = true
	if status, v := export(map[string]any{"url": store.URL + "/secret"}); status != http.StatusInternalServerError || strings.Contains(fmt.Sprint(v), "secret") || !strings.Contains(fmt.Sprint(v["error"]), "403") {
		t.Errorf("refused: status %d, %v", status, v)
	}
	parted := map[string]any{"multipart": map[string]any{"partSize": 100, "partUrls": slices.Repeat([]string{store.URL + "/p"}, 100), "completeUrl": store.URL + "/complete", "abortUrl": store.URL + "/abort"}}
	if status, v := export(parted); status != http.StatusInternalServerError || !store.has("DELETE /abort") || store.has("POST /complete") {
		t.Errorf("refused in parts: status %d, %v", status, v)
	}
	store.failing = false
	if status, v := call(t, "POST", url+"/archive/resume", ""); status != 200 || v["state"] != "active" {
		t.Errorf("resume: status %d, %v", status, v)
	}
	call(t, "POST", url+"/process", `{"command":"sleep 60","name":"again"}`)

	status, got := export(map[string]any{"url": store.URL + "/one"})
	if status != 200 || got["uploaded"] != true || got["size"] != float64(len(store.bodies["PUT /one"])) || fmt.Sprint(got["stoppedProcesses"]) != "[again]" {
		t.Errorf("status %d, %v", status, got)
	}
	for _, frozen := range []struct{ method, path, body string }{
		{"PUT", "/filesystem/x", `{"content":""}`}, {"POST", "/process", `{"command":"true"}`}, {"POST", "/mcp", `{}`}, {"DELETE", "/filesystem/new?recursive=true", ""},
	} {
		if status, v := call(t, frozen.method, url+frozen.path, frozen.body); status != http.StatusConflict || !strings.Contains(fmt.Sprint(v["error"]), "frozen") {
			t.Errorf("%s: status %d, %v", frozen.path, status, v)
		}
	}
	if _, v := call(t, "GET", url+"/filesystem//new/file", ""); v["content"] != "content" || state() != "quiesced" {
		t.Errorf("%s, %v", state(), v)
	}

	// Without the commands of its processes.
	status, got = export(map[string]any{"url": store.URL + "/bare", "saveProcesses": false})
	if bare := store.bodies["PUT /bare"]; status != 200 || !strings.Contains(bare, "new/file") || strings.Contains(bare, "processes.json") {
		t.Errorf("without processes: status %d, %v", status, got)
	}

	// In parts, and while nobody waits.
	status, got = export(map[string]any{"async": true, "multipart": map[string]any{
		"partSize": 2000, "partUrls": []string{store.URL + "/p1", store.URL + "/p2", store.URL + "/p3", store.URL + "/p4"}, "completeUrl": store.URL + "/complete",
	}})
	if status != http.StatusAccepted || got["state"] != "running" {
		t.Errorf("status %d, %v", status, got)
	}
	deadline := time.Now().Add(patience)
	for {
		_, v := call(t, "GET", url+"/archive/status", "")
		last, _ := v["export"].(map[string]any)
		if last["state"] != "running" || time.Now().After(deadline) {
			if last["state"] != "succeeded" || last["uploaded"] != true {
				t.Errorf("it ended as %v", last)
			}
			break
		}
	}
	store.mu.Lock()
	defer store.mu.Unlock()
	parts := store.bodies["PUT /p1"] + store.bodies["PUT /p2"] + store.bodies["PUT /p3"] + store.bodies["PUT /p4"]
	var names []string
	for r := tar.NewReader(strings.NewReader(parts)); ; {
		h, err := r.Next()
		if err != nil {
			break
		}
		names = append(names, h.Name)
	}
	if want := ".doze-archive/manifest.json .doze-archive/processes.json new/ new/file"; strings.Join(names, " ") != want {
		t.Errorf("the members are %v", names)
	}
	if list := store.bodies["POST /complete"]; !strings.HasPrefix(list, `<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>"tag&lt;/p1"</ETag></Part>`) {
		t.Errorf("put together as %s", list)
	}
}

// peak returns the most memory that an agent ever had, in kB.
func peak(t *testing.T, agent *exec.Cmd) (kb int) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", agent.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "VmHWM:")
	_, _ = fmt.Sscan(rest, &kb)
	return kb
}

// Bodies of any size go to the disk as they come, however they are sent.
func TestMemoryIsFlat(t *testing.T) {
	t.Parallel()
	url, agent := boot(t, `mkdir "$3/proc" "$3/tmp"; mount -t proc none "$3/proc"; cp "$1" "$3/agent"; exec chroot "$3" /agent -listen "$2"`)
	before := peak(t, agent)
	var up map[string]any
	if _, up = call(t, "POST", url+"/filesystem-multipart/initiate/x", ""); up["uploadId"] == nil {
		t.Fatal(up)
	}
	const size = 48 << 20 // three times what it may grow
	head := "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\n"
	form := func() io.Reader {
		return io.MultiReader(strings.NewReader(head), io.LimitReader(zeros{}, size), strings.NewReader("\r\n--b--\r\n"))
	}
	const escaped = `\u0000\n\"`
	object := func(head, tail string) io.Reader {
		return io.MultiReader(strings.NewReader(head), strings.NewReader(strings.Repeat(escaped, size/len(escaped))), strings.NewReader(tail))
	}
	for _, sent := range []struct {
		path, kind string
		body       io.Reader
	}{
		{"/filesystem/large", "multipart/form-data; boundary=b", form()},
		{fmt.Sprintf("/filesystem-multipart/%s/part?partNumber=1", up["uploadId"]), "multipart/form-data; boundary=b", form()},
		{"/filesystem/text", "application/json", object(`{"content":"`, `","permissions":"0600"}`)},
		{"/filesystem/tree/tree", "application/json", object(`{"files":{"a":"","b":"`, `"}}`)},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, url+sent.path, sent.body)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", sent.kind)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("%s: status %d", sent.path, resp.StatusCode)
		}
	}
	for _, path := range []string{"/filesystem/large", "/filesystem/large?download=true", "/filesystem-content-search/?query=x"} {
		resp, err := http.Get(url + path)
		if err != nil {
			t.Fatal(err)
		}
		n, err := io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Errorf("%s: status %d after %d bytes, %v", path, resp.StatusCode, n, err)
		}
	}
	if grown := peak(t, agent) - before; grown > 16<<10 {
		t.Errorf("the agent grew by %d kB, to %d kB", grown, before+grown)
	}
}

// zeros is an endless file.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// An image may consist of nothing at all.
func TestEmptyImage(t *testing.T) {
	t.Parallel()
	url, _ := boot(t, `cp "$1" "$3/agent"; exec chroot "$3" /agent -listen "$2"`)
	if status, v := call(t, "POST", url+"/process", `{"command":"true"}`); status != 422 || !strings.Contains(fmt.Sprint(v["error"]), "no shell") {
		t.Errorf("status %d: %v", status, v)
	}
	if status, v := call(t, "PUT", url+"/filesystem/a/b", `{"content":"x"}`); status != 200 {
		t.Errorf("status %d: %v", status, v)
	}
	if _, v := call(t, "GET", url+"/filesystem//tmp/a/b", ""); v["content"] != "x" || v["owner"] != "0" {
		t.Errorf("got %v", v)
	}
	if _, v := call(t, "GET", url+"/filesystem-content-search//tmp?query=x", ""); v["total"] != 1.0 {
		t.Errorf("got %v", v)
	}
	if _, v := call(t, "POST", url+"/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"fsReadFile","arguments":{"path":"/tmp/a/b"}}}`); !strings.Contains(fmt.Sprint(v["result"]), "content:x") {
		t.Errorf("got %v", v)
	}
	if status, v := call(t, "GET", url+"/network/process/1/ports", ""); status != http.StatusUnprocessableEntity { // there is no /proc
		t.Errorf("status %d: %v", status, v)
	}
	if _, v := call(t, "GET", url+"/filesystem//etc/hosts", ""); !strings.Contains(fmt.Sprint(v["content"]), "localhost") {
		t.Errorf("got %v", v)
	}
}

// What callers do not send, send in vain and do not read is not held in memory.
func TestMemoryIsFlatForThoseWhoStall(t *testing.T) {
	t.Parallel()
	const (
		many     = 16
		piece    = 8 << 20
		tooLarge = 65 << 20
		head     = "--b\r\nContent-Disposition: form-data; name=file; filename=x\r\n\r\n"
	)
	url, agent := boot(t, `mount -t tmpfs none /srv; mount -t tmpfs none /var/log; exec "$1" -listen "$2"`)
	shell(t, url, "true")
	before := peak(t, agent)
	dial := func(format string, args ...any) net.Conn {
		conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		fmt.Fprintf(conn, format, args...)
		return conn
	}
	for i := range many {
		dial("PUT /filesystem//srv/slow%d HTTP/1.1\r\nHost: a\r\nContent-Type: multipart/form-data; boundary=b\r\nContent-Length: %d\r\n\r\n%s%s",
			i, tooLarge, head, strings.Repeat("x", piece))
	}
	for range many {
		conn := dial("PUT /filesystem//srv/x HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n{", tooLarge)
		answer := make([]byte, len("HTTP/1.1 413"))
		if _, err := io.ReadFull(conn, answer); err != nil || string(answer) != "HTTP/1.1 413" {
			t.Errorf("a body that is too large is answered with %s, %v", answer, err)
		}
	}
	// More than is kept of its output, and callers who ask for that and do not
	// read it.
	status, p := call(t, "POST", url+"/process", `{"name":"writer","command":"head -c 40M /dev/zero | tr '\\0' x"}`)
	if status != http.StatusOK {
		t.Fatalf("%v", p)
	}
	for range many {
		dial("GET /process/writer/logs/stream HTTP/1.1\r\nHost: a\r\n\r\n")
	}
	for deadline := time.Now().Add(4 * patience); p["status"] != "completed"; time.Sleep(50 * time.Millisecond) { // nobody says when
		if time.Now().After(deadline) {
			t.Fatalf("the process is %v", p["status"])
		}
		_, p = call(t, "GET", url+"/process/writer", "")
	}
	// What is sent is more than this in each of the ways.
	if grown := peak(t, agent) - before; grown > 64<<10 {
		t.Errorf("the agent grew by %d kB, to %d kB", grown, before+grown)
	}
}
