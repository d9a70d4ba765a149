package agent_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/dozehq/doze/internal/agent/agenttest"
)

// as starts an agent for an image with a USER and a WORKDIR that everybody may
// enter.
func as(t *testing.T, user string, env ...string) (s *agenttest.Sandbox, dir string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: other users need root")
	}
	// Not t.TempDir: nobody else may enter it.
	dir, err := os.MkdirTemp("", "doze-agent-") //nolint:usetesting // see above
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return agenttest.Start(t, append([]string{"DOZE_USER=" + user, "DOZE_WORKDIR=" + dir, "DOZE_NAMESERVERS=192.0.2.1", "WORKDIR="}, env...)...), dir
}

func TestImageUser(t *testing.T) {
	t.Parallel()
	const who = `echo $(id -u):$(id -g) $(id -G) $HOME`
	for user, want := range map[string]string{
		"":          "0:0",
		"root":      "0:0",
		"nobody":    "65534:65534 65534 /nonexistent",
		"1:60":      "1:60 60 /usr/sbin",
		"4242:4343": "4242:4343 4343 /",
	} {
		s, _ := as(t, user, "HOME=")
		if got := strings.TrimSpace(s.Exec(t, who).Stdout); !strings.HasPrefix(got, want) {
			t.Errorf("%q is %q, want %q", user, got, want)
		}
	}
	s, _ := as(t, "4242", "HOME=/from/the/image")
	if got := s.Exec(t, "echo $HOME; printenv | grep -c ^DOZE_").Stdout; got != "/from/the/image\n0\n" {
		t.Errorf("it says %q", got)
	}
	// It may open what it was given by its name, and be stopped.
	if got := s.Exec(t, "echo out >/dev/stdout; echo err >/dev/stderr"); got.Stdout != "out\n" || got.Stderr != "err\n" {
		t.Errorf("%+v", got)
	}
	s.Spawn(t, "sleeper", "sleep 60")
	if status, body := s.Call(t, "DELETE", "/process/sleeper", ""); status != 200 {
		t.Errorf("stop: %d %s", status, body)
	}
}

func TestUnknownUser(t *testing.T) {
	t.Parallel()
	s, dir := as(t, "no-such-user")
	const want = `"no-such-user" is not in the sandbox's /etc/passwd`
	s.Fails(t, 422, want, "POST", "/process", `{"command":"true"}`)
	screen := s.Look(t, "")
	if kind, text, err := screen.Next(); kind != "error" || !strings.Contains(text, want) {
		t.Errorf("a terminal: %s %q, %v", kind, text, err)
	}
	// Files can be written all the same, to repair it.
	s.Call(t, "PUT", "/filesystem/f", `{"content":"x"}`)
	if got := owned(t, filepath.Join(dir, "f")); got != "0:0" {
		t.Errorf("the file belongs to %s", got)
	}
}

func TestWorkDir(t *testing.T) {
	t.Parallel()
	s, dir := as(t, "")
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	for body, want := range map[string]string{
		`{"command":"pwd","waitForCompletion":true}`:                               dir,
		`{"command":"pwd","waitForCompletion":true,"workingDir":"sub"}`:            dir + "/sub",
		`{"command":"pwd","waitForCompletion":true,"workingDir":"/usr"}`:           "/usr",
		`{"command":"cd /; echo $OLDPWD","waitForCompletion":true,"name":"again"}`: dir,
	} {
		if got := agenttest.Get[agenttest.Process](t, s, "POST", "/process", body); strings.TrimSpace(got.Stdout) != want {
			t.Errorf("%s: %q, want %q", body, got.Stdout, want)
		}
	}
	screen := s.Look(t, "shell=sh")
	screen.Enter(t, "echo at-$(pwd)-")
	screen.Await(t, "at-"+dir+"-")
	s.Call(t, "PUT", "/filesystem/relative", `{"content":"x"}`)
	if _, err := os.Stat(filepath.Join(dir, "relative")); err != nil {
		t.Error(err)
	}
	// WORKDIR is where files are, not where commands start.
	other := t.TempDir()
	s, dir = as(t, "", "WORKDIR="+other)
	s.Call(t, "PUT", "/filesystem/relative", `{"content":"x"}`)
	if _, err := os.Stat(filepath.Join(other, "relative")); err != nil {
		t.Error(err)
	}
	if got := s.Exec(t, "pwd").Stdout; got != dir+"\n" {
		t.Errorf("a command starts in %q", got)
	}
	// Gone, it is named.
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	s.Fails(t, 422, "folder '"+dir+"' does not exist", "POST", "/process", `{"command":"true"}`)
}

// TestFilesOfUser: new files and directories are the user's, in every way to
// make them; old ones stay whose they are.
func TestFilesOfUser(t *testing.T) {
	t.Parallel()
	s, dir := as(t, "4242:4343")
	old := filepath.Join(dir, "old")
	if err := os.WriteFile(old, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("target", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for path, body := range map[string]string{
		"/filesystem/a/b/file":          `{"content":"x"}`,
		"/filesystem/made/here":         `{"isDirectory":true}`,
		"/filesystem/old":               `{"content":"x"}`,
		"/filesystem/tree" + dir + "/t": `{"files":{"c/d":"x","link":"y"}}`,
		"/filesystem/tree" + dir:        `{"files":{"e":"x","link":"y"}}`,
	} {
		if status, answer := s.Call(t, "PUT", path, body); status != 200 {
			t.Fatalf("%s: %d %s", path, status, answer)
		}
	}
	for name, want := range map[string]string{
		"a": "4242:4343", "a/b": "4242:4343", "a/b/file": "4242:4343", "made": "4242:4343", "made/here": "4242:4343",
		"t": "4242:4343", "t/c": "4242:4343", "t/c/d": "4242:4343", "e": "4242:4343", "target": "4242:4343",
		"old": "0:0", ".": "0:0",
	} {
		if got := owned(t, filepath.Join(dir, name)); got != want {
			t.Errorf("%s belongs to %s, want %s", name, got, want)
		}
	}
	if got := s.Exec(t, "echo more >>a/b/file && cat a/b/file"); got.Stdout != "xmore\n" {
		t.Errorf("a command cannot go on with a file of the API: %+v", got)
	}
}

// TestTerminalUser: a terminal belongs to who sits at it.
func TestTerminalUser(t *testing.T) {
	t.Parallel()
	s, _ := as(t, "4242:4343")
	screen := s.Look(t, "shell=sh")
	screen.Enter(t, "echo i-am-$(id -u)-$(stat -c %u $(tty))-")
	screen.Await(t, "i-am-4242-4242-")
}

func owned(t *testing.T, file string) string {
	t.Helper()
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	st, _ := info.Sys().(*syscall.Stat_t)
	return fmt.Sprintf("%d:%d", st.Uid, st.Gid)
}
