package node_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/machine/machinetest"
	"github.com/dozehq/doze/internal/node"
)

const (
	pauseAfter = 10 * time.Second
	saveAfter  = time.Minute
	swapAfter  = 2 * time.Minute
	diskAfter  = 5 * time.Minute
	appPort    = 3000
	nobodyPort = 3001
)

// imageFile is what all sandboxes are made of.
const imageFile = "abc.erofs"

var errBroken = errors.New("broken")

// host is what outlives a node: a driver, a disk, a network, and control's
// memory of what it was told.
type host struct {
	*machinetest.Fake

	shelf *shelf
	t     *testing.T
	dir   string
	app   http.HandlerFunc // answers on appPort

	mu       sync.Mutex
	leases   map[string]bool
	trusted  map[string]string        // guarded by mu; by sandbox
	platform map[string][]string      // guarded by mu; names of the platform's variables
	networks map[string]*doze.Network // guarded by mu; by lease, as admitted last
	issuers  map[string]string        // guarded by mu; who signs, by the id of the lease
	reports  []fleet.Report
	failing  map[string]error     // by name of the step
	holds    map[string]int       // keepAlive by sandbox
	ended    map[string]time.Time // when the last of them ended, by sandbox
	env      map[string][]string  // what agents were told, by sandbox
	changed  map[string]string    // what a checkpoint would leave out, by sandbox
	asked    map[string][]string  // what agents were asked about archives, by sandbox
	deaf     bool                 // agents do not answer
	old      bool                 // agents know what those of version 0 knew
	closed   []string             // mounts that were closed
	lag      time.Duration        // of the bucket of drives
	free     int64
	images   []fleet.DiskUse  // on the disk; set before a node starts
	image    doze.ImageConfig // of every image; set before a node starts
}

func newHost(t *testing.T) *host {
	t.Helper()
	h := &host{
		Fake: machinetest.NewFake(), shelf: newShelf(), t: t, dir: t.TempDir(),
		leases: map[string]bool{}, networks: map[string]*doze.Network{}, issuers: map[string]string{}, trusted: map[string]string{}, platform: map[string][]string{}, failing: map[string]error{}, holds: map[string]int{}, ended: map[string]time.Time{}, changed: map[string]string{}, env: map[string][]string{}, asked: map[string][]string{}, free: 1 << 30,
		image: doze.ImageConfig{Env: []string{"A=image", "B=image"}, User: "app", WorkDir: "/srv"},
		app:   func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") },
	}
	if err := os.WriteFile(filepath.Join(h.dir, imageFile), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	h.Handler = func(c machine.Config, port uint16) http.Handler {
		switch port {
		case doze.AgentPort:
			return h.agent(c.ID)
		case appPort:
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.app(w, r) })
		default:
			return nil
		}
	}
	t.Cleanup(func() {
		h.Reboot()
		time.Sleep(time.Second) // HTTP servers linger
	})
	return h
}

func (h *host) agent(id string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if h.ask(func() bool { return h.deaf }) {
			_, _ = io.Copy(io.Discard, r.Body) // only then the server sees that the caller leaves
			<-r.Context().Done()
			return
		}
		if h.ask(func() bool { return h.old }) {
			h.answerAsBefore(w, r)
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		switch r.URL.Path {
		case "/doze/keepalive":
			ago := "null"
			if end, ended := h.ended[id]; ended {
				ago = fmt.Sprint(time.Since(end).Milliseconds())
			}
			_, _ = fmt.Fprintf(w, `{"keepAlive": %d, "keptAgo": %s, "fleeting": {%s}}`, h.holds[id], ago, h.changed[id])
		case "/doze/identity":
			var in struct {
				Hostname, Trust string
				Env, Platform   []string
			}
			if err := json.Unmarshal(body, &in); err != nil {
				w.WriteHeader(http.StatusBadRequest)
			}
			h.env[id], h.trusted[id], h.platform[id] = in.Env, in.Trust, in.Platform
			_, _ = fmt.Fprintf(w, `{"hostname": %q}`, in.Hostname)
		case "/doze/quiesce":
			_, _ = io.WriteString(w, `{"processes":[{"name":"app","command":"run","waitForCompletion":true,"waitForPorts":[1]}]}`)
			h.asked[id] = append(h.asked[id], r.URL.Path+string(body))
		case "/doze/files":
			h.asked[id] = append(h.asked[id], r.URL.Path)
			if err := h.failing["files"]; err != nil {
				delete(h.failing, "files")
				w.WriteHeader(http.StatusInternalServerError)
			}
		case "/doze/drives":
			_, _ = io.WriteString(w, `{"stale":false}`)
		case "/doze/drives/one":
			if r.Method == http.MethodDelete {
				h.asked[id] = append(h.asked[id], r.URL.Path)
			} else if slices.Contains(h.asked[id], r.URL.Path) {
				w.WriteHeader(http.StatusNotFound)
			}
		case "/archive/resume", "/process", "/doze/variables":
			h.asked[id] = append(h.asked[id], r.URL.Path+string(body))
		}
	})
}

// identity returns what an agent was told to be.
func (h *host) identity(id string) (env []string) {
	h.set(func() { env = h.env[id] })
	return env
}

// ask reads something under the lock.
func (h *host) ask(what func() bool) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return what()
}

// set changes something under the lock.
func (h *host) set(do func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	do()
}

// fails returns the error that a step is to fail with, once.
func (h *host) fails(step string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	err := h.failing[step]
	delete(h.failing, step)
	return err
}

func (h *host) options() node.Options {
	return node.Options{
		Dir: filepath.Join(h.dir, "sandboxes"), Snapshots: filepath.Join(h.dir, "snapshots"), Away: filepath.Join(h.dir, "away"), Agent: "agent", Driver: h.Fake,
		CheckImage: func(string) error { return nil },
		Image: func(context.Context, string, *fleet.Login) (node.Image, error) {
			return node.Image{Path: filepath.Join(h.dir, imageFile), ImageConfig: h.image}, h.fails("image")
		},
		ReleaseImage: func(string) {}, HoldImage: func(string) {},
		Images: func() ([]fleet.DiskUse, error) { return slices.Clone(h.images), nil },
		Lease: func(_ context.Context, id string) (machine.Link, error) {
			if err := h.fails("lease"); err != nil {
				return machine.Link{}, err
			}
			h.set(func() { h.leases[id] = true })
			return machine.Link{Name: id}, nil
		},
		Release: func(id string) error {
			if err := h.fails("release"); err != nil {
				return err
			}
			h.set(func() { delete(h.leases, id); delete(h.networks, id) })
			return nil
		},
		Admit: func(id string, o fleet.Order) error {
			if err := h.fails("admit"); err != nil {
				return err
			}
			h.mu.Lock()
			defer h.mu.Unlock()
			if !h.leases[id] {
				return doze.Errorf(doze.NotFound, "there is no lease %s", id)
			}
			h.networks[id], h.issuers[id] = o.Network, o.Issuer()
			return nil
		},
		Proxy:   "192.0.2.7:3128",
		Trust:   func(authority string) ([]byte, error) { return []byte("authority of " + authority), h.fails("trust") },
		Volumes: h.shelf, Drive: h.openDrive,
		Report: func(r fleet.Report) { h.set(func() { h.reports = append(h.reports, r) }) },
		Available: func() (int64, error) {
			h.mu.Lock()
			defer h.mu.Unlock()
			return h.free, nil
		},
		Nameservers: []string{"192.0.2.1", "192.0.2.2"},
		PauseAfter:  pauseAfter, SaveAfter: saveAfter, DiskAfter: diskAfter, Reserve: 1 << 20,
	}
}

// process is a node that runs.
type process struct {
	*node.Node

	h    *host
	stop func() // and wait
}

func (h *host) start() *process { return h.startWith(h.options()) }

func (h *host) startWith(o node.Options) *process {
	h.t.Helper()
	n, err := node.Open(h.t.Context(), o)
	if err != nil {
		h.t.Fatal("open:", err)
	}
	ctx, cancel := context.WithCancel(h.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := n.Run(ctx); err != nil {
			h.t.Error("run:", err)
		}
	}()
	p := &process{Node: n, h: h, stop: func() { cancel(); <-done }}
	h.t.Cleanup(p.stop)
	return p
}

func order(uid string) fleet.Order {
	return fleet.Order{UID: uid, Name: "name-" + uid, Workspace: "main", Region: "local", Image: "base", Memory: 512}
}

// has returns a process with a running sandbox "a".
func (h *host) has(uids ...string) *process {
	h.t.Helper()
	p := h.start()
	for _, uid := range uids {
		if err := p.Create(h.t.Context(), order(uid)); err != nil {
			h.t.Fatal("create:", err)
		}
	}
	return p
}

// call makes a request, as the edge would.
func (p *process) call(ctx context.Context, uid string, port uint16) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://x/", nil)
	if err != nil {
		return "", err
	}
	resp, err := p.Transport(uid, port).RoundTrip(r)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	return string(raw), err
}

func (p *process) hello(uid string) {
	p.h.t.Helper()
	if got, err := p.call(p.h.t.Context(), uid, appPort); err != nil || got != "hello" {
		p.h.t.Fatalf("a request to %s: %q, %v", uid, got, err)
	}
}

func (p *process) phase(uid string) doze.Phase {
	st, ok := p.Status(uid)
	if !ok {
		return doze.Terminated
	}
	return st.Phase
}

// in fails unless the sandbox is in a phase and tier, with nothing in flight.
func (p *process) in(uid string, phase doze.Phase, tier string) {
	p.h.t.Helper()
	synctest.Wait()
	st, _ := p.Status(uid)
	if st.Phase != phase || st.Tier != tier {
		p.h.t.Fatalf("%s is %s, %s; want %s, %s", uid, st.Phase, st.Tier, phase, tier)
	}
	if st.InUse {
		p.h.t.Errorf("%s is in use", uid)
	}
}

// sleep lets sandbox a go down to a tier.
func (p *process) sleep(tier string) {
	p.h.t.Helper()
	time.Sleep(map[string]time.Duration{
		"paused": pauseAfter + time.Second, "saved": pauseAfter + saveAfter + time.Second,
		"swapped": pauseAfter + swapAfter + time.Second, "disk": pauseAfter + diskAfter + time.Second,
	}[tier])
	p.in("a", doze.Standby, tier)
}

// empty fails if anything of a sandbox is left.
func (p *process) empty(uid string) {
	p.h.t.Helper()
	synctest.Wait()
	if _, ok := p.Status(uid); ok {
		p.h.t.Error(uid, "is known")
	}
	p.h.empty(uid)
}

func (h *host) empty(uid string) {
	h.t.Helper()
	if _, err := os.Stat(filepath.Join(h.dir, "sandboxes", uid)); !errors.Is(err, os.ErrNotExist) {
		h.t.Error(uid, "has a directory:", err)
	}
	if slices.Contains(h.Processes(), uid) {
		h.t.Error(uid, "has processes")
	}
	if h.ask(func() bool { return h.leases[uid] }) {
		h.t.Error(uid, "has a lease")
	}
	if has := h.shelf.of(uid); len(has) > 0 {
		h.t.Error(uid, "has the volumes", has)
	}
}

// told returns the reports about a sandbox.
func (h *host) told(uid string) (all []fleet.Report) {
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.reports {
		if r.UID == uid {
			all = append(all, r)
		}
	}
	return all
}

// last returns the last message that control got about a sandbox.
func (h *host) last(uid string) fleet.Report {
	all := h.told(uid)
	if len(all) == 0 {
		return fleet.Report{}
	}
	return all[len(all)-1]
}

func (h *host) notes(uid string) (n int) {
	for _, r := range h.told(uid) {
		if r.Note {
			n++
		}
	}
	return n
}

// kind fails unless err is of a kind and says text.
func (h *host) kind(err error, kind doze.Kind, text string) {
	h.t.Helper()
	if err == nil || doze.Public(err).Kind != kind || !strings.Contains(doze.Public(err).Message, text) {
		h.t.Errorf("error %v (%+v), want %s with %q", err, doze.Public(err), kind, text)
	}
}

// virtual runs a test in virtual time.
func virtual(t *testing.T, test func(*host)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { test(newHost(t)) })
}

func TestTiers(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		p := h.has("a")
		p.hello("a")
		time.Sleep(pauseAfter - time.Second)
		p.in("a", doze.Running, "awake")
		for _, tier := range []string{"paused", "saved", "disk"} {
			p.hello("a")
			p.sleep(tier)
			p.hello("a")
			p.in("a", doze.Running, "awake")
		}
		// SaveAfter and DiskAfter count from the pause.
		time.Sleep(pauseAfter + saveAfter - time.Second)
		p.in("a", doze.Standby, "paused")
		time.Sleep(2 * time.Second)
		p.in("a", doze.Standby, "saved")
		time.Sleep(diskAfter - saveAfter - 2*time.Second)
		p.in("a", doze.Standby, "saved")
		time.Sleep(2 * time.Second)
		p.in("a", doze.Standby, "disk")
		time.Sleep(10 * time.Hour)
		p.in("a", doze.Standby, "disk")
		if n := h.Count("a", machinetest.OpBoot); n != 1 {
			t.Errorf("%d boots", n)
		}
	})
}

// swapping returns options with which memory is moved to swap.
func (h *host) swapping() node.Options {
	o := h.options()
	o.SwapAfter = swapAfter
	return o
}

func TestSwap(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		var woke, sank []string
		o := h.swapping()
		o.Woke = func(from machine.Tier, _ time.Duration, err error) {
			h.set(func() { woke = append(woke, fmt.Sprint(from, ": ", err)) })
		}
		o.Sank = func(to machine.Tier, _ time.Duration, err error) {
			h.set(func() { sank = append(sank, fmt.Sprint(to, ": ", err)) })
		}
		p := h.startWith(o)
		if err := p.Create(t.Context(), order("a")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(pauseAfter + swapAfter - time.Second)
		p.in("a", doze.Standby, "saved")
		time.Sleep(2 * time.Second)
		p.in("a", doze.Standby, "swapped")
		p.hello("a")
		p.in("a", doze.Running, "awake")
		p.sleep("swapped")
		time.Sleep(diskAfter - swapAfter)
		p.in("a", doze.Standby, "disk")
		p.hello("a")

		// What does not fit into swap stays in memory until it is due on disk, and
		// nobody tries again before it was awake.
		h.FailNext(machinetest.OpSwap, errBroken)
		swaps := h.Count("a", machinetest.OpSwap)
		time.Sleep(pauseAfter + diskAfter - 2*time.Second)
		p.in("a", doze.Standby, "saved")
		time.Sleep(3 * time.Second)
		p.in("a", doze.Standby, "disk")
		if n := h.Count("a", machinetest.OpSwap) - swaps; n != 1 {
			t.Errorf("%d attempts", n)
		}
		if n := h.notes("a"); n != 0 {
			t.Errorf("%d notes about what nobody need know", n)
		}
		p.hello("a")
		p.sleep("swapped")
		want := []string{
			"paused: <nil>", "saved: <nil>", "swapped: <nil>",
			"paused: <nil>", "saved: <nil>", "swapped: <nil>", "disk: <nil>",
			"paused: <nil>", "saved: <nil>", "swapped: to swapped: broken", "disk: <nil>",
			"paused: <nil>", "saved: <nil>", "swapped: <nil>",
		}
		h.set(func() {
			if diff := cmp.Diff(want, sank); diff != "" {
				t.Errorf("moves down (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff([]string{"swapped: <nil>", "disk: <nil>", "disk: <nil>"}, woke); diff != "" {
				t.Errorf("wakes (-want +got):\n%s", diff)
			}
		})

		// One that will not be woken goes to disk at once.
		if err := p.Disable(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		p.in("a", doze.Disabled, "disk")
	})
}

// TestSwapTooLate: swap that would be due no sooner than the disk is not used.
func TestSwapTooLate(t *testing.T) {
	virtual(t, func(h *host) {
		o := h.swapping()
		o.SwapAfter = diskAfter
		p := h.startWith(o)
		if err := p.Create(h.t.Context(), order("a")); err != nil {
			h.t.Fatal(err)
		}
		time.Sleep(pauseAfter + diskAfter + time.Second)
		p.in("a", doze.Standby, "disk")
		if n := h.Count("a", machinetest.OpSwap); n != 0 {
			h.t.Errorf("%d moves to swap", n)
		}
	})
}

// TestSaveAtOnce: a node that saves after no time at all leaves no moment in
// which a sleeping sandbox is lost with the host.
func TestSaveAtOnce(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		o := h.options()
		o.SaveAfter = 0
		p := h.startWith(o)
		if err := p.Create(t.Context(), order("a")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(pauseAfter)
		p.in("a", doze.Standby, "saved")
		p.stop()
		h.Reboot()
		p = h.startWith(o)
		p.in("a", doze.Standby, "disk")
		p.hello("a")

		time.Sleep(pauseAfter + diskAfter - time.Second)
		p.in("a", doze.Standby, "saved")
		time.Sleep(time.Second)
		p.in("a", doze.Standby, "disk")
		p.hello("a")

		// A request during the save is answered, and the next sleep saves again.
		h.Delay(machinetest.OpSave, 30*time.Second)
		time.Sleep(pauseAfter + time.Second)
		p.hello("a")
		p.in("a", doze.Running, "awake")
		h.Delay(machinetest.OpSave, 0)
		time.Sleep(pauseAfter)
		p.in("a", doze.Standby, "saved")
		p.hello("a")

		// A save that does not work is tried again, and not all the time.
		saves := h.Count("a", machinetest.OpSave)
		for range 2 {
			h.FailNext(machinetest.OpSave, errBroken)
		}
		time.Sleep(pauseAfter + 90*time.Second)
		p.in("a", doze.Standby, "paused")
		if n := h.Count("a", machinetest.OpSave) - saves; n != 2 {
			t.Errorf("%d saves in a minute and a half", n)
		}
		time.Sleep(time.Minute)
		p.in("a", doze.Standby, "saved")
	})
}

func TestEnvironment(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		var first []string
		next := h.Handler
		h.Handler = func(c machine.Config, port uint16) http.Handler { first = c.Env; return next(c, port) }
		p := h.start()
		o := order("a")
		o.Env = []string{"B=caller", "HOSTNAME=mine", "DOZE_USER=root"}
		if err := p.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		host := []string{"DOZE_NAMESERVERS=192.0.2.1,192.0.2.2", "DOZE_USER=app", "DOZE_WORKDIR=/srv"}
		if boot := append(host, "DOZE_HIDDEN=/dev/net/tun"); !slices.Equal(first, boot) {
			t.Errorf("the agent is started with %q, want %q", first, boot)
		}
		const bundle = "=" + doze.TrustFile
		want := []string{
			"REQUESTS_CA_BUNDLE" + bundle, "CURL_CA_BUNDLE" + bundle, "GIT_SSL_CAINFO" + bundle, "AWS_CA_BUNDLE" + bundle, "DENO_CERT" + bundle, "CARGO_HTTP_CAINFO" + bundle, "NODE_USE_SYSTEM_CA=1",
			"A=image", "HOST=0.0.0.0", "BL_NAME=name-a", "BL_WORKSPACE=main", "BL_REGION=local", "B=caller", "HOSTNAME=mine", "DOZE_NAMESERVERS=192.0.2.1,192.0.2.2", "DOZE_USER=app", "DOZE_WORKDIR=/srv",
		}
		if got := h.identity("a"); !slices.Equal(got, want) {
			t.Errorf("environment %q, want %q", got, want)
		}
		raw, err := os.ReadFile(filepath.Join(h.options().Dir, "a", "record.json"))
		if err != nil || strings.Contains(string(raw), "caller") {
			t.Errorf("the record has variables: %s, %v", raw, err)
		}
	})
}
