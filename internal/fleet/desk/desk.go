// Package desk is where an edge in a process of its own finds control: it passes on
// calls of the API, hears what changes, and brings what it has seen. It decides
// nothing by itself.
package desk

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/httpx"
)

// What a passed request carries besides what its caller sent. Only an edge gets as
// far as to send them.
const (
	passHeader     = "Doze-Pass"   // what it asks for: one of the passes
	remoteHeader   = "Doze-Remote" // address of its caller
	upstreamHeader = "Doze-Route"  // of a sandbox, in JSON
	pathHeader     = "Doze-Path"   // below the sandbox, as it was sent
	markHeader     = "Doze-Mark"   // on answers: what the edge has to know before its caller does
)

// The passes.
const (
	passAPI     = "api"
	passMetrics = "metrics"
	passMounts  = "mounts"
)

// The calls.
const (
	callTickets = "desk/tickets"
	callFiles   = "desk/files"
	callDenied  = "desk/denied"
	callSeen    = "desk/seen"
)

// callMax bounds the arguments of a call, in bytes: a certificate, or a batch of
// what was seen.
const callMax = 8 << 20

// Tickets are those of control. [access.Tickets] says what they are.
type Tickets interface {
	Issue(ctx context.Context, p access.Pass, now time.Time) (text string, until time.Time, err error)
	Lease(ctx context.Context, p access.Pass, now time.Time) (text string, err error)
	Redeem(ctx context.Context, text string, now time.Time) (access.Pass, error)
	Renew(ctx context.Context, text string, now time.Time) (access.Pass, error)
}

// Files are where certificates are kept, as package certificate wants them.
type Files interface {
	PutCertificateFile(ctx context.Context, key string, value []byte, now time.Time) error
	CertificateFile(ctx context.Context, key string) ([]byte, error)
	EachCertificateFile(ctx context.Context, path string, tell func(key string, size int64, modified time.Time)) error
	DeleteCertificateFiles(ctx context.Context, path string) error
}

// Seen is what an edge has seen since it last told.
type Seen struct {
	Edge string               // the process
	Keys map[string]time.Time // last use of API keys, by id
	Open map[string]int64     // requests to sandboxes that are open now, by workspace
}

// Control is what control gives to edges.
type Control struct {
	API     http.Handler
	Metrics http.Handler
	Mounts  func(w http.ResponseWriter, r *http.Request, upstream fleet.Upstream, path string)
	Denied  func(r *http.Request, id string, c access.Caller, upstream fleet.Upstream, err error)
	Seen    func(Seen)
	Tickets Tickets
	Files   Files
	Feed    *fleet.Feed
}

// Handler serves edges. Whoever asks it is believed: it must be reachable for edges
// alone.
func (c Control) Handler() http.Handler {
	mux := http.NewServeMux()
	c.Feed.Register(mux)
	for call, do := range map[string]func(context.Context, []byte) (any, error){
		callTickets: c.tickets, callFiles: c.files, callDenied: c.denied, callSeen: c.seen,
	} {
		mux.HandleFunc("POST "+fleet.Prefix+call, func(w http.ResponseWriter, r *http.Request) {
			raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, callMax))
			if err != nil {
				fleet.Answer(w, nil, doze.Wrap(err, doze.Invalid, "the arguments of the call cannot be read"))
				return
			}
			out, err := do(r.Context(), raw)
			fleet.Answer(w, out, err)
		})
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(passHeader) != "" { // its path is that of its caller: no mux may change it
			c.pass(w, r)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// pass serves a request that an edge passed on, as if its caller had sent it here.
// The answer says what the edge has to know first.
func (c Control) pass(w http.ResponseWriter, r *http.Request) {
	pass, upstream, path := r.Header.Get(passHeader), r.Header.Get(upstreamHeader), r.Header.Get(pathHeader)
	r = r.Clone(r.Context())
	r.RemoteAddr, r.TLS = r.Header.Get(remoteHeader), nil
	for _, name := range []string{passHeader, remoteHeader, upstreamHeader, pathHeader} {
		r.Header.Del(name)
	}
	marked := &marked{ResponseWriter: w, mark: c.Feed.Mark}
	switch pass {
	case passAPI:
		c.API.ServeHTTP(marked, r)
	case passMetrics:
		c.Metrics.ServeHTTP(marked, r)
	case passMounts:
		var to fleet.Upstream
		if err := json.Unmarshal([]byte(upstream), &to); err != nil {
			httpx.WriteError(w, r, doze.Wrap(err, doze.Invalid, "the edge does not say which sandbox this is for"))
			return
		}
		c.Mounts(marked, r, to, path)
	default:
		httpx.WriteError(w, r, doze.Errorf(doze.Unsupported, "control does not know the pass %.40q: the edge is of another version", pass))
	}
}

// marked tells with the first byte of an answer how far the feed is: what the
// request changed is in it.
type marked struct {
	http.ResponseWriter

	mark func() fleet.Mark
	told bool
}

// Unwrap lets http.ResponseController reach what this type does not have.
func (m *marked) Unwrap() http.ResponseWriter { return m.ResponseWriter }

func (m *marked) WriteHeader(status int) {
	m.tell()
	m.ResponseWriter.WriteHeader(status)
}

func (m *marked) Write(p []byte) (int, error) {
	m.tell()
	return m.ResponseWriter.Write(p)
}

func (m *marked) tell() {
	if !m.told {
		m.told = true
		m.Header().Set(markHeader, m.mark().String())
	}
}

// ticketCall asks for one method of [Tickets]. Control counts the time.
type ticketCall struct {
	Method string
	Text   string      `json:",omitempty"`
	Pass   access.Pass `json:",omitzero"`
}

type ticketAnswer struct {
	Text  string      `json:",omitempty"`
	Until time.Time   `json:",omitzero"`
	Pass  access.Pass `json:",omitzero"`
}

func (c Control) tickets(ctx context.Context, raw []byte) (any, error) {
	var in ticketCall
	if err := read(raw, &in); err != nil {
		return nil, err
	}
	var out ticketAnswer
	var err error
	now := time.Now()
	switch in.Method {
	case "Issue":
		out.Text, out.Until, err = c.Tickets.Issue(ctx, in.Pass, now)
	case "Lease":
		out.Text, err = c.Tickets.Lease(ctx, in.Pass, now)
	case "Redeem":
		out.Pass, err = c.Tickets.Redeem(ctx, in.Text, now)
	case "Renew":
		out.Pass, err = c.Tickets.Renew(ctx, in.Text, now)
	default:
		err = errMethod(in.Method)
	}
	return out, err
}

func errMethod(name string) error {
	return doze.Errorf(doze.Unsupported, "control does not know the method %.40q: the edge is of another version", name)
}

// fileCall asks for one method of [Files].
type fileCall struct {
	Method string
	Path   string
	Value  []byte    `json:",omitempty"`
	Now    time.Time `json:",omitzero"`
}

// file is one file of an answer.
type file struct {
	Key      string
	Size     int64
	Modified time.Time
}

type fileAnswer struct {
	Value []byte `json:",omitempty"`
	Files []file `json:",omitempty"`
}

func (c Control) files(ctx context.Context, raw []byte) (any, error) {
	var in fileCall
	if err := read(raw, &in); err != nil {
		return nil, err
	}
	var out fileAnswer
	var err error
	switch in.Method {
	case "Write":
		err = c.Files.PutCertificateFile(ctx, in.Path, in.Value, in.Now)
	case "Read":
		out.Value, err = c.Files.CertificateFile(ctx, in.Path)
	case "List":
		err = c.Files.EachCertificateFile(ctx, in.Path, func(key string, size int64, modified time.Time) {
			out.Files = append(out.Files, file{key, size, modified})
		})
	case "Remove":
		err = c.Files.DeleteCertificateFiles(ctx, in.Path)
	default:
		err = errMethod(in.Method)
	}
	return out, err
}

// denial is a request that an edge refused, as far as the audit log wants to know.
type denial struct {
	ID       string
	Method   string
	Host     string
	Remote   string
	Request  string         `json:",omitempty"` // the id that its caller gave it
	Caller   access.Caller  `json:",omitzero"`
	Upstream fleet.Upstream `json:"Route,omitzero"`
	Status   int
	Name     string `json:",omitempty"`
	Message  string
}

const requestHeader = "X-Request-Id"

func denialOf(r *http.Request, id string, c access.Caller, upstream fleet.Upstream, err error) denial {
	e := doze.Public(err)
	return denial{
		ID: id, Method: r.Method, Host: r.Host, Remote: r.RemoteAddr, Request: r.Header.Get(requestHeader),
		Caller:   access.Caller{Sub: c.Sub, SubType: c.SubType, Workspace: c.Workspace, Key: c.Key},
		Upstream: upstream, Status: e.Kind.Status(), Name: e.Name, Message: e.Message,
	}
}

// request is the request of a denial, as far as it is known.
func (d denial) request(ctx context.Context) *http.Request {
	r := &http.Request{Method: d.Method, Host: d.Host, RemoteAddr: d.Remote, URL: &url.URL{Path: "/"}, Header: http.Header{}}
	if d.Request != "" {
		r.Header.Set(requestHeader, d.Request)
	}
	return r.WithContext(ctx)
}

func (c Control) denied(ctx context.Context, raw []byte) (any, error) {
	var all []denial
	if err := read(raw, &all); err != nil {
		return nil, err
	}
	for _, d := range all {
		c.Denied(d.request(ctx), d.ID, d.Caller, d.Upstream, &doze.Error{Kind: doze.KindOfStatus(d.Status), Name: d.Name, Message: d.Message})
	}
	return struct{}{}, nil
}

func (c Control) seen(_ context.Context, raw []byte) (any, error) {
	var s Seen
	if err := read(raw, &s); err != nil {
		return nil, err
	}
	c.Seen(s)
	return struct{}{}, nil
}

func read(raw []byte, to any) error {
	if err := json.Unmarshal(raw, to); err != nil {
		return doze.Wrap(err, doze.Invalid, "the arguments of the call cannot be read")
	}
	return nil
}

// unreachable is what a caller of the API hears while control is away.
func unreachable(ctx context.Context, w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(context.Cause(ctx), context.Canceled) {
		panic(http.ErrAbortHandler) // its caller is gone
	}
	slog.WarnContext(ctx, "control does not answer", "err", err)
	httpx.WriteError(w, r, doze.Wrap(err, doze.Unavailable, "control cannot be reached: sandboxes that run can be used, and nothing can be changed; try again in a moment"))
}
