package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestStopWithoutLease: a node whose lease is over ends when it is told to, with spare machines
// that nobody may touch. Its next process has its sandbox, with its memory.
func TestStopWithoutLease(t *testing.T) {
	ctx, f := t.Context(), begin(t, "--warm-pool", "2", "--warm-pool-max", "2")
	must := fatal(t)
	w, err := f.witness(ctx, "origin", rareWrites)
	must(err)
	holder := f.holder("origin")
	must(until(ctx, readyTime, func() error {
		if _, machines := f.launchers(holder); len(machines) < 3 {
			return errors.New("no spare machines have booted")
		}
		return nil
	}))
	must(until(ctx, readyTime, func() error { // it has one since it knows of another node
		raw, err := os.ReadFile(filepath.Join(f.run, holder, "lease"))
		if err == nil && strings.Contains(string(raw), "never") {
			err = errors.New("the node has no lease yet")
		}
		return err
	}))
	for _, name := range controlNames() {
		must(f.end(name))
	}
	err = until(ctx, 40*time.Second, func() error {
		raw, err := os.ReadFile(f.all[holder].log)
		if err == nil && !strings.Contains(string(raw), "is about to end: its sandboxes stop") {
			err = errors.New("the node still has a lease")
		}
		return err
	})
	if err != nil {
		t.Fatalf("%v: %s", err, f.tail(holder))
	}
	began := time.Now()
	if err := f.end(holder); err != nil {
		t.Fatalf("%v: %s", err, f.tail(holder))
	}
	t.Log("the node ended after", time.Since(began))
	for _, name := range append(controlNames(), holder) {
		must(f.begin(name))
	}
	if err := until(ctx, readyTime, func() error { return f.same(ctx, "origin", w.born) }); err != nil {
		t.Fatalf("%v: %s", err, f.tail(holder))
	}
}
