package e2e_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
	"github.com/dozehq/doze/internal/testkit"
)

// A shell runs the built commands with a home of its own.
type shell struct {
	home string
}

// ran is how a command ended.
type ran struct {
	code     int
	out, err string
}

// command is a command that is yet to be started.
func (s shell) command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(testkit.Root(), "bin", args[0]), args[1:]...)
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "DOZE") }),
		"HOME="+s.home, "XDG_CONFIG_HOME="+s.home)
	cmd.WaitDelay = patience
	return cmd
}

func (s shell) run(t *testing.T, stdin string, args ...string) ran {
	t.Helper()
	cmd := s.command(t, args...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	err := cmd.Run()
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		t.Fatalf("%q: %v", args, err)
	}
	return ran{cmd.ProcessState.ExitCode(), out.String(), errs.String()}
}

// ok runs a command that must succeed and returns its output.
func (s shell) ok(t *testing.T, args ...string) string {
	t.Helper()
	r := s.run(t, "", args...)
	if r.code != 0 {
		t.Fatalf("%q: exit code %d\n%s%s", args, r.code, r.out, r.err)
	}
	return r.out
}

func TestCommandLine(t *testing.T) {
	t.Parallel()
	p, _ := start(t)
	s := shell{t.TempDir()}
	fails := func(code int, says string, args ...string) {
		t.Helper()
		if r := s.run(t, "", args...); r.code != code || !strings.Contains(r.err, says) {
			t.Errorf("%q: exit code %d, %q", args, r.code, r.err)
		}
	}
	fails(1, "doze login", "doze", "sandbox", "ls")
	fails(2, "--help", "doze", "sandbox", "fly")
	if r := s.run(t, "wrong\n", "doze", "login", "--address", p.Address); r.code != 4 || !strings.Contains(r.err, "key") {
		t.Errorf("login with a wrong key: %+v", r)
	}
	s.ok(t, "doze", "login", "--address", p.Address, "--data", p.Data)
	if r := s.run(t, p.Key+"\n", "doze", "login", "--address", p.Address); r.code != 0 {
		t.Errorf("login by standard input: %+v", r)
	}
	if info, err := os.Stat(filepath.Join(s.home, "doze", "config.json")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the stored key: %v, %v", info, err)
	}

	var sb doze.Sandbox
	decode := func(out string, v any) {
		t.Helper()
		if err := json.Unmarshal([]byte(out), v); err != nil {
			t.Fatalf("%s: %v", out, err)
		}
	}
	decode(s.ok(t, "doze", "sandbox", "create", "cli", "--memory", "512", "-e", "A=b c", "--label", "x=y", "-o", "json"), &sb)
	if sb.Metadata.Name != "cli" || sb.Status != "DEPLOYED" || sb.Metadata.Labels["x"] != "y" {
		t.Errorf("%+v", sb)
	}
	fails(4, "already exists", "doze", "sandbox", "create", "cli")
	fails(2, "metadata.name", "doze", "sandbox", "create", "NOT_A_NAME")
	s.ok(t, "doze", "sandbox", "create", "cli", "--if-not-exists")
	if out := s.ok(t, "doze", "sandbox", "ls"); !strings.HasPrefix(out, "NAME") || !strings.Contains(out, "cli") || !strings.Contains(out, "RUNNING") {
		t.Error(out)
	}
	var all []doze.Sandbox
	if decode(s.ok(t, "doze", "sandbox", "ls", "-o", "json"), &all); len(all) != 1 {
		t.Errorf("%d sandboxes", len(all))
	}
	if decode(s.ok(t, "doze", "sandbox", "get", "cli", "-o", "json"), &sb); sb.State != "RUNNING" {
		t.Errorf("it is %s", sb.State)
	}
	fails(3, "none", "doze", "sandbox", "get", "none")

	r := s.run(t, "", "doze", "sandbox", "exec", "cli", "--", `echo "out $A"; echo err >&2; exit 7`)
	if r.code != 7 || r.out != "out b c\n" || r.err != "err\n" {
		t.Errorf("exec: %+v", r)
	}
	if out := s.ok(t, "doze", "sandbox", "exec", "cli", "--", "printf", "%s|", "a b", "$A", "*"); out != "a b|$A|*|" {
		t.Errorf("arguments: %q", out)
	}
	if out := s.ok(t, "doze", "sandbox", "exec", "cli", "-w", "/tmp", "-e", "Z=1", "--", "echo $Z; pwd"); out != "1\n/tmp\n" {
		t.Errorf("exec in a directory: %q", out)
	}
	if r := s.run(t, strings.Repeat("0123456789\n", 100_000), "doze", "sandbox", "exec", "cli", "--", "sleep 0.1; md5sum"); r.code != 0 || r.out != "e43c7bac718587e24553d6483485badd  -\n" {
		t.Errorf("exec with input: %+v", r)
	}
	if r := s.run(t, strings.Repeat("y\n", 100_000), "doze", "sandbox", "exec", "cli", "--", "head -1"); r.code != 0 || r.out != "y\n" {
		t.Errorf("exec with more input than it wants: %+v", r)
	}
	fails(139, "signal 11, SIGSEGV", "doze", "sandbox", "exec", "cli", "--", "kill -SEGV $$")
	fails(124, "longer than 1s", "doze", "sandbox", "exec", "cli", "--timeout", "1s", "--", "sleep 60")
	var proc client.Process
	if decode(s.ok(t, "doze", "sandbox", "exec", "cli", "-o", "json", "--", "echo hi"), &proc); proc.Stdout != "hi\n" {
		t.Errorf("%+v", proc)
	}

	copyInAndOut(t, s)
	networkByHand(t, s)
	forwardPort(t, s)
	forwardConnections(t, s)

	name := strings.TrimSpace(s.ok(t, "doze", "sandbox", "exec", "cli", "-d", "--", "echo started; echo oops >&2; sleep 1000"))
	if out := s.ok(t, "doze", "sandbox", "ps", "cli"); !strings.Contains(out, name) || !strings.Contains(out, "running") {
		t.Error(out)
	}
	until(t, "it has logs", func() bool {
		r := s.run(t, "", "doze", "sandbox", "logs", "cli", name)
		return r.out == "started\n" && r.err == "oops\n"
	})
	fails(3, "not found", "doze", "sandbox", "logs", "cli", "none")
	if out := s.ok(t, "doze", "sandbox", "rm", "cli"); out != "cli\n" {
		t.Error(out)
	}
	fails(3, "no such sandbox", "doze", "sandbox", "exec", "cli", "--", "true")
}

// networkByHand gives the sandbox "cli" rules, and takes them away again.
func networkByHand(t *testing.T, s shell) {
	t.Helper()
	s.ok(t, "doze", "vpc", "create", "lab")
	s.ok(t, "doze", "gateway", "create", "office")
	if out := s.ok(t, "doze", "ip", "create", "office", "office-1"); !strings.Contains(out, "FAILED") || !strings.Contains(out, "--egress-pool") {
		t.Errorf("without a pool: %s", out)
	}
	for _, mistake := range [][]string{{"--gateway", "office"}, {"--vpc", "none"}, {"--allow", "http://a.test"}, {"--network", "/dev/null"}} {
		if r := s.run(t, "", append([]string{"doze", "network", "set", "cli"}, mistake...)...); r.code == 0 || r.code > 2 {
			t.Errorf("%q: %+v", mistake, r)
		}
	}
	s.ok(t, "doze", "network", "set", "cli", "--vpc", "lab", "--subnet", "backend", "--allow", "a.test", "--allow", "*.b.test")
	s.ok(t, "doze", "network", "route", "cli", "a.test", "-H", "Authorization: Bearer {{SECRET:key}}", "--secret", "key=a-secret-value")
	s.ok(t, "doze", "network", "route", "cli", "a.test", "-H", "X-Key: {{SECRET:key}}") // which keeps the secret
	if r := s.run(t, `{"proxy":{"allowedDomains":[]}}`, "doze", "network", "set", "cli", "--network", "-"); r.code != 2 || !strings.Contains(r.err, "is empty") {
		t.Errorf("an empty list: %+v", r)
	}
	const want = `RULE VALUE
vpc lab
subnet backend
allow a.test
allow *.b.test
route a.test: header X-Key
`
	if out := regexp.MustCompile(" +").ReplaceAllString(s.ok(t, "doze", "network", "get", "cli"), " "); out != want {
		t.Errorf("it has %s", out)
	}
	if r := s.run(t, "", "doze", "vpc", "rm", "lab"); r.code != 4 || !strings.Contains(r.err, "cli") {
		t.Errorf("a VPC that is in use: %+v", r)
	}
	s.ok(t, "doze", "network", "clear", "cli")
	s.ok(t, "doze", "network", "set", "cli", "--vpc", "")
	for _, noun := range [][]string{{"ip", "rm", "office-1"}, {"gateway", "rm", "office"}, {"vpc", "rm", "lab"}} {
		s.ok(t, append([]string{"doze"}, noun...)...)
	}
}

// copyInAndOut copies a tree, with a file that goes in parts, into the sandbox
// and back.
func copyInAndOut(t *testing.T, s shell) {
	t.Helper()
	large := bytes.Repeat([]byte("0123456789abcdef"), 1<<20)
	from, back := filepath.Join(s.home, "tree"), filepath.Join(s.home, "back")
	err := errors.Join(
		os.MkdirAll(filepath.Join(from, "sub"), 0o755),
		os.WriteFile(filepath.Join(from, "large"), large, 0o644),
		os.WriteFile(filepath.Join(from, "sub", "run me"), []byte("#!/bin/sh\necho it runs\n"), 0o755),
	)
	if err != nil {
		t.Fatal(err)
	}
	s.ok(t, "doze", "sandbox", "cp", from, "cli:/srv/new/")
	if out := s.ok(t, "doze", "sandbox", "exec", "cli", "--", "'/srv/new/tree/sub/run me'; stat -c %s /srv/new/tree/large"); out != "it runs\n16777216\n" {
		t.Errorf("what was copied in: %q", out)
	}
	s.ok(t, "doze", "sandbox", "cp", "cli:/srv/new/tree", back)
	if got, err := os.ReadFile(filepath.Join(back, "large")); err != nil || !bytes.Equal(got, large) {
		t.Errorf("%d bytes came back: %v", len(got), err)
	}
	if info, err := os.Stat(filepath.Join(back, "sub", "run me")); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("%v, %v", info, err)
	}
	if r := s.run(t, "piped", "doze", "sandbox", "cp", "-", "cli:/tmp/piped"); r.code != 0 {
		t.Errorf("%+v", r)
	}
	if out := s.ok(t, "doze", "sandbox", "cp", "cli:/tmp/piped", "-"); out != "piped" {
		t.Errorf("%q", out)
	}
}

// forwardPort reaches a server in the sandbox at an address here.
func forwardPort(t *testing.T, s shell) {
	t.Helper()
	s.ok(t, "doze", "sandbox", "exec", "cli", "-d", "--", "cd /srv/new/tree/sub && python3 -m http.server 3000")
	cmd := s.command(t, "doze", "sandbox", "port", "cli", "0:3000")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	url, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	until(t, "the server answers", func() bool {
		resp, err := (&http.Client{Timeout: patience}).Get(strings.TrimSpace(url) + "/run%20me")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		return err == nil && strings.Contains(string(b), "it runs")
	})
	if err := errors.Join(cmd.Process.Signal(os.Interrupt), cmd.Wait()); err != nil {
		t.Errorf("at an interrupt: %v", err)
	}
}

// TestOperator runs what an operator of the platform does.
func TestOperator(t *testing.T) {
	t.Parallel()
	p, _ := start(t)
	s := shell{t.TempDir()}
	if out := s.ok(t, "dozed", "doctor", "--data", p.Data); !strings.Contains(out, "This host can run sandboxes.") {
		t.Error(out)
	}
	if out := s.ok(t, "dozed", "image", "ls", "--images-dir", testkit.Images); !strings.Contains(out, "base+") {
		t.Error(out)
	}
	file := filepath.Join(s.home, "config.json")
	var settings map[string]any
	printed := s.ok(t, "dozed", "config", "print", "--pause-after", "42s")
	if err := json.Unmarshal([]byte(printed), &settings); err != nil || settings["pauseAfter"] != "42s" {
		t.Errorf("%s: %v", printed, err)
	}
	if err := os.WriteFile(file, []byte(printed), 0o600); err != nil {
		t.Fatal(err)
	}
	if again := s.ok(t, "dozed", "config", "print", "--config", file); again != printed {
		t.Errorf("%s is printed as %s", printed, again)
	}
	s.ok(t, "dozed", "config", "check", "--config", file)
	for name, bad := range map[string]struct{ file, says string }{
		"an unknown setting": {`{"pauseBefore":"1s"}`, "pauseBefore"},
		"no duration":        {`{"pauseAfter":"soon"}`, "soon"},
		"several":            {`{"region":"The Moon","egress":"ajar","log":"loud"}`, "egress"},
		"no JSON":            {`{`, file},
	} {
		if err := os.WriteFile(file, []byte(bad.file), 0o600); err != nil {
			t.Fatal(err)
		}
		if r := s.run(t, "", "dozed", "config", "check", "--config", file); r.code == 0 || !strings.Contains(r.err, bad.says) {
			t.Errorf("%s: %+v", name, r)
		}
	}
	// A second dozed must not touch the data of the first.
	if r := s.run(t, "", "dozed", "all", "--data", p.Data, "--run", p.RunDir, "--listen", "127.0.0.1:0", "--images-dir", testkit.Images); r.code == 0 || !strings.Contains(r.err, "another dozed") {
		t.Errorf("a second one: %+v", r)
	}
	// The admin key is for root alone. What dozed prints into a file has it never.
	if info, err := os.Stat(filepath.Join(p.Data, "admin.key")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("admin.key: %v, %v", info, err)
	}
	if n := strings.Count(p.Printed(), p.Key); n != 0 || !strings.Contains(p.Printed(), filepath.Join(p.Data, "admin.key")) {
		t.Errorf("the key was printed %d times, and its file should be", n)
	}
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	before := len(p.Printed())
	revive(t, p)
	if strings.Contains(p.Printed()[before:], p.Key) {
		t.Error("the key is printed again")
	}
}
