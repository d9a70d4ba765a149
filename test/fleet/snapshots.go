package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"time"

	"github.com/dozehq/doze"
)

// snapshots has sandboxes begin from a snapshot whose node is lost: a fork, and the one that it was
// taken of.
func snapshots(ctx context.Context, dir string, say func(string)) (err error) {
	f, err := start(ctx, dir, "--pause-after", "2s", "--save-after", "0", "--disk-after", diskAfter, "--remote-after", copyAfter)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	w, err := f.witness(ctx, "origin", rareWrites)
	if err != nil {
		return err
	}
	if err := f.ripe(ctx, ripeTime, []*witness{w}); err != nil {
		return err
	}
	var made doze.Snapshot
	if err := f.post(ctx, http.MethodPost, "/sandboxes/origin/snapshots", `{"name":"before"}`, &made); err != nil {
		return err
	}
	start := time.Now()
	err = until(ctx, saveTime, func() error {
		found, _ := filepath.Glob(filepath.Join(f.dir, "objects", "checkpoints", "snapshot-"+made.ID, "m", "*")) // the pattern is well formed
		if len(found) == 0 {
			return errors.New("the snapshot is not in the bucket")
		}
		return nil
	})
	if err != nil {
		return err
	}
	say(fmt.Sprintf("the snapshot is in the bucket after %s", time.Since(start).Round(time.Millisecond)))
	had := f.holder("origin")
	if err := f.killNode(had); err != nil {
		return err
	}
	start = time.Now()
	err = until(ctx, lossTime, func() error {
		return f.post(ctx, http.MethodPost, "/snapshots/"+made.ID+"/fork", `{"targetName":"fork","targetType":"sandbox"}`, nil)
	})
	if err != nil {
		return err
	}
	if err := f.same(ctx, "fork", w.born); err != nil {
		return err
	}
	say(fmt.Sprintf("a fork is on %s %s after the loss of %s", f.holder("fork"), time.Since(start).Round(time.Millisecond), had))
	err = until(ctx, lossTime, func() error {
		return f.post(ctx, http.MethodPost, "/sandboxes/origin/snapshots/"+made.ID+"/restore", `{}`, nil)
	})
	if err != nil {
		return err
	}
	if err := f.same(ctx, "origin", w.born); err != nil {
		return err
	}
	say(fmt.Sprintf("its sandbox is restored on %s %s after that", f.holder("origin"), time.Since(start).Round(time.Millisecond)))
	return nil
}

// same is an error if a sandbox does not have the memory of a witness.
func (f *fleet) same(ctx context.Context, name, born string) error {
	sb, err := f.client.Sandbox(ctx, name)
	if err != nil {
		return err
	}
	w := &witness{name: name, url: portOf(sb)}
	s, err := f.visit(ctx, w, true)
	if err == nil && (s.Born != born || len(s.Bad) > 0) {
		err = fmt.Errorf("%s has another memory: %+v", name, s)
	}
	return err
}
