// Package terminal runs shells on pseudo-terminals and shows each to any number of
// viewers.
package terminal

import (
	"os"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/child"
	"github.com/dozehq/doze/internal/agent/command"
	"github.com/dozehq/doze/internal/agent/environ"
	"github.com/dozehq/doze/internal/agent/mistake"
	"github.com/dozehq/doze/internal/agent/proc"
	"github.com/dozehq/doze/internal/agent/pump"
	"github.com/dozehq/doze/internal/agent/spawn"
	"github.com/dozehq/doze/internal/agent/text"
)

const (
	terminalsMax = 64
	viewersMax   = 64        // of one terminal
	replayMax    = 100 << 10 // of output, for those who connect later
	queueMax     = 64        // chunks that a slow viewer may be behind
	// terminalIdle is how long a terminal lives without a viewer.
	terminalIdle = 10 * time.Minute
	// terminalFlush is how long the kernel may take to hand over what a shell
	// wrote before it ended.
	terminalFlush = 200 * time.Millisecond
	// lagMax is how long a viewer that must miss nothing may leave output unread. Its
	// command stands still meanwhile. After that, output is lost to it.
	lagMax = time.Minute
	// typingStall is how long a shell may leave what was typed unread.
	typingStall = 10 * time.Second
)

// window is the size of a terminal in characters.
type window struct{ cols, rows uint16 }

func (w window) known() bool { return w.cols > 0 && w.rows > 0 }

// opening is what a viewer asks for when it connects.
type opening struct {
	session string
	shell   string // empty means the one of the image
	dir     string
	window  window
	command *command.Spec // runs instead of the shell; nil without one
	all     bool          // the viewer misses no output, and hears how the shell or the command ended
}

// invocations are what runs what an opening asks for, the quickest first.
func (o *opening) invocations(dir string, env environ.List) ([]command.Invocation, error) {
	if o.command != nil {
		return o.command.Invocations(dir, env)
	}
	shell := env.Look(o.shell)
	if o.shell == "" {
		shell = env.Shell("zsh", "bash", "sh", "ash")
	}
	if shell == "" {
		return nil, doze.Errorf(doze.Unprocessable, "the image has no shell %s", mistake.Clip(o.shell))
	}
	return []command.Invocation{{File: shell, Argv: []string{shell}, Env: env}}, nil
}

// Terminals keeps the shells that people look at, by session.
type Terminals struct {
	child.Launcher

	tasks sync.WaitGroup

	mu     sync.Mutex
	open   map[string]*terminal // guarded by mu
	closed bool                 // guarded by mu
}

// New returns no terminals yet.
func New(start child.Launcher) *Terminals {
	return &Terminals{Launcher: start, open: map[string]*terminal{}}
}

// view connects to the terminal of a session, which it starts if there is
// none. The caller must leave the viewer.
func (t *Terminals) view(o opening) (*viewer, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if term := t.open[o.session]; term != nil {
		v, err := term.join(o.window, o.all)
		if v != nil || err != nil {
			return v, err
		}
	}
	switch {
	case t.closed:
		return nil, doze.Errorf(doze.Unavailable, "the sandbox is stopping")
	case len(t.open) >= terminalsMax:
		return nil, doze.Errorf(doze.Unprocessable, "%d terminals are open, which is the most; close some", terminalsMax)
	}
	term, err := t.begin(o)
	if err != nil {
		return nil, err
	}
	t.open[o.session] = term
	t.tasks.Go(term.pump.Run)
	t.tasks.Go(func() {
		term.live()
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.open[o.session] == term {
			delete(t.open, o.session)
		}
	})
	return term.join(o.window, o.all)
}

// begin runs a shell or a command in a session of its own.
func (t *Terminals) begin(o opening) (*terminal, error) {
	env := t.Vars.List()
	if env.Get("TERM") == "" {
		env = env.With(map[string]string{"TERM": "xterm-256color"})
	}
	dir := t.In(o.dir)
	invocations, err := o.invocations(dir, env)
	if err != nil {
		return nil, err
	}
	as, err := t.User.Credential()
	if err != nil {
		return nil, err
	}
	master, tty, err := pty.Open()
	if err != nil {
		return nil, doze.Wrap(err, doze.Unprocessable, "open a terminal: %v", err)
	}
	defer func() { _ = tty.Close() }()
	if master, err = unblocked(master); err != nil {
		return nil, doze.Wrap(err, doze.Unprocessable, "open a terminal: %v", err)
	}
	fd := int(tty.Fd())
	if err := syscall.SetNonblock(fd, false); err != nil { // programs do not expect otherwise
		_ = master.Close()
		return nil, doze.Wrap(err, doze.Unprocessable, "open a terminal: %v", err)
	}
	if as != nil {
		_ = tty.Chown(int(as.Uid), int(as.Gid)) // best effort: some programs open it by its name
	}
	if o.window.known() {
		setSize(master, o.window) // before the command can ask for it
	}
	var c *child.Child
	for _, how := range invocations {
		c, err = t.Children.Start(how.File, how.Argv, spawn.Attr{Dir: dir, Env: how.Env, Files: [3]int{fd, fd, fd}, As: as, Terminal: true})
		if err == nil {
			break
		}
		err = doze.Wrap(err, doze.Unprocessable, "start %s in %q: %v", mistake.Clip(how.File), mistake.Clip(dir), err)
	}
	if err != nil {
		_ = master.Close()
		return nil, err
	}
	term := &terminal{
		child:    c,
		children: t.Children,
		pty:      master,
		done:     make(chan struct{}),
		viewers:  map[*viewer]bool{},
	}
	term.pump = pump.Of(master, term.show)
	return term, nil
}

// Close ends all terminals and waits for them.
func (t *Terminals) Close() {
	t.mu.Lock()
	t.closed = true
	for _, term := range t.open {
		term.end()
	}
	t.mu.Unlock()
	t.tasks.Wait()
}

// EndAll ends all terminals.
func (t *Terminals) EndAll() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, term := range t.open {
		term.end()
	}
}

// terminal is a shell on a pseudo-terminal. It outlives its viewers.
type terminal struct {
	child    *child.Child
	children *child.Reaper
	pty      *os.File
	pump     *pump.Pump
	split    text.Carry    // of the pump
	done     chan struct{} // closed after the last output

	mu      sync.Mutex
	viewers map[*viewer]bool // guarded by mu; nil once it is over
	replay  []byte           // guarded by mu: the last output
	idle    *time.Timer      // guarded by mu: ends it when nobody looks
}

// viewer is one connection to a terminal.
type viewer struct {
	*terminal
	past   string        // what was there before it came
	output chan string   // ends with done of the terminal
	all    bool          // it must not miss output, and hears how the terminal ended
	left   chan struct{} // closed when it has left
	slow   bool          // guarded by mu of the terminal; it misses output after all
}

// unblocked returns f for reads that can be interrupted, and closes f. The
// library that opened it lets them block for good.
func unblocked(f *os.File) (*os.File, error) {
	defer func() { _ = f.Close() }()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	if err := syscall.SetNonblock(fd, true); err != nil {
		_ = syscall.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// setSize tells the shell how large its window is. It is cosmetic, and may fail.
func setSize(master *os.File, size window) {
	conn, err := master.SyscallConn()
	if err != nil {
		return
	}
	_ = conn.Control(func(fd uintptr) {
		_ = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Col: size.cols, Row: size.rows})
	})
}

// live follows the shell to its end.
func (t *terminal) live() {
	<-t.child.Exited
	killSession(t.child.PID)
	flush := time.NewTimer(terminalFlush)
	defer flush.Stop()
	select {
	case <-t.pump.Ended:
	case <-flush.C: // somebody outside the session holds it open
		t.pump.Drain()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.viewers = nil
	close(t.done)
	_ = t.pty.Close() // the pump has closed it, or ends now
	if t.idle != nil {
		t.idle.Stop()
	}
}

// end kills the shell; live does the rest.
func (t *terminal) end() { t.children.Signal(t.child, syscall.SIGKILL) }

// signal sends a signal to the processes of the command, but for those that it put into
// groups of their own.
func (t *terminal) signal(s syscall.Signal) { t.children.Signal(t.child, s) }

// join adds a viewer, whose window counts from now on. One that sees all never loses
// output to its slowness. Both results are nil when the terminal is over.
func (t *terminal) join(size window, all bool) (*viewer, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.viewers == nil:
		return nil, nil
	case len(t.viewers) >= viewersMax:
		return nil, doze.Errorf(doze.Unprocessable, "%d viewers look at this terminal, which is the most", viewersMax)
	}
	if t.idle != nil {
		t.idle.Stop()
	}
	v := &viewer{terminal: t, past: string(t.replay), output: make(chan string, queueMax), all: all, left: make(chan struct{})}
	t.viewers[v] = true
	t.resize(size)
	return v, nil
}

// leave ends a view. The last one out starts the clock.
func (v *viewer) leave() {
	close(v.left)
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.viewers == nil {
		return
	}
	delete(v.viewers, v)
	if len(v.viewers) == 0 {
		v.idle = time.AfterFunc(terminalIdle, v.end)
	}
}

// show passes output on. A viewer that is too slow loses it, and the shell does not
// wait, but for a viewer that must see all.
func (t *terminal) show(b []byte) {
	text := t.split.Add(b)
	if text == "" {
		return
	}
	for _, v := range t.note(text) {
		v.await(text)
	}
}

// note remembers output and passes it on to those who may miss it. It returns the
// others.
func (t *terminal) note(text string) (others []*viewer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.replay = append(t.replay, text...)
	if over := len(t.replay) - replayMax; over > 0 {
		for over < len(t.replay) && !utf8.RuneStart(t.replay[over]) {
			over++
		}
		t.replay = append(t.replay[:0], t.replay[over:]...)
	}
	for v := range t.viewers {
		if v.all && !v.slow {
			others = append(others, v)
			continue
		}
		select {
		case v.output <- text:
		default:
		}
	}
	return others
}

// await passes output on to a viewer as soon as that has room for it.
func (v *viewer) await(text string) {
	lag := time.NewTimer(lagMax)
	defer lag.Stop()
	select {
	case v.output <- text:
	case <-v.left:
	case <-v.done:
	case <-lag.C:
		v.mu.Lock()
		defer v.mu.Unlock()
		v.slow = true
	}
}

// enter types text. A shell that does not read loses it.
func (t *terminal) enter(text string) {
	_ = t.pty.SetWriteDeadline(time.Now().Add(typingStall)) // the write reports what is wrong
	_, _ = t.pty.WriteString(text)                          // the viewer sees that nothing happens
}

// resize sets the window; a side of zero leaves it as it is.
func (t *terminal) resize(size window) {
	if size.known() {
		setSize(t.pty, size)
	}
}

// killSession kills the processes of a session that its leader left.
func killSession(session int) {
	for _, t := range proc.Root.Tasks() {
		if t.Session != session {
			continue
		}
		// The handle pins the process, so look again before the shot.
		p, err := os.FindProcess(t.PID)
		if err != nil {
			continue
		}
		if t, ok := proc.Root.Task(t.PID); ok && t.Session == session {
			_ = p.Kill() // it may have ended
		}
		_ = p.Release() // it only closes the handle
	}
}
