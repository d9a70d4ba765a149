package e2e_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
	"github.com/dozehq/doze/internal/testkit"
)

// The pages of docs/guide show each task in several languages. A fenced block names its
// language, and the blocks of a page in one language are one program. A block "text"
// below it is what it prints, where … stands for anything.

// guideTimeout bounds one program of a page.
const guideTimeout = 2 * time.Minute

// fence is a block of a page: its language and its text.
var fence = regexp.MustCompile("(?ms)^```([^\n]*)\n(.*?)^```$")

// shellBegin stops at the first command that fails, and says why in its place.
const shellBegin = "set -euo pipefail\nexec 2>&1\nPATH=$BIN:$PATH\n"

// guides are the languages of the pages. TestGuide wants each page to have each, but for
// those that the page leaves out.
var guides = map[string]guide{
	"sh curl": {"main.sh", []string{"bash"}, shellBegin + "auth=\"Authorization: Bearer $KEY\"\n", "printf '\\036'\n"},
	"sh doze": {"main.sh", []string{"bash"}, shellBegin, "printf '\\036'\n"},
	"ts":      {"main.mjs", []string{"node"}, "", "process.stdout.write('\\x1e');\n"},
	"python":  {"main.py", []string{python, "-B"}, "", "print('\\x1e', end='', flush=True)\n"},
}

// guideLacks are the languages that a page does not need, and why.
var guideLacks = map[string]map[string]string{
	"mcp.md":        {"sh doze": "models speak MCP, and the command line has no part in it"},
	"operations.md": {"ts": "operators work in a shell", "sh curl": "likewise", "python": "likewise"},
}

// guide is how the blocks of a language become a program.
type guide struct {
	file     string
	run      []string
	begin    string // before the first block
	separate string // prints a separator, behind each block
}

// passage is a block, and what it prints; nil if the page does not say.
type passage struct {
	code string
	out  *string
}

// passages are the blocks of a page, by language.
func passages(t *testing.T, page string) map[string][]passage {
	t.Helper()
	all, last := map[string][]passage{}, ""
	for _, found := range fence.FindAllStringSubmatch(page, -1) {
		of, text := found[1], found[2]
		if of == "text" {
			if last == "" {
				t.Fatalf("an output has no program above it: %s", text)
			}
			all[last][len(all[last])-1].out = &text
			continue
		}
		if _, known := guides[of]; !known {
			t.Fatalf("a block is in %q, which no test runs: %s", of, text)
		}
		all[of] = append(all[of], passage{code: text})
		last = of
	}
	return all
}

// TestGuide runs every snippet of docs/guide, each page and language in a workspace of
// its own.
func TestGuide(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(testkit.Root(), "docs", "guide")
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	p, _ := start(t, "--pause-after", "2s", "--egress", "open")
	index, err := os.ReadFile(filepath.Join(dir, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	t.Run("pages", func(t *testing.T) { // ends before the platform does
		for _, e := range entries {
			if e.Name() == "README.md" {
				continue
			}
			raw, err := os.ReadFile(filepath.Join(dir, e.Name()))
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(index), "("+e.Name()+")") {
				t.Errorf("README.md does not link to %s", e.Name())
			}
			all := passages(t, string(raw))
			for of := range guides {
				if why := guideLacks[e.Name()][of]; (len(all[of]) == 0) != (why != "") {
					t.Errorf("%s has %d snippets of %q; it may lack them: %q", e.Name(), len(all[of]), of, why)
				}
			}
			for of, list := range all {
				name := strings.TrimSuffix(e.Name(), ".md") + "-" + of[strings.LastIndexByte(of, ' ')+1:]
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					runGuide(t, p, name, guides[of], list)
				})
			}
		}
	})
}

// runGuide runs the snippets of a page in one language.
func runGuide(t *testing.T, p *testkit.Platform, workspace string, g guide, list []passage) {
	t.Helper()
	key := p.Key
	if !strings.HasPrefix(workspace, "operations") {
		call{method: "POST", url: p.Address + "/v0/workspaces", body: fmt.Sprintf(`{"name":%q}`, workspace)}.want(t, p, 200)
		made := call{method: "POST", url: p.Address + "/v0/api_keys?workspace=" + workspace, body: `{"scopes":["admin"]}`}.want(t, p, 200).body
		key = regexp.MustCompile(`"apiKey":\s*"([^"]+)"`).FindStringSubmatch(made)[1]
	} else {
		workspace = "main"
	}
	t.Cleanup(func() { clearWorkspace(t, p, key) })
	dir := t.TempDir()
	var program strings.Builder
	program.WriteString(g.begin)
	for _, s := range list {
		program.WriteString(s.code + g.separate)
	}
	for _, err := range []error{
		os.WriteFile(filepath.Join(dir, g.file), []byte(program.String()), 0o600),
		os.Symlink(filepath.Join(testkit.Root(), "test", "e2e", "node_modules"), filepath.Join(dir, "node_modules")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), guideTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, g.run[0], append(slices.Clone(g.run[1:]), g.file)...)
	cmd.Dir, cmd.WaitDelay = dir, 10*time.Second
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "BL_") || strings.HasPrefix(v, "DOZE") || strings.HasPrefix(v, "HOME=")
	}),
		"BIN="+filepath.Join(testkit.Root(), "bin"), "PYTHONPATH="+filepath.Join(testkit.Root(), "clients", "python"), "HOME="+dir, "DO_NOT_TRACK=1",
		"URL="+p.Address, "KEY="+key, "DATA="+p.Data,
		"DOZE_ADDRESS="+p.Address, "DOZE_KEY="+key, "DOZE_WORKSPACE="+workspace,
		"BL_API_URL="+p.Address+"/v0", "BL_API_KEY="+key, "BL_WORKSPACE="+workspace, "BL_REGION=local", "BL_DISABLE_H2=1")
	out, err := cmd.CombinedOutput()
	printed := strings.Split(string(out), "\x1e")
	for i, s := range list {
		if i >= len(printed)-1 {
			t.Fatalf("%v in\n%s\nit printed\n%s", err, s.code, printed[len(printed)-1])
		}
		if s.out == nil {
			continue
		}
		pattern := strings.ReplaceAll(regexp.QuoteMeta(strings.TrimSpace(*s.out)), "…", "(?s:.*?)")
		if !regexp.MustCompile("^" + pattern + "$").MatchString(strings.TrimSpace(printed[i])) {
			t.Errorf("%s\nprinted\n%s\nand the page says\n%s", s.code, printed[i], *s.out)
		}
	}
	if err != nil {
		t.Error(err)
	}
}

// clearWorkspace deletes what the program of a page left in its workspace.
func clearWorkspace(t *testing.T, p *testkit.Platform, key string) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	c, err := client.New(client.Config{Address: p.Address, Key: key})
	if err != nil {
		t.Error(err)
		return
	}
	for sb, err := range c.Sandboxes(ctx, client.Filter{}) {
		if err == nil {
			_, err = c.Delete(ctx, sb.Metadata.Name)
		}
		if err != nil && doze.Public(err).Kind != doze.NotFound { // it was on its way
			t.Error(err)
		}
	}
}
