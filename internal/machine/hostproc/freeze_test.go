package hostproc

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestFreeze: what is frozen does not run, its children included, and goes on where it
// stood.
func TestFreeze(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root for cgroups")
	}
	name := fmt.Sprint("doze-freeze-", os.Getpid())
	g, err := OpenGroups(name)
	if err != nil {
		t.Fatal(err)
	}
	if !g.unified && !g.freezes {
		t.Skip("this host has no freezer")
	}
	if err := Freeze(t.Context(), name+"-nobody", true); err != nil {
		t.Errorf("a group that is not there: %v", err)
	}
	group, err := g.Make("a", 64<<20)
	if err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), "sh", "-c", `read go; (i=0; while true; do i=$((i+1)); echo $i; sleep 0.01; done)`)
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	lines := make(chan string, 10_000)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for s := bufio.NewScanner(out); s.Scan(); {
			lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 10*time.Second)
		defer cancel()
		if err := Freeze(ctx, name, false); err != nil {
			t.Error(err)
		}
		if err := KillAll(name, []string{"a", "nobody"}); err != nil {
			t.Error(err)
		}
		<-done
		_ = c.Wait()
		for _, dir := range append(group.dirs, g.dirs("")...) {
			err := os.Remove(dir)
			for ; errors.Is(err, unix.EBUSY) && ctx.Err() == nil; err = os.Remove(dir) {
				time.Sleep(10 * time.Millisecond) // its processes were killed, and are ending
			}
			if err != nil && !os.IsNotExist(err) {
				t.Error(err)
			}
		}
	})
	if err := group.Add(c.Process.Pid); err != nil {
		t.Fatal(err)
	}
	if _, err := in.Write([]byte("go\n")); err != nil {
		t.Fatal(err)
	}
	<-lines
	frozen := func(name string, want bool) {
		t.Helper()
		if is, err := Frozen(name); err != nil || is != want {
			t.Errorf("%s is frozen: %t, %v", name, is, err)
		}
	}
	frozen(name+"-nobody", false)
	for range 3 {
		frozen(name, false)
		if err := Freeze(t.Context(), name, true); err != nil {
			t.Fatal(err)
		}
		frozen(name, true)
		time.Sleep(50 * time.Millisecond) // what was in the pipe
		for len(lines) > 0 {
			<-lines
		}
		time.Sleep(300 * time.Millisecond)
		if n := len(lines); n > 0 {
			t.Errorf("frozen, it wrote %d lines", n)
		}
		if err := Freeze(t.Context(), name, false); err != nil {
			t.Fatal(err)
		}
		select {
		case <-lines:
		case <-time.After(5 * time.Second):
			t.Fatal("it does not go on")
		}
	}
	if err := Freeze(t.Context(), name, true); err != nil {
		t.Fatal(err)
	}
	time.Sleep(50 * time.Millisecond)
	for len(lines) > 0 {
		<-lines
	}
	if err := errors.Join(KillAll(name, []string{"a"}), Freeze(t.Context(), name, false)); err != nil {
		t.Fatal(err)
	}
	<-done
	if n := len(lines); n > 0 {
		t.Errorf("killed while it was frozen, it wrote %d lines", n)
	}
}
