package control_test

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

// platform is a control plane on a real database, with a node in memory.
type platform struct {
	opener *seal.Opener
	t      testing.TB
	file   string
	sealed string
	store  *store.Store
	node   *node
	dir    *fleet.Directory
	creds  *access.Credentials
	keeper *keeper
	audit  *audit.Journal
	dns    preview.Resolver
	target string  // where custom domains lead to, if it is not the constant
	bucket *bucket // nil: there is none
	pool   doze.AddressPool
	memory doze.Megabytes // of the host; 0: sandboxes may have any
	limits doze.Limits    // defaults of the platform
	quotas *quota.Book
	// enforced counts how often open connections were looked at, if it is there.
	enforced  *atomic.Int64
	unmetered bool
	ctl       *control.Server
	rooms     *plane.Rooms
	previews  *fleet.Previews
	http      http.Handler
	key       string // of an admin of the workspace "main"
	stop      func()
}

// target is where custom domains lead to.
const target = "here-1.preview.doze.test"

// base is the public URL of the control API.
const base = "https://doze.test/v0"

// start opens a platform; run says whether its loops run.
func start(tb testing.TB, run bool) *platform {
	tb.Helper()
	return startOn(tb, filepath.Join(tb.TempDir(), "doze.db"), run)
}

// startOn is start with the address of a database that is empty.
func startOn(tb testing.TB, database string, run bool) *platform {
	tb.Helper()
	p := &platform{t: tb, file: database, sealed: filepath.Join(tb.TempDir(), "seal.key"), node: newNode(), bucket: &bucket{}}
	p.open(run)
	secret, created, err := p.rooms.Tenancy.Bootstrap(tb.Context(), "main", kept)
	if err != nil || !created {
		tb.Fatalf("bootstrap: %v, %v", created, err)
	}
	p.key = secret.Reveal()
	return p
}

// open starts a control plane on the file; the node lives on.
func (p *platform) open(run bool) {
	t := p.t
	t.Helper()
	box, err := seal.Open(p.sealed)
	if err != nil {
		t.Fatal(err)
	}
	st, err := store.Open(t.Context(), p.file, box)
	if err != nil {
		t.Fatal(err)
	}
	creds, err := tenancy.LoadCredentials(t.Context(), st, base)
	if err != nil {
		t.Fatal(err)
	}
	p.store, p.creds, p.dir, p.previews = st, creds, fleet.NewDirectory(), fleet.NewPreviews()
	p.quotas = quota.New(quota.Options{Defaults: p.limits})
	st.SetDefaultLimits(p.limits)
	opener, err := opener(filepath.Join(filepath.Dir(p.sealed), "egress.key"))
	if err != nil {
		t.Fatal(err)
	}
	p.opener = opener
	p.keeper = &keeper{Store: st}
	p.audit = audit.New(p.keeper, auditKeep)
	parts := plane.Parts{
		Audit: p.audit,
		Info:  fleet.NodeInfo{Memory: p.memory, Proxy: p.pool != nil, Unmetered: p.unmetered, SealKey: opener.Sealer().Key()},
		Store: st, Node: p.node, Gate: p.node, Directory: p.dir, Credentials: creds, Region: "here-1",
		Resolver: p.dns, DomainTarget: cmp.Or(p.target, target),
		Previews: p.previews, PreviewURL: func(label string) string { return "http://" + label + ".preview.test" }, Recheck: func() {},
		URL:  func(workspace, name string) string { return "http://" + name + "." + workspace + ".test" },
		Base: base, Hub: []control.HubImage{{Name: "base-image", Image: doze.ImageDefault}},
		Quotas: p.quotas, Operator: "main",
		Pool: p.pool,
	}
	if p.enforced != nil {
		parts.Enforce = func() { p.enforced.Add(1) }
	}
	if p.bucket != nil {
		parts.Bucket = p.bucket
	}
	p.rooms = plane.NewRooms(parts)
	p.ctl = p.rooms.Control
	p.node.mu.Lock()
	p.node.report = p.ctl.Report
	p.node.mu.Unlock()
	p.http = p.rooms.API.Handler()
	if err := p.rooms.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var loops sync.WaitGroup
	if run {
		loops.Go(func() { _ = p.rooms.Run(ctx) })
	}
	p.stop = sync.OnceFunc(func() {
		cancel()
		loops.Wait()
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(p.stop)
}

// reopen is a crash at this moment and the start after it.
func (p *platform) reopen() {
	p.t.Helper()
	p.stop()
	p.open(true)
}

// do sends a request; headers are pairs.
func (p *platform) do(method, path, body string, headers ...string) *httptest.ResponseRecorder {
	p.t.Helper()
	return p.doAs(p.t.Context(), method, path, body, headers...)
}

func (p *platform) doAs(ctx context.Context, method, path, body string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(ctx, method, "/", strings.NewReader(body))
	u, err := url.Parse("http://control.test/v0" + path)
	if err != nil {
		p.t.Fatal(err)
	}
	r.URL = u
	r.Header.Set("Authorization", "Bearer "+p.key)
	for pair := range slices.Chunk(headers, 2) {
		r.Header.Set(pair[0], pair[1])
	}
	w := httptest.NewRecorder()
	p.http.ServeHTTP(w, r)
	return w
}

// want sends a request and decodes its answer, which must have status.
func want[T any](p *platform, status int, method, path, body string, headers ...string) (out T) {
	p.t.Helper()
	w := p.do(method, path, body, headers...)
	if w.Code != status {
		p.t.Fatalf("%s %s: %d %s, want %d", method, path, w.Code, w.Body, status)
	}
	if got := w.Header().Get("Content-Type"); got != "application/json; charset=utf-8" {
		p.t.Errorf("%s %s: content type %q", method, path, got)
	}
	if err := json.Unmarshal(w.Body.Bytes(), &out); err != nil {
		p.t.Fatalf("%s %s: %v in %s", method, path, err, w.Body)
	}
	return out
}

type sandbox = doze.Sandbox

func (p *platform) create(body string) sandbox {
	p.t.Helper()
	return want[sandbox](p, 200, "POST", "/sandboxes", body)
}

// get reads the sandbox "a".
func (p *platform) get() sandbox {
	p.t.Helper()
	return want[sandbox](p, 200, "GET", "/sandboxes/a", "")
}

// named is the smallest body of a create.
func named(name string) string { return `{"metadata":{"name":"` + name + `"}}` }

// inBubble runs fn in virtual time; a platform that it starts stops with it.
func inBubble(t *testing.T, fn func(*platform)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := start(t, true)
		fn(p)
		p.stop()
	})
}

// after lets d pass, and everything that then happens.
func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// statuses are those of the events of a sandbox.
func statuses(sb sandbox) (all []string) {
	for _, e := range sb.Events {
		all = append(all, e.Status)
	}
	return all
}

// keeper keeps the audit log in a store, if that works.
type keeper struct {
	*store.Store
	fail atomic.Bool
	idle atomic.Bool // it keeps nothing
}

func (k *keeper) WriteAudit(ctx context.Context, add []audit.Record, settle []doze.AuditLine) error {
	if k.fail.Load() {
		return errors.New("disk sda is on fire")
	}
	if k.idle.Load() {
		return nil
	}
	return k.Store.WriteAudit(ctx, add, settle)
}

// auditKeep is how long lines of the audit log are kept.
const auditKeep = 90 * 24 * time.Hour

// kept is what a test does with the first key.
func kept(access.Secret) error { return nil }
