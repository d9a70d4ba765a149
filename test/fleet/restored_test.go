package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
)

// TestRestored: control loses its data directory and its database, and comes back from a backup. A sandbox
// of before goes on, one that moved since is where it went, and one that was made since stays on its
// node until an operator settles the records.
func TestRestored(t *testing.T) {
	ctx, f := t.Context(), begin(t, "--pause-after", "1s", "--save-after", "1s", "--disk-after", "2s", "--remote-after", "1s", "--remote-every", "5s")
	must := fatal(t)
	born := map[string]string{}
	create := func(name string) {
		t.Helper()
		w, err := f.witness(ctx, name, rareWrites)
		must(err)
		born[name] = w.born
	}
	create("stays")
	create("moves")
	create("asleep")
	busy := func(name string) { // it does not sleep
		t.Helper()
		sb, err := f.client.Sandbox(ctx, name)
		must(err)
		agent, err := f.client.Agent(sb)
		must(err)
		_, err = agent.Start(ctx, client.Command{Command: "sleep 1000000", KeepAlive: true})
		must(err)
	}
	busy("stays")
	file := filepath.Join(f.dir, "doze.backup")
	dozed := filepath.Join(f.bin, "dozed")
	where := []string{"--data", f.data(controlHost), "--run", filepath.Join(f.run, controlHost), "--database", f.database()}
	keys := filepath.Join(f.data(controlHost), "fleet")
	must(f.commandOnControl(ctx, slices.Concat([]string{dozed, "backup", "--to", file, "--fleet-keys", keys}, where)...))

	create("late")
	busy("late")
	must(f.post(ctx, http.MethodPost, "/volumes", `{"metadata":{"name":"after"},"spec":{"size":64}}`, nil))
	from := f.holder("moves")
	to := other(from)
	must(f.post(ctx, http.MethodPost, "/sandboxes/moves/move", fmt.Sprintf(`{"node":%q}`, f.ids[to]), nil))
	at := map[string]string{"stays": f.holder("stays"), "moves": to, "asleep": f.holder("asleep"), "late": f.holder("late")}
	must(until(ctx, readyTime, func() error {
		for name := range at {
			if !f.copied(name) {
				return errors.New("the bucket has no copy of " + name)
			}
		}
		if n := len(f.processes("asleep")); n > 0 {
			return fmt.Errorf("asleep has %d processes", n)
		}
		return nil
	}))
	ran, stored := map[string][]int{}, f.objects()
	for _, name := range []string{"stays", "late"} {
		if ran[name] = f.processes(name); len(ran[name]) == 0 {
			t.Errorf("%s has no processes", name)
		}
	}

	for _, name := range append(controlNames(), recordsHost) {
		must(f.kill(name))
	}
	must(os.Rename(f.data(controlHost), f.data("lost")))
	must(os.RemoveAll(f.records))
	must(f.planRecords(ctx))
	must(errors.Join(f.begin(recordsHost), f.recorded(ctx, answers)))
	must(f.commandOnControl(ctx, slices.Concat([]string{dozed, "restore", "--from", file}, where)...))
	must(f.copyFile("seal.key", controlHost, standbyHost))
	must(f.settle(ctx))

	for name, had := range at {
		if now := f.holder(name); now != had {
			t.Errorf("%s was on %s, and is on %q", name, had, now)
		}
	}
	for name, pids := range ran {
		if now := f.processes(name); !slices.Equal(now, pids) {
			t.Errorf("%s had the processes %v, and has %v", name, pids, now)
		}
	}
	for _, id := range stored {
		if !slices.Contains(f.objects(), id) {
			t.Errorf("the bucket lost %s", id)
		}
	}
	for _, name := range []string{"stays", "moves", "asleep"} {
		must(until(ctx, lossTime, func() error { return f.same(ctx, name, born[name]) }))
	}
	unrecorded := func() (n int) {
		all, err := f.list(ctx)
		must(err)
		for name, node := range all {
			if n += node.Unrecorded; node.Unrecorded > 0 && name != at["late"] {
				t.Errorf("%s has %d sandboxes that are not on record", name, node.Unrecorded)
			}
		}
		return n
	}
	if n := unrecorded(); n != 1 {
		t.Errorf("nodes have %d sandboxes that are not on record", n)
	}
	// What is on record moves on, in an epoch that nobody had.
	must(f.post(ctx, http.MethodPost, "/sandboxes/moves/move", fmt.Sprintf(`{"node":%q}`, f.ids[from]), nil))
	must(until(ctx, lossTime, func() error { return f.same(ctx, "moves", born["moves"]) }))

	disks := func(id string) []string {
		all, err := filepath.Glob(filepath.Join(f.data("*"), "volumes", "images", id+"*"))
		must(err)
		return all
	}
	const settle = "/platform/nodes/settle"
	if err := f.ask(ctx, http.MethodPost, settle, nil); err == nil || !strings.Contains(err.Error(), "main/late") || !strings.Contains(err.Error(), "volume: 1 (") {
		t.Errorf("a settlement that ends a sandbox, and drops a volume: %v", err)
	}
	if len(disks("")) == 0 {
		t.Error("a settlement that was refused removed a volume")
	}
	var got doze.Settled
	must(f.ask(ctx, http.MethodPost, settle+"?force=true", &got))
	if got.Total != 2 || got.Lost[0].Name != "late" || got.Lost[1].Kind != doze.LostVolume {
		t.Errorf("what is lost: %+v", got)
	}
	if left := disks(got.Lost[1].Name); len(left) > 0 {
		t.Errorf("nodes still have %v", left)
	}
	must(until(ctx, lossTime, func() error {
		if at := f.holder("late"); at != "" {
			return errors.New("what is not on record is still on " + at)
		}
		return nil
	}))
	if n := unrecorded(); n != 0 {
		t.Errorf("nodes still have %d sandboxes that are not on record", n)
	}
	must(f.same(ctx, "stays", born["stays"]))
}

// processes are those of the machine of a sandbox, in order.
func (f *fleet) processes(name string) (pids []int) {
	node := f.holder(name)
	uid := f.has(node)[name]
	_, all := f.launchers(node)
	for _, pid := range all {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err == nil && strings.Contains(string(raw), uid) {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}

// objects are what the bucket has copies of.
func (f *fleet) objects() (ids []string) {
	all, _ := filepath.Glob(filepath.Join(f.dir, "objects", "checkpoints", "*", "m")) // the pattern is well formed
	for _, dir := range all {
		ids = append(ids, filepath.Base(filepath.Dir(dir)))
	}
	return ids
}

// commandOnControl runs a command on the host of control, from which the database can be reached.
func (f *fleet) commandOnControl(ctx context.Context, args ...string) error {
	cmd := f.wire.command(controlHost, args[0], args[1:]...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args[1:], " "), err, out)
	}
	return context.Cause(ctx)
}
