package e2e_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/md5"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dozehq/doze/internal/testkit"
)

// TestAgent asks a sandbox, through the edge, what is not asked elsewhere: each
// endpoint for an answer and for an error that it documents.
func TestAgent(t *testing.T) {
	t.Parallel()
	p, c := start(t)
	sb, agent := create(t, c, named("agent", 512))
	url := sb.Metadata.URL
	sh(t, agent, `mkdir -p /srv/app/src /srv/app/node_modules && cd /srv/app && printf 'package main\n// Needle\n' > src/main.go && echo needle > node_modules/x.js`)

	for name, test := range map[string]struct {
		method, path, body, kind string
		status                   int
		want                     string // part of the body
	}{
		"find":                  {"GET", "/filesystem-find/srv/app", "", "", 200, `{"matches":[{"path":"src/main.go","type":"file"}],"total":1}`},
		"find, type":            {"GET", "/filesystem-find/srv/app?type=x", "", "", 400, "type must be"},
		"find, nowhere":         {"GET", "/filesystem-find/none", "", "", 404, "no such directory"},
		"search":                {"GET", "/filesystem-search/srv/app?query=main", "", "", 200, `"path":"src/main.go"`},
		"search, nothing":       {"GET", "/filesystem-search/", "", "", 400, "query is required, or a last element"},
		"grep":                  {"GET", "/filesystem-content-search/%2Fsrv%2Fapp?query=NEEDLE&contextLines=1", "", "", 200, `{"path":"src/main.go","line":2,"column":4,"text":"// Needle","context":"package main\n// Needle"}`},
		"grep, nothing":         {"GET", "/filesystem-content-search/srv/app", "", "", 400, "query is required"},
		"watch, nowhere":        {"GET", "/watch/filesystem/none", "", "", 400, "no such directory"},
		"upload, permissions":   {"POST", "/filesystem-multipart/initiate/x", `{"permissions":"x"}`, "", 400, "octal"},
		"upload, number":        {"PUT", "/filesystem-multipart/none/part?partNumber=0", "--b\r\nContent-Disposition: form-data; name=file\r\n\r\nx\r\n--b--\r\n", "multipart/form-data; boundary=b", 500, "1 to 10000"},
		"upload, unknown":       {"GET", "/filesystem-multipart/none/parts", "", "", 404, "not found"},
		"upload, complete":      {"POST", "/filesystem-multipart/none/complete", `{"parts":[{"partNumber":1,"etag":"x"}]}`, "", 404, "not found"},
		"upload, abort":         {"DELETE", "/filesystem-multipart/none/abort", "", "", 404, "not found"},
		"ports, no number":      {"GET", "/network/process/x/ports", "", "", 400, "invalid PID"},
		"ports, nobody":         {"GET", "/network/process/9999999/ports", "", "", 200, `{"pid":9999999,"ports":[]}`},
		"monitor, no address":   {"POST", "/network/process/1/monitor", `{}`, "", 400, "callback"},
		"monitor, nobody":       {"POST", "/network/process/9999999/monitor", `{"callback":"http://127.0.0.1:1/"}`, "", 200, "Port monitoring started"},
		"monitor, stop":         {"DELETE", "/network/process/9999999/monitor", "", "", 200, "Port monitoring stopped"},
		"tunnel, none":          {"PUT", "/network/tunnel/config", `{}`, "", 400, "config is required"},
		"tunnel, bad":           {"PUT", "/network/tunnel/config", `{"config":"?"}`, "", 422, "invalid tunnel config"},
		"tunnel, delete":        {"DELETE", "/network/tunnel", "", "", 400, "no WireGuard client is running"},
		"terminal":              {"GET", "/terminal", "", "", 200, "</html>"},
		"upgrade":               {"POST", "/upgrade", `{"version":"x","baseUrl":"http://127.0.0.1:1"}`, "", 200, `"version":"x"`},
		"reload, no document":   {"POST", "/environment/reload", "", "", 404, "/bl/metadata"},
		"archive":               {"GET", "/archive/status", "", "", 200, `{"state":"active"`},
		"archive, no address":   {"POST", "/archive/export", `{}`, "", 400, "url is required"},
		"archive, no image":     {"POST", "/archive/export", `{"dryRun":true}`, "", 400, "imageMountPoint"},
		"archive, dry run":      {"POST", "/archive/export", `{"dryRun":true,"imageMountPoint":"/usr","excludes":["bin"]}`, "", 200, `"kind":"added"`},
		"codegen":               {"PUT", "/codegen/fastapply/x", `{"codeEdit":"x"}`, "", 400, "codegen tools are not configured"},
		"tools":                 {"POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, "", 200, `"name":"fsEditFile"`},
		"tools, stream":         {"GET", "/mcp", "", "", 405, `{"error":`},
		"tools, malformed":      {"POST", "/mcp", `{`, "", 400, ""},
		"a path is not cleaned": {"GET", "/filesystem-find//srv//app/", "", "", 200, `"total":1`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := call{method: test.method, url: url + test.path, body: test.body}
			if test.kind != "" {
				r.header = map[string]string{"Content-Type": test.kind}
			}
			if got := r.want(t, p, test.status); !strings.Contains(got.body, test.want) {
				t.Errorf("%s %s: %s", test.method, test.path, got.body)
			}
		})
	}

	t.Run("ports of a process", func(t *testing.T) {
		t.Parallel()
		var server struct{ PID string }
		call{method: "POST", url: url + "/process", body: `{"command":"python3 -m http.server 9100 & wait","waitForPorts":[9100],"timeout":60}`}.want(t, p, 200).into(t, &server)
		var got struct {
			Ports []struct {
				Protocol, State, ProcessName string
				LocalPort                    int
			}
		}
		call{url: url + "/network/process/" + server.PID + "/ports"}.want(t, p, 200).into(t, &got)
		if len(got.Ports) != 1 || got.Ports[0].LocalPort != 9100 || got.Ports[0].State != "LISTEN" || got.Ports[0].Protocol != "tcp" || got.Ports[0].ProcessName == "" {
			t.Errorf("got %+v", got)
		}
	})

	t.Run("upload in parts", func(t *testing.T) {
		t.Parallel()
		content := make([]byte, 6<<20)
		_, _ = rand.NewChaCha8([32]byte{1}).Read(content)
		var up struct{ UploadID, Path string }
		call{method: "POST", url: url + "/filesystem-multipart/initiate/%2Fsrv%2Fupload%2Ffile", body: `{"permissions":"0640"}`}.want(t, p, 200).into(t, &up)
		type part struct {
			PartNumber int    `json:"partNumber"`
			ETag       string `json:"etag"`
		}
		var parts []part
		for i, piece := range [][]byte{content[:5<<20], content[5<<20:]} {
			kind, body := form(t, "file", piece)
			var got part
			call{method: "PUT", url: fmt.Sprintf("%s/filesystem-multipart/%s/part?partNumber=%d", url, up.UploadID, i+1), header: map[string]string{"Content-Type": kind}, body: body}.want(t, p, 200).into(t, &got)
			if sum := md5.Sum(piece); got.PartNumber != i+1 || got.ETag != hex.EncodeToString(sum[:]) {
				t.Errorf("part %+v", got)
			}
			parts = append(parts, got)
		}
		call{method: "POST", url: url + "/filesystem-multipart/" + up.UploadID + "/complete", body: encode(t, map[string]any{"parts": parts})}.want(t, p, 200)
		sum := sha256.Sum256(content)
		if got := sh(t, agent, "stat -c %a /srv/upload/file; sha256sum < /srv/upload/file"); got != "640\n"+hex.EncodeToString(sum[:])+"  -" {
			t.Errorf("it is %s", got)
		}
	})

	t.Run("watch", func(t *testing.T) {
		t.Parallel()
		sh(t, agent, "mkdir -p /srv/watched/sub")
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		resp, err := call{url: url + "/watch/filesystem/%2Fsrv%2Fwatched%2F**?ignore=.git"}.open(ctx, p)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		// The headers come before the first event.
		if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/plain; charset=utf-8" {
			t.Fatalf("status %d, %v", resp.StatusCode, resp.Header)
		}
		events := bufio.NewScanner(resp.Body)
		next := func() string {
			for events.Scan() {
				var e struct{ Op, Name, Path string }
				if json.Unmarshal(events.Bytes(), &e) == nil {
					return e.Op + " " + e.Path + "/" + e.Name
				}
			}
			return fmt.Sprint(events.Err())
		}
		until := func(last string) (seen []string) {
			for len(seen) == 0 || seen[len(seen)-1] != last && len(seen) < 100 {
				seen = append(seen, next())
			}
			if seen[len(seen)-1] != last {
				t.Errorf("no %s in %v", last, seen)
			}
			return seen
		}
		call{method: "PUT", url: url + "/filesystem//srv/watched/sub/api", body: `{"content":"x"}`}.want(t, p, 200)
		if got := until("WRITE /srv/watched/sub/api"); strings.Join(got, ", ") != "CREATE /srv/watched/sub/api, WRITE /srv/watched/sub/api" {
			t.Errorf("got %v", got)
		}
		sh(t, agent, "cd /srv/watched; mkdir -p .git/x new/deep; echo x > new/deep/file")
		until("CREATE /srv/watched/new/deep/file")
		sh(t, agent, "cd /srv/watched; mv new other; rm other/deep/file; touch last")
		got := strings.Join(until("CREATE /srv/watched/last"), ", ")
		for _, want := range []string{"RENAME /srv/watched/new", "CREATE /srv/watched/other", "REMOVE /srv/watched/other/deep/file"} {
			if !strings.Contains(got, want) {
				t.Errorf("no %s in %s", want, got)
			}
		}
		if strings.Contains(got, ".git") {
			t.Errorf("got %s", got)
		}
	})
}

// publicClient is the script of [TestAgentWithPublicClients].
const publicClient = `
import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { SandboxInstance, getTool } from "@blaxel/core";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const sandbox = await SandboxInstance.get(process.env.E2E_SANDBOX);
const fs = sandbox.fs;
await fs.mkdir("/srv/sdk");
await fs.writeTree([{ path: "src/main.ts", content: "const needle = 1;\n" }, { path: "README.md", content: "x" }], "/srv/sdk");

const found = await fs.find("/srv/sdk", { type: "file", patterns: ["*.ts"] });
assert.deepEqual(found.matches, [{ path: "src/main.ts", type: "file" }]);
const hits = await fs.grep("Needle", "/srv/sdk", { contextLines: 1 });
assert.equal(hits.matches[0].line, 1);
assert.equal(hits.matches[0].column, 7);
assert.ok((await fs.search("unused", "/srv/sdk/main")).matches.some((m) => m.path === "src/main.ts"));

const seen = [];
const watched = new Promise((resolve, reject) => {
  const timer = setTimeout(() => reject(new Error("seen: " + JSON.stringify(seen))), 30000);
  const handle = fs.watch("/srv/sdk/**", (event) => {
    seen.push(event);
    if (event.name === "watched.txt" && event.content === "content") { clearTimeout(timer); handle.close(); resolve(); }
  }, { withContent: true, ignore: ["node_modules"], onError: reject });
});
for (let i = 0; i < 300 && !seen.length; i++) { // until the watch is there
  await fs.write("/srv/sdk/src/probe" + i, "x");
  await new Promise((r) => setTimeout(r, 100));
}
await fs.write("/srv/sdk/src/watched.txt", "content");
await watched;

const large = randomBytes(6 * 1024 * 1024);
await fs.writeBinary("/srv/sdk/large", large);
const back = Buffer.from(await (await fs.readBinary("/srv/sdk/large")).arrayBuffer());
assert.ok(large.equals(back), "6 MB come back");

const client = new Client({ name: "e2e", version: "1" });
await client.connect(new StreamableHTTPClientTransport(new URL(sandbox.metadata.url + "/mcp"), {
  requestInit: { headers: { Authorization: "Bearer " + process.env.BL_API_KEY } },
}));
const { tools } = await client.listTools();
assert.equal(tools.length, 19);
const ran = await client.callTool({ name: "processExecute", arguments: { command: "echo hi", waitForCompletion: true } });
assert.equal(ran.structuredContent.logs, "hi\n");
assert.ok((await client.callTool({ name: "fsReadFile", arguments: { path: "/none" } })).isError);
await client.close();

// The package's own client for tools finds the endpoint by the name.
const own = await getTool("sandboxes/" + process.env.E2E_SANDBOX);
assert.deepEqual(own.map((tool) => tool.name).sort(), tools.map((tool) => tool.name).sort());
const read = await own.find((tool) => tool.name === "fsReadFile").call({ path: "/srv/sdk/README.md" });
assert.equal(read.structuredContent.content, "x");
console.log("all passed");
process.exit(0);
`

// TestAgentWithPublicClients drives a sandbox with unmodified npm packages:
// the client of the API, and the one of the Model Context Protocol.
func TestAgentWithPublicClients(t *testing.T) {
	t.Parallel()
	p, c := start(t)
	create(t, c, named("clients", 512))
	cmd := exec.CommandContext(t.Context(), "node", "--input-type=module", "-")
	cmd.Dir = filepath.Join(testkit.Root(), "test", "e2e")
	cmd.Stdin = strings.NewReader(publicClient)
	cmd.WaitDelay = 10 * time.Second
	cmd.Env = append(cmd.Environ(),
		"BL_API_URL="+p.Address+"/v0", "BL_API_KEY="+p.Key, "BL_WORKSPACE=main", "BL_REGION=local",
		"BL_DISABLE_H2=1", "DO_NOT_TRACK=1", "E2E_SANDBOX=clients",
	)
	out, err := cmd.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("all passed")) {
		t.Errorf("%v\n%s", err, out)
	}
}
