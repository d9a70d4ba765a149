package roster_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/depot"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/fleet/crew"
	"github.com/dozehq/doze/internal/node"
	"github.com/dozehq/doze/internal/plane"
	"github.com/dozehq/doze/internal/roster"
	"github.com/dozehq/doze/internal/seal"
	"github.com/dozehq/doze/internal/store"
	"github.com/dozehq/doze/internal/testkit/bucket"
	"github.com/dozehq/doze/internal/vault"
)

// harbor is a control with real records, and nodes with real depots, that share a real bucket.
type harbor struct {
	t       *testing.T
	bucket  *bucket.Bucket
	store   *store.Store
	r       *roster.Roster
	control *waves       // between control and the bucket
	bare    *vault.Vault // without anything in between
	graves  map[string]time.Time

	mu     sync.Mutex
	epochs map[string]uint64 // guarded by mu; of sandboxes
	at     map[string]string // guarded by mu; which node has them
}

var masterKey = []byte("0123456789abcdef0123456789abcdef")

// waves calls something before a request to the bucket, counted from 0, and once.
type waves struct {
	mu    sync.Mutex
	count int    // guarded by mu
	at    int    // guarded by mu
	do    func() // guarded by mu; nil: nothing any more
	real  http.Transport
}

func (w *waves) RoundTrip(r *http.Request) (*http.Response, error) {
	w.mu.Lock()
	do := w.do
	if do != nil && w.count == w.at {
		w.do = nil
	} else {
		do = nil
	}
	w.count++
	w.mu.Unlock()
	if do != nil {
		do()
	}
	return w.real.RoundTrip(r)
}

// set says what to do before request n of those that come.
func (w *waves) set(n int, do func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.count, w.at, w.do = 0, n, do
}

// open returns a vault that knows nothing yet. Its requests are sent over w, one after the other.
func (h *harbor) open(w http.RoundTripper) *vault.Vault {
	h.t.Helper()
	u, err := url.Parse(h.bucket.URL)
	if err != nil {
		h.t.Fatal(err)
	}
	client, err := minio.New(u.Host, &minio.Options{Creds: credentials.NewFileAWSCredentials(h.bucket.Credentials, "default"), Region: "us-east-1", BucketLookup: minio.BucketLookupPath, MaxRetries: 1, Transport: w})
	if err != nil {
		h.t.Fatal(err)
	}
	v, err := vault.New(client, strings.Trim(u.Path, "/"), vault.Options{Parallel: 1})
	if err != nil {
		h.t.Fatal(err)
	}
	return v
}

// shop is what control sees of the bucket. It buries at once.
type shop struct{ *vault.Vault }

func (shop) Archived(context.Context, string) (bool, error) { return false, nil }

func (s shop) Needs(ctx context.Context, id string) ([]fleet.FileNeed, error) {
	return roster.NeedsIn(ctx, s.Vault, masterKey, id)
}

func (s shop) Bury(ctx context.Context, id string, _ time.Duration) (bool, error) {
	return s.Vault.Bury(ctx, id, 0)
}

// recorded returns a roster with records of its own, and a node n1 that has joined.
func recorded(t *testing.T, o roster.Config) *roster.Roster {
	t.Helper()
	cipher, err := seal.New()
	if err != nil {
		t.Fatal(err)
	}
	if o.Store, err = store.Open(t.Context(), filepath.Join(t.TempDir(), "doze.db"), cipher); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = o.Store.Close() })
	if o.Crew, err = crew.Open(t.Context(), plane.Ledger{Store: o.Store}, "", fleet.NewAtlas()); err != nil {
		t.Fatal(err)
	}
	o.TTL, o.Master = ttl, masterKey
	r := roster.New(o)
	r.Meet("n1")
	return r
}

func newHarbor(t *testing.T) *harbor {
	t.Helper()
	h := &harbor{t: t, bucket: bucket.Serve(t), control: &waves{}, graves: map[string]time.Time{}, epochs: map[string]uint64{}, at: map[string]string{}}
	h.bare = h.open(http.DefaultTransport)
	// No clock protects anything: a look that comes a moment later may drop files.
	h.r = recorded(t, roster.Config{Copies: shop{h.open(h.control)}, FileGrace: time.Nanosecond})
	h.store = h.r.Store
	return h
}

// Claim is that of control: each sandbox is on the node that asks, since its epoch.
func (h *harbor) Claim(_ context.Context, node, machine string) (fleet.Claim, error) {
	key, err := vault.Derive(masterKey, machine)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.at[machine] != node {
		h.at[machine] = node
		h.epochs[machine]++
	}
	return fleet.Claim{Epoch: h.epochs[machine], Key: key.Reveal()}, err
}

// FileKey is that of control.
func (h *harbor) FileKey(ctx context.Context, node, name string) ([]byte, error) {
	return h.r.FileKey(ctx, node, name)
}

// FileMark is that of control.
func (h *harbor) FileMark(ctx context.Context, node, name string) (string, error) {
	return h.r.FileMark(ctx, node, name)
}

// add records a sandbox.
func (h *harbor) add(name string) (uid string) {
	h.t.Helper()
	sb := store.Sandbox{UID: store.NewID(), LastUsed: time.Now()}
	sb.Metadata = doze.Metadata{Name: name, Workspace: "w", CreatedAt: doze.Time{Time: time.Now()}}
	sb, err := h.store.InsertSandbox(h.t.Context(), sb)
	if err != nil {
		h.t.Fatal(err)
	}
	return sb.Machine
}

// remove has a sandbox have never been.
func (h *harbor) remove(uid string) {
	h.t.Helper()
	if err := h.store.Remove(h.t.Context(), uid); err != nil {
		h.t.Fatal(err)
	}
}

// upload is the object in the bucket that saves of a root file system rely on.
func (h *harbor) upload(root string) string {
	h.t.Helper()
	rows, err := h.store.Files(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	sum := sha256.Sum256([]byte(root))
	for _, f := range rows {
		if f.Label == "file-"+hex.EncodeToString(sum[:]) {
			return f.Object
		}
	}
	h.t.Fatalf("no copy may rely on %s", root)
	return ""
}

// looks are two looks at the files, and a sweep that drops those that were idle.
func (h *harbor) looks() {
	h.t.Helper()
	_, err1 := h.r.SweepFiles(h.t.Context())
	_, err2 := h.r.SweepFiles(h.t.Context())
	_, err3 := h.r.SweepOnce(h.t.Context(), h.graves)
	if err := errors.Join(err1, err2, err3); err != nil {
		h.t.Fatal(err)
	}
}

// age has what was dropped be buried with the next sweep.
func (h *harbor) age() {
	for id := range h.graves {
		h.graves[id] = time.Now().Add(-24 * time.Hour)
	}
}

// whole fails unless the bucket has all files that a copy needs.
func (h *harbor) whole(uid string) {
	h.t.Helper()
	needs, err := roster.NeedsIn(h.t.Context(), h.bare, masterKey, uid)
	if err != nil {
		h.t.Fatal(err)
	}
	if _, err := h.bare.Head(h.t.Context(), uid); err != nil { // it may count later, and nobody says that it does
		return
	}
	for _, n := range needs {
		key, err := vault.Derive(masterKey, n.Label())
		if err != nil {
			h.t.Fatal(err)
		}
		if has, err := h.bare.Has(h.t.Context(), n.Object(key.Reveal())); err != nil || !has {
			h.t.Errorf("the copy of %s needs %s, which is gone: %v", uid, n.Name, err)
		}
	}
}

// ship is a node whose sandboxes are a few bytes of memory.
type ship struct {
	depot.Node // what it does not have nobody asks for

	h     *harbor
	id    string
	dir   string
	sea   *waves
	depot *depot.Depot
	root  string // of the next copies; a file of its own directory
}

func (h *harbor) ship(id string) *ship {
	h.t.Helper()
	s := &ship{h: h, id: id, dir: h.t.TempDir(), sea: &waves{}}
	s.write("agent")
	s.begin()
	return s
}

// begin is a new process of the node.
func (s *ship) begin() {
	s.h.t.Helper()
	s.h.r.Meet(s.id)
	var err error
	if s.depot, err = depot.New(depot.Options{Vault: s.h.open(s.sea), Rights: s.h, ID: s.id, Dir: filepath.Join(s.dir, "foreign")}, s); err != nil {
		s.h.t.Fatal(err)
	}
}

// write puts a file on the node whose content is its name.
func (s *ship) write(name string) {
	s.h.t.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, name), []byte(name), 0o600); err != nil {
		s.h.t.Fatal(err)
	}
}

func (s *ship) CopyOut(_ context.Context, uid string) (string, node.Files, func() error, error) {
	dir := filepath.Join(s.dir, "out-"+uid)
	err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, "memory"), []byte(uid+s.root), 0o600))
	return dir, node.Files{Root: filepath.Join(s.dir, s.root), Agent: filepath.Join(s.dir, "agent")}, func() error { return os.RemoveAll(dir) }, err
}

func (s *ship) CopyDeparting(ctx context.Context, uid string) (string, node.Files, func() error, error) {
	return s.CopyOut(ctx, uid)
}

func (s *ship) Return(context.Context, string) error { return nil }

func (s *ship) Needs(string) (f node.Files, at time.Time, err error) { return f, time.Now(), nil }

func (s *ship) Sending(string, time.Time) error { return nil }

func (s *ship) Copied(string, time.Time) {}

func (s *ship) Incoming(uid string) (string, error) {
	dir := filepath.Join(s.dir, "in-"+uid)
	return dir, os.RemoveAll(dir)
}

// save copies a sandbox to the bucket, with a root file system.
func (s *ship) save(ctx context.Context, uid, root string) error {
	s.write(root)
	s.root = root
	return s.depot.Depart(ctx, uid)
}

// load has a node that has no file yet bring a sandbox from the bucket.
func (h *harbor) load(uid, root string) {
	h.t.Helper()
	s := &ship{h: h, id: "reader", dir: h.t.TempDir(), sea: &waves{}}
	s.begin()
	has, err := s.depot.Fetch(h.t.Context(), uid)
	if err != nil {
		h.t.Fatal(err)
	}
	for path, want := range map[string]string{has.Root: root, has.Agent: "agent"} {
		if raw, err := os.ReadFile(path); err != nil || string(raw) != want {
			h.t.Errorf("it came as %q, %v, and should be %q", raw, err, want)
		}
	}
}

// idle has the bucket have a root file system that nothing needs, and that control knows to be so.
func (h *harbor) idle(s *ship, root string) {
	h.t.Helper()
	old := h.add("old-" + root)
	if err := s.save(h.t.Context(), old, root); err != nil {
		h.t.Fatal(err)
	}
	h.remove(old)
	if _, err := h.r.SweepOnce(h.t.Context(), h.graves); err != nil {
		h.t.Fatal(err)
	}
	if _, err := h.r.SweepFiles(h.t.Context()); err != nil {
		h.t.Fatal(err)
	}
}

// TestFilesGoDuringSave: files are dropped before each single request of a save that relies on them.
// Either the copy has its files, or it does not count, and the next one sends them again.
func TestFilesGoDuringSave(t *testing.T) {
	t.Parallel()
	h := newHarbor(t)
	first, slow := h.ship("a"), h.ship("b")
	again, stayed := 0, 0
	for n := 0; ; n++ {
		root, counts := fmt.Sprint("root", n), false
		h.idle(first, root)
		uid, before := h.add(fmt.Sprint("s", n)), h.upload(root)
		slow.sea.set(n, func() {
			_, err := h.bare.Head(t.Context(), uid)
			counts = err == nil
			h.looks()
			h.whole(uid)
		})
		// It saves once more what changed meanwhile, and that is nothing.
		if err := slow.save(t.Context(), uid, root); err != nil {
			t.Fatalf("before request %d: it is not saved later: %v", n, err)
		}
		slow.sea.set(0, nil)
		if h.upload(root) != before {
			again++
		} else {
			stayed++
		}
		h.whole(uid)
		h.load(uid, root)
		h.remove(uid)
		if t.Failed() {
			t.Fatalf("before request %d", n)
		}
		if counts {
			break
		}
	}
	if again < 5 || stayed < 3 {
		t.Errorf("before %d requests of the save its files went, and before %d they did not", again, stayed)
	}
}

// TestSaveDuringLooks: the other way round, a save comes before each single request of looks and sweeps.
func TestSaveDuringLooks(t *testing.T) {
	t.Parallel()
	h := newHarbor(t)
	first, other := h.ship("a"), h.ship("b")
	others := []string{h.add("x"), h.add("y")} // so that looks read some copies
	for _, uid := range others {
		if err := first.save(t.Context(), uid, "base"); err != nil {
			t.Fatal(err)
		}
	}
	resent := 0
	for n := 0; ; n++ {
		root, reached := fmt.Sprint("root", n), false
		h.idle(first, root)
		uid := h.add(fmt.Sprint("s", n))
		var saved error
		h.control.set(n, func() {
			reached = true
			saved = other.save(t.Context(), uid, root)
		})
		h.looks()
		h.control.set(0, nil)
		if !reached {
			break
		}
		h.whole(uid)
		if saved != nil {
			resent++
			if err := other.save(t.Context(), uid, root); err != nil {
				t.Fatalf("at request %d: it is not saved later: %v, and before: %v", n, err, saved)
			}
		}
		h.load(uid, root)
		h.remove(uid)
		if t.Failed() {
			t.Fatalf("at request %d", n)
		}
	}
	for _, uid := range others {
		h.load(uid, "base")
	}
}

// TestFilesOfCutSave: a node ends before each single request of its first save of a sandbox, and files are
// dropped before or after that. The next process of the node decides what became of the save. If it
// counts, its files are there.
func TestFilesOfCutSave(t *testing.T) {
	t.Parallel()
	for name, early := range map[string]bool{"dropped after it": false, "dropped before it": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHarbor(t)
			first, cut := h.ship("a"), h.ship("b")
			counted, none := 0, 0
			for n := 0; ; n++ {
				root, reached := fmt.Sprint("root", n), false
				h.idle(first, root)
				uid := h.add(fmt.Sprint("s", n))
				ctx, end := context.WithCancel(t.Context())
				at := n
				if early { // the save has looked at its files, and they go in the next moment
					cut.sea.set(n, func() {
						reached = true
						h.looks()
						cut.sea.set(8, end)
					})
				} else {
					cut.sea.set(at, func() { reached = true; end() })
				}
				_ = cut.save(ctx, uid, root)
				end()
				cut.sea.set(0, nil)
				h.looks()
				cut.begin()
				_, err := cut.depot.Fetch(t.Context(), uid)
				switch {
				case err == nil:
					counted++
					h.load(uid, root)
				case doze.Public(err).Kind == doze.NotFound:
					none++
				default:
					t.Errorf("before request %d: %v", n, err)
				}
				h.looks()
				h.whole(uid)
				h.remove(uid)
				if t.Failed() {
					t.Fatalf("before request %d", n)
				}
				if !reached {
					break
				}
			}
			if counted == 0 || none == 0 {
				t.Errorf("%d saves counted, %d did not", counted, none)
			}
		})
	}
}

// TestFilesOfOldRecords: records of before a drop were restored, so they name an upload that is gone. The first
// look finds that, and the next copy makes another one.
func TestFilesOfOldRecords(t *testing.T) {
	t.Parallel()
	h := newHarbor(t)
	s := h.ship("a")
	h.idle(s, "root")
	uid := h.add("s")
	if err := h.bare.Drop(t.Context(), h.upload("root")); err != nil {
		t.Fatal(err)
	}
	if err := s.save(t.Context(), uid, "root"); !errors.Is(err, vault.ErrSuperseded) {
		t.Errorf("a copy relies on what is gone: %v", err)
	}
	if n, err := h.r.SweepFiles(t.Context()); n == 0 || err != nil {
		t.Errorf("the look drops %d, %v", n, err)
	}
	if err := s.save(t.Context(), uid, "root"); err != nil {
		t.Fatal(err)
	}
	h.load(uid, "root")
}

// TestFilesModel does random things with sandboxes, files and looks. Some stop in the middle, or meet
// others there. After each step, all copies have their files. In the end nothing is left.
func TestFilesModel(t *testing.T) {
	t.Parallel()
	const rounds, steps = 4, 40
	for round := range rounds {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			t.Parallel()
			seed := rand.Uint64()
			filesModel(t, seed, steps)
			if t.Failed() {
				t.Logf("the seed is %d", seed)
			}
		})
	}
}

func filesModel(t *testing.T, seed uint64, steps int) {
	t.Helper()
	h := newHarbor(t)
	r := rand.New(rand.NewPCG(seed, 0))
	ships := []*ship{h.ship("a"), h.ship("b")}
	var living []string
	var history []string
	defer func() {
		if t.Failed() {
			t.Logf("what was done:\n%s", strings.Join(history, "\n"))
		}
	}()
	note := func(format string, args ...any) { history = append(history, fmt.Sprintf(format, args...)) }
	roots := []string{"r0", "r1", "r2"}
	save := func(ctx context.Context, s *ship) {
		if len(living) < 4 {
			living = append(living, h.add(store.NewID()))
		}
		uid, root := living[r.IntN(len(living))], roots[r.IntN(len(roots))]
		note("%s saves %.6s with %s: %v", s.id, uid, root, s.save(ctx, uid, root))
	}
	look := func(ctx context.Context) {
		_, err1 := h.r.SweepFiles(ctx)
		_, err2 := h.r.SweepOnce(ctx, h.graves)
		note("look, sweep: %v", errors.Join(err1, err2))
	}
	// between has something else come in between, or the end.
	between := func(w *waves, other func()) (ctx context.Context, over func()) {
		ctx, end := context.WithCancel(t.Context())
		at := r.IntN(60)
		switch r.IntN(3) {
		case 0:
			w.set(at, func() { note("  it ends at request %d", at); end() })
		case 1:
			w.set(at, func() { note("  at request %d:", at); other() })
		}
		return ctx, func() { w.set(0, nil); end() }
	}
	step := func() {
		s := ships[r.IntN(len(ships))]
		switch n := r.IntN(20); {
		case n < 8:
			ctx, over := between(s.sea, func() { look(t.Context()); look(t.Context()) })
			save(ctx, s)
			over()
		case n < 15:
			ctx, over := between(h.control, func() { save(t.Context(), s) })
			look(ctx)
			over()
		case n < 16:
			h.age()
			note("a day")
		case n < 18:
			s.begin()
			note("%s begins again", s.id)
		case n < 19 && len(living) > 0:
			uid := living[r.IntN(len(living))]
			_, err := s.depot.Fetch(t.Context(), uid)
			note("%s gets %.6s: %v", s.id, uid, err)
			if err != nil && doze.Public(err).Kind != doze.NotFound {
				t.Errorf("a copy does not come: %v", err)
			}
		case len(living) > 0:
			i := r.IntN(len(living))
			note("%.6s is deleted", living[i])
			h.remove(living[i])
			living = slices.Delete(living, i, i+1)
		}
	}
	for range steps {
		step()
		for _, uid := range living {
			h.whole(uid)
		}
		if t.Failed() {
			return
		}
	}
	for _, uid := range living {
		h.remove(uid)
	}
	if _, err := h.r.SweepOnce(t.Context(), h.graves); err != nil {
		t.Fatal(err)
	}
	for range 4 { // what nodes were sending when they ended is idle at first
		h.looks()
		h.age()
	}
	if left := h.bucket.Keys(t); len(left) > 0 {
		t.Errorf("the bucket still has %d objects, such as %s", len(left), left[0])
	}
	if rows, err := h.store.Files(t.Context()); err != nil || len(rows) > 0 {
		t.Errorf("on record are %+v, %v", rows, err)
	}
}
