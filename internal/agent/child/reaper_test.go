package child

import (
	"context"
	"os"
	"sync"
	"syscall"
	"testing"

	"github.com/dozehq/doze/internal/agent/spawn"
)

// run starts a shell that runs a command, with a reaper that collects it.
func run(t *testing.T, command string) (*Reaper, *Child) {
	t.Helper()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	r := New(false)
	ctx, stop := context.WithCancel(t.Context())
	var tasks sync.WaitGroup
	tasks.Go(func() { r.Run(ctx) })
	t.Cleanup(func() {
		stop()
		tasks.Wait()
	})
	fd := int(null.Fd())
	c, err := r.Start("/bin/sh", []string{"sh", "-c", command}, spawn.Attr{Dir: "/", Files: [3]int{fd, fd, fd}})
	if err != nil {
		t.Fatal(err)
	}
	return r, c
}

func TestExit(t *testing.T) {
	t.Parallel()
	r, c := run(t, "exit 3")
	<-c.Exited
	if c.Status.ExitStatus() != 3 {
		t.Errorf("it ended with %v", c.Status)
	}
	if r.Signal(c, syscall.SIGTERM) {
		t.Error("a process that is gone got a signal")
	}
}

// A signal is for the whole group.
func TestSignal(t *testing.T) {
	t.Parallel()
	r, c := run(t, "sleep 1000 & wait")
	if !r.Signal(c, syscall.SIGKILL) {
		t.Error("there is nobody")
	}
	<-c.Exited
	if !c.Status.Signaled() || c.Status.Signal() != syscall.SIGKILL {
		t.Errorf("it ended with %v", c.Status)
	}
}

func TestIn(t *testing.T) {
	t.Parallel()
	l := Launcher{Dir: "/work"}
	for asked, want := range map[string]string{"": "/work", "/tmp/..": "/tmp/..", "a/../b": "/work/a/../b"} {
		if got := l.In(asked); got != want {
			t.Errorf("%q starts in %q, want %q", asked, got, want)
		}
	}
}
