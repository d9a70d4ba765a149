package vault_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dozehq/doze/internal/vault"
)

// at calls something before a request through the proxy, counted from 0, and once. It
// returns how many requests there were.
func (p *place) at(n int64, something func()) *atomic.Int64 {
	var count atomic.Int64
	var once sync.Once
	p.does(func(_ http.ResponseWriter, _ *http.Request, pass func()) {
		if count.Add(1)-1 == n {
			once.Do(something)
		}
		pass()
	})
	return &count
}

// between runs a race for each request of something: what comes in between runs before
// that request. It ends when something makes no more requests.
func between(t *testing.T, p *place, race func(id string, at func(func()))) {
	t.Helper()
	for n := int64(0); ; n++ {
		var count *atomic.Int64
		reached := false
		race(fmt.Sprintf("%s-%d", filepath.Base(t.Name()), n), func(something func()) {
			count = p.at(n, func() { reached = true; something() })
		})
		p.does(nil)
		if t.Failed() {
			t.Fatalf("at request %d of %d", n, count.Load())
		}
		if !reached {
			if n < 5 {
				t.Fatalf("%d requests", n)
			}
			return
		}
	}
}

// TestClaimDuringSave: a save of epoch 1 that returned nil is what epoch 2 goes on from,
// wherever the claim comes. After any other, all agree on what it is.
func TestClaimDuringSave(t *testing.T) {
	t.Parallel()
	for server, serve := range servers {
		t.Run(server, func(t *testing.T) {
			t.Parallel()
			p := serve(t)
			_, tree := content{"f": {1}}.write(t)
			_, next := content{"f": {2}}.write(t)
			slow, fast := p.open(t, true, vault.Options{Parallel: 1}), p.open(t, false, vault.Options{})
			won, lost := 0, 0
			between(t, p, func(id string, at func(func())) {
				save(t, fast, id, gen(1, 1), tree)
				var base vault.Generation
				var claimed error
				at(func() { base, claimed = fast.Claim(t.Context(), id, 2) })
				_, err := slow.Save(t.Context(), id, keyOf(t, id), gen(1, 2), next)
				switch {
				case claimed != nil:
					t.Errorf("the claim: %v", claimed)
				case err == nil && base == gen(0, 0): // the save was over before
				case err == nil && base != gen(1, 2):
					t.Errorf("the save counts, and the next epoch goes on from %v", base)
				case err != nil && !errors.Is(err, vault.ErrSuperseded):
					t.Errorf("the save: %v", err)
				case err == nil:
					won++
				default:
					lost++
				}
				if base == gen(0, 0) {
					return
				}
				if head, err := fast.Head(t.Context(), id); err != nil || head != base {
					t.Errorf("head is %v, %v, and the claim found %v", head, err, base)
				}
				if again, err := p.open(t, false, vault.Options{}).Claim(t.Context(), id, 2); err != nil || again != base {
					t.Errorf("a second claim found %v, %v, and the first %v", again, err, base)
				}
				if _, err := fast.Save(t.Context(), id, keyOf(t, id), gen(1, 3), next); !errors.Is(err, vault.ErrSuperseded) {
					t.Errorf("a save of the older epoch: %v", err)
				}
				save(t, fast, id, gen(2, 1), next)
				load(t, fast, id)
			})
			if won == 0 || lost == 0 {
				t.Errorf("the save won %d times and lost %d times", won, lost)
			}
		})
	}
}

// TestSaveDuringClaim is the same the other round.
func TestSaveDuringClaim(t *testing.T) {
	t.Parallel()
	for server, serve := range servers {
		t.Run(server, func(t *testing.T) {
			t.Parallel()
			p := serve(t)
			_, tree := content{"f": {1}}.write(t)
			_, next := content{"f": {2}}.write(t)
			slow, fast := p.open(t, true, vault.Options{}), p.open(t, false, vault.Options{})
			late := map[string][]byte{}
			for name, during := range map[string]func(id string) (vault.Generation, error){
				"save": func(id string) (vault.Generation, error) {
					_, err := fast.Save(t.Context(), id, keyOf(t, id), gen(1, 2), next)
					return gen(1, 2), err
				},
				"claim": func(id string) (vault.Generation, error) { return fast.Claim(t.Context(), id, 2) },
				"both": func(id string) (vault.Generation, error) {
					_, err1 := fast.Save(t.Context(), id, keyOf(t, id), gen(1, 2), next)
					base, err2 := fast.Claim(t.Context(), id, 2)
					if err1 == nil && base != gen(1, 2) {
						t.Errorf("it goes on from %v", base)
					}
					return base, err2
				},
				// A manifest of the older epoch was on its way all the time.
				"late": func(id string) (vault.Generation, error) {
					p.put(t, id+"/m/"+gen(1, 2).String(), late[id])
					return fast.Claim(t.Context(), id, 2)
				},
				"newer": func(id string) (vault.Generation, error) { return fast.Claim(t.Context(), id, 3) },
			} {
				t.Run(name, func(t *testing.T) {
					n := int64(0)
					for reached := true; reached; n++ {
						reached = false
						id := fmt.Sprintf("%s-%d", name, n)
						save(t, fast, id, gen(1, 1), tree)
						if name == "late" {
							save(t, fast, id, gen(1, 2), next)
							key := id + "/m/" + gen(1, 2).String()
							late[id] = p.read(t, key)
							p.remove(t, key)
						}
						var other vault.Generation
						var did error
						p.at(n, func() { reached = true; other, did = during(id) })
						base, err := slow.Claim(t.Context(), id, 2)
						p.does(nil)
						if !reached {
							break
						}
						if name == "newer" {
							// It looks for newer ones in its third request.
							if n < 3 && err == nil {
								t.Errorf("before request %d, a newer epoch was claimed, and it goes on from %v", n, base)
							}
							if did != nil || err != nil && !errors.Is(err, vault.ErrSuperseded) {
								t.Errorf("%v, %v", did, err)
							}
						} else if err != nil || did != nil && !errors.Is(did, vault.ErrSuperseded) {
							t.Errorf("at request %d: %v, %v", n, err, did)
						} else if did == nil && base != other {
							t.Errorf("at request %d: it goes on from %v, and %v counts", n, base, other)
						}
						if head, err := fast.Head(t.Context(), id); name != "newer" && (err != nil || head != base) {
							t.Errorf("at request %d: head is %v, %v, and the claim found %v", n, head, err, base)
						}
					}
					if n < 4 {
						t.Errorf("a claim made %d requests", n)
					}
				})
			}
		})
	}
}

// TestWriters: two nodes save at the same moment. The newer epoch wins always.
func TestWriters(t *testing.T) {
	t.Parallel()
	for server, serve := range servers {
		t.Run(server, func(t *testing.T) {
			t.Parallel()
			p := serve(t)
			_, tree := content{"f": {1}}.write(t)
			for i := range 20 {
				id := fmt.Sprint("s", i)
				var group sync.WaitGroup
				errs := [2]error{}
				for n := range errs {
					v := p.open(t, false, vault.Options{})
					group.Go(func() { _, errs[n] = v.Save(t.Context(), id, keyOf(t, id), gen(uint64(4+n), 1), tree) })
				}
				group.Wait()
				if errs[1] != nil || errs[0] != nil && !errors.Is(errs[0], vault.ErrSuperseded) {
					t.Errorf("%v", errs)
				}
				if _, g := load(t, p.open(t, false, vault.Options{}), id); g != gen(5, 1) {
					t.Errorf("loaded %v", g)
				}
			}
		})
	}
}

// TestOneNumberOneTree: a generation is never replaced, and nothing older comes after it.
func TestOneNumberOneTree(t *testing.T) {
	t.Parallel()
	for server, serve := range servers {
		t.Run(server, func(t *testing.T) {
			t.Parallel()
			p := serve(t)
			v := p.open(t, false, vault.Options{})
			_, tree := content{"f": {1}}.write(t)
			want, other := content{"f": {2}}.write(t)
			save(t, v, "a", gen(3, 5), tree)
			save(t, v, "a", gen(3, 5), tree) // the same again
			for g, want := range map[vault.Generation]error{gen(3, 5): vault.ErrTaken, gen(3, 4): vault.ErrSuperseded, gen(2, 9): vault.ErrSuperseded} {
				if _, err := v.Save(t.Context(), "a", keyOf(t, "a"), g, other); !errors.Is(err, want) {
					t.Errorf("%v: %v", g, err)
				}
			}
			if _, err := v.Claim(t.Context(), "a", 2); !errors.Is(err, vault.ErrSuperseded) {
				t.Errorf("an older claim: %v", err)
			}
			save(t, v, "a", gen(3, 6), other)
			got, _ := load(t, v, "a")
			same(t, want, got)
		})
	}
}

// TestSaveDuringSweep: a save that comes at any moment of a sweep can be loaded. It relies
// on what the sweep removes, and asks the bucket for it, or remembers it.
func TestSaveDuringSweep(t *testing.T) {
	t.Parallel()
	for server, serve := range servers {
		t.Run(server, func(t *testing.T) {
			t.Parallel()
			p := serve(t)
			wantOld, old := content{"f": {1, 2, 3}}.write(t)
			_, now := content{"f": {4}}.write(t)
			slow, fast := p.open(t, true, vault.Options{}), p.open(t, false, vault.Options{})
			for name, remembers := range map[string]bool{"remembers": true, "asks": false} {
				t.Run(name, func(t *testing.T) {
					removed, resent := 0, 0
					between(t, p, func(id string, at func(func())) {
						other := p.open(t, false, vault.Options{})
						if remembers {
							save(t, other, id, gen(1, 1), old)
						} else {
							save(t, fast, id, gen(1, 1), old)
						}
						save(t, fast, id, gen(1, 2), now)
						at(func() { resent += save(t, other, id, gen(1, 3), old).Sent })
						swept, err := slow.Sweep(t.Context(), id, keyOf(t, id), 1, 0)
						if err != nil {
							t.Errorf("the sweep: %v", err)
						}
						removed += swept.Chunks
						if head, err := fast.Head(t.Context(), id); err == nil && head == gen(1, 3) {
							got, _ := load(t, fast, id)
							same(t, wantOld, got)
						}
						again(t, fast, id)
					})
					if removed == 0 || resent == 0 {
						t.Errorf("sweeps removed %d chunks, and saves sent %d again", removed, resent)
					}
				})
			}
		})
	}
}

// TestStarved: sweeps without a grace period can hinder a save for ever. It says so, and
// nothing that counts is lost.
func TestStarved(t *testing.T) {
	t.Parallel()
	p := memory(t)
	want, tree := content{"f": {1}}.write(t)
	_, next := content{"f": {2, 3}}.write(t)
	fast := p.open(t, false, vault.Options{})
	save(t, fast, "a", gen(1, 1), tree)
	p.does(func(_ http.ResponseWriter, r *http.Request, pass func()) {
		if r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/a/p/") {
			if _, err := fast.Sweep(t.Context(), "a", keyOf(t, "a"), 1, 0); err != nil {
				t.Error(err)
			}
		}
		pass()
	})
	_, err := p.open(t, true, vault.Options{}).Save(t.Context(), "a", keyOf(t, "a"), gen(1, 2), next)
	if err == nil || !strings.Contains(err.Error(), "longer grace period") {
		t.Errorf("it says %v", err)
	}
	got, g := load(t, fast, "a")
	if g != gen(1, 1) {
		t.Errorf("loaded %v", g)
	}
	same(t, want, got)
}

// again sweeps and loads, and looks for what is left over.
func again(t *testing.T, v *vault.Vault, id string) {
	t.Helper()
	for range 2 {
		if _, err := v.Sweep(t.Context(), id, keyOf(t, id), 1, 0); err != nil {
			t.Errorf("another sweep: %v", err)
		}
		load(t, v, id)
	}
	if swept, err := v.Sweep(t.Context(), id, keyOf(t, id), 1, 0); err != nil || swept != (vault.Swept{}) {
		t.Errorf("the last sweep removed %+v, %v", swept, err)
	}
}

// TestSweepDuringSave: a sweep without a grace period that comes at any moment of a save
// removes nothing that it needs, whatever the save learned before.
func TestSweepDuringSave(t *testing.T) {
	t.Parallel()
	for server, serve := range servers {
		t.Run(server, func(t *testing.T) {
			t.Parallel()
			p := serve(t)
			want, old := content{"f": {1, 2, 3}, "g": {5}}.write(t)
			_, now := content{"f": {4}}.write(t)
			fast := p.open(t, false, vault.Options{})
			for name, remembers := range map[string]bool{"remembers": true, "asks": false} {
				t.Run(name, func(t *testing.T) {
					resent := 0
					between(t, p, func(id string, at func(func())) {
						slow := p.open(t, true, vault.Options{Parallel: 1})
						if remembers {
							save(t, slow, id, gen(1, 1), old)
						} else {
							save(t, fast, id, gen(1, 1), old)
						}
						save(t, fast, id, gen(1, 2), now)
						at(func() {
							if _, err := fast.Sweep(t.Context(), id, keyOf(t, id), 1, 0); err != nil {
								t.Errorf("the sweep: %v", err)
							}
						})
						resent += save(t, slow, id, gen(1, 3), old).Sent
						got, _ := load(t, fast, id)
						same(t, want, got)
						again(t, fast, id)
					})
					if resent == 0 {
						t.Error("no save had to send anything again")
					}
				})
			}
		})
	}
}

// TestSweepStops: a sweep that stops at any moment, for good or for a while, breaks
// nothing: not a save that comes then, and not another sweep. Another save may have stopped
// before it, which relied on what the sweep removes.
func TestSweepStops(t *testing.T) {
	t.Parallel()
	for server, serve := range servers {
		t.Run(server, func(t *testing.T) {
			t.Parallel()
			p := serve(t)
			want, old := content{"f": {1, 2, 3}}.write(t)
			_, now := content{"f": {4}}.write(t)
			fast := p.open(t, false, vault.Options{})
			for _, name := range []string{"for good", "for a while", "with a save"} {
				t.Run(name, func(t *testing.T) {
					between(t, p, func(id string, at func(func())) {
						first, saveUntil := p.openStopping(t)
						save(t, first, id, gen(1, 1), old)
						save(t, fast, id, gen(1, 2), now)
						ctx, stop := context.WithCancel(t.Context())
						defer stop()
						newest := gen(1, 2)
						at(func() {
							switch name {
							case "for good":
								stop()
								return
							case "with a save":
								saveUntil("/p/", id, gen(1, 3), old)
							case "for a while":
								save(t, p.open(t, false, vault.Options{}), id, gen(1, 3), old)
							}
							for range 2 {
								if _, err := fast.Sweep(t.Context(), id, keyOf(t, id), 1, 0); err != nil {
									t.Errorf("another sweep: %v", err)
								}
							}
							newest = gen(1, 4)
							save(t, p.open(t, false, vault.Options{}), id, newest, old)
						})
						_, err := p.open(t, true, vault.Options{}).Sweep(ctx, id, keyOf(t, id), 1, 0)
						if err != nil && !errors.Is(err, context.Canceled) {
							t.Errorf("the sweep: %v", err)
						}
						if _, g := load(t, fast, id); g != newest {
							t.Errorf("loaded %v, want %v", g, newest)
						}
						save(t, p.open(t, false, vault.Options{}), id, gen(1, 5), old)
						got, _ := load(t, fast, id)
						same(t, want, got)
						again(t, fast, id)
						for _, kind := range []string{"/x/", "/p/"} {
							if left := len(p.objects(t, id+kind)); left > 0 {
								t.Errorf("%d objects are left below %s", left, kind)
							}
						}
					})
				})
			}
		})
	}
}

// TestGrace: what is younger than the grace period stays, by the bucket's clock.
func TestGrace(t *testing.T) {
	t.Parallel()
	for server, serve := range servers {
		t.Run(server, func(t *testing.T) {
			t.Parallel()
			p := serve(t)
			v := p.open(t, false, vault.Options{})
			for i := range uint64(5) {
				_, tree := content{"f": {byte(i + 1)}}.write(t)
				save(t, v, "a", gen(i/2+1, i+1), tree)
			}
			for _, tc := range []struct {
				generations int
				grace       time.Duration
				left        int
			}{{1, time.Hour, 5}, {9, 0, 5}, {3, 0, 3}, {1, 0, 1}} {
				if _, err := v.Sweep(t.Context(), "a", keyOf(t, "a"), tc.generations, tc.grace); err != nil {
					t.Fatal(err)
				}
				if m, c := len(p.objects(t, "a/m/")), len(p.objects(t, "a/c/")); m != tc.left || c != tc.left {
					t.Errorf("after %+v there are %d generations and %d chunks", tc, m, c)
				}
				if _, g := load(t, v, "a"); g != gen(3, 5) {
					t.Errorf("loaded %v", g)
				}
			}
			again(t, v, "a")
			if e := len(p.objects(t, "a/e/")); e != 1 {
				t.Errorf("%d claims are left", e)
			}
		})
	}
}

// TestLateManifest: a generation of an older epoch that arrives after the claim is never
// read, and a sweep removes it.
func TestLateManifest(t *testing.T) {
	t.Parallel()
	p := memory(t)
	v := p.open(t, false, vault.Options{})
	_, tree := content{"f": {1}}.write(t)
	_, late := content{"f": {2}}.write(t)
	save(t, v, "a", gen(1, 1), tree)
	save(t, v, "a", gen(1, 9), late)
	raw := p.read(t, "a/m/"+gen(1, 9).String())
	p.remove(t, "a/m/"+gen(1, 9).String())
	if base, err := v.Claim(t.Context(), "a", 2); err != nil || base != gen(1, 1) {
		t.Fatalf("it goes on from %v, %v", base, err)
	}
	p.put(t, "a/m/"+gen(1, 9).String(), raw)
	for range 2 {
		if _, g := load(t, v, "a"); g != gen(1, 1) {
			t.Errorf("loaded %v", g)
		}
		if _, err := v.Sweep(t.Context(), "a", keyOf(t, "a"), 5, 0); err != nil {
			t.Error(err)
		}
		if base, err := v.Claim(t.Context(), "a", 3); err != nil || base != gen(1, 1) {
			t.Errorf("epoch 3 goes on from %v, %v", base, err)
		}
	}
	if n := len(p.objects(t, "a/m/")); n != 1 {
		t.Errorf("%d generations are left", n)
	}
}

// TestDrop: a sandbox that was dropped is gone, and a save that has not heard of it is
// superseded, whenever it comes.
func TestDrop(t *testing.T) {
	t.Parallel()
	for server, serve := range servers {
		t.Run(server, func(t *testing.T) {
			t.Parallel()
			p := serve(t)
			_, tree := content{"f": {1, 2}}.write(t)
			slow, fast := p.open(t, true, vault.Options{}), p.open(t, false, vault.Options{})
			between(t, p, func(id string, at func(func())) {
				save(t, fast, id, gen(1, 1), tree)
				reached := false
				at(func() {
					reached = true
					if err := fast.Drop(t.Context(), id); err != nil {
						t.Errorf("drop: %v", err)
					}
				})
				_, err := slow.Save(t.Context(), id, keyOf(t, id), gen(1, 2), tree)
				if !reached {
					return
				}
				if err != nil && !errors.Is(err, vault.ErrSuperseded) || err == nil && len(p.objects(t, id+"/m/")) > 0 {
					t.Errorf("the save: %v", err)
				}
				if _, err := fast.Head(t.Context(), id); !errors.Is(err, vault.ErrNotFound) {
					t.Errorf("head: %v", err)
				}
				for range 3 {
					if _, err := fast.Sweep(t.Context(), id, keyOf(t, id), 1, 0); err != nil {
						t.Errorf("sweep: %v", err)
					}
				}
				if left := p.objects(t, id+"/"); len(left) > 0 {
					t.Errorf("it left %v", left)
				}
			})
		})
	}
}

// TestBury: a sandbox that was dropped is buried after the grace period, and no earlier. Whenever the
// two come to a save that has not heard of it, either nothing of the save counts, or it began the
// id anew. What is left of it goes with the next burials.
func TestBury(t *testing.T) {
	t.Parallel()
	for server, serve := range servers {
		t.Run(server, func(t *testing.T) {
			t.Parallel()
			p := serve(t)
			_, tree := content{"f": {1, 2}}.write(t)
			slow, fast := p.open(t, true, vault.Options{}), p.open(t, false, vault.Options{})
			bury := func(id string, grace time.Duration) bool {
				t.Helper()
				gone, err := fast.Bury(t.Context(), id, grace)
				if err != nil {
					t.Errorf("bury: %v", err)
				}
				return gone
			}
			for name, grace := range map[string]time.Duration{"at once": 0, "later": time.Hour} {
				t.Run(name, func(t *testing.T) {
					between(t, p, func(id string, at func(func())) {
						save(t, fast, id, gen(1, 1), tree)
						reached := false
						at(func() {
							reached = true
							if err := fast.Drop(t.Context(), id); err != nil {
								t.Errorf("drop: %v", err)
							}
							if gone := bury(id, grace); gone != (grace == 0) {
								t.Errorf("after %v it is buried: %t", grace, gone)
							}
						})
						_, err := slow.Save(t.Context(), id, keyOf(t, id), gen(1, 2), tree)
						if !reached {
							return
						}
						head, none := fast.Head(t.Context(), id)
						switch {
						case err == nil && head == gen(1, 2) && grace == 0: // it began anew
						case err == nil && len(p.objects(t, id+"/m/")) == 0: // it was over before
						case !errors.Is(err, vault.ErrSuperseded) || !errors.Is(none, vault.ErrNotFound):
							t.Errorf("the save: %v; head: %v, %v", err, head, none)
						}
						if grace > 0 {
							if _, err := fast.Claim(t.Context(), id, 7); !errors.Is(err, vault.ErrSuperseded) {
								t.Errorf("within the grace period, a claim: %v", err)
							}
							if bury(id, grace) {
								t.Error("it is buried within the grace period")
							}
						}
						for n := 0; !bury(id, 0); n++ {
							if n > 1 {
								t.Fatal("it is never buried")
							}
						}
						if left := p.objects(t, id+"/"); len(left) > 0 {
							t.Errorf("it left %v", left)
						}
					})
				})
			}
		})
	}
}

// TestBuryStops: a burial that stops at any moment leaves what the next one finds, and a save that
// comes meanwhile does not count.
func TestBuryStops(t *testing.T) {
	t.Parallel()
	for server, serve := range servers {
		t.Run(server, func(t *testing.T) {
			t.Parallel()
			p := serve(t)
			_, tree := content{"f": {1, 2}}.write(t)
			fast := p.open(t, false, vault.Options{})
			between(t, p, func(id string, at func(func())) {
				save(t, fast, id, gen(1, 1), tree)
				if err := fast.Drop(t.Context(), id); err != nil {
					t.Fatal(err)
				}
				if _, err := fast.Save(t.Context(), id, keyOf(t, id), gen(1, 2), tree); !errors.Is(err, vault.ErrSuperseded) {
					t.Errorf("a save: %v", err)
				}
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				at(stop)
				gone, err := p.open(t, true, vault.Options{}).Bury(ctx, id, 0)
				if gone == (err != nil) {
					t.Errorf("the burial: %t, %v", gone, err)
				}
				if err == nil {
					if left := p.objects(t, id+"/"); len(left) > 0 {
						t.Errorf("it left %v", left)
					}
					return
				}
				ids, err := fast.List(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				for n := 0; slices.Contains(ids, id) && !gone; n++ { // who lists it buries it
					if gone, err = fast.Bury(t.Context(), id, 0); err != nil || n > 1 {
						t.Fatalf("burial %d: %t, %v", n, gone, err)
					}
				}
				if left := p.objects(t, id+"/"); len(left) > 0 {
					t.Errorf("they left %v", left)
				}
			})
		})
	}
}

// TestDropAgain: to drop again what was dropped makes it no younger, and removes what came since.
func TestDropAgain(t *testing.T) {
	t.Parallel()
	p := memory(t)
	v := p.open(t, true, vault.Options{})
	_, tree := content{"f": {1}}.write(t)
	save(t, v, "a", gen(1, 1), tree)
	var writes atomic.Int64
	p.does(func(_ http.ResponseWriter, r *http.Request, pass func()) {
		if r.Method == http.MethodPut {
			writes.Add(1)
		}
		pass()
	})
	for n := range 3 {
		p.put(t, "a/m/"+gen(1, 9).String(), nil) // it was on its way
		if err := v.Drop(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		if left := p.objects(t, "a/"); len(left) != 1 || writes.Load() != 1 {
			t.Errorf("drop %d wrote %d objects, and %v is left", n, writes.Load(), left)
		}
	}
	if _, err := v.Bury(t.Context(), "a", -1); err == nil {
		t.Error("a grace period may be negative")
	}
}

// TestModel does random things with one sandbox, some of them at the same time or only in
// part, and compares what is in the bucket with what must be.
func TestModel(t *testing.T) {
	t.Parallel()
	for server, serve := range servers {
		t.Run(server, func(t *testing.T) {
			t.Parallel()
			p := serve(t)
			const rounds, steps = 4, 40
			for round := range rounds {
				seed := rand.Uint64()
				model(t, p, fmt.Sprint("m", round), seed, steps)
				if t.Failed() {
					t.Fatalf("the seed is %d", seed)
				}
			}
		})
	}
}

// model runs one sequence.
func model(t *testing.T, p *place, id string, seed uint64, steps int) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 0))
	var history []string
	defer func() {
		if t.Failed() {
			t.Logf("what was done:\n%s", strings.Join(history, "\n"))
		}
	}()
	v := p.open(t, true, vault.Options{Parallel: 2})
	dirs := map[vault.Generation]string{}
	counts := []vault.Generation{{}} // that may be the newest; one unless something was interrupted
	epoch, seq, dropped := uint64(1), uint64(0), false
	for step := range steps {
		// In one of three steps, the bucket takes no more requests after some.
		ctx, stop := context.WithCancel(t.Context())
		killed, cut := false, false
		if r.IntN(3) == 0 {
			p.at(r.Int64N(14), func() { killed = true; stop() })
		}
		what := ""
		switch n := r.IntN(20); {
		case n < 9:
			seq++
			g := gen(epoch, seq)
			c := content{"f": {}, fmt.Sprint("g", r.IntN(2)): {byte(r.IntN(6))}}
			for range r.IntN(5) {
				c["f"] = append(c["f"], byte(r.IntN(6)))
			}
			dir, tree := c.write(t)
			dirs[g] = dir
			_, err := v.Save(ctx, id, keyOf(t, id), g, tree)
			what = fmt.Sprint("save ", g, err)
			switch {
			case err == nil && dropped:
				t.Errorf("step %d: it saved what was dropped", step)
			case err == nil:
				counts = []vault.Generation{g}
			case killed:
				counts, cut = append(counts, g), true
			case !dropped || !errors.Is(err, vault.ErrSuperseded):
				t.Errorf("step %d: %s", step, what)
			}
		case n < 13:
			epoch++
			seq = 0
			base, err := v.Claim(ctx, id, epoch)
			what = fmt.Sprint("claim ", epoch, base, err)
			if err == nil && !dropped {
				if !slices.Contains(counts, base) {
					t.Errorf("step %d: it goes on from %v, which is none of %v", step, base, counts)
				}
				counts = []vault.Generation{base}
			} else if err != nil && !killed && !dropped {
				t.Errorf("step %d: %s", step, what)
			}
		case n < 17:
			grace := time.Duration(0)
			if dropped { // without a grace period, nothing is left that says so
				grace = time.Hour
			}
			_, err := v.Sweep(ctx, id, keyOf(t, id), 1+r.IntN(2), grace)
			what = fmt.Sprint("sweep ", err)
			if err != nil && !killed {
				t.Errorf("step %d: %s", step, what)
			}
		case n < 19: // another node
			v = p.open(t, true, vault.Options{Parallel: 2})
			what = "another node"
		case step > steps/2 && r.IntN(4) == 0:
			err := v.Drop(ctx, id)
			what = fmt.Sprint("drop ", err)
			if err == nil {
				dropped, counts = true, nil
			} else {
				p.does(nil)
				stop()
				return // nobody knows
			}
		}
		p.does(nil)
		stop()
		history = append(history, fmt.Sprintf("step %d: %s, killed %v", step, what, killed))
		if cut { // its manifest may still be on its way to the server
			if err := v.Finish(t.Context(), id, keyOf(t, id), epoch); err != nil && !dropped {
				t.Errorf("step %d: finish: %v", step, err)
			}
		}
		if dropped {
			if _, err := v.Head(t.Context(), id); !errors.Is(err, vault.ErrNotFound) {
				t.Errorf("step %d: head: %v", step, err)
			}
			continue
		}
		dir := filepath.Join(t.TempDir(), "loaded")
		g, err := v.Load(t.Context(), id, keyOf(t, id), dir)
		if errors.Is(err, vault.ErrNotFound) {
			err = nil
		}
		if err != nil {
			t.Errorf("step %d: load: %v", step, err)
			return
		}
		if !slices.Contains(counts, g) {
			t.Errorf("step %d: loaded %v, which is none of %v", step, g, counts)
			return
		}
		counts = []vault.Generation{g}
		if g != gen(0, 0) {
			same(t, dirs[g], dir)
		}
	}
}
