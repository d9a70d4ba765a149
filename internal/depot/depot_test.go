package depot_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/depot"
	"github.com/dozehq/doze/internal/drive"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/node"
	"github.com/dozehq/doze/internal/testkit/bucket"
	"github.com/dozehq/doze/internal/vault"
)

// rights are those of control: which node has a machine, and since when.
type rights struct {
	mu    sync.Mutex
	at    map[string]string // guarded by mu
	epoch map[string]uint64 // guarded by mu
	asked map[string]int    // guarded by mu; how often for the mark of a file
	marks map[string]string // guarded by mu; of files that were dropped since; the others have one that is their own
	drop  int               // guarded by mu; which question is the first after a drop of its file, counted from 1; 0: none is
}

func key(name string) []byte { sum := sha256.Sum256([]byte(name)); return sum[:] }

func (r *rights) Claim(_ context.Context, node, machine string) (fleet.Claim, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.at[machine] != node {
		return fleet.Claim{}, doze.Errorf(doze.Conflict, "it is on another node")
	}
	return fleet.Claim{Epoch: r.epoch[machine], Key: key(machine)}, nil
}

func (r *rights) FileKey(_ context.Context, _, name string) ([]byte, error) { return key(name), nil }

// FileMark has the mark of a file be another one from the question on that drop says.
func (r *rights) FileMark(_ context.Context, _, name string) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.asked[name]++; r.asked[name] == r.drop {
		r.marks[name] = "ffffffffffffffff"
	}
	return cmp.Or(r.marks[name], name[len("file-"):len("file-")+16]), nil
}

func (r *rights) move(machine, to string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.at[machine] = to
	r.epoch[machine]++
}

// host is a [depot.Node] whose sandboxes are a few bytes of memory.
type host struct {
	dir   string
	depot *depot.Depot
	files node.Files
	slow  chan struct{} // if set, the first copy waits until it is closed

	mu      sync.Mutex
	memory  map[string]string     // guarded by mu; by UID
	list    []node.Copyable       // guarded by mu
	copies  map[string]int        // guarded by mu; by UID
	leaving map[string]bool       // guarded by mu
	has     map[string]node.Files // guarded by mu; of those that were revived
	made    map[string]time.Time  // guarded by mu; of when copies are, as the depot says
	sending map[string]time.Time  // guarded by mu; of when copies may be, as the depot says before it sends them
	stuck   bool                  // guarded by mu; copies last until they are ended
	placed  map[string]bool       // guarded by mu; those that were revived
	wants   []string              // guarded by mu; the volumes of all sandboxes
	builds  map[string]string     // guarded by mu; the files of images that were built, by reference
	disks   *disks
}

func (h *host) Has(uid string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, has := h.memory[uid]
	return has
}

func (h *host) Travels() node.Traveller { return h.disks }

func (h *host) HasSnapshot(id string) bool {
	_, err := os.Stat(filepath.Join(h.dir, "snapshots", id, recordFile))
	return err == nil
}

func (h *host) SnapshotOut(id string) (string, node.Files, error) {
	dir := filepath.Join(h.dir, "snapshots", id)
	_, err := os.Stat(dir)
	return dir, h.files, err
}

func (h *host) SnapshotIn(id string, has node.Files) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.has[id] = has
	return errors.Join(os.MkdirAll(filepath.Join(h.dir, "snapshots"), 0o700), os.Rename(filepath.Join(h.dir, "away", id), filepath.Join(h.dir, "snapshots", id)))
}

func (h *host) HasBuilt(ref string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.builds[ref] != ""
}

func (h *host) Built(ref string) (string, []byte, error) {
	if !h.HasBuilt(ref) {
		return "", nil, doze.Errorf(doze.NotFound, "there is no such image")
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.builds[ref], []byte(`{"of":"` + ref + `"}`), nil
}

func (h *host) Receive(ctx context.Context, ref string, record []byte, fetch func(context.Context, string) (string, error)) error {
	if string(record) != `{"of":"`+ref+`"}` {
		return errors.New("it has another record: " + string(record))
	}
	dir := filepath.Join(h.dir, "came")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	file, err := fetch(ctx, dir)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.builds[ref] = file
	return nil
}

// only is the volume that tests write to.
const only = "v"

// disks are volumes that are files, by id.
type disks struct {
	dir string

	mu    sync.Mutex
	epoch map[string]uint64 // guarded by mu
	saved map[string]string // guarded by mu
	owner map[string]string // guarded by mu
}

func (d *disks) path(id string) string { return filepath.Join(d.dir, id) }

func (d *disks) write(t *testing.T, text string) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := os.WriteFile(d.path(only), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	delete(d.saved, only)
	d.epoch[only] = max(d.epoch[only], 2)
}

func (d *disks) text(t *testing.T) string {
	t.Helper()
	raw, err := os.ReadFile(d.path(only))
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func (d *disks) Lend(ctx context.Context, id string, read func(context.Context, string) error) error {
	return read(ctx, d.path(id))
}

func (d *disks) Owner(id string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.owner[id]
}

func (d *disks) give(owner string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.owner[only] = owner
}

func (d *disks) Epoch(id string) (uint64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.epoch[id], nil
}

func (d *disks) Receive(id string, epoch uint64, size int64, write func(*os.File) error) error {
	f, err := os.Create(d.path(id))
	if err != nil {
		return err
	}
	err = errors.Join(write(f), f.Close())
	if info, none := os.Stat(d.path(id)); none != nil || info.Size() != size {
		err = errors.Join(err, none, errors.New("it has another size"))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.epoch[id] = epoch
	delete(d.saved, id)
	return err
}

func (d *disks) Evict(id string, epoch uint64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.epoch[id] < epoch {
		delete(d.epoch, id)
		return os.Remove(d.path(id))
	}
	return nil
}

func (d *disks) SetSaved(id, text string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.saved[id] = text
	return nil
}

func (d *disks) Saved(id string) (string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.saved[id], nil
}

// recordFile is what a copy has besides memory.
const recordFile = "record.json"

type record struct {
	Files node.Files
	At    time.Time
}

func (h *host) Copyable() []node.Copyable {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.list)
}

func (h *host) CopyOut(ctx context.Context, uid string) (string, node.Files, func() error, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stuck {
		h.copies[uid]++
		h.mu.Unlock()
		<-ctx.Done()
		h.mu.Lock()
		return "", node.Files{}, nil, context.Cause(ctx)
	}
	dir := filepath.Join(h.dir, "away", uid)
	raw, err := json.Marshal(record{h.files, time.Now()})
	err = errors.Join(err, os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, recordFile), raw, 0o600),
		os.WriteFile(filepath.Join(dir, "memory"), []byte(h.memory[uid]), 0o600))
	needs := h.files
	needs.Volumes = h.wants
	err = errors.Join(err, os.MkdirAll(filepath.Join(dir, node.VolumesName), 0o700))
	for _, id := range h.wants {
		text, none := os.ReadFile(h.disks.path(id))
		err = errors.Join(err, none, os.WriteFile(filepath.Join(dir, node.VolumesName, id), text, 0o600))
	}
	h.copies[uid]++
	if slow := h.slow; slow != nil {
		h.slow = nil // the first copy alone
		h.mu.Unlock()
		<-slow
		h.mu.Lock()
	}
	return dir, needs, func() error { return os.RemoveAll(dir) }, err
}

func (h *host) CopyDeparting(ctx context.Context, uid string) (string, node.Files, func() error, error) {
	h.mu.Lock()
	h.leaving[uid] = true
	h.mu.Unlock()
	return h.CopyOut(ctx, uid)
}

func (h *host) Return(_ context.Context, uid string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.leaving, uid)
	return nil
}

func (h *host) Incoming(uid string) (string, error) {
	dir := filepath.Join(h.dir, "away", uid)
	return dir, errors.Join(os.MkdirAll(filepath.Dir(dir), 0o700), os.RemoveAll(dir))
}

func (h *host) Needs(uid string) (node.Files, time.Time, error) {
	var r record
	raw, err := os.ReadFile(filepath.Join(h.dir, "away", uid, recordFile))
	return r.Files, r.At, errors.Join(err, json.Unmarshal(raw, &r))
}

func (h *host) Sending(uid string, at time.Time) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sending[uid] = at
	return nil
}

func (h *host) Copied(uid string, at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.sending[uid].Equal(at) { // or it could have been forgotten in a crash
		h.made[uid] = at
	}
}

func (h *host) Receiving() bool { return false }

func (h *host) Revive(_ context.Context, o fleet.Order, raw []byte, _ time.Time, _ bool) (time.Time, error) {
	var r record
	err := json.Unmarshal(raw, &r)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.placed[o.UID] = true
	return r.At, err
}

func (h *host) ReviveNow(_ context.Context, o fleet.Order, has node.Files, _ time.Time) (time.Time, error) {
	text, err := os.ReadFile(filepath.Join(h.dir, "away", o.UID, "memory"))
	raw, none := os.ReadFile(filepath.Join(h.dir, "away", o.UID, recordFile))
	var r record
	err = errors.Join(err, none, json.Unmarshal(raw, &r))
	h.mu.Lock()
	defer h.mu.Unlock()
	h.memory[o.UID], h.has[o.UID] = string(text), has
	return r.At, err
}

// fetch has the sandbox s be on a host that was given it.
func (h *host) fetch(t *testing.T) {
	t.Helper()
	const uid = "s"
	if !h.placed[uid] {
		t.Fatal("nobody gave it to the node")
	}
	has, err := h.depot.Fetch(t.Context(), uid)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(h.dir, "away", uid, "memory"))
	if err != nil {
		t.Fatal(err)
	}
	h.memory[uid], h.has[uid] = string(raw), has
}

func (h *host) copied(uid string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.copies[uid]
}

// yard are hosts with one bucket.
type yard struct {
	rights *rights
	bucket *bucket.Bucket
	vault  *vault.Vault
}

func newYard(t *testing.T) *yard {
	t.Helper()
	b := bucket.Serve(t)
	opened, err := drive.Open(drive.Options{URL: b.URL, Credentials: b.Credentials, Region: "us-east-1"})
	if err != nil {
		t.Fatal(err)
	}
	client, name := opened.Client()
	v, err := vault.New(client, name, vault.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return &yard{&rights{at: map[string]string{}, epoch: map[string]uint64{}, asked: map[string]int{}, marks: map[string]string{}}, b, v}
}

// host returns a host whose images have a content.
func (y *yard) host(t *testing.T, id, root string, change func(*depot.Options)) *host {
	t.Helper()
	h := &host{
		dir: t.TempDir(), memory: map[string]string{}, copies: map[string]int{}, leaving: map[string]bool{},
		builds: map[string]string{}, has: map[string]node.Files{}, made: map[string]time.Time{}, sending: map[string]time.Time{}, placed: map[string]bool{}, disks: &disks{dir: t.TempDir(), epoch: map[string]uint64{}, saved: map[string]string{}, owner: map[string]string{}},
	}
	images := filepath.Join(h.dir, "images")
	h.files = node.Files{Root: filepath.Join(images, "root.erofs"), Agent: filepath.Join(images, "agent.erofs")}
	err := errors.Join(os.MkdirAll(images, 0o700), os.WriteFile(h.files.Root, []byte(root), 0o600), os.WriteFile(h.files.Agent, []byte("agent"), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	o := depot.Options{Vault: y.vault, Rights: y.rights, ID: id, Dir: filepath.Join(h.dir, "foreign"), Local: []string{images}}
	o.Images = h
	if change != nil {
		change(&o)
	}
	if h.depot, err = depot.New(o, h); err != nil {
		t.Fatal(err)
	}
	return h
}

// TestThereAndBack: a sandbox begins on another node as it was, with the very files that it
// was made of, and goes back with what it did there.
func TestThereAndBack(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	a, b := y.host(t, "a", "root of a", nil), y.host(t, "b", "root of b", nil)
	y.rights.move("s", "a")
	a.memory["s"] = "one"
	step := func(from, to *host, id string) {
		t.Helper()
		if err := from.depot.Depart(t.Context(), "s"); err != nil {
			t.Fatal(err)
		}
		y.rights.move("s", id)
		if at, err := to.depot.Revive(t.Context(), fleet.Order{UID: "s"}, time.Time{}, false); err != nil || time.Since(at) > time.Minute {
			t.Fatalf("it was made at %s: %v", at, err)
		}
		if from.made["s"].IsZero() {
			t.Error("the node does not know that the bucket has a copy")
		}
		to.fetch(t)
	}
	step(a, b, "b")
	if b.memory["s"] != "one" {
		t.Errorf("its memory is %q", b.memory["s"])
	}
	raw, err := os.ReadFile(b.has["s"].Root)
	if err != nil || string(raw) != "root of a" {
		t.Errorf("its root is %q: %v", raw, err)
	}
	if b.has["s"].Agent != b.files.Agent {
		t.Errorf("the agent that is here came again, as %s", b.has["s"].Agent)
	}
	b.memory["s"], b.files.Root = "two", b.has["s"].Root
	step(b, a, "a")
	if a.memory["s"] != "two" || a.has["s"].Root != a.files.Root {
		t.Errorf("its memory is %q, its root %s", a.memory["s"], a.has["s"].Root)
	}
	if err := b.depot.Retain(func(string) bool { return false }); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(b.has["s"].Root); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that nobody needs stays: %v", err)
	}
	for _, name := range y.bucket.Keys(t) {
		if text, _ := y.bucket.Text(t, name); bytes.Contains([]byte(text), []byte("root of a")) || bytes.Contains([]byte(text), []byte("two")) {
			t.Errorf("%s can be read in the bucket", name)
		}
	}
}

// TestFence: a node that was thought dead puts nothing over what came after it.
func TestFence(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	a, b := y.host(t, "a", "root", nil), y.host(t, "b", "root", nil)
	y.rights.move("s", "a")
	a.memory["s"] = "one"
	if err := a.depot.Depart(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	y.rights.move("s", "b")
	if _, err := b.depot.Revive(t.Context(), fleet.Order{UID: "s"}, time.Time{}, false); err != nil {
		t.Fatal(err)
	}
	a.memory["s"] = "late"
	if err := a.depot.Depart(t.Context(), "s"); doze.Public(err).Kind != doze.Conflict || a.leaving["s"] {
		t.Errorf("the node that lost it copies it: %v, and requests wait: %t", err, a.leaving["s"])
	}
	y.rights.move("s", "c")
	c := y.host(t, "c", "root", nil)
	if _, err := c.depot.Revive(t.Context(), fleet.Order{UID: "s"}, time.Time{}, false); err != nil {
		t.Fatal(err)
	}
	if c.fetch(t); c.memory["s"] != "one" {
		t.Errorf("it goes on as %q", c.memory["s"])
	}
	if _, err := b.depot.Fetch(t.Context(), "s"); err == nil {
		t.Error("the node that had it before fetches it")
	}
	y.rights.move("nobody", "c")
	if _, err := c.depot.Revive(t.Context(), fleet.Order{UID: "nobody"}, time.Time{}, false); doze.Public(err).Kind != doze.NotFound {
		t.Errorf("a sandbox without a copy: %v", err)
	}
}

// TestBucketAway: a node that does not reach the bucket says that another one may have the sandbox. One
// that has it already says no such thing, since then two would have it.
func TestBucketAway(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close() // nobody listens there any more
	opened, err := drive.Open(drive.Options{URL: gone.URL + "/bucket", Credentials: y.bucket.Credentials, Region: "us-east-1", Once: true})
	if err != nil {
		t.Fatal(err)
	}
	client, name := opened.Client()
	away, err := vault.New(client, name, vault.Options{})
	if err != nil {
		t.Fatal(err)
	}
	a, b := y.host(t, "a", "root", nil), y.host(t, "b", "root", func(o *depot.Options) { o.Vault = away })
	y.rights.move("s", "a")
	a.memory["s"] = "one"
	if err := a.depot.Depart(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	y.rights.move("s", "b")
	has := y.host(t, "b", "root", func(o *depot.Options) { o.Vault = away })
	has.memory["s"] = "one"
	var tries sync.WaitGroup // each lasts until the node gives up
	for h, want := range map[*host]bool{b: true, has: false} {
		tries.Go(func() {
			if _, err := h.depot.Revive(t.Context(), fleet.Order{UID: "s"}, time.Time{}, false); err == nil || errors.Is(err, fleet.ErrFull) != want {
				t.Errorf("another node may have it, want %t: %v", want, err)
			}
		})
	}
	tries.Wait()
	y.rights.move("s", "c")
	c := y.host(t, "c", "root", nil)
	if _, err := c.depot.Revive(t.Context(), fleet.Order{UID: "s"}, time.Time{}, false); err != nil {
		t.Fatal(err)
	}
	if c.fetch(t); c.memory["s"] != "one" {
		t.Errorf("it goes on as %q", c.memory["s"])
	}
}

// TestRun: what sleeps is copied once, what does not sleep again and again, and what failed
// is tried again.
func TestRun(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	h := y.host(t, "a", "root", func(o *depot.Options) { o.After, o.Every = time.Second, 3*time.Second })
	old := time.Now().Add(-time.Hour)
	for _, uid := range []string{"asleep", "awake", "fresh"} {
		y.rights.move(uid, "a")
		h.memory[uid] = uid
	}
	h.list = []node.Copyable{
		{UID: "asleep", Since: old, State: "1"}, {UID: "awake", Awake: true, Since: old, State: "1"}, {UID: "fresh", Since: time.Now().Add(time.Hour), State: "1"},
	}
	ctx, cancel := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() { _ = h.depot.Run(ctx) })
	for deadline := time.Now().Add(time.Minute); h.copied("awake") < 3; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("copies: %v", h.copies)
		}
	}
	h.mu.Lock()
	h.list[0].State = "2"
	h.mu.Unlock()
	for deadline := time.Now().Add(time.Minute); h.copied("asleep") < 2; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("copies: %v", h.copies)
		}
	}
	cancel()
	run.Wait()
	if h.copies["fresh"] != 0 || h.copies["asleep"] != 2 {
		t.Errorf("copies: %v", h.copies)
	}
}

// TestFetchEndsCopy: a sandbox that lost its processes while it was copied does not wait for that
// copy, which waits for the sandbox.
func TestFetchEndsCopy(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	a := y.host(t, "a", "root", func(o *depot.Options) { o.After, o.Every = 0, time.Second })
	y.rights.move("s", "a")
	a.memory["s"] = "old"
	if err := a.depot.Depart(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	a.placed["s"], a.stuck = true, true
	a.list = []node.Copyable{{UID: "s", Awake: true, Since: time.Now().Add(-time.Hour), State: "1"}}
	ctx, cancel := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() { _ = a.depot.Run(ctx) })
	for deadline := time.Now().Add(time.Minute); a.copied("s") < 2; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no copy is made")
		}
	}
	a.fetch(t)
	if cancel(); a.memory["s"] != "old" {
		t.Errorf("it goes on as %q", a.memory["s"])
	}
	run.Wait()
}

// cutOff has the bucket of the sandbox s be as it is when the node ends before its manifest
// arrives. It returns what has the manifest arrive.
func (y *yard) cutOff(t *testing.T) (arrive func()) {
	t.Helper()
	var newest string
	for _, name := range y.bucket.Keys(t) {
		if strings.HasPrefix(name, "s/m/") {
			newest = max(newest, name)
		}
	}
	text, ok := y.bucket.Text(t, newest)
	if !ok {
		t.Fatal("there is no manifest")
	}
	y.bucket.Put(t, strings.Replace(newest, "/m/", "/p/", 1)+"-0123456789abcdef", text)
	y.bucket.Remove(t, newest)
	return func() {
		if _, is := y.bucket.Text(t, newest); !is { // it is written once
			y.bucket.Put(t, newest, text)
		}
	}
}

// TestFetchAfterEnd: a node that ended while it sent a copy goes on from that copy, if the bucket has
// all of it. So does every other node, whenever the last request arrives. Volumes stay as they are
// here, and come from the copy elsewhere.
func TestFetchAfterEnd(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]bool{"its first copy": true, "a later one": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			y, a, b := newYardWithVolume(t, "old")
			if !first {
				if err := a.depot.Depart(ctx, "s"); err != nil {
					t.Fatal(err)
				}
			}
			a.memory["s"] = "new"
			a.disks.write(t, "with new")
			if err := a.depot.Depart(ctx, "s"); err != nil {
				t.Fatal(err)
			}
			arrive := y.cutOff(t)
			a.disks.write(t, "later")
			a.placed["s"], a.memory["s"] = true, ""
			if a.fetch(t); a.memory["s"] != "new" || a.disks.text(t) != "later" {
				t.Errorf("it goes on as %q with %q", a.memory["s"], a.disks.text(t))
			}
			arrive()
			y.rights.move("s", "b")
			y.rights.move(volumeOf("v"), "b")
			if _, err := b.depot.Revive(ctx, fleet.Order{UID: "s", Volumes: []fleet.Volume{{ID: "v"}}}, time.Time{}, true); err != nil {
				t.Fatal(err)
			}
			if b.memory["s"] != "new" || b.disks.text(t) != "with new" {
				t.Errorf("elsewhere it goes on as %q with %q", b.memory["s"], b.disks.text(t))
			}
		})
	}
}

// TestDepartMakesItsOwnCopy: a departure that meets a copy under way does not take that for
// its own, which has an older state.
func TestDepartMakesItsOwnCopy(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	a, b := y.host(t, "a", "root", func(o *depot.Options) { o.After, o.Every = 0, time.Hour }), y.host(t, "b", "root", nil)
	y.rights.move("s", "a")
	a.memory["s"] = "old"
	slow := make(chan struct{})
	a.slow = slow
	a.list = []node.Copyable{{UID: "s", Awake: true, Since: time.Now().Add(-time.Hour), State: "1"}}
	ctx, cancel := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() { _ = a.depot.Run(ctx) })
	for deadline := time.Now().Add(time.Minute); a.copied("s") == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no copy is made")
		}
	}
	a.mu.Lock()
	a.memory["s"] = "new"
	a.mu.Unlock()
	departed := make(chan error, 1)
	go func() { departed <- a.depot.Depart(t.Context(), "s") }()
	time.Sleep(100 * time.Millisecond)
	close(slow)
	if err := <-departed; err != nil {
		t.Fatal(err)
	}
	cancel()
	run.Wait()
	y.rights.move("s", "b")
	if _, err := b.depot.Revive(t.Context(), fleet.Order{UID: "s"}, time.Time{}, false); err != nil {
		t.Fatal(err)
	}
	if b.fetch(t); b.memory["s"] != "new" {
		t.Errorf("it goes on as %q", b.memory["s"])
	}
}

// volumeOf is the name of a volume among the rights.
func volumeOf(id string) string { return fleet.VolumeObject(id) }

// newYardWithVolume returns a yard with two hosts. The sandbox s is on the first one, and has the
// volume v with a text.
func newYardWithVolume(t *testing.T, text string) (y *yard, a, b *host) {
	t.Helper()
	y = newYard(t)
	a, b = y.host(t, "a", "root", nil), y.host(t, "b", "root", nil)
	for _, name := range []string{"s", volumeOf("v")} {
		y.rights.move(name, "a")
		y.rights.move(name, "a")
	}
	a.memory["s"], a.wants = "one", []string{"v"}
	a.disks.write(t, text)
	a.disks.give("s")
	return y, a, b
}

// TestVolumesTravel: a sandbox finds its volumes as they were when its memory was copied, whatever
// was saved of them after that. The node before saves nothing over them.
func TestVolumesTravel(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	y, a, b := newYardWithVolume(t, "volume one")
	if err := a.depot.Depart(ctx, "s"); err != nil {
		t.Fatal(err)
	}
	// The node goes on without its lease, and comes as far as the volume.
	a.disks.write(t, "volume late")
	y.rights.move("s", "b")
	a.memory["s"] = "late"
	if err := a.depot.Depart(ctx, "s"); doze.Public(err).Kind != doze.Conflict {
		t.Errorf("a node copies what another one has: %v", err)
	}
	a.disks.give("")
	if err := a.depot.SaveVolume(ctx, "v"); err != nil { // a save that was under way
		t.Fatal(err)
	}
	y.rights.move(volumeOf("v"), "b")
	b.disks.write(t, "of long ago")
	if _, err := b.depot.Revive(ctx, fleet.Order{UID: "s", Volumes: []fleet.Volume{{ID: "v"}}}, time.Time{}, true); err != nil {
		t.Fatal(err)
	}
	if b.memory["s"] != "one" || b.disks.text(t) != "volume one" {
		t.Errorf("it goes on as %q with %q", b.memory["s"], b.disks.text(t))
	}
	if err := a.depot.SaveVolume(ctx, "v"); doze.Public(err).Kind != doze.Conflict {
		t.Errorf("a node saves a volume of another one: %v", err)
	}
	// One that is here already keeps what it wrote since.
	b.disks.write(t, "volume two")
	if _, err := b.depot.Revive(ctx, fleet.Order{UID: "s", Volumes: []fleet.Volume{{ID: "v"}}}, time.Time{}, true); err != nil || b.disks.text(t) != "volume two" {
		t.Errorf("asked again it has %q: %v", b.disks.text(t), err)
	}
	for _, name := range y.bucket.Keys(t) {
		if text, _ := y.bucket.Text(t, name); bytes.Contains([]byte(text), []byte("volume ")) {
			t.Errorf("%s can be read in the bucket", name)
		}
	}
}

// TestFreeVolume: a volume that no sandbox has is saved once for each state, and comes to the node
// that needs it, in place of an older one.
func TestFreeVolume(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	y := newYard(t)
	a, b := y.host(t, "a", "root", nil), y.host(t, "b", "root", nil)
	place := func(to string) []fleet.Volume {
		y.rights.move(volumeOf("v"), to)
		y.rights.mu.Lock()
		defer y.rights.mu.Unlock()
		return []fleet.Volume{{ID: "v", Epoch: y.rights.epoch[volumeOf("v")]}, {Path: "/scratch"}}
	}
	place("a")
	place("a")
	a.disks.write(t, "one")
	for range 2 {
		if err := a.depot.SaveVolume(ctx, "v"); err != nil {
			t.Fatal(err)
		}
	}
	manifests := 0
	for _, name := range y.bucket.Keys(t) {
		if strings.Contains(name, volumeOf("v")+"/m/") {
			manifests++
		}
	}
	if manifests != 1 {
		t.Errorf("one state was saved %d times", manifests)
	}
	at := place("b")
	for range 2 {
		if err := b.depot.FetchVolumes(ctx, at); err != nil || b.disks.text(t) != "one" {
			t.Fatalf("it comes as %q: %v", b.disks.text(t), err)
		}
	}
	b.disks.write(t, "two")
	if err := b.depot.FetchVolumes(ctx, at); err != nil || b.disks.text(t) != "two" {
		t.Fatalf("what is here is replaced by %q: %v", b.disks.text(t), err)
	}
	if err := b.depot.SaveVolume(ctx, "v"); err != nil {
		t.Fatal(err)
	}
	if err := a.depot.FetchVolumes(ctx, place("a")); err != nil || a.disks.text(t) != "two" {
		t.Errorf("it comes back as %q: %v", a.disks.text(t), err)
	}
	// Placed elsewhere, and never fetched there: the bucket has it as it is.
	place("b")
	if err := b.depot.SaveVolume(ctx, "v"); err != nil || b.disks.text(t) != "two" {
		t.Errorf("a volume that did not come yet: %v", err)
	}
	y.rights.move(volumeOf("new"), "a")
	if err := a.depot.FetchVolumes(ctx, []fleet.Volume{{ID: "new", Epoch: 7}}); doze.Public(err).Kind != doze.Unavailable {
		t.Errorf("a volume of which there is no copy: %v", err)
	}
}

// TestSnapshotsTravel: a snapshot is saved once, and any node that may have it gets it.
func TestSnapshotsTravel(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	y := newYard(t)
	a, b := y.host(t, "a", "root of a", nil), y.host(t, "b", "root of b", nil)
	dir := filepath.Join(a.dir, "snapshots", "s")
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, recordFile), []byte("{}"), 0o600), os.WriteFile(filepath.Join(dir, "memory"), []byte("as it was"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := b.depot.FetchSnapshot(ctx, "s"); doze.Public(err).Kind != doze.Conflict {
		t.Errorf("a node gets a snapshot that it may not have: %v", err)
	}
	y.rights.move(fleet.SnapshotObject("s"), "b")
	if err := b.depot.FetchSnapshot(ctx, "s"); doze.Public(err).Kind != doze.Unavailable {
		t.Errorf("a snapshot that nobody saved: %v", err)
	}
	y.rights.move(fleet.SnapshotObject("s"), "a")
	for range 2 {
		if err := a.depot.SaveSnapshot(ctx, "s"); err != nil {
			t.Fatal(err)
		}
	}
	y.rights.move(fleet.SnapshotObject("s"), "b")
	for range 2 {
		if err := b.depot.FetchSnapshot(ctx, "s"); err != nil {
			t.Fatal(err)
		}
	}
	memory, err := os.ReadFile(filepath.Join(b.dir, "snapshots", "s", "memory"))
	root, none := os.ReadFile(b.has["s"].Root)
	if string(memory) != "as it was" || string(root) != "root of a" {
		t.Errorf("it has the memory %q and the root %q: %v", memory, root, errors.Join(err, none))
	}
}

// TestTemplatesTravel: a volume that never changes comes once, and stays in whichever epoch it is here.
func TestTemplatesTravel(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	y := newYard(t)
	a, b := y.host(t, "a", "root", nil), y.host(t, "b", "root", nil)
	y.rights.move(volumeOf(only), "a")
	y.rights.move(volumeOf(only), "a")
	a.disks.write(t, "seed")
	if err := errors.Join(a.depot.SaveVolume(ctx, only), a.depot.FetchTemplate(ctx, only)); err != nil {
		t.Fatal(err)
	}
	if err := b.depot.FetchTemplate(ctx, only); doze.Public(err).Kind != doze.Conflict {
		t.Errorf("a node gets a template that it may not have: %v", err)
	}
	y.rights.move(volumeOf(only), "b")
	if err := b.depot.FetchTemplate(ctx, only); err != nil || b.disks.text(t) != "seed" {
		t.Fatalf("it comes as %q: %v", b.disks.text(t), err)
	}
	y.rights.move(volumeOf(only), "a") // for which it is here in an earlier epoch
	if err := errors.Join(a.depot.FetchTemplate(ctx, only), b.depot.FetchTemplate(ctx, only)); err != nil {
		t.Errorf("one that is here: %v", err)
	}
	y.rights.move(volumeOf("none"), "b")
	if err := b.depot.FetchTemplate(ctx, "none"); doze.Public(err).Kind != doze.Unavailable {
		t.Errorf("one of which there is no copy: %v", err)
	}
}

// TestImagesTravel: an image that was built is saved once, and a node that may have it gets it. Its file
// is the one that sandboxes of it need.
func TestImagesTravel(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	y := newYard(t)
	a, b := y.host(t, "a", "root of a", nil), y.host(t, "b", "root of b", nil)
	const ref = "built/one"
	if err := a.depot.SaveBuilt(ctx, ref); doze.Public(err).Kind != doze.Conflict {
		t.Errorf("a node saves what is not its own: %v", err)
	}
	y.rights.move(ref, "a")
	if err := a.depot.SaveBuilt(ctx, ref); doze.Public(err).Kind != doze.NotFound {
		t.Errorf("an image that is not there: %v", err)
	}
	a.builds[ref] = a.files.Root
	for range 2 {
		if err := a.depot.SaveBuilt(ctx, ref); err != nil {
			t.Fatal(err)
		}
	}
	if has, err := b.depot.HasBuilt(ctx, ref); !has || err != nil {
		t.Errorf("the bucket has it: %t, %v", has, err)
	}
	if err := b.depot.FetchBuilt(ctx, ref); doze.Public(err).Kind != doze.Conflict {
		t.Errorf("a node gets an image that it may not have: %v", err)
	}
	y.rights.move(ref, "b")
	for range 2 {
		if err := b.depot.FetchBuilt(ctx, ref); err != nil {
			t.Fatal(err)
		}
	}
	if text, err := os.ReadFile(b.builds[ref]); string(text) != "root of a" || err != nil {
		t.Errorf("its file is %q, %v", text, err)
	}
	y.rights.move("built/none", "b")
	if err := b.depot.FetchBuilt(ctx, "built/none"); doze.Public(err).Kind != doze.Unavailable {
		t.Errorf("an image that nobody saved: %v", err)
	}
	// The list of the bucket says of no file what it has: that is what its key is asked for with.
	sum := sha256.Sum256([]byte("root of a"))
	for _, name := range y.bucket.Keys(t) {
		if strings.Contains(name, hex.EncodeToString(sum[:])) {
			t.Errorf("the bucket has %s", name)
		}
	}
	// What a sandbox of it needs is there.
	keys := len(y.bucket.Keys(t))
	y.rights.move("s", "a")
	a.memory["s"] = "one"
	if err := a.depot.Depart(ctx, "s"); err != nil {
		t.Fatal(err)
	}
	if files := filesIn(y.bucket.Keys(t)); files != 2 { // with the agent
		t.Errorf("%d files in the bucket, of %d keys before", files, keys)
	}
	entries, err := os.ReadDir(filepath.Join(a.dir, "foreign"))
	if err != nil || len(entries) > 1 || len(entries) == 1 && entries[0].Name() != depot.SumsFile {
		t.Errorf("there is left %v, %v", entries, err)
	}
}

// filesIn counts the files that many copies need.
func filesIn(keys []string) int {
	names := map[string]bool{}
	for _, k := range keys {
		if name, _, _ := strings.Cut(k, "/"); strings.HasPrefix(name, "file-") {
			names[name] = true
		}
	}
	return len(names)
}

// TestLateCopy: the copy of a sandbox that is gone saves nothing over what its volume is by now.
func TestLateCopy(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	y, a, b := newYardWithVolume(t, "old")
	slow := make(chan struct{})
	a.slow = slow
	copied := make(chan error, 1)
	go func() { copied <- a.depot.Depart(ctx, "s") }()
	for deadline := time.Now().Add(time.Minute); a.copied("s") == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no copy is made")
		}
	}
	a.disks.give("") // the sandbox was deleted, and another one wrote
	a.disks.write(t, "new")
	if err := a.depot.SaveVolume(ctx, "v"); err != nil {
		t.Fatal(err)
	}
	close(slow)
	if err := <-copied; doze.Public(err).Kind != doze.Conflict {
		t.Errorf("the copy that was late: %v", err)
	}
	y.rights.move(volumeOf("v"), "b")
	if err := b.depot.FetchVolumes(ctx, []fleet.Volume{{ID: "v", Epoch: 3}}); err != nil || b.disks.text(t) != "new" {
		t.Errorf("the volume goes on as %q: %v", b.disks.text(t), err)
	}
}

// TestFileDropped: control drops a file after a copy found it in the bucket, and before the copy counts. The copy
// does not count then. The next one sends the file again, and names that upload.
func TestFileDropped(t *testing.T) {
	t.Parallel()
	const ref, snapshot, uid = "built/one", "n", "s"
	for name, tc := range map[string]struct {
		object string
		save   func(context.Context, *depot.Depot) error
	}{
		"a sandbox":  {uid, func(ctx context.Context, d *depot.Depot) error { return d.Depart(ctx, uid) }},
		"a snapshot": {fleet.SnapshotObject(snapshot), func(ctx context.Context, d *depot.Depot) error { return d.SaveSnapshot(ctx, snapshot) }},
		"an image":   {fleet.ImageObject(ref), func(ctx context.Context, d *depot.Depot) error { return d.SaveBuilt(ctx, ref) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, y := t.Context(), newYard(t)
			a := y.host(t, "a", "root of a", nil)
			dir := filepath.Join(a.dir, "snapshots", snapshot)
			if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, recordFile), []byte("{}"), 0o600)); err != nil {
				t.Fatal(err)
			}
			a.builds[ref] = a.files.Root
			for _, object := range []string{uid, fleet.SnapshotObject(snapshot), ref} {
				y.rights.move(object, "a")
			}
			// A sandbox that moves is copied twice. The second copy begins before the drop, too.
			y.rights.drop = 2
			if tc.object == uid {
				y.rights.drop = 4
			}
			if err := tc.save(ctx, a.depot); err == nil || !strings.Contains(err.Error(), "was dropped from the bucket meanwhile") {
				t.Errorf("a copy counts whose file is gone: %v", err)
			}
			if has, err := y.vault.Has(ctx, tc.object); err != nil || has != (tc.object == uid) {
				t.Errorf("the bucket has a copy: %t, %v", has, err)
			}
			if err := tc.save(ctx, a.depot); err != nil {
				t.Fatal(err)
			}
			k, err := vault.KeyOf(key(tc.object))
			if tc.object == fleet.ImageObject(ref) {
				k, err = vault.KeyOf(key(ref))
			}
			if err != nil {
				t.Fatal(err)
			}
			c, err := y.vault.Open(ctx, tc.object, k)
			if err != nil {
				t.Fatal(err)
			}
			file := fleet.NeedsFile
			if tc.object == fleet.ImageObject(ref) {
				file = fleet.BuiltFile
			}
			raw, err := c.Chunk(ctx, file, 0)
			if err != nil {
				t.Fatal(err)
			}
			needs, err := fleet.NeedsOf(raw)
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range needs {
				has, err := y.vault.Has(ctx, n.Object(key(n.Label())))
				if n.Mark != "ffffffffffffffff" || !has || err != nil {
					t.Errorf("it names %+v, which is there: %t, %v", n, has, err)
				}
			}
		})
	}
}

// TestFilesOfEarlierRelease: a node gets a copy of an earlier release, which names no marks, and whose files have
// the names that they had then. With a control of an earlier release, a copy names none either.
func TestFilesOfEarlierRelease(t *testing.T) {
	t.Parallel()
	ctx, y := t.Context(), newYard(t)
	a, b := y.host(t, "a", "root of a", func(o *depot.Options) { o.Rights = unmarked{y.rights} }), y.host(t, "b", "root of b", nil)
	y.rights.move("s", "a")
	a.memory["s"] = "one"
	if err := a.depot.Depart(ctx, "s"); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte("root of a"))
	bare := fleet.FileNeed{Name: "root.erofs", Sum: hex.EncodeToString(sum[:])}
	if has, err := y.vault.Has(ctx, bare.Object(key(bare.Label()))); err != nil || !has {
		t.Errorf("the bucket has the file under its earlier name: %t, %v", has, err)
	}
	y.rights.move("s", "b")
	if _, err := b.depot.Revive(ctx, fleet.Order{UID: "s"}, time.Time{}, false); err != nil {
		t.Fatal(err)
	}
	b.fetch(t)
	if text, err := os.ReadFile(b.has["s"].Root); string(text) != "root of a" || err != nil {
		t.Errorf("its file is %q, %v", text, err)
	}
}

// unmarked is a control of an earlier release.
type unmarked struct{ *rights }

func (unmarked) FileMark(context.Context, string, string) (string, error) {
	return "", doze.Errorf(doze.Unsupported, "this role does not know the call")
}
