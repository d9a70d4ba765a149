// Package edge is the gateway in front of sandboxes. It finds the sandbox that
// a request is for, proves its caller, and passes the request on, byte for byte.
// It holds no record, runs no sandbox and speaks no word of the sandbox API.
//
// Three things always hold. A request wakes nothing, unless it has a valid credential
// or a preview lets it in. A credential of the platform never reaches a sandbox. A
// sandbox of another workspace looks like a missing one.
package edge

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"maps"
	"math"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/page"
	"github.com/dozehq/doze/internal/trace"
)

// scope is what a credential needs to use a sandbox of its workspace.
const scope = "sandboxes:control"

// maxBody bounds one request. Files come in parts of a few megabytes; a larger
// body is a mistake or an attack, and would keep a sandbox awake for hours.
const maxBody = 512 << 20

// Config is what an [Edge] needs.
type Config struct {
	Addresses Addresses
	Directory *fleet.Directory
	Previews  *fleet.Previews
	Gate      Gate
	// Mounts answers requests about the drives of a sandbox, by their path as it
	// was sent; nil: the sandbox gets them. A question does not wake
	// a sandbox.
	Mounts func(w http.ResponseWriter, r *http.Request, upstream fleet.Upstream, path string)
	// Enter counts a request of a workspace, by a credential if it came with one,
	// until leave is called, and refuses what exceeds a quota. It sets headers of
	// the answer only then. It must not block. Nil lets all in.
	Enter func(h http.Header, workspace, key string) (leave func(), err error)
	// Denied, if set, hears of each request that was refused before it reached a
	// sandbox, with its id, and as much as is known of the caller and the route.
	Denied func(r *http.Request, id string, c access.Caller, upstream fleet.Upstream, err error)
	// Authenticate proves who sent a request, by its headers. It is called
	// again for requests that stay open, so that it must not block.
	Authenticate func(*http.Request) (access.Caller, error)
	Tickets      Tickets // that stand for a credential in an address
	// StateAge, if set, returns how old the state of a sandbox is, by its UID, if
	// the sandbox went back to a checkpoint and no answer has said so. It must not
	// block.
	StateAge func(uid string) (age time.Duration, ok bool)
}

// Gate leads to the ports of sandboxes.
type Gate interface {
	fleet.Gate
	// Dial is as in [fleet.Dialer].
	Dial(ctx context.Context, uid string, port uint16) (net.Conn, error)
}

// Tickets are secrets that stand for a credential. [access.Tickets] says what they
// are; who keeps them counts the time.
type Tickets interface {
	Issue(ctx context.Context, p access.Pass, now time.Time) (text string, until time.Time, err error)
	Lease(ctx context.Context, p access.Pass, now time.Time) (text string, err error)
	Redeem(ctx context.Context, text string, now time.Time) (access.Pass, error)
	Renew(ctx context.Context, text string, now time.Time) (access.Pass, error)
}

// Edge serves the requests for which Matches is true.
type Edge struct {
	Addresses

	directory    *fleet.Directory
	previews     *fleet.Previews
	gate         Gate
	mounts       func(http.ResponseWriter, *http.Request, fleet.Upstream, string)
	denied       func(*http.Request, string, access.Caller, fleet.Upstream, error)
	authenticate func(*http.Request) (access.Caller, error)
	tickets      Tickets
	enter        func(http.Header, string, string) (func(), error)
	stateAge     func(string) (time.Duration, bool)
	streams      *streams
	buffers      buffers
	bodyMax      int64
	ageMax       time.Duration
	idleMax      time.Duration
}

// New returns an edge. It needs [Edge.Run] beside it.
func New(c Config) *Edge {
	if c.Enter == nil {
		c.Enter = func(http.Header, string, string) (func(), error) { return func() {}, nil }
	}
	if c.StateAge == nil {
		c.StateAge = func(string) (time.Duration, bool) { return 0, false }
	}
	return &Edge{
		stateAge: c.StateAge, enter: c.Enter, tickets: c.Tickets,
		Addresses: c.Addresses, directory: c.Directory, previews: c.Previews, gate: c.Gate, mounts: c.Mounts, denied: c.Denied, authenticate: c.Authenticate,
		streams: newStreams(), bodyMax: maxBody, ageMax: ageMax, idleMax: idleMax,
	}
}

// Run ends the requests whose credential stops being valid, within a second,
// those by previews that have lasted for 15 minutes, and WebSockets that were
// idle for as long.
// When ctx ends, it refuses new ones, lets the short ones finish, ends the
// others, and returns.
func (e *Edge) Run(ctx context.Context) error {
	e.streams.run(ctx)
	return nil
}

// holds reports whether the credential of probe still opens a workspace.
func (e *Edge) holds(probe *http.Request, workspace string) bool {
	caller, err := e.authenticate(probe)
	if err != nil {
		return false
	}
	caller, ok := caller.In(workspace)
	return ok && caller.May(scope)
}

// Matches reports whether r is for a sandbox or a preview.
func (e *Edge) Matches(r *http.Request) bool {
	_, ok := e.previewPlace(r, main)
	return ok || e.Addresses.Matches(r)
}

// Recheck looks at the credentials of open requests now: somebody may do less
// than before. It does not wait.
func (e *Edge) Recheck() { poke(e.streams.doubt) }

// visit is one request on its way.
type visit struct {
	id       string // of the request
	came     time.Time
	caller   access.Caller
	upstream fleet.Upstream
	port     uint16
	path     string // escaped, as the sandbox gets it
	query    string // the same, with its question mark
	raw      bool   // it becomes a connection to the port

	pass    *access.Pass   // of the ticket that it came with, if it did
	preview *fleet.Preview // if it came by one
	at      previewPlace   // how
	token   string         // that opened the preview
	origin  origin         // of the answer

	sent atomic.Bool // the sandbox may have the request
	idle idleTimer
}

// ServeHTTP serves sandboxes, and previews by host.
func (e *Edge) ServeHTTP(w http.ResponseWriter, r *http.Request) { e.serveAt(w, r, main) }

func (e *Edge) serveAt(w http.ResponseWriter, r *http.Request, l listener) {
	v := &visit{id: rand.Text(), came: time.Now()}
	rec := &recorder{ResponseWriter: w, visit: v, interim: r.ProtoAtLeast(1, 1)}
	defer func() { record(r, v, rec.status, time.Since(v.came)) }() // after a panic too
	if _, isPreview := e.previewPlace(r, l); r.Method == http.MethodOptions && !isPreview {
		if _, sent := e.bearing(r); !sent {
			preflight(rec)
			return
		}
	}
	if err := e.serve(rec, r, v, l); err != nil {
		e.deny(rec, r, v, err)
	}
}

// deny answers a request that goes no further.
func (e *Edge) deny(w http.ResponseWriter, r *http.Request, v *visit, err error) {
	w.Header().Set("X-Request-Id", v.id)
	refuse(w, r, err)
	if e.denied != nil {
		e.denied(r, v.id, v.caller, v.upstream, err)
	}
}

// serve passes r on, or says why not.
func (e *Edge) serve(w *recorder, r *http.Request, v *visit, l listener) error {
	if r.Method == http.MethodConnect {
		return doze.Errorf(doze.Invalid, "the method CONNECT is not supported: a sandbox is not a proxy")
	}
	control := http.NewResponseController(w)
	s := &stream{control: control, idle: &v.idle, idleMax: e.idleMax}
	at, ok := e.previewPlace(r, l)
	switch {
	case l == previews && !ok:
		return &doze.Error{Kind: doze.NotFound, Name: routeNotFound, Message: "only previews are served here, at " + e.PreviewURL("<label>") + "; the API is at " + e.base}
	case !ok && e.pathPreview(r):
		return &doze.Error{Kind: doze.NotFound, Name: routeNotFound, Message: "no preview is served at this address: use " + e.PreviewURL("<label>")}
	case ok:
		done, err := e.admitPreview(w, r, v, at)
		if err != nil || done {
			return err
		}
		s.valid, s.until = func() bool { return e.opens(v.preview, v.token) }, time.Now().Add(e.ageMax)
	case e.foreign(r.Host):
		return errForeign
	default:
		if done, err := e.renew(w, r); done {
			return err
		}
		probe, err := e.admit(r, v)
		if err != nil {
			return err
		}
		workspace := v.caller.Workspace
		s.valid = func() bool { return e.holds(probe, workspace) }
	}
	v.origin = originOf(r, v)
	leave, err := e.enter(w.Header(), v.upstream.Workspace, v.caller.Key)
	if err != nil {
		return err
	}
	defer leave()
	if r.ContentLength > e.bodyMax {
		e.deny(w, r, v, errTooLarge)
		e.linger(w, r, r.Body, false)
		return nil
	}
	shown := showsPage(r, v)
	if err := v.origin.shows(r); err != nil && !shown {
		return err
	}
	arrived, caller := trace.Arrive(r.Context(), v.came, r.Header.Get("Traceparent"))
	defer caller.Leave()
	ctx, cut := context.WithCancelCause(httptrace.WithClientTrace(arrived, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { v.sent.Store(true) }, // the next thing is to write to it
	}))
	defer cut(nil)
	s.cut = cut
	done, err := e.streams.add(s)
	if err != nil {
		return err
	}
	defer done()
	if r.ContentLength != 0 {
		// A caller may still send while it reads the answer. HTTP/2 always can.
		_ = control.EnableFullDuplex()
	}
	if shown {
		pass, err := e.passFor(ctx, v)
		if err != nil {
			return err
		}
		return page.Terminal(w, pass)
	}
	if v.preview == nil && e.mounts != nil && v.port == doze.AgentPort && isMounts(v.path) {
		e.mounts(w, r.WithContext(ctx), v.upstream, v.path)
		return nil
	}
	e.forward(w, r.WithContext(ctx), v)
	return nil
}

// mountsPath is where the drives of a sandbox are. They are mounted by the
// platform, not by the agent.
const mountsPath = "/drives/mount"

// isMounts reports whether an escaped path is about mounted drives.
func isMounts(path string) bool { return path == mountsPath || strings.HasPrefix(path, mountsPath+"/") }

// admit proves that r may reach a sandbox, and fills in which. Nothing has
// been woken when it returns. The request it returns carries the credential.
func (e *Edge) admit(r *http.Request, v *visit) (probe *http.Request, err error) {
	probe, sent := e.bearing(r)
	if !sent {
		if e.keyInPage(r) {
			return nil, errKeyInPage
		}
		_, err := access.Token(r)
		return nil, &doze.Error{Kind: doze.Unauthenticated, Name: authRequired, Message: doze.Public(err).Message}
	}
	if err := e.redeem(r, probe, v); err != nil {
		return nil, err
	}
	if v.caller, err = e.authenticate(probe); err != nil {
		if stranger, ok := errors.AsType[*access.StrangerError](err); ok {
			v.caller = stranger.Caller // for the log
		}
		return nil, err
	}
	at, err := e.find(r, v)
	if err != nil {
		return nil, err
	}
	if v.pass != nil && (v.upstream.Workspace != v.pass.Workspace || v.upstream.Name != v.pass.Sandbox) {
		return nil, errNotFound
	}
	if !v.caller.May(scope) {
		return nil, errForbidden
	}
	if err := barred(v.upstream); err != nil {
		return nil, err
	}
	return probe, v.aim(r, at.path)
}

// barred is why a route leads nowhere now, or nil.
func barred(r fleet.Upstream) error {
	switch {
	case !r.Enabled:
		return errDisabled
	case r.Building:
		return errBuilding
	case r.Failed && r.Why != "":
		return &doze.Error{Kind: doze.Conflict, Name: workloadFailed, Message: "the sandbox is failed: " + r.Why}
	case r.Failed:
		return errFailed
	}
	return nil
}

// find looks for the sandbox that r names among those that the caller may
// enter, and fills in where it is. A host may be that of several sandboxes, in
// workspaces of which one is called as another one ends. Then it counts which
// workspace the request names, and without one it is Invalid: none of them may
// get what is meant for another.
func (e *Edge) find(r *http.Request, v *visit) (at place, err error) {
	workspaces := []string{v.caller.Workspace}
	if _, readable := e.locate(r, v.caller.Workspace); !v.caller.Chosen || !readable {
		workspaces = slices.Sorted(maps.Keys(v.caller.Roles))
	}
	in := v.caller
	for _, workspace := range workspaces {
		caller, ok := v.caller.In(workspace)
		if !ok {
			continue
		}
		place, ok := e.locate(r, workspace)
		if !ok {
			continue
		}
		upstream, ok := e.directory.Find(workspace, place.sandbox, time.Now())
		switch {
		case !ok:
		case at.sandbox != "":
			return at, doze.Errorf(doze.Invalid, "the address is that of %s in the workspace %s and of %s in %s: name the workspace in the header x-blaxel-workspace",
				at.sandbox, in.Workspace, place.sandbox, workspace)
		default:
			in, at, v.upstream = caller, place, upstream
		}
	}
	if at.sandbox == "" {
		return at, errNotFound
	}
	v.caller = in
	return at, nil
}

// aim decides which port of the sandbox gets r, and as what path.
func (v *visit) aim(r *http.Request, path string) error {
	_, v.query = target(r)
	v.port, v.path = doze.AgentPort, path
	if v.raw = strings.HasPrefix(path, tcpPrefix); v.raw {
		return v.aimTCP(r, path)
	}
	port, rest, ok, err := splitPort(path, portPrefix)
	switch {
	case err != nil:
		return doze.Wrap(err, doze.Invalid, "the path must be /port/<1 to 65535>/…: %v", err)
	case ok:
		v.port, v.path = port, rest
	}
	if v.port == doze.AgentPort {
		if isPrivate(v.path) {
			return noPath(v.path)
		}
		if strings.HasPrefix(v.path, terminalPrefix) {
			v.query = withoutToken(v.query)
		}
	}
	return nil
}

// forward carries r to the sandbox and the answer back.
func (e *Edge) forward(w *recorder, r *http.Request, v *visit) {
	body := r.Body
	limited := &limitedBody{Reader: body, left: e.bodyMax, in: r}
	if body != nil && body != http.NoBody {
		r.Body = limited
	}
	proxy := httputil.ReverseProxy{
		Transport:     e.transport(v),
		Rewrite:       func(pr *httputil.ProxyRequest) { e.rewrite(pr, v, limited) },
		FlushInterval: -1, // every byte at once
		BufferPool:    &e.buffers,
		ErrorLog:      slog.NewLogLogger(slog.Default().Handler(), slog.LevelDebug), // record tells how it ended
		ModifyResponse: func(resp *http.Response) error {
			if v.preview != nil {
				setHeaders(resp.Header, v.preview.ResponseHeaders) // of the tenant, as the answer is
			}
			v.origin.finish(resp.Header)
			if conn, ok := resp.Body.(io.ReadWriteCloser); ok && resp.StatusCode == http.StatusSwitchingProtocols {
				resp.Body = v.idle.start(conn, v.raw)
			} else {
				v.origin.trail(resp)
			}
			resp.Header.Set("X-Request-Id", v.id)
			if v.preview == nil { // visitors of a preview have no share in the state
				e.tellAge(resp.Header, v.upstream.UID)
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			w.Header().Set("X-Request-Id", v.id)
			cause, cut := errors.AsType[*doze.Error](context.Cause(r.Context()))
			switch {
			case cut:
				if cause == errStopping && v.sent.Load() {
					cause = errStopped
				}
				w.Header().Set("Connection", "close") // its deadline has passed
				refuse(w, r, cause)
			case limited.exceeded():
				w.Header().Set("Connection", "close") // the rest of the body is on its way
				refuse(w, r, errTooLarge)
			case r.Context().Err() != nil: // the client went away: nobody is left to tell
				panic(http.ErrAbortHandler)
			default:
				refuse(w, r, classify(r, err))
			}
		},
	}
	proxy.ServeHTTP(w, r)
	if !limited.ended.Load() {
		e.linger(w, r, body, limited.begun.Load())
	}
}

// stateAgeHeader has the age of the state of a sandbox, in seconds. It is on the
// first answer after the sandbox went back to a checkpoint.
const stateAgeHeader = "X-Doze-State-Age"

// tellAge adds how old the state of a sandbox is, if its clients do not know yet.
func (e *Edge) tellAge(h http.Header, uid string) {
	if age, ok := e.stateAge(uid); ok {
		h.Set(stateAgeHeader, strconv.FormatInt(int64(math.Ceil(age.Seconds())), 10))
	}
}

// rewrite makes the request that the sandbox gets out of the one that came.
func (e *Edge) rewrite(pr *httputil.ProxyRequest, v *visit, limited *limitedBody) {
	out := pr.Out
	out.URL = exactly(v.path, v.query)
	out.Trailer = limited.trailer()
	own := e.ownAuthorization(pr.In, v)
	for name := range out.Header {
		if isOurs(name) {
			delete(out.Header, name)
		}
	}
	if own != nil {
		out.Header["Authorization"] = own
	}
	withoutOurCookies(out.Header)
	pr.SetXForwarded()
	out.Header.Set("X-Forwarded-Proto", e.scheme) // TLS may have ended before us
	out.Header.Set("X-Request-Id", v.id)
	if v.preview != nil {
		setHeaders(out.Header, v.preview.RequestHeaders)
		v.at.tell(out.Header)
		return
	}
	out.Header.Set("X-Blaxel-Subject-Id", v.caller.Sub)
	out.Header.Set("X-Blaxel-Subject-Type", v.caller.SubType)
}

// exactly returns a URL that is sent as the given bytes. One kind is not: a
// path that both begins with two slashes and has bytes that no URL may have
// gets these escaped, since two slashes there would look like a host.
func exactly(path, query string) *url.URL {
	u := &url.URL{Scheme: "http", Host: "sandbox", RawPath: path, RawQuery: strings.TrimPrefix(query, "?"), ForceQuery: query == "?"}
	if decoded, err := url.PathUnescape(path); err == nil {
		u.Path = decoded
	} else {
		u.Path, u.RawPath = path, ""
	}
	if u.EscapedPath() != path && !strings.HasPrefix(path, "//") {
		u.Opaque = path
	}
	return u
}

// preflight answers the question of a browser whether it may send a
// credential. The answer is the same for every address, and wakes nothing.
func preflight(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Access-Control-Allow-Origin", "*")
	h.Set("Access-Control-Allow-Methods", "GET, POST, PUT, PATCH, DELETE, HEAD, OPTIONS")
	h.Set("Access-Control-Allow-Headers", "Content-Type, Authorization, X-Blaxel-Authorization, X-Blaxel-Workspace, Blaxel-Version")
	h.Set("Access-Control-Max-Age", "600")
	w.WriteHeader(http.StatusNoContent)
}

// buffers lends the memory through which answers are copied.
type buffers struct{ pool sync.Pool }

// bufferBytes is one read of an answer.
const bufferBytes = 32 << 10

func (b *buffers) Get() []byte {
	if p, ok := b.pool.Get().(*[]byte); ok {
		return *p
	}
	return make([]byte, bufferBytes)
}

func (b *buffers) Put(buf []byte) { b.pool.Put(&buf) }
