package e2e_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
)

// output is what processes of a sandbox wrote, the oldest line first, as the platform
// has it.
func output(t *testing.T, c *client.Client, name string) (lines []string) {
	t.Helper()
	log, err := c.Log(t.Context(), name, client.LogFilter{Type: doze.LogProcess, OldestFirst: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range log.Lines {
		lines = append(lines, l.Process+"/"+l.Stream+": "+l.Message)
	}
	return lines
}

// TestLogsOutlive: what processes write is stored once, whatever becomes of dozed and of
// the sandbox. A log wakes nobody, and a copy has one of its own.
func TestLogsOutlive(t *testing.T) {
	t.Parallel()
	p, c := start(t, "--pause-after", "2s", "--disk-after", "3s")
	_, agent := create(t, c, named("src", 1024))
	spawn(t, agent, client.Command{Name: "one", Command: "echo hello; echo oops >&2"})
	first := []string{"one/stdout: hello", "one/stderr: oops"}
	var got []string
	until(t, "its output is stored", func() bool { got = output(t, c, "src"); return len(got) == 2 })
	if slices.Sort(got); !slices.Equal(got, []string{first[1], first[0]}) {
		t.Errorf("the log is %q", got)
	}
	if err := p.AwaitTier(t.Context(), "src", "disk"); err != nil {
		t.Fatal(err)
	}
	if got := output(t, c, "src"); len(got) != 2 {
		t.Errorf("asleep the log is %q", got)
	}
	if tier, err := p.TierOf(t.Context(), "src"); err != nil || tier != "disk" {
		t.Errorf("it is %s, %v: its log woke it", tier, err)
	}
	snap(t, c, "n")
	if _, err := c.ForkSnapshot(t.Context(), "n", into("copy")); err != nil {
		t.Fatal(err)
	}
	_, copied := open(t, c, "copy")
	spawn(t, copied, client.Command{Name: "two", Command: "echo mine"})
	until(t, "the output of the copy is stored", func() bool { got = output(t, c, "copy"); return len(got) > 0 })
	if !slices.Equal(got, []string{"two/stdout: mine"}) {
		t.Errorf("the log of the copy is %q", got)
	}
	forever := 0
	spawn(t, agent, client.Command{Name: "ticks", Command: "for i in 1 2 3 4 5 6 7 8 9 10; do echo $i; sleep 0.3; done", KeepAlive: true, Timeout: &forever})
	time.Sleep(700 * time.Millisecond)
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	revive(t, p)
	ticks := func() (all []string) {
		for _, l := range output(t, c, "src") {
			if text, ok := strings.CutPrefix(l, "ticks/stdout: "); ok {
				all = append(all, text)
			}
		}
		return all
	}
	until(t, "all of its output is stored", func() bool { got = ticks(); return slices.Contains(got, "10") })
	if strings.Join(got, " ") != "1 2 3 4 5 6 7 8 9 10" {
		t.Errorf("over a kill of dozed it wrote %q", got)
	}
	sh(t, agent, "echo bye")
	if _, err := c.Delete(t.Context(), "src"); err != nil {
		t.Fatal(err)
	}
	log, err := c.Log(t.Context(), "src", client.LogFilter{Search: "BYE"})
	if err != nil || len(log.Lines) != 1 {
		t.Errorf("after its end %+v, %v", log, err)
	}
	s := shell{home: t.TempDir()}
	s.ok(t, "doze", "login", "--address", p.Address, "--data", p.Data)
	if out := s.ok(t, "doze", "sandbox", "logs", "src", "--severity", "ERROR"); !strings.Contains(out, "ERROR   one: oops") || strings.Contains(out, "hello") {
		t.Errorf("the command prints %q", out)
	}
	if _, err := os.Stat(filepath.Join(p.Data, "logs")); err != nil {
		t.Error(err)
	}
}

// TestLogsOfFlood: a process that writes without an end gets as much done as without a
// log, takes a bounded part of the disk, and is told what is missing.
func TestLogsOfFlood(t *testing.T) {
	t.Parallel()
	p, c := start(t, "--logs-workspace-mb", "2")
	_, agent := create(t, c, named("loud", 1024))
	forever := 0
	spawn(t, agent, client.Command{Name: "flood", Command: "base64 -w 1000 /dev/urandom", KeepAlive: true, Timeout: &forever})
	quiet := time.Now()
	time.Sleep(10 * time.Second)
	sh(t, agent, "echo it answers")
	if took := time.Since(quiet); took > 10*time.Second+patience/4 {
		t.Errorf("an answer took %v", took)
	}
	var size int64
	err := filepath.WalkDir(filepath.Join(p.Data, "logs"), func(_ string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			if i, gone := d.Info(); gone == nil {
				size += i.Size()
			}
		}
		return nil
	})
	if err != nil || size == 0 || size > 3<<20 {
		t.Errorf("its log takes %d bytes, %v", size, err)
	}
	until(t, "a line says what is missing", func() bool {
		log, err := c.Log(t.Context(), "loud", client.LogFilter{Severities: []string{doze.LogWarning}, Search: "missing"})
		return err == nil && len(log.Lines) > 0
	})
}
