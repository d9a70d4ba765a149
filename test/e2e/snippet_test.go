package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/dozehq/doze/internal/testkit"
	"github.com/dozehq/doze/internal/testkit/bucket"
)

// A page of the docs is run as a reader would: its commands one after the other, in one
// shell. What the page prints below them must look like an answer.

// snippet is what a page needs to be run.
type snippet struct {
	// before is run first: what the page takes for granted.
	before string
	// says is what stands for something else here, in pairs: the text of the page, and
	// what is run in its place.
	says []string
	// refused says that the page shows calls that fail.
	refused bool
	// unseen are documents that the page prints and none of its commands answers here,
	// as far as their begin, with the reason.
	unseen map[string]string
	// unable says why nothing of the page can be run here.
	unable string
}

const oneSandbox = `doze sandbox create web --memory 512 >/dev/null`

// snippets has a row for each page with commands.
var snippets = map[string]snippet{
	"README.md": {says: []string{
		"make run    # installs", ": # installs", "make test   # every", ": # every", // by the tests that you read
		`alias doze="sudo $PWD/bin/doze"`, ":", "/var/lib/doze", "$DATA",
		"sleep 20; doze sandbox ls ", "until doze sandbox ls | grep STANDBY; do sleep 0.2; done ",
	}},
	"docs/cli.md": {
		before: `unset DOZE_ADDRESS DOZE_KEY DOZE_WORKSPACE; mkdir app; echo hello >app/file; printf '#!/bin/sh\nsleep 60\n' >server; chmod +x server; printf 'all:\n\techo made\n' >Makefile
			ends() { timeout "$@" || test $? = 124; }`, // for commands that go on for ever
		says: []string{
			"/var/lib/doze", "$DATA",
			"doze exec -e CI=1 -w /app web npm test", "doze exec web mkdir /app; doze exec -e CI=1 -w /app web printenv CI",
			"doze exec -it web bash", ": -it", "doze shell web", ": shell", // they need a terminal: TestTerminal
			"doze node ls", ":", "doze node sandboxes NODE", ":", "doze node drain NODE", ":", "doze sandbox where web", ":", "doze sandbox move web --to NODE", ":", // TestDrain, TestMove
			"doze build . -t app", ": -t app", "doze create site --image app:2", ":", "doze image build-logs app", ":", // TestBuilds
			"web ./server", "web sleep 60", "web make", "web true",
			"doze ls --watch", "ends 2 doze ls --watch", "doze top", "ends 3 doze top", "doze events web --follow", "ends 2 doze events web --follow",
			"doze kill web server", "doze exec -d web 'exec -a server sleep 60' >name; doze kill web $(cat name)",
			"doze workspace use team", "doze workspace use main",
		},
	},
	"docs/operations.md": {
		before: `doze sandbox create web --image slim --memory 512 >/dev/null; mkdir -p fleet; echo x:y >drives; echo postgres://doze:secret@db.example.com/doze >database; echo http://proxy.example.com:3128 >proxy; chmod 600 drives database proxy`,
		says: []string{
			"dozed all --config /etc/doze.json", "echo '{}' >doze.json; dozed config print --config doze.json >/dev/null",
			"DOZED_LISTEN=127.0.0.1:7081 dozed all", "DOZED_LISTEN=127.0.0.1:7081 dozed config print | grep -q 7081",
			"make run DATA", "make -C $ROOT -n run DATA",
			"sandbox create hello --memory", "sandbox create hello --image slim --memory", // its backups have the images of sandboxes
			"(umask 077; echo 'postgres://doze:PASSWORD@db.example.com/doze' >/etc/doze.database)", ":",
			"(umask 077; echo 'http://doze:PASSWORD@proxy.example.com:3128' >/etc/doze.proxy)", ":", "/etc/doze.proxy", "$PWD/proxy",
			"/etc/doze.database", "$PWD/database", "/etc/doze.drives", "$PWD/drives",
			"doze drive create shared", ":", "doze drive mount web shared /mnt/shared", ":", // docs/api/drives.md does
			"doze build ./closed -t closed", ":", "doze sandbox create web --image closed", ":", // TestPackageMirrors
			"dozed certificates --data /var/lib/doze", "dozed certificates --data $PWD/fleet",
			"dozed control --data /var/lib/doze --control-listen", ": control", "dozed node --data /var/lib/doze --control", ": node", "dozed edge --data /var/lib/doze --control", ": edge", "doze node ", ": node ", "doze sandbox where web", ":", "doze sandbox move web --to NODE", ":", // TestEnroll, TestDrain and TestMove
			">/etc/doze.remote)", ">doze.remote)", "until doze login", "until : login", "/etc/doze/doze.json", "doze.json", // TestStranger
			"dozed control --data /var/lib/doze &", ":", "dozed node    --data /var/lib/doze &", ":", "dozed edge    --data /var/lib/doze &", ":", // the roles of every other test
			"make release ", ": make release ", "docker load <dist/", ": docker load dist/", "helm install", ": helm install", "sudo sh dist/VERSION/install.sh", ": install.sh", "sudo systemctl", ": systemctl", // make release-test
			"kubectl create secret generic doze-control", "ls", "kubectl create secret generic doze-edge", "ls", " --from-file=keys", " keys", "kubectl exec deploy/doze-control -- cat /var/lib/doze/admin.key | doze login", ": login", " | kubectl apply -f -", "", "docker tag ", ": docker tag ", "docker push ", ": docker push ", "helm upgrade", ": helm upgrade", ">fleet.backup", ">/dev/null", "kubectl ", ": kubectl ", // the files are there; make chart-test
			"sudo doze login --data /var/lib/doze", ":", "dozed doctor\n", "dozed doctor >/dev/null\n",
			"make build && sudo install", ": make build && : install", "kill -USR2 $(pidof dozed)", ": kill -USR2",
			"postgres://doze@db.example.com/doze            # an", "nowhere # an", "sudo mv /var/lib/doze/doze.db", ": mv", "dozed migrate", ": dozed migrate", // TestMigrate, TestMigrateToFleet
			"/etc/doze.passphrase)", "passphrase)", "/etc/doze.passphrase", "passphrase", "| ssh backup.example.com 'cat >doze.backup'", "| wc -c | grep -q ......",
			"dozed backup --data /var/lib/doze --database-file", ": dozed backup", "dozed restore --data /var/lib/doze --database-file", ": dozed restore", "dozed restore --data /var/lib/restored --database-file", ": dozed restore", "dozed restore --mark", ": dozed restore", // TestRestored, TestBackupOfControl
			"dozed backup --data /var/lib/doze", "dozed backup --quiet --data $DATA",
			"--data /var/lib/restored --from", "--quiet --images-dir restored/images --data restored --from",
			"dozed all --data /var/lib/restored", "test -s restored/doze.db", // TestBackup starts it
			"http://127.0.0.1:7080", "$URL",
			"dozed all --help", "dozed all --help >/dev/null", "dozed all --", "dozed config print --",
		},
	},
	"docs/api/README.md": {before: `doze sandbox create web-2 --memory 512 >/dev/null`, says: []string{"export URL=http://127.0.0.1:7080 KEY=…", ":"}},
	"docs/api/archives.md": {before: oneSandbox, says: []string{
		`curl -H "$auth" "$URL/v0/sandboxes/web"                       # until`, `until curl -H "$auth" "$URL/v0/sandboxes/web" | grep '"ARCHIVED"' >/dev/null; do sleep 0.2; done # until`,
	}},
	"docs/api/audit.md":       {before: oneSandbox},
	"docs/api/builds.md":      {unable: "the builder of the workspace would outlive the page: TestGuide and TestBuilds build"},
	"docs/api/credentials.md": {},
	"docs/api/domains.md":     {refused: true}, // nobody added the records
	"docs/api/drives.md": {
		before: `doze sandbox create web --memory 512 --label team=a >/dev/null`,
	},
	"docs/api/errors.md": {before: oneSandbox, refused: true},
	"docs/api/events.md": {before: oneSandbox, says: []string{
		"doze sandbox logs web --follow", "timeout 2 doze sandbox logs web --follow || test $? = 124",
	}, unseen: map[string]string{"HTTP/1.1 200 OK\nX-Doze-State-Age": "TestCheckpointEvery has a crash"}},
	"docs/api/extra-arguments.md": {},
	"docs/api/gateways.md": {
		before: oneSandbox + `; curl -H "$auth" --json '{"metadata": {"name": "other"}}' "$URL/v0/vpcs" >/dev/null`, refused: true,
		unseen: map[string]string{
			`{"metadata": {"name": "office"`: "this platform has no addresses to give; TestDedicatedAddress has a network with some",
		},
	},
	"docs/api/images.md": {
		before: `doze sandbox create web --image REGISTRY/team/web:1 --memory 512 >/dev/null`,
		says:   []string{"registry.example.com", "REGISTRY", "# stop it", "; sleep 1", "# start it again", "; sleep 2"},
	},
	"docs/api/lifetime.md": {},
	"docs/api/limits.md":   {refused: true},
	"docs/api/login.md":    {refused: true, unseen: map[string]string{`{"access_token"`: "nobody allows it in a browser; TestDeviceFlow does"}},
	"docs/api/network.md":  {unseen: map[string]string{`{"since": "2026-01-31`: "nothing connected here; TestConsole sees where a sandbox connected to"}},
	"docs/api/platform.md": {says: []string{`curl -N -H "$auth" "$URL/v0/feed?follow=true"`, `curl -H "$auth" "$URL/v0/feed"`}, unseen: map[string]string{`{"from": "2026-11-27`: "nothing happened here then; TestHistory reads what did"}},
	"docs/api/nodes.md":    {unable: "a platform of one process has no nodes: contract.TestNodeTranscripts asks for them"},
	"docs/api/policies.md": {},
	"docs/api/previews.md": {says: []string{
		`psql "host`, `: "host`, "redis-cli --tls", ": --tls", // TestPortsByTLS has a certificate
	}, before: oneSandbox + `
		doze sandbox create db --memory 512 >/dev/null
		curl -H "$auth" --json '{"metadata": {"name": "session"}, "spec": {"port": 3000, "public": false}}' "$URL/v0/sandboxes/web/previews" >/dev/null`},
	"docs/api/quotas.md": {
		before: `curl -H "$auth" --json '{"name": "other"}' "$URL/v0/workspaces" >/dev/null`,
		says:   []string{"workspaces/team", "workspaces/other"},
	},
	"docs/api/routing.md":     {},
	"docs/api/sandbox-api.md": {before: oneSandbox},
	"docs/api/sandboxes.md":   {},
	"docs/api/schedules.md":   {before: `doze sandbox create job --memory 512 >/dev/null`, unseen: map[string]string{`[{"id": "000000000001"`: "it runs at night; schedules.mjs sees executions"}},
	"docs/api/snapshots.md":   {before: `doze sandbox create a --memory 512 >/dev/null`},
	"docs/api/terminal.md":    {before: oneSandbox, unseen: map[string]string{`{"type": "start"`: "a client sends it: TestTerminalRunsACommand"}},
	"docs/api/tls.md":         {unable: "it needs port 443, and a name that the world knows: TestGateway has its own"},
	"docs/api/traces.md":      {before: oneSandbox},
	"docs/api/usage.md":       {before: oneSandbox, says: []string{"doze top", "timeout 3 doze top || test $? = 124"}, unseen: map[string]string{`"lastWake"`: "it did not sleep yet; TestConsumption lets one sleep"}},
	"docs/api/variables.md":   {},
	"docs/api/volume-templates.md": {before: `mkdir files; echo hello >files/a`, says: []string{
		"tar -c -C files", `UPLOAD=$(tr -d '\r' <"$OUT" | sed -n 's/^[Xx]-[Bb]laxel-[Uu]pload-[Uu]rl: //p'); tar -c -C files`,
	}},
	"docs/api/volumes.md":    {},
	"docs/api/workspaces.md": {},
}

// TestSnippetsHaveReasons: what is not run names a test that is there.
func TestSnippetsHaveReasons(t *testing.T) {
	t.Parallel()
	tests := map[string]bool{}
	err := filepath.WalkDir(testkit.Root(), func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(name, "_test.go") {
			return err
		}
		raw, err := os.ReadFile(name)
		for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)`).FindAllStringSubmatch(string(raw), -1) {
			tests[m[1]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile(`\bTest[A-Z]\w+`)
	for page, row := range snippets {
		for _, reason := range append(slices.Collect(maps.Values(row.unseen)), row.unable) {
			for _, test := range named.FindAllString(reason, -1) {
				if !tests[test] {
					t.Errorf("%s: there is no %s", page, test)
				}
			}
		}
	}
}

// TestSnippets runs the commands of README.md and of docs.
func TestSnippets(t *testing.T) {
	t.Parallel()
	srv := bucket.Serve(t)
	p, _ := start(t, "--private-registries", "--egress", "open", "--resolver", "127.0.0.1:9", "--drives", srv.URL, "--drives-credentials", srv.Credentials)
	images := httptest.NewServer(registry.New(registry.Logger(slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo))))
	t.Cleanup(images.Close)
	host := strings.TrimPrefix(images.URL, "http://")
	push(t, host+"/team/app:2", shellLayer(t, nil), v1.Config{})
	program, err := os.ReadFile("/bin/sleep")
	if err != nil {
		t.Fatal(err)
	}
	push(t, host+"/team/web:1", shellLayer(t, map[string]string{"bin/sleep": string(program)}), v1.Config{
		Cmd: []string{"/bin/sleep", "1000"}, ExposedPorts: map[string]struct{}{"80/tcp": {}},
		Healthcheck: &v1.HealthConfig{Test: []string{"CMD", "/bin/sh", "-c", "exit 0"}, Interval: time.Second},
	})

	var pages []string
	for _, pattern := range []string{"README.md", "docs/*.md", "docs/api/*.md"} {
		names, err := filepath.Glob(filepath.Join(testkit.Root(), pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			raw, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(raw), "\n```sh\n") {
				rel, _ := filepath.Rel(testkit.Root(), name)
				pages = append(pages, rel)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(snippets)) {
		if !slices.Contains(pages, name) {
			t.Errorf("%s has no commands", name)
		}
	}
	for _, name := range pages {
		row, ok := snippets[name]
		switch {
		case !ok:
			t.Errorf("the commands of %s have no row", name)
			continue
		case row.unable != "":
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Cleanup(func() { clearWorkspace(t, p, p.Key) })
			runPage(t, p, name, row, host)
		})
	}
}

// pagePatience is for all commands of one page.
const pagePatience = 2 * time.Minute

// prelude is what the shell of each page begins with. It prints each answer to a file
// as well.
const prelude = `set -euo pipefail
PATH=$BIN:$PATH
auth="Authorization: Bearer $KEY"
curl() { command curl -sS $FAIL "$@" | tee -a "$OUT"; printf '\n' >>"$OUT"; }
`

// runPage runs the commands of a page, and compares what is printed. A registry of
// images is at an address.
func runPage(t *testing.T, p *testkit.Platform, name string, row snippet, images string) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(testkit.Root(), name))
	if err != nil {
		t.Fatal(err)
	}
	before := strings.ReplaceAll(row.before, "REGISTRY", images)
	script, shown := bytes.NewBufferString(prelude+before+"\n"), []string(nil)
	text := string(raw)
	for i := 0; i < len(row.says); i += 2 {
		if !strings.Contains(text, row.says[i]) {
			t.Errorf("the page does not say %q any more", row.says[i])
		}
		text = strings.ReplaceAll(text, row.says[i], row.says[i+1])
	}
	text = strings.ReplaceAll(text, "REGISTRY", images)
	for _, b := range fence.FindAllStringSubmatch(text, -1) {
		switch {
		case b[1] == "sh":
			if strings.Contains(b[2], "$BOX") && !strings.Contains(b[2], "BOX=$(") {
				fmt.Fprintln(script, `BOX=$(command curl -sS -H "$auth" "$URL/v0/sandboxes/web" | jq -r .metadata.url)`)
			}
			script.WriteString(b[2])
		case script.Len() > len(prelude)+len(before)+1: // below commands
			shown = append(shown, b[2])
		}
	}
	dir := t.TempDir()
	out := filepath.Join(dir, "out")
	bin := filepath.Join(testkit.Root(), "bin")
	fail := "--fail-with-body"
	if row.refused {
		fail = ""
	}
	ctx, cancel := context.WithTimeout(t.Context(), pagePatience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-x", "-c", script.String()) // which says what it runs
	cmd.Dir, cmd.WaitDelay = dir, patience
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "DOZE") }),
		"HOME="+dir, "XDG_CONFIG_HOME="+dir, "BIN="+bin, "OUT="+out, "FAIL="+fail,
		"URL="+p.Address, "KEY="+p.Key, "DATA="+p.Data, "ROOT="+testkit.Root(), "DOZE_ADDRESS="+p.Address, "DOZE_KEY="+p.Key, "DOZE_WORKSPACE=main")
	printed, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, printed)
	}
	answered, err := os.ReadFile(out)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	compare(t, row, shown, string(answered))
}

// compare looks for what a page shows in what was answered: each document has a shape,
// and each header and status is a line.
func compare(t *testing.T, row snippet, shown []string, answered string) {
	t.Helper()
	used := map[string]bool{}
	got := documents(answered)
	for _, text := range shown {
		for line := range strings.SplitSeq(text, "\n") {
			if status, ok := strings.CutPrefix(line, "HTTP/1.1 "); ok && !excused(row, text, used) && !strings.Contains(answered, " "+status[:3]+" ") {
				t.Errorf("nothing is answered with %q", line)
			}
		}
		for _, want := range documents(unshorten(text)) {
			if !slices.ContainsFunc(got, func(g any) bool { return like(want, g) }) && !excused(row, text, used) {
				raw, _ := json.Marshal(want)
				t.Errorf("nothing that is answered looks like\n%s\nbut\n%s", raw, answered)
			}
		}
	}
	for begin := range row.unseen {
		if !used[begin] {
			t.Errorf("the page does not show %q", begin)
		}
	}
}

// excused reports whether a row says that nothing answers a text.
func excused(row snippet, text string, used map[string]bool) bool {
	for begin := range row.unseen {
		if strings.Contains(text, begin) {
			used[begin] = true
			return true
		}
	}
	return false
}

// unshorten makes JSON of what a page shortened.
func unshorten(text string) string {
	return strings.NewReplacer(", …]", "]", "[…]", "[]", ", …}", "}", "{…}", "{}").Replace(text)
}

// documents are the objects and arrays of JSON in a text.
func documents(text string) (all []any) {
	for i := 0; i < len(text); i++ {
		if text[i] != '{' && text[i] != '[' || i > 0 && text[i-1] != '\n' {
			continue
		}
		d := json.NewDecoder(strings.NewReader(text[i:]))
		var v any
		if d.Decode(&v) == nil {
			all = append(all, v)
			i += int(d.InputOffset()) - 1
		}
	}
	return all
}

// like reports whether an answer has the form of what a page shows, which may leave
// members out.
func like(shown, got any) bool {
	switch shown := shown.(type) {
	case map[string]any:
		got, ok := got.(map[string]any)
		for name, member := range shown {
			have, has := got[name]
			ok = ok && has && like(member, have)
		}
		return ok
	case []any:
		got, ok := got.([]any)
		for _, element := range shown {
			ok = ok && slices.ContainsFunc(got, func(g any) bool { return like(element, g) })
		}
		return ok
	default:
		return fmt.Sprintf("%T", shown) == fmt.Sprintf("%T", got)
	}
}
