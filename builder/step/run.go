// Package step runs one command of a Dockerfile, as a child of this program in
// namespaces of its own. The command finds nothing of the machine but the root file
// system of its step.
//
// The machine around the builder is the border to everybody else. The border
// here is between a step and the builder. They belong to the same workspace,
// but a step must neither end the builder nor change its cache.
package step

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

const (
	// Command is the argument that makes this program a step: see [Main].
	Command = "step"
	// verdictMax bounds what a step says about its start, in bytes.
	verdictMax = 64 << 10
	// pipesDelay is how long the output of a step may stay open after its end. All its
	// processes are dead by then.
	pipesDelay = 10 * time.Second
	// processesMax bounds the processes of a step. A build of a large C++ project has
	// a few hundred at most. The engine has a seccomp filter for each. Linux 6.18 hangs for good
	// if it frees about a thousand of them at once.
	processesMax = 512
	// countEvery is the pause between two counts of them.
	countEvery = 100 * time.Millisecond
	// exitKilled is the exit code that shells show for SIGKILL, as for any signal.
	exitSignal = 128
)

// ErrProcesses is why a step was ended that started too many processes.
var ErrProcesses = fmt.Errorf("the step had more than %d processes", processesMax)

// An ExitError is a command that ended with another code than 0.
type ExitError struct {
	Code int    // 126 if it cannot be run, 127 if there is none, 128 and the number of a signal
	Text string // why it did not start, if it did not
}

// Error implements error.
func (e *ExitError) Error() string {
	if e.Text != "" {
		return e.Text
	}
	return "exit code: " + strconv.Itoa(e.Code)
}

// Options are of one run.
type Options struct {
	// Spec is the step as the OCI's runtime specification has it. Root.Path is a mount point.
	Spec           *specs.Spec
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Alone gives the step a network namespace with a loopback interface and nothing else.
	Alone bool
	// Started is called once the command runs.
	Started func()
	// Program starts this program as a step: its path and its arguments.
	Program []string
}

// verdict is why a step did not start.
type verdict struct {
	Error string `json:"error"`
	Code  int    `json:"code"` // of an ExitError; 0 if the fault is not the command's
}

// Run runs a step until its command ends, and ends all its processes. It returns nil, an
// *ExitError, ErrProcesses, the cause of ctx, or why the step could not be set up.
func Run(ctx context.Context, o Options) error {
	// The kernel ends the step with the thread that started it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	orders, tell, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = tell.Close() }()
	verdicts, answer, err := os.Pipe()
	if err != nil {
		return errors.Join(err, orders.Close())
	}
	defer func() { _ = verdicts.Close() }()
	cmd := exec.CommandContext(ctx, o.Program[0], o.Program[1:]...) //nolint:gosec // it is this program
	cmd.Stdin, cmd.Stdout, cmd.Stderr = o.Stdin, o.Stdout, o.Stderr
	cmd.ExtraFiles = []*os.File{orders, answer} // fdOrder and fdVerdict
	cmd.Env = []string{}
	cmd.WaitDelay = pipesDelay
	// The step itself asks to be ended with this thread. With Pdeathsig, it would kill itself where a
	// first process can: its parent is in another namespace, and Go takes that for dead.
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS,
		Setsid:     true,
	}
	if o.Alone {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWNET
	}
	err = cmd.Start()
	_, _ = orders.Close(), answer.Close()
	if err != nil {
		return fmt.Errorf("start the step: %w", err)
	}
	life, end := context.WithCancelCause(ctx)
	stop := context.AfterFunc(life, func() { _ = cmd.Process.Kill() }) // the first process of its namespace: all end
	refused, startErr := start(tell, verdicts, o)
	if startErr != nil {
		_ = cmd.Process.Kill()
	}
	counted := make(chan struct{})
	go func() { // not before the command runs: until then, its /proc is that of the machine
		defer close(counted)
		limitProcesses(life, cmd.Process.Pid, end)
	}()
	waitErr := cmd.Wait()
	stop()
	cause := context.Cause(life)
	end(nil)
	<-counted
	switch {
	case errors.Is(cause, ErrProcesses):
		return ErrProcesses
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case refused != nil && refused.Code != 0:
		return &ExitError{refused.Code, refused.Error}
	case refused != nil:
		return fmt.Errorf("set up the step: %s", refused.Error)
	}
	if exit, ok := errors.AsType[*exec.ExitError](waitErr); ok {
		status, _ := exit.Sys().(syscall.WaitStatus)
		if status.Signaled() {
			return &ExitError{Code: exitSignal + int(status.Signal())}
		}
		return &ExitError{Code: status.ExitStatus()}
	}
	return errors.Join(startErr, waitErr)
}

// start tells a step what to do, and waits until its command runs, or not.
func start(tell io.Writer, verdicts io.Reader, o Options) (*verdict, error) {
	if err := json.NewEncoder(tell).Encode(o.Spec); err != nil {
		return nil, fmt.Errorf("tell the step: %w", err)
	}
	raw, err := io.ReadAll(io.LimitReader(verdicts, verdictMax))
	if err != nil {
		return nil, fmt.Errorf("ask the step: %w", err)
	}
	if len(raw) == 0 { // it closed with the call of exec
		if o.Started != nil {
			o.Started()
		}
		return nil, nil
	}
	v := &verdict{}
	if err := json.Unmarshal(raw, v); err != nil {
		return nil, fmt.Errorf("ask the step: %w", err)
	}
	return v, nil
}

// limitProcesses ends a step that has too many processes.
func limitProcesses(ctx context.Context, pid int, end context.CancelCauseFunc) {
	tick := time.NewTicker(countEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if processes(pid) > processesMax {
			end(ErrProcesses)
			return
		}
	}
}

// processes counts those that the namespace of a process has. It is 0 if nobody can tell.
func processes(pid int) int {
	// The step's own /proc, as the step cannot unmount it.
	f, err := os.Open("/proc/" + strconv.Itoa(pid) + "/root/proc")
	if err != nil {
		return 0
	}
	defer func() { _ = f.Close() }()
	var fs unix.Statfs_t
	if unix.Fstatfs(int(f.Fd()), &fs) != nil || fs.Type != unix.PROC_SUPER_MAGIC {
		return 0 // the Dockerfile mounts something else there
	}
	names, _ := f.Readdirnames(-1) // what it has until an error
	n := 0
	for _, name := range names {
		if name[0] >= '1' && name[0] <= '9' {
			n++
		}
	}
	return n
}
