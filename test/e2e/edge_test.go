package e2e_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
	"github.com/dozehq/doze/internal/testkit"
)

// nap is the pause-after of tests that watch sandboxes stay awake.
const nap = 400 * time.Millisecond

// servers speaks WebSocket, server-sent events and plain HTTP, with nothing
// but what Node.js brings.
const servers = `
const http = require("http"), crypto = require("crypto")
const server = http.createServer((q, r) => {
  if (q.url.startsWith("/events")) {
    r.writeHead(200, {"Content-Type": "text/event-stream"})
    r.write("data: 0\n\n")
    let n = 0
    const timer = setInterval(() => r.write("data: " + ++n + "\n\n"), 100)
    q.on("close", () => clearInterval(timer))
    return
  }
  if (q.url.startsWith("/silent")) { r.writeHead(200); r.write("."); return }
  let body = ""
  q.on("data", d => body += d).on("end", () => r.end(JSON.stringify({method: q.method, url: q.url, headers: q.rawHeaders, body})))
})
server.on("upgrade", (q, s) => {
  const accept = crypto.createHash("sha1").update(q.headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest("base64")
  s.write("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " + accept + "\r\n\r\n")
  let all = Buffer.alloc(0)
  s.on("data", d => {
    all = Buffer.concat([all, d])
    while (all.length >= 6) { // short masked frames only
      const n = all[1] & 127
      if (all.length < 6 + n) return
      const data = Buffer.from(all.subarray(6, 6 + n))
      for (let i = 0; i < n; i++) data[i] ^= all[2 + i % 4]
      s.write(Buffer.concat([Buffer.from([all[0], n]), data]))
      if ((all[0] & 15) == 8) s.end()
      all = all.subarray(6 + n)
    }
  })
  s.on("error", () => {})
})
server.listen(9000, "0.0.0.0")
`

// serveIn starts the servers in a sandbox and returns their address.
func serveIn(t *testing.T, p *testkit.Platform, sb doze.Sandbox, agent *client.Agent) string {
	t.Helper()
	put(t, agent, "/root/servers.js", servers)
	body := encode(t, map[string]any{"command": "exec node /root/servers.js", "name": "servers", "waitForPorts": []int{9000}, "timeout": 60})
	call{method: "POST", url: sb.Metadata.URL + "/process", body: body}.want(t, p, 200)
	return sb.Metadata.URL + "/port/9000"
}

// refusal is the body of an error of the edge.
type refusal struct {
	Error struct {
		Code, Message, Origin string
		Status                int
		Retryable             bool
	}
}

func TestEdge(t *testing.T) {
	t.Parallel()
	p, c := start(t, "--pause-after", "60s", "--domain", "doze.example")
	sb, _ := create(t, c, named("web", 1024))
	host := "sbx-web-main.local.doze.example"
	if !strings.HasPrefix(sb.Metadata.URL, "http://"+host) {
		t.Fatalf("its address is %s", sb.Metadata.URL)
	}
	path := p.Address + "/run/main/sandboxes/web"
	sb.Metadata.URL = path // no name server knows the domain
	agent, err := c.Agent(sb)
	if err != nil {
		t.Fatal(err)
	}
	port := serveIn(t, p, sb, agent)

	t.Run("addresses", func(t *testing.T) {
		t.Parallel()
		for name, c := range map[string]call{
			"host":           {url: p.Address + "/health", host: host},
			"host and port":  {url: p.Address + "/health", host: host + ":7080"},
			"host in caps":   {url: p.Address + "/health", host: "SBX-Web-Main.Local.Doze.Example"},
			"localhost":      {url: p.Address + "/health", host: "sbx-web-main.local.localhost"},
			"path":           {url: path + "/health"},
			"other header":   {url: path + "/health", key: none, header: map[string]string{"X-Blaxel-Authorization": "Bearer " + p.Key}},
			"port":           {url: port + "/health"},
			"port by host":   {url: p.Address + "/port/9000/health", host: host},
			"control is not": {url: p.Address + "/v0/health", host: "somewhere.example"},
		} {
			if a := c.do(t, p); a.status != 200 {
				t.Errorf("%s: %d %s", name, a.status, a.body)
			}
		}
	})

	t.Run("refusals", func(t *testing.T) {
		t.Parallel()
		for name, row := range map[string]struct {
			call
			status int
			code   string
		}{
			"no credential":       {call{url: path + "/health", key: none}, 401, "AUTHENTICATION_REQUIRED"},
			"by host":             {call{url: p.Address + "/health", host: host, key: none}, 401, "AUTHENTICATION_REQUIRED"},
			"wrong key":           {call{url: path + "/health", key: "dz_wrong_key"}, 401, "AUTHENTICATION_FAILED"},
			"altered key":         {call{url: path + "/health", key: p.Key[:len(p.Key)-1]}, 401, "AUTHENTICATION_FAILED"},
			"another scheme":      {call{url: path + "/health", key: none, header: map[string]string{"Authorization": "Basic abc"}}, 401, ""},
			"key in the query":    {call{url: path + "/health?token=" + p.Key, key: none}, 401, "AUTHENTICATION_REQUIRED"},
			"no such sandbox":     {call{url: p.Address + "/run/main/sandboxes/none/health"}, 404, "WORKLOAD_NOT_FOUND"},
			"another workspace":   {call{url: p.Address + "/run/other/sandboxes/web/health"}, 404, "WORKLOAD_NOT_FOUND"},
			"by another host":     {call{url: p.Address + "/health", host: "sbx-web-other.local.doze.example"}, 404, "WORKLOAD_NOT_FOUND"},
			"another region":      {call{url: p.Address + "/v0/sandboxes", host: "sbx-web-main.mars.localhost"}, 404, "ROUTE_NOT_FOUND"},
			"another domain":      {call{url: p.Address + "/health", host: "sbx-web-main.local.example.com", key: none}, 404, "ROUTE_NOT_FOUND"},
			"no such path":        {call{url: p.Address + "/run/main/boxes/web/health"}, 404, "WORKLOAD_NOT_FOUND"},
			"not a port":          {call{url: path + "/port/99999/"}, 400, "BAD_REQUEST"},
			"port zero":           {call{url: path + "/port/0/"}, 400, "BAD_REQUEST"},
			"private path":        {call{url: path + "/doze/keepalive"}, 404, "ROUTE_NOT_FOUND"},
			"private by slashes":  {call{url: path + "//doze//keepalive"}, 404, "ROUTE_NOT_FOUND"},
			"private by escapes":  {call{url: path + "/%64oze/keepalive"}, 404, "ROUTE_NOT_FOUND"},
			"private by its port": {call{url: path + "/port/8080/doze/keepalive"}, 404, "ROUTE_NOT_FOUND"},
			"closed port":         {call{url: path + "/port/9999/"}, 503, "WORKLOAD_UNAVAILABLE"},
		} {
			a := row.do(t, p)
			var said refusal
			a.into(t, &said)
			if a.status != row.status || row.code != "" && said.Error.Code != row.code || said.Error.Status != row.status || said.Error.Origin != "platform" || said.Error.Message == "" {
				t.Errorf("%s: %d %s", name, a.status, a.body)
			}
			if a.header.Get("X-Blaxel-Source") != "platform" || a.header.Get("X-Blaxel-Error-Code") != said.Error.Code {
				t.Errorf("%s: %v", name, a.header)
			}
		}
	})

	t.Run("bytes", func(t *testing.T) {
		t.Parallel()
		for _, target := range []string{"/", "//", "//a//b/", "/a%2Fb", "/%2e%2e/x", "/a/../b/./c", "/?", "/a?b=c&d=%2F+;e", "/%C3%A4?%C3%A4", "/;p=1?x=/../y"} {
			var seen struct {
				URL string `json:"url"`
			}
			rawGet(t, p, "/run/main/sandboxes/web/port/9000"+target).into(t, &seen)
			if seen.URL != target {
				t.Errorf("%s arrived as %s", target, seen.URL)
			}
		}
		body := strings.Repeat("0123456789abcdef", 1<<16)
		var seen struct{ Method, Body string }
		call{method: "PATCH", url: port + "/", body: body}.want(t, p, 200).into(t, &seen)
		if seen.Method != http.MethodPatch || seen.Body != body {
			t.Errorf("%s with %d bytes arrived", seen.Method, len(seen.Body))
		}
	})

	t.Run("credentials", func(t *testing.T) {
		t.Parallel()
		a := call{url: port + "/?token=mine", header: map[string]string{
			"X-Blaxel-Authorization": "Bearer " + p.Key, "X-Blaxel-Workspace": "main", "X-Blaxel-Subject-Id": "forged", "X-Forwarded-For": "1.2.3.4",
			"Cookie": "doze_session=secret; mine=1", "X-Mine": "kept",
		}}.want(t, p, 200)
		var seen struct{ Headers []string }
		a.into(t, &seen)
		all := strings.Join(seen.Headers, "\n")
		for _, never := range []string{p.Key, "Authorization", "authorization", "secret", "forged", "1.2.3.4"} {
			if strings.Contains(all, never) {
				t.Errorf("%q reached the sandbox:\n%s", never, all)
			}
		}
		for _, passed := range []string{"X-Mine\nkept", "Cookie\nmine=1", "X-Blaxel-Subject-Id", "X-Request-Id"} {
			if !strings.Contains(all, passed) {
				t.Errorf("%q did not reach the sandbox:\n%s", passed, all)
			}
		}
	})

	t.Run("socket", func(t *testing.T) {
		t.Parallel()
		ws := dial(t, p, port+"/ws")
		for i := range 20 {
			echo(t, ws, fmt.Sprintf("message %d ä", i))
		}
		if err := ws.Close(websocket.StatusNormalClosure, ""); err != nil {
			t.Error(err)
		}
	})

	t.Run("revoked", func(t *testing.T) {
		t.Parallel()
		var key doze.APIKey
		call{method: "POST", url: p.Address + "/v0/api_keys", body: `{"name":"short-lived"}`}.want(t, p, 200).into(t, &key)
		other := *p
		other.Key = key.Key
		call{url: port + "/", key: key.Key}.want(t, p, 200)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		stream, err := call{url: port + "/events", key: key.Key}.open(ctx, p)
		if err != nil {
			t.Fatal(err)
		}
		defer stream.Body.Close()
		ws := dial(t, &other, port+"/ws")
		echo(t, ws, "before")

		call{method: "DELETE", url: p.Address + "/v0/api_keys/" + key.ID}.want(t, p, 200)
		call{url: port + "/", key: key.Key}.want(t, p, 401)
		call{url: p.Address + "/v0/sandboxes", key: key.Key}.want(t, p, 401)
		_, _ = io.Copy(io.Discard, stream.Body) // its error is how it was cut
		if ctx.Err() != nil {
			t.Error("the stream goes on") // a test of package edge knows when it ends
		}
		if _, _, err := ws.Read(ctx); err == nil || ctx.Err() != nil {
			t.Errorf("the socket goes on: %v", err)
		}
		call{url: port + "/"}.want(t, p, 200)
	})

	t.Run("workspaces", func(t *testing.T) {
		t.Parallel()
		call{url: p.Address + "/v0/sandboxes", header: map[string]string{"X-Blaxel-Workspace": "other"}}.want(t, p, 403)
		var key doze.APIKey
		call{method: "POST", url: p.Address + "/v0/api_keys", body: `{"name":"reader","scopes":["sandboxes:list"]}`}.want(t, p, 200).into(t, &key)
		call{url: p.Address + "/v0/sandboxes", key: key.Key}.want(t, p, 200)
		call{url: p.Address + "/v0/sandboxes/web", key: key.Key}.want(t, p, 403)
		call{url: path + "/health", key: key.Key}.want(t, p, 403)
	})
}

// rawGet sends a path without any cleaning.
func rawGet(t *testing.T, p *testkit.Platform, target string) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, p.Address, nil)
	if err != nil {
		t.Fatal(err)
	}
	path, query, found := strings.Cut(target, "?")
	r.URL.Opaque, r.URL.RawQuery, r.URL.ForceQuery = path, query, found
	r.Header.Set("Authorization", "Bearer "+p.Key)
	resp, err := callers.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, string(body)}
}

func dial(t *testing.T, p *testkit.Platform, url string) *websocket.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ws, _, err := websocket.Dial(ctx, strings.Replace(url, "http://", "ws://", 1), &websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + p.Key}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ws.CloseNow() })
	return ws
}

func echo(t *testing.T, ws *websocket.Conn, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := ws.Write(ctx, websocket.MessageText, []byte(text)); err != nil {
		t.Fatal(err)
	}
	if _, got, err := ws.Read(ctx); err != nil || string(got) != text {
		t.Fatalf("the echo of %q is %q, %v", text, got, err)
	}
}

// TestAwake shows what keeps a sandbox awake, and what does not wake it.
func TestAwake(t *testing.T) {
	t.Parallel()
	p, c := start(t, "--pause-after", nap.String())

	// Each row begins a use, and returns how to end it.
	for name, begin := range map[string]func(t *testing.T, sb doze.Sandbox, agent *client.Agent) (end func()){
		"socket": func(t *testing.T, sb doze.Sandbox, agent *client.Agent) func() {
			t.Helper()
			ws := dial(t, p, serveIn(t, p, sb, agent)+"/ws")
			echo(t, ws, "hello")
			return func() { echo(t, ws, "still there"); _ = ws.Close(websocket.StatusNormalClosure, "") }
		},
		"events": func(t *testing.T, sb doze.Sandbox, agent *client.Agent) func() {
			t.Helper()
			resp, err := call{url: serveIn(t, p, sb, agent) + "/events"}.open(t.Context(), p)
			if err != nil {
				t.Fatal(err)
			}
			return func() {
				lines := bufio.NewReader(resp.Body)
				for {
					line, err := lines.ReadString('\n')
					if err != nil {
						t.Error(err)
					}
					if err != nil || line == "data: 8\n" {
						_ = resp.Body.Close()
						return
					}
				}
			}
		},
		"silence": func(t *testing.T, sb doze.Sandbox, agent *client.Agent) func() {
			t.Helper()
			resp, err := call{url: serveIn(t, p, sb, agent) + "/silent"}.open(t.Context(), p)
			if err != nil {
				t.Fatal(err)
			}
			return func() { _ = resp.Body.Close() }
		},
		"logs": func(t *testing.T, sb doze.Sandbox, agent *client.Agent) func() {
			t.Helper()
			spawn(t, agent, client.Command{Name: "quiet", Command: "sleep 1000"})
			resp, err := call{url: sb.Metadata.URL + "/process/quiet/logs/stream"}.open(t.Context(), p)
			if err != nil {
				t.Fatal(err)
			}
			return func() { _ = resp.Body.Close() }
		},
		"keepalive": func(t *testing.T, _ doze.Sandbox, agent *client.Agent) func() {
			t.Helper()
			put(t, agent, "/tmp/stay", "")
			forever := 0
			spawn(t, agent, client.Command{Command: "for i in $(seq 12); do sleep 0.1; done", KeepAlive: true, Timeout: &forever})
			return func() {} // it ends by itself
		},
		"killed": func(t *testing.T, _ doze.Sandbox, agent *client.Agent) func() {
			t.Helper()
			forever := 0
			spawn(t, agent, client.Command{Name: "kept", Command: "sleep 1000", KeepAlive: true, Timeout: &forever})
			return func() {
				if _, err := agent.Kill(t.Context(), "kept"); err != nil {
					t.Error(err)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sb, agent := create(t, c, named("awake-"+name, 512))
			end := begin(t, sb, agent)
			watch := 3 * nap
			if name == "keepalive" {
				watch = 2 * nap
			}
			stays(t, p, sb.Metadata.Name, "running", watch)
			end()
			awaitTier(t, p, sb.Metadata.Name, "paused")
			sleeps(t, c, sb.Metadata.Name)
		})
	}

	t.Run("process", func(t *testing.T) {
		t.Parallel()
		// A process without keepAlive keeps nothing awake.
		_, agent := create(t, c, named("process", 256))
		spawn(t, agent, client.Command{Command: "while :; do sleep 0.01; done"})
		awaitTier(t, p, "process", "paused")
	})

	t.Run("strangers", func(t *testing.T) {
		t.Parallel()
		sb, _ := create(t, c, named("stranger", 256))
		awaitTier(t, p, "stranger", "paused")
		var all sync.WaitGroup
		for worker := range 4 {
			all.Go(func() {
				for i := range 50 {
					bad := []call{
						{url: sb.Metadata.URL + "/health", key: none},
						{url: sb.Metadata.URL + "/health", key: "dz_wrong_key"},
						{method: "OPTIONS", url: sb.Metadata.URL + "/process", key: none},
						{url: p.Address + "/run/other/sandboxes/stranger/health"},
						{url: sb.Metadata.URL + "/port/x/"},
						{url: sb.Metadata.URL + "/doze/keepalive"},
						{url: p.Address + "/v0/sandboxes/stranger"}, // a look at the record is no use
					}[(worker+i)%7]
					resp, err := bad.open(t.Context(), p)
					if err != nil {
						t.Error(err)
						continue
					}
					_ = resp.Body.Close()
				}
			})
		}
		stays(t, p, "stranger", "paused", nap)
		all.Wait()
		stays(t, p, "stranger", "paused", nap/4)
		sleeps(t, c, "stranger")
	})
}
