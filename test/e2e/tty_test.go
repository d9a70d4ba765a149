package e2e_test

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
)

// A typist uses a command in a terminal of this host.
type typist struct {
	t        *testing.T
	cmd      *exec.Cmd
	keyboard *os.File

	mu   sync.Mutex
	seen bytes.Buffer // guarded by mu
	read sync.WaitGroup
}

// inTerminal runs a command in a terminal of 100 by 30.
func (s shell) inTerminal(t *testing.T, args ...string) *typist {
	t.Helper()
	y := &typist{t: t, cmd: s.command(t, args...)}
	var err error
	if y.keyboard, err = pty.StartWithSize(y.cmd, &pty.Winsize{Cols: 100, Rows: 30}); err != nil {
		t.Fatal(err)
	}
	y.read.Go(func() { _, _ = io.Copy(y, y.keyboard) }) // ends with the command
	return y
}

func (y *typist) Write(b []byte) (int, error) {
	y.mu.Lock()
	defer y.mu.Unlock()
	return y.seen.Write(b)
}

// sees waits until the screen shows a text, and forgets what was before its end.
func (y *typist) sees(text string) {
	y.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		y.mu.Lock()
		all := y.seen.String()
		_, rest, ok := strings.Cut(all, text)
		if ok {
			y.seen.Reset()
			y.seen.WriteString(rest)
		}
		y.mu.Unlock()
		if ok {
			return
		}
		if time.Now().After(end) {
			y.t.Fatalf("the screen does not show %q, but %q", text, all)
		}
	}
}

func (y *typist) types(text string) {
	y.t.Helper()
	if _, err := y.keyboard.WriteString(text); err != nil {
		y.t.Fatal(err)
	}
}

// exits waits for the end of the command, and compares its exit code.
func (y *typist) exits(code int) {
	y.t.Helper()
	_ = y.cmd.Wait() // the state says more
	y.read.Wait()
	_ = y.keyboard.Close()
	if got := y.cmd.ProcessState.ExitCode(); got != code {
		y.t.Errorf("exit code %d, want %d; the screen shows %q", got, code, y.seen.String())
	}
}

// TestTTY uses commands in a sandbox as somebody at a terminal does.
func TestTTY(t *testing.T) {
	t.Parallel()
	p, _ := start(t)
	s := shell{t.TempDir()}
	s.ok(t, "doze", "login", "--address", p.Address, "--data", p.Data)
	s.ok(t, "doze", "sandbox", "create", "tty", "--memory", "512")

	// A shell that is typed at: size, variables, directory, keys that are signals, exit code.
	y := s.inTerminal(t, "doze", "sandbox", "exec", "-it", "-e", "GREETING=hi there", "-w", "/tmp", "tty", "sh", "-i")
	y.types("stty -echo; PS1=; echo re''ady\n")
	y.sees("ready\r\n")
	y.types("echo \"[$GREETING] $PWD $(stty size)\"\n")
	y.sees("[hi there] /tmp 30 100")
	if err := pty.Setsize(y.keyboard, &pty.Winsize{Cols: 77, Rows: 11}); err != nil {
		t.Fatal(err)
	}
	y.types("while [ \"$(stty size)\" != '11 77' ]; do sleep 0.05; done; echo resi''zed\n")
	y.sees("resized\r\n")
	y.types("echo wai''ting; sleep 600\n")
	y.sees("waiting\r\n")
	y.types("\x03")
	y.types("echo inter''rupted $?\n")
	y.sees("interrupted 130")
	y.types("exit 42\n")
	y.exits(42)

	// A command that ends by itself, and by a signal of its own.
	y = s.inTerminal(t, "doze", "sandbox", "exec", "-t", "tty", "--", "test -t 1 && echo on a terminal; exit 3")
	y.sees("on a terminal")
	y.exits(3)
	y = s.inTerminal(t, "doze", "sandbox", "exec", "-it", "tty", "--", "kill -9 $$")
	y.sees("signal 9, SIGKILL")
	y.exits(137)

	// A signal to doze ends the command.
	y = s.inTerminal(t, "doze", "sandbox", "exec", "-it", "tty", "--", "trap 'echo ended >/tmp/ended; exit 5' TERM; echo ready; while :; do sleep 0.1; done")
	y.sees("ready")
	if err := y.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	y.exits(5)
	if out := s.ok(t, "doze", "sandbox", "exec", "tty", "cat", "/tmp/ended"); out != "ended\n" {
		t.Errorf("the command left %q", out)
	}
	y = s.inTerminal(t, "doze", "sandbox", "exec", "-it", "--timeout", "1s", "tty", "sleep", "600")
	y.sees("longer than 1s")
	y.exits(124)

	// The shell of the image.
	y = s.inTerminal(t, "doze", "sandbox", "shell", "tty")
	y.types("echo in''side; exit 6\n")
	y.sees("inside")
	y.exits(6)

	// Without a terminal: input to its end, in both directions at once.
	if r := s.run(t, "x\n", "doze", "sandbox", "exec", "-it", "tty", "sh"); r.code != 2 || !strings.Contains(r.err, "leave out -t") {
		t.Errorf("a terminal of a pipe: %+v", r)
	}
	if r := s.run(t, strings.Repeat("0123456789\n", 50_000), "doze", "sandbox", "exec", "-i", "tty", "cat"); r.code != 0 || len(r.out) != 11*50_000 {
		t.Errorf("exit code %d, %d bytes, %s", r.code, len(r.out), r.err)
	}
	if out := s.ok(t, "doze", "sandbox", "exec", "tty", "printf", "%s-", "a", "--", "b"); out != "a----b-" {
		t.Errorf("arguments of a command: %q", out)
	}
}
