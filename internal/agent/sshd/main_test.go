package sshd

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pkg/sftp"
	gossh "golang.org/x/crypto/ssh"

	"github.com/dozehq/doze/internal/testkit/freeport"
)

// TestMain is the program of a connection, too: the tests run it as the agent does.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "-"+Flag {
		if err := Main(os.Environ()); err != nil {
			panic(err)
		}
		return
	}
	m.Run()
}

// connect starts the program of a connection, and is its client.
func connect(t *testing.T) (*gossh.Client, *exec.Cmd) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	ours, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	f, err := theirs.(*net.TCPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	program := exec.Command(os.Args[0], "-"+Flag)
	home := t.TempDir()
	program.Env = append(os.Environ(), "HOME="+home, "SHELL=/bin/sh")
	program.Stdin, program.Stdout, program.Stderr = f, f, os.Stderr
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	_, _ = f.Close(), theirs.Close()
	conn, channels, requests, err := gossh.NewClientConn(ours, "sandbox", &gossh.ClientConfig{User: "anybody", HostKeyCallback: gossh.InsecureIgnoreHostKey()})
	if err != nil {
		t.Fatal(err)
	}
	c := gossh.NewClient(conn, channels, requests)
	t.Cleanup(func() {
		_ = c.Close()
		_ = program.Wait()
	})
	return c, program
}

func newSession(t *testing.T, c *gossh.Client) *gossh.Session {
	t.Helper()
	s, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// TestCommands: a command gets its input, its variables and its place, each of its
// streams arrives as it is, and so does how it ended.
func TestCommands(t *testing.T) {
	t.Parallel()
	c, _ := connect(t)
	binary := bytes.Repeat([]byte{0, 0xff, 0xfe, '\n'}, 1<<18)
	for name, tt := range map[string]struct {
		command string
		input   []byte
		out     string
		errs    string
		code    int
	}{
		"bytes":         {"cat", binary, string(binary), "", 0},
		"both streams":  {"echo out; echo err >&2", nil, "out\n", "err\n", 0},
		"a code":        {"exit 7", nil, "", "", 7},
		"a signal":      {"kill -TERM $$", nil, "", "", 128 + 15},
		"a variable":    {"echo $A", nil, "b c\n", "", 0},
		"its place":     {`test "$PWD" = "$HOME" && echo home`, nil, "home\n", "", 0},
		"no such thing": {"/no/such/program", nil, "", "not found", 127},
		"what it left":  {"sleep 30 & echo left", nil, "left\n", "", 0},
	} {
		s := newSession(t, c)
		if err := s.Setenv("A", "b c"); err != nil {
			t.Fatal(err)
		}
		var out, errs bytes.Buffer
		s.Stdin, s.Stdout, s.Stderr = bytes.NewReader(tt.input), &out, &errs
		began := time.Now()
		err := s.Run(tt.command)
		code := 0
		if exit, ok := errors.AsType[*gossh.ExitError](err); ok {
			code = exit.ExitStatus()
		} else if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if out.String() != tt.out || !strings.Contains(errs.String(), tt.errs) || code != tt.code {
			t.Errorf("%s: code %d, %d bytes of output, errors %q", name, code, out.Len(), errs.String())
		}
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("%s: it waited %v for what the command left behind", name, took)
		}
	}
}

// TestTerminal: a shell has a terminal with the size of the client's window, also of one
// that changes.
func TestTerminal(t *testing.T) {
	t.Parallel()
	c, _ := connect(t)
	s := newSession(t, c)
	if err := s.RequestPty("vt100", 31, 97, gossh.TerminalModes{}); err != nil {
		t.Fatal(err)
	}
	if size, err := s.Output("stty size"); string(size) != "31 97\r\n" || err != nil {
		t.Errorf("the size is %q, %v", size, err)
	}
	s = newSession(t, c)
	if err := s.RequestPty("vt100", 31, 97, gossh.TerminalModes{}); err != nil {
		t.Fatal(err)
	}
	in, err := s.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	s.Stdout = &out
	if err := s.Shell(); err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(in, "echo $TERM $0\n")
	_ = s.WindowChange(40, 120)
	_, _ = io.WriteString(in, "while [ \"$(stty size)\" != '40 120' ]; do :; done; echo grown; exit 3\n")
	err = s.Wait()
	if exit, ok := errors.AsType[*gossh.ExitError](err); !ok || exit.ExitStatus() != 3 {
		t.Errorf("it ended with %v", err)
	}
	if got := out.String(); !strings.Contains(got, "vt100 -sh") || !strings.Contains(got, "grown\r\n") {
		t.Errorf("%q", got)
	}
}

// TestSignal: a client can signal its command, and one that hangs up ends it.
func TestSignal(t *testing.T) {
	t.Parallel()
	c, program := connect(t)
	s := newSession(t, c)
	if err := s.Start("trap 'exit 9' INT; while :; do sleep 0.1; done"); err != nil {
		t.Fatal(err)
	}
	time.Sleep(500 * time.Millisecond) // until it has its trap; a signal before it ends it, too
	if err := s.Signal(gossh.SIGINT); err != nil {
		t.Fatal(err)
	}
	if exit, ok := errors.AsType[*gossh.ExitError](s.Wait()); !ok || exit.ExitStatus() != 9 && exit.ExitStatus() != 128+2 {
		t.Errorf("after SIGINT: %v", exit)
	}
	mark := filepath.Join(t.TempDir(), "pid")
	s = newSession(t, c)
	if err := s.Start("echo $$ > " + mark + "; sleep 300"); err != nil {
		t.Fatal(err)
	}
	pid := await(t, mark)
	_ = c.Close()
	if err := program.Wait(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat("/proc/" + pid); err == nil {
		t.Error("the command goes on without its client")
	}
}

// await returns what somebody writes to a file.
func await(t *testing.T, file string) string {
	t.Helper()
	for range 200 {
		if b, err := os.ReadFile(file); err == nil && len(b) > 0 {
			return strings.TrimSpace(string(b))
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatal("nothing was written")
	return ""
}

// TestTerm: the agent ends a connection with the commands that it runs, whatever they do
// about it.
func TestTerm(t *testing.T) {
	t.Parallel()
	c, program := connect(t)
	mark := filepath.Join(t.TempDir(), "pid")
	if err := newSession(t, c).Start("trap '' HUP TERM; echo $$ > " + mark + "; sleep 300"); err != nil {
		t.Fatal(err)
	}
	pid := await(t, mark)
	if err := program.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := program.Wait(); err != nil {
		t.Error(err)
	}
	for range 100 {
		if stat, err := os.ReadFile("/proc/" + pid + "/stat"); err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Error("the command goes on")
}

// TestFiles: sftp reads, writes and lists.
func TestFiles(t *testing.T) {
	t.Parallel()
	c, _ := connect(t)
	files, err := sftp.NewClient(c)
	if err != nil {
		t.Fatal(err)
	}
	defer files.Close()
	f, err := files.Create("notes.txt")
	if err != nil {
		t.Fatal(err)
	}
	large := bytes.Repeat([]byte("0123456789abcdef"), 1<<17)
	if _, err := f.Write(large); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := files.Rename("notes.txt", "new.txt"); err != nil {
		t.Fatal(err)
	}
	back, err := files.Open("new.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer back.Close()
	if got, err := io.ReadAll(back); err != nil || !bytes.Equal(got, large) {
		t.Errorf("%d bytes came back: %v", len(got), err)
	}
	if _, err := files.Open("nothing"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
}

// TestForwards: a connection leads to a port of the sandbox, and back out of it.
func TestForwards(t *testing.T) {
	t.Parallel()
	c, _ := connect(t)
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	go greet(server)
	in, err := c.Dial("tcp", server.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(in); string(b) != "hello" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	address, err := freeport.Address(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	go greet(out)
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if b, err := io.ReadAll(conn); string(b) != "hello" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
}

func greet(l net.Listener) {
	c, err := l.Accept()
	if err != nil {
		return
	}
	_, _ = io.WriteString(c, "hello")
	_ = c.Close()
}

// TestChannels: too many channels are refused, and their end makes room.
func TestChannels(t *testing.T) {
	t.Parallel()
	c, _ := connect(t)
	var all []*gossh.Session
	for range channelsMax {
		all = append(all, newSession(t, c))
	}
	if _, err := c.NewSession(); err == nil || !strings.Contains(err.Error(), "128 channels are open") {
		t.Errorf("one more: %v", err)
	}
	for _, s := range all {
		_ = s.Close()
	}
	for range 100 {
		s, err := c.NewSession()
		if err == nil {
			_ = s.Close()
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Error("the ends of channels make no room")
}

// TestHostKey: a key stays, one that is damaged is replaced, and without a place there is
// one all the same.
func TestHostKey(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	key := func(dir string) string {
		t.Helper()
		k, err := hostKey(dir)
		if err != nil {
			t.Fatal(err)
		}
		return gossh.FingerprintSHA256(k.PublicKey())
	}
	first := key(dir)
	if again := key(dir); again != first {
		t.Error("the key is another one the second time")
	}
	if info, err := os.Stat(filepath.Join(dir, "host_key")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "host_key"), []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	if second := key(dir); second == first || second != key(dir) {
		t.Error("a damaged key is not replaced")
	}
	if key("/no/such/place") == "" {
		t.Error("there is no key")
	}
}

// FuzzClient: bytes of a stranger end a connection, and nothing else.
func FuzzClient(f *testing.F) {
	for _, s := range []string{"", "SSH-2.0-x\r\n", "SSH-2.0-x\r\n\x00\x00\x00\x0c\x0a\x14", "GET / HTTP/1.1\r\n\r\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		key, err := hostKey("/no/such/place")
		if err != nil {
			t.Fatal(err)
		}
		ours, theirs := net.Pipe()
		var all commands
		served := make(chan struct{})
		go func() {
			defer close(served)
			all.server(key).HandleConn(theirs)
		}()
		go func() { _, _ = io.Copy(io.Discard, ours) }()
		_ = ours.SetWriteDeadline(time.Now().Add(time.Second))
		_, _ = ours.Write(b)
		_ = ours.Close()
		<-served
	})
}
