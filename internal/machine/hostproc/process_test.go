package hostproc

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestWatch(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	for name, tc := range map[string]struct {
		call func(shot <-chan struct{}) error
		want error
		took time.Duration
		shot bool
	}{
		"works":             {func(<-chan struct{}) error { return nil }, nil, 0, false},
		"fails":             {func(<-chan struct{}) error { return broken }, broken, 0, false},
		"takes its time":    {func(<-chan struct{}) error { time.Sleep(59 * time.Second); return nil }, nil, 59 * time.Second, false},
		"hangs":             {func(shot <-chan struct{}) error { <-shot; return broken }, ErrHung, time.Minute, true},
		"survives the shot": {func(<-chan struct{}) error { time.Sleep(time.Hour); return nil }, ErrHung, 2 * time.Minute, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				shot := make(chan struct{})
				defer time.Sleep(time.Hour) // until every call has ended
				began := time.Now()
				// A caller that leaves does not end the call.
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				err := Watch(ctx, time.Minute, func() { close(shot) }, func() error { return tc.call(shot) })
				if !errors.Is(err, tc.want) || (err == nil) != (tc.want == nil) {
					t.Errorf("%v, want %v", err, tc.want)
				}
				if took := time.Since(began); took != tc.took {
					t.Errorf("took %v, want %v", took, tc.took)
				}
				select {
				case <-shot:
					if !tc.shot {
						t.Error("a call in time was shot")
					}
				default:
					if tc.shot {
						t.Error("a call that hangs was not shot")
					}
				}
			})
		})
	}
}

func TestGuard(t *testing.T) {
	t.Parallel()
	if err := Guard(func() error { panic("engine") }); err == nil {
		t.Error("a panic is no error")
	}
}

func TestWaiter(t *testing.T) {
	t.Parallel()
	child := exec.Command("sleep", "1000")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	end, err := Waiter(child.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { end(); close(ended) }()
	select {
	case <-ended:
		t.Fatal("it ended before it ended")
	case <-time.After(20 * time.Millisecond):
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-ended // before somebody reaps it
	_ = child.Wait()
	if _, err := Waiter(child.Process.Pid); err == nil {
		t.Error("a process that is gone can be waited for")
	}
}

func TestTree(t *testing.T) {
	t.Parallel()
	child := exec.Command("sh", "-c", "sleep 1000 & echo; wait")
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = child.Wait() })
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	pids := Tree(child.Process.Pid)
	for _, pid := range slices.Backward(pids) {
		if p, err := os.FindProcess(pid); err == nil {
			_ = p.Kill()
		}
	}
	if len(pids) != 2 || pids[0] != child.Process.Pid {
		t.Errorf("the tree of %d is %v, want it and one child", child.Process.Pid, pids)
	}
	if parent, err := Parent(child.Process.Pid); err != nil || parent != os.Getpid() {
		t.Errorf("the parent of our child is %d, %v", parent, err)
	}
}

// A process that is forked while its parent is visited is a child that is seen:
// what the visit did to the parent came too late for it.
func TestVisit(t *testing.T) {
	t.Parallel()
	parent := exec.Command("sh", "-c", "read go; sleep 1000 & echo; wait")
	in, err := parent.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = parent.Wait() })
	var pids []int
	err = Visit(parent.Process.Pid, func(pid int) error {
		pids = append(pids, pid)
		if len(pids) > 1 {
			return nil
		}
		if _, err := in.Write([]byte("\n")); err != nil {
			return err
		}
		_, err := out.Read(make([]byte, 1))
		return err
	})
	for _, pid := range slices.Backward(pids) {
		if p, err := os.FindProcess(pid); err == nil {
			_ = p.Kill()
		}
	}
	if err != nil || len(pids) != 2 {
		t.Errorf("%v were visited, %v; want %d and its child", pids, err, parent.Process.Pid)
	}
	broken := errors.New("broken")
	if err := Visit(os.Getpid(), func(int) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("a visit that failed returned %v", err)
	}
}
