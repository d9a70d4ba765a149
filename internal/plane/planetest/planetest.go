// Package planetest starts the control role for tests: every room, on a real database, with a
// node in memory. Tests send requests to its API, and look at what the node was told.
package planetest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/audit"
	"github.com/dozehq/doze/internal/control"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/plane"
	"github.com/dozehq/doze/internal/preview"
	"github.com/dozehq/doze/internal/quota"
	"github.com/dozehq/doze/internal/seal"
	"github.com/dozehq/doze/internal/store"
	"github.com/dozehq/doze/internal/tenancy"
)

// Platform is a control plane on a real database, with a node in memory.
type Platform struct {
	Opener     *seal.Opener
	T          testing.TB
	File       string
	sealed     string
	spool      string // of builds
	Store      *store.Store
	Node       *Node
	Dir        *fleet.Directory
	Creds      *access.Credentials
	AuditStore *auditStore
	Audit      *audit.Journal
	DNS        preview.Resolver
	Target     string  // where custom domains lead to, if it is not the constant
	Bucket     *bucket // nil: there is none
	Pool       doze.AddressPool
	Parallel   int            // builds at a time
	Memory     doze.Megabytes // of the host; 0: sandboxes may have any
	Limits     doze.Limits    // defaults of the platform
	Quotas     *quota.Book
	// Crew makes what control calls in place of Node, of the records; nil is Node itself.
	// Nodes that join get their orders there.
	Crew func(*store.Store) fleet.Node
	// Enforced counts how often open connections were looked at, if it is there.
	Enforced  *atomic.Int64
	Unmetered bool
	Ctl       *control.Server
	Rooms     *plane.Rooms
	Previews  *fleet.Previews
	HTTP      http.Handler
	Key       string // of an admin of the workspace "main"
	Stop      func()
}

// Target is where custom domains lead to.
const Target = "here-1.preview.doze.test"

// Base is the public URL of the control API.
const Base = "https://doze.test/v0"

// BuildDisk is that of the builders of the node.
const BuildDisk doze.Megabytes = 1024

// Start opens a platform; run says whether its loops run.
func Start(tb testing.TB, run bool) *Platform {
	tb.Helper()
	return StartOn(tb, filepath.Join(tb.TempDir(), "doze.db"), run)
}

// StartOn is Start with the address of a database that is empty.
func StartOn(tb testing.TB, database string, run bool) *Platform {
	tb.Helper()
	p := &Platform{T: tb, File: database, sealed: filepath.Join(tb.TempDir(), "seal.key"), spool: tb.TempDir(), Node: NewNode(), Bucket: &bucket{}}
	p.Open(run)
	secret, created, err := p.Rooms.Tenancy.Bootstrap(tb.Context(), "main", Discard)
	if err != nil || !created {
		tb.Fatalf("bootstrap: %v, %v", created, err)
	}
	p.Key = secret.Reveal()
	return p
}

// Open starts a control plane on the file; the node lives on.
func (p *Platform) Open(run bool) {
	t := p.T
	t.Helper()
	cipher, err := seal.Open(p.sealed)
	if err != nil {
		t.Fatal(err)
	}
	st, err := store.Open(t.Context(), p.File, cipher)
	if err != nil {
		t.Fatal(err)
	}
	creds, err := tenancy.LoadCredentials(t.Context(), st, Base)
	if err != nil {
		t.Fatal(err)
	}
	p.Store, p.Creds, p.Dir, p.Previews = st, creds, fleet.NewDirectory(), fleet.NewPreviews()
	p.Quotas = quota.New(quota.Options{Defaults: p.Limits})
	st.SetDefaultLimits(p.Limits)
	opener, err := opener(filepath.Join(filepath.Dir(p.sealed), "egress.key"))
	if err != nil {
		t.Fatal(err)
	}
	p.Opener = opener
	p.AuditStore = &auditStore{Store: st}
	p.Audit = audit.New(p.AuditStore, auditRetention)
	var node fleet.Node = p.Node
	if p.Crew != nil {
		node = p.Crew(st)
	}
	parts := plane.Parts{
		Audit: p.Audit,
		Info:  fleet.NodeInfo{Memory: p.Memory, Proxy: p.Pool != nil, Unmetered: p.Unmetered, BuildDisk: BuildDisk, SealKey: opener.Sealer().Key()},
		Store: st, Node: node, Gate: p.Node, Directory: p.Dir, Credentials: creds, Regions: []string{"here-1", "there-1"},
		Resolver: p.DNS, DomainTarget: cmp.Or(p.Target, Target),
		Previews: p.Previews, PreviewURL: func(label string) string { return "http://" + label + ".preview.test" },
		StreamURL: func(label string) string { return "tls://" + label + ".preview.test:443" }, Recheck: func() {},
		URL:  func(workspace, name string) string { return "http://" + name + "." + workspace + ".test" },
		Base: Base, Hub: []control.HubImage{{Name: "base-image", Image: doze.ImageDefault}},
		Quotas: p.Quotas, Operator: "main",
		Pool: p.Pool, Spool: p.spool, Parallel: p.Parallel,
	}
	if p.Enforced != nil {
		parts.Enforce = func() { p.Enforced.Add(1) }
	}
	if p.Bucket != nil {
		parts.Bucket = p.Bucket
	}
	p.Rooms = plane.NewRooms(parts)
	p.Ctl = p.Rooms.Control
	p.Node.Mu.Lock()
	p.Node.Report = p.Ctl.Report
	p.Node.Mu.Unlock()
	p.HTTP = p.Rooms.API.Handler()
	if p.Crew != nil {
		err = p.Rooms.Load(t.Context())
	} else {
		err = p.Rooms.Recover(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var loops sync.WaitGroup
	if run {
		loops.Go(func() { _ = p.Rooms.Run(ctx) })
	}
	p.Stop = sync.OnceFunc(func() {
		cancel()
		loops.Wait()
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(p.Stop)
}

// Reopen is a crash at this moment and the start after it.
func (p *Platform) Reopen() {
	p.T.Helper()
	p.Stop()
	p.Open(true)
}

// Do sends a request; headers are pairs.
func (p *Platform) Do(method, path, body string, headers ...string) *httptest.ResponseRecorder {
	p.T.Helper()
	return p.DoAs(p.T.Context(), method, path, body, headers...)
}

// DoAs is Do with a context.
func (p *Platform) DoAs(ctx context.Context, method, path, body string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(ctx, method, "/", strings.NewReader(body))
	u, err := url.Parse("http://control.test/v0" + path)
	if err != nil {
		p.T.Fatal(err)
	}
	r.URL = u
	r.Header.Set("Authorization", "Bearer "+p.Key)
	for pair := range slices.Chunk(headers, 2) {
		r.Header.Set(pair[0], pair[1])
	}
	w := httptest.NewRecorder()
	p.HTTP.ServeHTTP(w, r)
	return w
}

// Want sends a request and decodes its answer, which must have status.
func Want[T any](p *Platform, status int, method, path, body string, headers ...string) (out T) {
	p.T.Helper()
	w := p.Do(method, path, body, headers...)
	if w.Code != status {
		p.T.Fatalf("%s %s: %d %s, want %d", method, path, w.Code, w.Body, status)
	}
	if got := w.Header().Get("Content-Type"); got != "application/json; charset=utf-8" {
		p.T.Errorf("%s %s: content type %q", method, path, got)
	}
	if err := json.Unmarshal(w.Body.Bytes(), &out); err != nil {
		p.T.Fatalf("%s %s: %v in %s", method, path, err, w.Body)
	}
	return out
}

// Sandbox saves tests a word.
type Sandbox = doze.Sandbox

// Create makes a sandbox.
func (p *Platform) Create(body string) Sandbox {
	p.T.Helper()
	return Want[Sandbox](p, 200, "POST", "/sandboxes", body)
}

// Get reads the sandbox "a".
func (p *Platform) Get() Sandbox {
	p.T.Helper()
	return Want[Sandbox](p, 200, "GET", "/sandboxes/a", "")
}

// Named is the smallest body of a create.
func Named(name string) string { return `{"metadata":{"name":"` + name + `"}}` }

// InBubble runs fn in virtual time; a platform that it starts stops with it.
func InBubble(t *testing.T, fn func(*Platform)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := Start(t, true)
		fn(p)
		p.Stop()
	})
}

// After lets d pass, and everything that then happens.
func After(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// Statuses are those of the events of a sandbox.
func Statuses(sb Sandbox) (all []string) {
	for _, e := range sb.Events {
		all = append(all, e.Status)
	}
	return all
}

// auditStore writes the audit log in a store, if that works.
type auditStore struct {
	*store.Store
	Fail atomic.Bool
	Idle atomic.Bool // it keeps nothing
}

func (k *auditStore) WriteAudit(ctx context.Context, add []audit.Record, settle []doze.AuditLine) error {
	if k.Fail.Load() {
		return errors.New("disk sda is on fire")
	}
	if k.Idle.Load() {
		return nil
	}
	return k.Store.WriteAudit(ctx, add, settle)
}

// auditRetention is how long lines of the audit log stay.
const auditRetention = 90 * 24 * time.Hour

// Discard is what a test does with the first key.
func Discard(access.Secret) error { return nil }

// Network is what the node was last told that the sandbox may reach.
func (p *Platform) Network() *doze.Network {
	sb, err := p.Store.SandboxByName(p.T.Context(), "main", "a")
	if err != nil {
		p.T.Fatal(err)
	}
	p.Node.Mu.Lock()
	defer p.Node.Mu.Unlock()
	return p.Node.Machines[sb.Machine].Order.Network
}
