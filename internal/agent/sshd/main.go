package sshd

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/creack/pty"
	"github.com/gliderlabs/ssh"
	"github.com/pkg/sftp"
	gossh "golang.org/x/crypto/ssh"

	"github.com/dozehq/doze/internal/agent/environ"
)

const (
	// channelsMax bounds the sessions and forwarded connections of a client at the same
	// time.
	channelsMax = 128
	// flushMax is how long a process that a command left behind may hold its output open.
	flushMax = 200 * time.Millisecond
	// exitSignal is added to the number of a signal, as shells report one.
	exitSignal = 128
	// exitUnknown is the code of a command whose end nobody knows, or that did not start.
	exitUnknown = 127
)

// Main serves SSH to one client, which is at the standard input of this program, and
// returns when that is gone. Commands have the environment env, and begin in its HOME.
func Main(env []string) error {
	conn, err := net.FileConn(os.Stdin)
	if err != nil {
		return fmt.Errorf("the standard input must be the connection of a client: %w", err)
	}
	// Nothing that a command inherits is the connection.
	if err := errors.Join(os.Stdin.Close(), os.Stdout.Close()); err != nil {
		return err
	}
	key, err := hostKey(directory)
	if err != nil {
		return err
	}
	all := commands{env: env}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM)
	go func() { // ends with the program
		<-ended
		all.kill()
		_ = conn.Close() // ends the rest
	}()
	all.server(key).HandleConn(conn)
	all.wait()
	return nil
}

// commands are those that run.
type commands struct {
	env environ.List

	mu      sync.Mutex
	running map[*exec.Cmd]bool // guarded by mu
	tasks   sync.WaitGroup
}

// add takes note of a command that has started.
func (c *commands) add(cmd *exec.Cmd) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running == nil {
		c.running = map[*exec.Cmd]bool{}
	}
	c.running[cmd] = true
}

func (c *commands) forget(cmd *exec.Cmd) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.running, cmd)
}

// kill ends all of them.
func (c *commands) kill() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for cmd := range c.running {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
}

// wait gives them a moment to hear that their client is gone. One that does not care
// goes on.
func (c *commands) wait() {
	over := make(chan struct{})
	go func() { // ends with the program at the latest
		defer close(over)
		c.tasks.Wait()
	}()
	select {
	case <-over:
	case <-time.After(endMax / 2):
	}
}

// server speaks SSH with a host key.
func (c *commands) server(key ssh.Signer) *ssh.Server {
	forwards := &ssh.ForwardedTCPHandler{}
	var open atomic.Int64
	return &ssh.Server{
		Version:     "Doze",
		HostSigners: []ssh.Signer{key},
		Handler:     c.session,
		SubsystemHandlers: map[string]ssh.SubsystemHandler{
			"sftp": c.transfer,
		},
		ChannelHandlers: map[string]ssh.ChannelHandler{
			"session":      bounded(&open, ssh.DefaultSessionHandler),
			"direct-tcpip": bounded(&open, ssh.DirectTCPIPHandler),
		},
		RequestHandlers: map[string]ssh.RequestHandler{
			"tcpip-forward":        forwards.HandleSSHRequest,
			"cancel-tcpip-forward": forwards.HandleSSHRequest,
		},
		// A client may reach what each process of the sandbox may.
		LocalPortForwardingCallback:   func(ssh.Context, string, uint32) bool { return true },
		ReversePortForwardingCallback: func(ssh.Context, string, uint32) bool { return true },
	}
}

// bounded refuses a channel while too many are open.
func bounded(open *atomic.Int64, serve ssh.ChannelHandler) ssh.ChannelHandler {
	return func(srv *ssh.Server, conn *gossh.ServerConn, asked gossh.NewChannel, ctx ssh.Context) {
		defer open.Add(-1)
		if open.Add(1) > channelsMax {
			_ = asked.Reject(gossh.ResourceShortage, fmt.Sprintf("%d channels are open, which is the most", channelsMax))
			return
		}
		serve(srv, conn, asked, ctx)
	}
}

// hostKey returns the key of a directory, and makes it if there is none. A key that
// cannot be stored is that of this connection alone.
func hostKey(dir string) (ssh.Signer, error) {
	path := filepath.Join(dir, "host_key")
	if raw, err := os.ReadFile(path); err == nil {
		if key, err := gossh.ParsePrivateKey(raw); err == nil {
			return key, nil
		}
	}
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	block, err := gossh.MarshalPrivateKey(private, "")
	if err != nil {
		return nil, err
	}
	// Two connections may make one at the same time: the last of them counts.
	if f, err := os.CreateTemp(dir, "new-*"); err == nil {
		if err = errors.Join(pem.Encode(f, block), f.Close()); err == nil {
			err = os.Rename(f.Name(), path)
		}
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}
	return gossh.NewSignerFromKey(private)
}

// home is where sessions begin.
func (c *commands) home() string {
	dir := c.env.Get("HOME")
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return "/"
	}
	return dir
}

// transfer serves files.
func (c *commands) transfer(s ssh.Session) {
	server, err := sftp.NewServer(s, sftp.WithServerWorkingDirectory(c.home()))
	if err != nil {
		_ = s.Exit(exitUnknown)
		return
	}
	defer func() { _ = server.Close() }()
	if err := server.Serve(); err != nil && !errors.Is(err, io.EOF) {
		_ = s.Exit(1)
		return
	}
	_ = s.Exit(0)
}

// session runs a shell or a command.
func (c *commands) session(s ssh.Session) {
	c.tasks.Add(1)
	defer c.tasks.Done()
	cmd, err := c.commandOf(s)
	if err != nil {
		fmt.Fprintln(s.Stderr(), "doze:", err)
		_ = s.Exit(exitUnknown)
		return
	}
	screen, windows, terminal := s.Pty()
	if terminal {
		cmd.Env = append(cmd.Env, "TERM="+cmp.Or(screen.Term, "xterm-256color"))
		err = c.onTerminal(s, cmd, screen.Window, windows)
	} else {
		err = c.onPipes(s, cmd)
	}
	code := codeOf(cmd, err)
	if cmd.ProcessState == nil {
		fmt.Fprintln(s.Stderr(), "doze:", err)
	}
	_ = s.Exit(code)
}

// commandOf is what a session runs. Without a command it is a login shell.
func (c *commands) commandOf(s ssh.Session) (*exec.Cmd, error) {
	shell := c.env.Shell("bash", "sh", "ash")
	if shell == "" {
		return nil, errors.New("the image has no shell")
	}
	cmd := exec.CommandContext(s.Context(), shell) //nolint:gosec // G204: to run what the caller wants is what this is for
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGHUP) }
	if line := s.RawCommand(); line != "" {
		cmd.Args = append(cmd.Args, "-c", line)
	} else {
		cmd.Args[0] = "-" + filepath.Base(shell)
	}
	cmd.Env = slices.Concat(c.env, s.Environ())
	cmd.Dir = c.home()
	return cmd, nil
}

// onTerminal runs a command on a terminal.
func (c *commands) onTerminal(s ssh.Session, cmd *exec.Cmd, first ssh.Window, windows <-chan ssh.Window) error {
	f, err := pty.StartWithSize(cmd, sizeOf(first))
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	watched := c.watch(s, cmd)
	go func() { // ends with the session
		for w := range windows {
			_ = pty.Setsize(f, sizeOf(w)) // cosmetic
		}
	}()
	go func() { _, _ = io.Copy(f, s) }() // ends with the client or the terminal
	shown := make(chan struct{})
	go func() { // ends with the terminal
		defer close(shown)
		_, _ = io.Copy(s, f) // EIO is the end of the last process
	}()
	err = cmd.Wait()
	watched()
	select {
	case <-shown:
	case <-time.After(flushMax):
	}
	return err
}

func sizeOf(w ssh.Window) *pty.Winsize {
	const most = 1 << 15
	return &pty.Winsize{Cols: uint16(min(max(w.Width, 0), most)), Rows: uint16(min(max(w.Height, 0), most))}
}

// onPipes runs a command without a terminal.
func (c *commands) onPipes(s ssh.Session, cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = s, s.Stderr(), flushMax
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() { // ends with the client or the command
		_, _ = io.Copy(in, s)
		_ = in.Close()
	}()
	defer c.watch(s, cmd)()
	if err = cmd.Wait(); errors.Is(err, exec.ErrWaitDelay) {
		err = nil // something that it left behind goes on
	}
	return err
}

// watch passes signals of the client on to a command, until stop is called.
func (c *commands) watch(s ssh.Session, cmd *exec.Cmd) (stop func()) {
	c.add(cmd)
	ctx, cancel := context.WithCancel(s.Context())
	asked := make(chan ssh.Signal, len(signals))
	s.Signals(asked)
	over := make(chan struct{})
	go func() { // ends with stop
		defer close(over)
		for {
			select {
			case name := <-asked:
				if n, ok := signals[name]; ok {
					_ = syscall.Kill(-cmd.Process.Pid, n)
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() {
		cancel()
		<-over
		s.Signals(nil)
		c.forget(cmd)
	}
}

// signals are those that clients name (RFC 4254, section 6.10).
var signals = map[ssh.Signal]syscall.Signal{
	ssh.SIGABRT: syscall.SIGABRT, ssh.SIGALRM: syscall.SIGALRM, ssh.SIGFPE: syscall.SIGFPE, ssh.SIGHUP: syscall.SIGHUP,
	ssh.SIGILL: syscall.SIGILL, ssh.SIGINT: syscall.SIGINT, ssh.SIGKILL: syscall.SIGKILL, ssh.SIGPIPE: syscall.SIGPIPE,
	ssh.SIGQUIT: syscall.SIGQUIT, ssh.SIGSEGV: syscall.SIGSEGV, ssh.SIGTERM: syscall.SIGTERM, ssh.SIGUSR1: syscall.SIGUSR1,
	ssh.SIGUSR2: syscall.SIGUSR2,
}

// codeOf is the exit code of a command, as a shell would report it.
func codeOf(cmd *exec.Cmd, err error) int {
	if cmd.ProcessState == nil {
		return exitUnknown
	}
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return exitSignal + int(status.Signal())
	}
	if code := cmd.ProcessState.ExitCode(); code >= 0 || err == nil {
		return code
	}
	return exitUnknown
}
