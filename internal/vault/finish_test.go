package vault_test

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/minio/minio-go/v7"

	"github.com/dozehq/doze/internal/vault"
)

// cutOff has a save end when its manifest is pending, and returns what writes the manifest later,
// as a request that was on its way.
func (p *place) cutOff(t *testing.T, id string, g vault.Generation, tree []vault.File) (arrive func()) {
	t.Helper()
	_, saveUntil := p.openStopping(t)
	saveUntil("/p/", id, g, tree)
	pending := slices.Sorted(maps.Keys(p.objects(t, id+"/p/"+g.String())))
	if len(pending) != 1 {
		t.Fatalf("the save left %v", pending)
	}
	raw, client := p.read(t, pending[0]), p.client(t, p.direct)
	return func() {
		o := minio.PutObjectOptions{DisableMultipart: true}
		o.SetMatchETagExcept("*")
		_, err := client.PutObject(context.WithoutCancel(t.Context()), p.bucket, id+"/m/"+g.String(), bytes.NewReader(raw), int64(len(raw)), o)
		if answer, refused := errors.AsType[minio.ErrorResponse](err); err != nil && (!refused || answer.Code != minio.PreconditionFailed) {
			t.Errorf("the late request: %v", err)
		}
	}
}

// TestFinish: a save that was cut off counts after Finish, whenever its manifest arrives, and if
// Finish is cut off, too. Nothing changes after that.
func TestFinish(t *testing.T) {
	t.Parallel()
	for server, serve := range servers {
		t.Run(server, func(t *testing.T) {
			t.Parallel()
			p := serve(t)
			_, old := content{"f": {1}}.write(t)
			want, tree := content{"f": {2, 3}}.write(t)
			fast := p.open(t, false, vault.Options{})
			for name, tc := range map[string]struct{ first, ends bool }{"after another one": {}, "the first one": {first: true}, "ends": {ends: true}} {
				t.Run(name, func(t *testing.T) {
					between(t, p, func(id string, at func(func())) {
						if !tc.first {
							save(t, fast, id, gen(1, 1), old)
						}
						arrive := p.cutOff(t, id, gen(1, 2), tree)
						ctx, stop := context.WithCancel(t.Context())
						defer stop()
						at(func() {
							arrive()
							if tc.ends {
								stop()
							}
						})
						slow := p.open(t, true, vault.Options{})
						if err := slow.Finish(ctx, id, keyOf(t, id), 1); err != nil && ctx.Err() == nil {
							t.Errorf("finish: %v", err)
						}
						for range 2 {
							if err := fast.Finish(t.Context(), id, keyOf(t, id), 1); err != nil {
								t.Errorf("finish again: %v", err)
							}
							got, g := load(t, fast, id)
							if g != gen(1, 2) {
								t.Errorf("loaded %v", g)
							}
							same(t, want, got)
							arrive()
						}
						save(t, fast, id, gen(1, 3), old)
						if left := p.objects(t, id+"/p/"); len(left) > 0 {
							t.Errorf("it left %v", left)
						}
						again(t, fast, id)
					})
				})
			}
		})
	}
}

// TestFinishCut: after a save that was cut off anywhere, Finish decides once, and what it decided
// can be loaded.
func TestFinishCut(t *testing.T) {
	t.Parallel()
	for server, serve := range servers {
		t.Run(server, func(t *testing.T) {
			t.Parallel()
			p := serve(t)
			_, old := content{"f": {1}}.write(t)
			_, tree := content{"f": {2, 3}}.write(t)
			fast := p.open(t, false, vault.Options{})
			counts := map[vault.Generation]int{}
			between(t, p, func(id string, at func(func())) {
				save(t, fast, id, gen(1, 1), old)
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				at(stop)
				_, _ = p.open(t, true, vault.Options{Parallel: 1}).Save(ctx, id, keyOf(t, id), gen(1, 2), tree)
				if err := fast.Finish(t.Context(), id, keyOf(t, id), 1); err != nil {
					t.Errorf("finish: %v", err)
				}
				_, g := load(t, fast, id)
				counts[g]++
				if last, err := fast.Last(t.Context(), id, 1); err != nil || last.Before(g) {
					t.Errorf("the last one is %v, %v, and %v counts", last, err, g)
				}
			})
			if len(counts) != 2 || counts[gen(1, 1)] == 0 || counts[gen(1, 2)] == 0 {
				t.Errorf("it went on from %v", counts)
			}
		})
	}
}

// TestFinishNot: what nobody can finish changes nothing.
func TestFinishNot(t *testing.T) {
	t.Parallel()
	p := memory(t)
	v := p.open(t, false, vault.Options{})
	_, old := content{"f": {1}}.write(t)
	_, tree := content{"f": {2, 3}}.write(t)
	head := func(want vault.Generation) {
		t.Helper()
		if g, err := v.Head(t.Context(), "a"); err != nil || g != want {
			t.Errorf("head is %v, %v, want %v", g, err, want)
		}
	}
	finish := func(epoch uint64) error { return v.Finish(t.Context(), "a", keyOf(t, "a"), epoch) }
	if err := finish(1); err != nil {
		t.Errorf("of nothing: %v", err)
	}
	save(t, v, "a", gen(1, 1), old)
	had := p.objects(t, "a/c/")
	p.cutOff(t, "a", gen(1, 2), tree)
	for key := range p.objects(t, "a/c/") {
		if _, is := had[key]; !is { // the save had not seen yet that a sweep took it
			p.remove(t, key)
			break
		}
	}
	if err := finish(1); err != nil {
		t.Errorf("a copy that lacks a chunk: %v", err)
	}
	head(gen(1, 1))
	if last, err := v.Last(t.Context(), "a", 1); err != nil || last != gen(1, 2) {
		t.Errorf("the last one is %v, %v", last, err)
	}
	if last, err := v.Last(t.Context(), "a", 2); err != nil || last != gen(0, 0) {
		t.Errorf("the last one of an epoch without any is %v, %v", last, err)
	}
	arrive := p.cutOff(t, "a", gen(1, 3), tree)
	if err := finish(2); err != nil {
		t.Errorf("in an epoch that nobody claimed: %v", err)
	}
	head(gen(1, 1))
	if _, err := v.Claim(t.Context(), "a", 2); err != nil {
		t.Fatal(err)
	}
	if err := finish(1); !errors.Is(err, vault.ErrSuperseded) {
		t.Errorf("in an epoch that is over: %v", err)
	}
	arrive()
	if err := finish(2); err != nil {
		t.Error(err)
	}
	head(gen(1, 1))
	for name, err := range map[string]error{
		"no id":    v.Finish(t.Context(), "", keyOf(t, "a"), 1),
		"no epoch": finish(0),
		"no key":   v.Finish(t.Context(), "a", vault.Key{}, 1),
	} {
		if err == nil {
			t.Errorf("%s is no mistake", name)
		}
	}
	p.cutOff(t, "a", gen(2, 1), tree)
	if err := v.Finish(t.Context(), "a", keyOf(t, "b"), 2); !errors.Is(err, vault.ErrKey) {
		t.Errorf("with another key: %v", err)
	}
}
