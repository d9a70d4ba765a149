package node_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/machine/machinetest"
	"github.com/dozehq/doze/internal/node"
)

// chest has copies of sandboxes that outlive their nodes, by UID.
type chest struct {
	dir string

	mu      sync.Mutex
	failing error // guarded by mu; what fetch returns
	fetched int   // guarded by mu
}

func newChest(t *testing.T) *chest {
	t.Helper()
	return &chest{dir: t.TempDir()}
}

func (c *chest) fails(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failing = err
}

func (c *chest) fetches() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fetched
}

// copy copies a sandbox, as a depot does.
func (c *chest) copy(p *process, uid string) (at time.Time) {
	p.h.t.Helper()
	return c.send(p, uid, true, true)
}

// send is copy of a depot that may end before its node has heard of the end. The copy arrives, or not.
func (c *chest) send(p *process, uid string, arrives, heard bool) (at time.Time) {
	p.h.t.Helper()
	dir, _, done, err := p.CopyOut(p.h.t.Context(), uid)
	if err != nil {
		p.h.t.Fatal(err)
	}
	_, at, err = p.Needs(uid)
	err = errors.Join(err, p.Sending(uid, at))
	if to := filepath.Join(c.dir, uid); arrives {
		err = errors.Join(err, os.RemoveAll(to), os.CopyFS(to, os.DirFS(dir)))
	}
	if heard {
		p.Copied(uid, at)
	}
	if err = errors.Join(err, done()); err != nil {
		p.h.t.Fatal(err)
	}
	return at
}

func (c *chest) record(t *testing.T, uid string) []byte {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(c.dir, uid, node.CopyRecord))
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// with has a node of a host fetch from the chest.
func (c *chest) with(h *host, change func(*node.Options)) *process {
	h.t.Helper()
	o := h.options()
	o.GoBack = true
	var p *process
	open := make(chan struct{})
	o.Fetch = func(_ context.Context, uid string) (node.Files, error) {
		<-open
		c.mu.Lock()
		err := c.failing
		c.fetched++
		c.mu.Unlock()
		if err != nil {
			return node.Files{}, err
		}
		if _, err := os.Stat(filepath.Join(c.dir, uid)); err != nil {
			return node.Files{}, doze.Wrap(err, doze.NotFound, "there is no copy")
		}
		dir, err := p.Incoming(uid)
		return node.Files{Root: filepath.Join(h.dir, imageFile), Agent: "agent"}, errors.Join(err, os.CopyFS(dir, os.DirFS(filepath.Join(c.dir, uid))))
	}
	if change != nil {
		change(&o)
	}
	p = h.startWith(o)
	close(open)
	return p
}

// wentTo fails unless sandbox a sleeps, and said that it goes on from a copy of a moment. Then it wakes
// it.
func (p *process) wentTo(at time.Time) {
	t := p.h.t
	t.Helper()
	synctest.Wait()
	st, _ := p.Status("a")
	if st.Phase != doze.Standby {
		t.Fatalf("it is %s: %s", st.Phase, p.h.last("a").Message)
	}
	text := "it goes on from its copy of " + at.UTC().Format(time.RFC3339)
	if last := p.h.last("a"); !strings.Contains(last.Message, text) || !strings.Contains(last.Message, "what it did since is lost") {
		t.Errorf("it reported %+v, not %q", last, text)
	}
	if st.Setback == nil || !st.Setback.Checkpoint.Equal(at) {
		t.Fatalf("it went back to %+v, want %v", st.Setback, at)
	}
	p.hello("a")
	if age, ok := p.StateAge("a"); !ok || age != time.Since(at) {
		t.Errorf("its state is %v old, %t, want %v", age, ok, time.Since(at))
	}
	if _, ok := p.StateAge("a"); ok {
		t.Error("a second answer says so")
	}
}

// TestCopyIsLeft: a sandbox whose processes ended goes on from its copy in the bucket if
// nothing newer is left on the node, and from what is newer otherwise.
func TestCopyIsLeft(t *testing.T) {
	virtual(t, func(h *host) {
		t, c := h.t, newChest(h.t)
		p := c.with(h, nil)
		if err := p.Create(t.Context(), order("a")); err != nil {
			t.Fatal(err)
		}
		// Used all the time: there is no checkpoint.
		release, err := p.Hold(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		at := c.copy(p, "a")
		time.Sleep(time.Hour)
		h.Kill("a")
		synctest.Wait()
		release()
		p.wentTo(at)

		// With the host, and with what came: that is a checkpoint like others.
		p.stop()
		h.Reboot()
		p = c.with(h, nil)
		if p.in("a", doze.Standby, "disk"); c.fetches() != 1 {
			t.Errorf("what is here came %d times", c.fetches())
		}
		p.hello("a")
		time.Sleep(time.Second)
		at = c.copy(p, "a")
		time.Sleep(time.Second)
		p.stop()
		h.Reboot()
		p = c.with(h, nil)
		p.wentTo(at)

		// What is here is newer.
		time.Sleep(time.Minute)
		n := c.fetches()
		p.sleep("disk")
		p.hello("a")
		h.Kill("a")
		synctest.Wait()
		if last := h.last("a"); !strings.Contains(last.Message, "from its checkpoint of") || c.fetches() != n {
			t.Errorf("with a newer checkpoint here it reported %+v, and came %d times", last, c.fetches()-n)
		}
		p.hello("a")

		// What is in the bucket is newer.
		time.Sleep(time.Minute)
		p.sleep("disk")
		p.hello("a")
		at = c.copy(p, "a")
		h.Kill("a")
		p.wentTo(at)

		// What is here cannot be run.
		p.sleep("disk")
		at = c.copy(p, "a")
		if err := os.WriteFile(filepath.Join(h.dir, "sandboxes", "a", "machine", "image", "memory.json"), []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
		p.hello("a")
		if st, _ := p.Status("a"); st.Setback == nil || !st.Setback.Checkpoint.Equal(at) {
			t.Errorf("with a damaged checkpoint it went to %+v, want %v", st.Setback, at)
		}
		if err := p.Delete(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		p.empty("a")
	})
}

// TestCopyIsSent: a node that ends while it sends a copy asks the bucket what that has. If the
// copy is there, the sandbox goes on from it: another node would, too. Otherwise it loses no more
// than it has to.
func TestCopyIsSent(t *testing.T) {
	virtual(t, func(h *host) {
		t, c := h.t, newChest(h.t)
		p := c.with(h, nil)
		if err := p.Create(t.Context(), order("a")); err != nil {
			t.Fatal(err)
		}
		reboot := func() {
			time.Sleep(time.Minute)
			p.stop()
			h.Reboot()
			p = c.with(h, nil)
		}
		// Nothing of it is in the bucket, and a checkpoint is here.
		fromHere := func() {
			t.Helper()
			awake := time.Now()
			time.Sleep(time.Minute)
			p.sleep("disk")
			p.hello("a")
			sent := c.send(p, "a", false, false)
			reboot()
			p.hello("a")
			if st, _ := p.Status("a"); st.Setback == nil || !st.Setback.Checkpoint.After(awake) || !st.Setback.Checkpoint.Before(sent) {
				t.Fatalf("it went to %+v, want what is between %v and %v", st.Setback, awake, sent)
			}
		}
		fromHere()

		// The copy is there, and newer than the checkpoint.
		at := c.send(p, "a", true, false)
		reboot()
		p.wentTo(at)

		// An older copy is there.
		n := c.fetches()
		fromHere()
		if got := c.fetches() - n; got != 1 {
			t.Errorf("the bucket was asked %d times", got)
		}
		reboot() // with what it does since
		p.hello("a")
		if got := c.fetches() - n; got != 1 {
			t.Errorf("after the next crash, the bucket was asked %d times in all", got)
		}
	})
}

// TestCopyIsOutOfReach: a sandbox whose copy does not come sleeps, and wakes when it does. One
// whose copy is gone fails.
func TestCopyIsOutOfReach(t *testing.T) {
	virtual(t, func(h *host) {
		t, c := h.t, newChest(h.t)
		p := c.with(h, nil)
		if err := p.Create(t.Context(), order("a")); err != nil {
			t.Fatal(err)
		}
		at := c.copy(p, "a")
		c.fails(errBroken)
		time.Sleep(time.Minute)
		h.Kill("a")
		synctest.Wait()
		_, err := p.call(t.Context(), "a", appPort)
		h.kind(err, doze.Unavailable, "did not come from the bucket")
		p.stop()
		p = c.with(h, nil) // the next process knows
		p.in("a", doze.Standby, "")
		if err := errors.Join(p.Disable(t.Context(), "a"), p.Enable(t.Context(), "a")); err != nil {
			t.Errorf("one whose memory is elsewhere is disabled: %v", err)
		}
		c.fails(nil)
		p.hello("a")
		if st, _ := p.Status("a"); !st.Setback.Checkpoint.Equal(at) {
			t.Errorf("it went to %+v, want %v", st.Setback, at)
		}
		if err := p.Create(t.Context(), order("b")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		for _, uid := range []string{"a", "b"} {
			c.copy(p, uid)
			if err := os.RemoveAll(filepath.Join(c.dir, uid)); err != nil {
				t.Fatal(err)
			}
			h.Kill(uid)
		}
		time.Sleep(time.Minute)
		p.in("a", doze.Standby, "disk") // it has an older checkpoint
		p.in("b", doze.Failed, "")
	})
}

// TestCopyMayNot: with --on-crash fail, nothing goes back to a copy.
func TestCopyMayNot(t *testing.T) {
	virtual(t, func(h *host) {
		t, c := h.t, newChest(h.t)
		p := c.with(h, func(o *node.Options) { o.GoBack = false })
		if err := p.Create(t.Context(), order("a")); err != nil {
			t.Fatal(err)
		}
		at := c.copy(p, "a")
		h.Kill("a")
		p.in("a", doze.Failed, "")
		other := newHost(t)
		p = c.with(other, func(o *node.Options) { o.GoBack = false })
		_, err := p.Revive(t.Context(), order("a"), c.record(t, "a"), at.Add(time.Second), true)
		h.kind(err, doze.NotFound, "--on-crash fail")
		if _, err = p.Revive(t.Context(), order("a"), c.record(t, "a"), at, false); err != nil {
			t.Fatal("one that lost nothing:", err)
		}
		p.hello("a")
	})
}

// TestRevive: a node that gets a sandbox knows it at once. Its memory comes when somebody asks, or
// when there is time. One that ran goes on by itself.
func TestRevive(t *testing.T) {
	virtual(t, func(h *host) {
		t, c := h.t, newChest(h.t)
		p := c.with(h, nil)
		for _, uid := range []string{"a", "b"} {
			if err := p.Create(t.Context(), order(uid)); err != nil {
				t.Fatal(err)
			}
		}
		a, b := c.copy(p, "a"), c.copy(p, "b")
		p.stop()
		c.fails(errBroken)
		other := newHost(t)
		p = c.with(other, nil)
		revive := func(uid string, used time.Time, ran bool) {
			t.Helper()
			o := order(uid)
			o.Env = []string{"SECRET=one"}
			for range 2 { // the second time it is here
				if at, err := p.Revive(t.Context(), o, c.record(t, uid), used, ran); err != nil || at.IsZero() {
					t.Fatalf("%s: %v, %v", uid, at, err)
				}
			}
		}
		if p.Receiving() {
			t.Error("memory comes, and nobody is absent")
		}
		revive("a", a, false)
		revive("b", b.Add(time.Hour), true)
		p.in("a", doze.Standby, "")
		p.in("b", doze.Standby, "")
		if got := p.Load(); got.Reserved != order("b").Memory || got.Awake != 0 {
			t.Errorf("the node is loaded with %+v", got)
		}
		if last := other.last("b"); !strings.Contains(last.Message, "its node was lost: it goes on from its copy of") {
			t.Errorf("it reported %+v", last)
		}
		p.stop()
		other.Reboot()
		p = c.with(other, nil)
		p.in("a", doze.Standby, "")
		c.fails(nil)
		time.Sleep(10 * time.Second)
		p.in("a", doze.Standby, "disk")
		if st, _ := p.Status("a"); st.Setback != nil {
			t.Errorf("it lost nothing, and went back to %+v", st.Setback)
		}
		if n := other.Count("b", machinetest.OpRestore); n != 1 {
			t.Errorf("the one that ran woke %d times", n)
		}
		p.hello("a")
		p.hello("b")
		if st, _ := p.Status("b"); st.Setback == nil || !st.Setback.Checkpoint.Equal(b) {
			t.Errorf("it went back to %+v, want %v", st.Setback, b)
		}
		if n := other.Count("", machinetest.OpBoot); n != 0 {
			t.Errorf("%d were booted", n)
		}
	})
}

// TestStays: while memory comes from the bucket, no sandbox moves to a lower tier. After a minute
// they do all the same.
func TestStays(t *testing.T) {
	virtual(t, func(h *host) {
		t, c := h.t, newChest(h.t)
		p := c.with(h, nil)
		p.create("a")
		at := c.copy(p, "a")
		p.stop()
		other := newHost(t)
		comes := make(chan struct{})
		p = c.with(other, func(o *node.Options) {
			o.SaveAfter, o.DiskAfter = 5*time.Second, 5*time.Second
			fetch := o.Fetch
			o.Fetch = func(ctx context.Context, uid string) (node.Files, error) {
				<-comes
				return fetch(ctx, uid)
			}
		})
		p.create("b")
		time.Sleep(pauseAfter + time.Second)
		p.in("b", doze.Standby, "paused")
		if _, err := p.Revive(t.Context(), order("a"), c.record(t, "a"), at, false); err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Second)
		if !p.Receiving() {
			t.Fatal("no memory comes")
		}
		p.in("b", doze.Standby, "paused")
		time.Sleep(time.Minute)
		p.in("b", doze.Standby, "disk")
		close(comes)
	})
}

// TestReviveTells: the agent of a sandbox that came hears what is different on this node.
func TestReviveTells(t *testing.T) {
	virtual(t, func(h *host) {
		t, c := h.t, newChest(h.t)
		p := c.with(h, nil)
		if err := p.Create(t.Context(), order("a")); err != nil {
			t.Fatal(err)
		}
		at := c.copy(p, "a")
		other := newHost(t)
		p = c.with(other, func(o *node.Options) { o.Nameservers = []string{"192.0.2.9"} })
		o := order("a")
		o.Env = []string{"SECRET=one"}
		if _, err := p.Revive(t.Context(), o, c.record(t, "a"), at, false); err != nil {
			t.Fatal(err)
		}
		p.hello("a")
		env := strings.Join(other.identity("a"), " ")
		if !strings.Contains(env, "DOZE_NAMESERVERS=192.0.2.9") || !strings.Contains(env, "SECRET=one") {
			t.Errorf("its agent was told %s", env)
		}
		raw, err := os.ReadFile(filepath.Join(other.dir, "sandboxes", "a", "record.json"))
		if err != nil || strings.Contains(string(raw), "SECRET") {
			t.Errorf("the record has variables: %s, %v", raw, err)
		}
	})
}

// TestReviveIsRefused: a node without memory for one that ran says so, and control asks
// another one. A record that is none is refused.
func TestReviveIsRefused(t *testing.T) {
	virtual(t, func(h *host) {
		t, c := h.t, newChest(h.t)
		p := c.with(h, nil)
		for _, uid := range []string{"a", "b"} {
			if err := p.Create(t.Context(), order(uid)); err != nil {
				t.Fatal(err)
			}
			c.copy(p, uid)
		}
		c.fails(errBroken)
		other := newHost(t)
		p = c.with(other, func(o *node.Options) {
			o.Limit, o.Overcommit = order("a").Memory.Bytes()+machinetest.Overhead, 1
		})
		if _, err := p.Revive(t.Context(), order("a"), c.record(t, "a"), time.Time{}, true); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Revive(t.Context(), order("b"), c.record(t, "b"), time.Time{}, true); !errors.Is(err, fleet.ErrFull) {
			t.Errorf("a node that is full: %v", err)
		}
		if _, err := p.Revive(t.Context(), order("b"), c.record(t, "b"), time.Time{}, false); err != nil {
			t.Errorf("one that sleeps takes no memory: %v", err)
		}
		for _, raw := range []string{"", "{}", string(c.record(t, "a"))} {
			_, err := p.Revive(t.Context(), order("other"), []byte(raw), time.Time{}, false)
			h.kind(err, doze.NotFound, "")
		}
	})
}

// TestCopyWithVolumes: a sandbox with volumes goes on from its copy if that is newer than what is left
// here, as one without does. Another node would go on from there, too. Its volumes stay as they are,
// and are mounted before it wakes.
func TestCopyWithVolumes(t *testing.T) {
	virtual(t, func(h *host) {
		t, c, ctx := h.t, newChest(h.t), h.t.Context()
		p := c.with(h, nil)
		p.done(p.MakeVolume(ctx, "kept", 64, ""))
		p.done(p.Create(ctx, withVolumes("a")))
		reboot := func() {
			time.Sleep(time.Minute)
			p.stop()
			h.Reboot()
			h.shelf.reboot()
			p = c.with(h, nil)
		}
		mounted := func() {
			t.Helper()
			if diff := cmp.Diff([]string{"kept", "passing-a-1"}, h.shelf.of("a")); diff != "" {
				t.Error(diff)
			}
		}
		older := func() (awake time.Time) {
			awake = time.Now()
			time.Sleep(time.Minute)
			p.sleep("disk")
			p.hello("a")
			return awake
		}
		// The copy is newer than the checkpoint, and the node has not heard that it is there.
		older()
		at := c.send(p, "a", true, false)
		reboot()
		p.wentTo(at)
		mounted()

		// The bucket is away when the next two processes begin.
		older()
		at = c.copy(p, "a")
		c.fails(errBroken)
		reboot()
		reboot()
		p.in("a", doze.Standby, "")
		c.fails(nil)
		p.hello("a")
		mounted()
		if st, _ := p.Status("a"); st.Setback == nil || !st.Setback.Checkpoint.Equal(at) {
			t.Errorf("it went to %+v, want %v", st.Setback, at)
		}

		// Its processes end, and the host goes on.
		time.Sleep(time.Second)
		at = c.copy(p, "a")
		time.Sleep(time.Second)
		h.Kill("a")
		p.wentTo(at)
		mounted()

		// Nothing newer got there.
		awake := older()
		sent := c.send(p, "a", false, false)
		reboot()
		p.hello("a")
		mounted()
		if st, _ := p.Status("a"); st.Setback == nil || !st.Setback.Checkpoint.After(awake) || !st.Setback.Checkpoint.Before(sent) {
			t.Errorf("it went to %+v, want what is between %v and %v", st.Setback, awake, sent)
		}
		p.done(p.Delete(ctx, "a"))
		p.empty("a")
	})
}
