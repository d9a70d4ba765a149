package builder

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/buildapi"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/fleet/fleettest"
)

// farm has machines in memory, each with a program that builds nothing and speaks as
// doze-builder does.
type farm struct {
	t *testing.T

	mu       sync.Mutex
	machines map[string]*guest               // guarded by mu; by UID
	creates  []fleet.Order                   // guarded by mu
	deletes  []string                        // guarded by mu
	networks map[string]*doze.Network        // guarded by mu
	holds    map[string]int                  // guarded by mu
	sick     map[string]error                // guarded by mu; why a machine does not wake
	refused  error                           // guarded by mu; why none is created
	stuck    error                           // guarded by mu; why none is deleted
	egress   doze.EgressSummary              // guarded by mu
	obey     func(*guest, *http.Request) int // guarded by mu; the status of a refusal, or 0
}

func newFarm(t *testing.T) *farm {
	t.Helper()
	f := &farm{t: t, machines: map[string]*guest{}, networks: map[string]*doze.Network{}, holds: map[string]int{}, sick: map[string]error{}}
	t.Cleanup(func() {
		f.mu.Lock()
		all := slices.Collect(maps.Values(f.machines))
		f.mu.Unlock()
		for _, g := range all {
			g.end()
		}
	})
	return f
}

func (f *farm) UID(name string) string { return "builder-" + name }

func (f *farm) Create(ctx context.Context, o fleet.Order, root string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case f.refused != nil:
		return f.refused
	case f.machines[o.UID] != nil:
		return doze.Errorf(doze.Conflict, "created twice")
	}
	f.creates = append(f.creates, o)
	f.networks[o.UID] = o.Network
	f.machines[o.UID] = newGuest(f, Machine{
		Status: fleet.Status{Phase: doze.Running, Tier: "awake"}, Root: root, Memory: o.Memory.Bytes(),
	})
	return nil
}

func (f *farm) Delete(_ context.Context, uid string) error {
	f.mu.Lock()
	g, stuck := f.machines[uid], f.stuck
	if stuck == nil && g != nil {
		delete(f.machines, uid)
		f.deletes = append(f.deletes, uid)
	}
	f.mu.Unlock()
	if stuck == nil && g != nil {
		g.end()
	}
	return stuck
}

func (f *farm) SetNetwork(_ context.Context, uid string, n *doze.Network) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.networks[uid] = n
	return nil
}

func (f *farm) Egress(string) doze.EgressSummary {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.egress
}

func (f *farm) Hold(_ context.Context, uid string) (func(), error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.sick[uid]; err != nil {
		return nil, err
	}
	f.holds[uid]++
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.holds[uid]--
	}, nil
}

func (f *farm) All() map[string]Machine {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := map[string]Machine{}
	for uid, g := range f.machines {
		all[uid] = g.is
	}
	return all
}

func (f *farm) Transport(uid string, port uint16) http.RoundTripper {
	return carrier(func(r *http.Request) (*http.Response, error) {
		f.mu.Lock()
		g := f.machines[uid]
		f.mu.Unlock()
		if g == nil {
			return nil, doze.Errorf(doze.NotFound, "there is no such machine")
		}
		return g.carry(r, port)
	})
}

type carrier func(*http.Request) (*http.Response, error)

func (c carrier) RoundTrip(r *http.Request) (*http.Response, error) { return c(r) }

// created returns how many machines were made.
func (f *farm) created() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.creates)
}

// guest is what runs in a machine.
type guest struct {
	farm *farm
	is   Machine // guarded by mu of the farm

	transport *http.Transport
	server    *http.Server
	dials     chan net.Conn
	ended     chan struct{}
	once      sync.Once

	mu       sync.Mutex
	token    string            // guarded by mu; empty until the program is started
	starts   []map[string]any  // guarded by mu
	contexts map[string][]byte // guarded by mu
	results  map[string][]byte // guarded by mu
	images   map[string][]byte // guarded by mu
	puts     int               // guarded by mu; images that came
	known    map[string]bool   // guarded by mu; Dockerfiles that were built
	orders   []buildapi.Build  // guarded by mu
	conns    map[net.Conn]bool // guarded by mu
}

func newGuest(f *farm, is Machine) *guest {
	g := &guest{
		farm: f, is: is, dials: make(chan net.Conn), ended: make(chan struct{}),
		contexts: map[string][]byte{}, results: map[string][]byte{}, images: map[string][]byte{}, known: map[string]bool{}, conns: map[net.Conn]bool{},
	}
	g.transport = &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		select {
		case g.dials <- theirs:
			return ours, nil
		case <-g.ended:
			return nil, errors.New("the machine is gone")
		}
	}}
	g.server = &http.Server{Handler: g.mux(), ReadHeaderTimeout: time.Minute}
	go func() { _ = g.server.Serve(g) }()
	return g
}

// Accept implements [net.Listener].
func (g *guest) Accept() (net.Conn, error) {
	select {
	case c := <-g.dials:
		g.mu.Lock()
		defer g.mu.Unlock()
		g.conns[c] = true
		return c, nil
	case <-g.ended:
		return nil, net.ErrClosed
	}
}

// Close implements [net.Listener].
func (g *guest) Close() error {
	g.once.Do(func() { close(g.ended) })
	return nil
}

// Addr implements [net.Listener].
func (g *guest) Addr() net.Addr { return &net.TCPAddr{} }

// end ends the machine.
func (g *guest) end() { _ = g.server.Close() }

// crash ends all connections of the program, as its end does.
func (g *guest) crash() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for c := range g.conns {
		_ = c.Close()
	}
	clear(g.conns)
}

// carry makes a request to a port.
func (g *guest) carry(r *http.Request, port uint16) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.URL.Scheme, r.URL.Host = "http", fmt.Sprint("guest:", port)
	return g.transport.RoundTrip(r)
}

// mux serves the agent and the program.
func (g *guest) mux() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /process", g.startProgram)
	for call, serve := range map[buildapi.Call]http.HandlerFunc{
		buildapi.AskStatus:   g.status,
		buildapi.PutContext:  g.putContext,
		buildapi.MakePlan:    g.plan,
		buildapi.DropContext: g.drop(g.contexts),
		buildapi.HasImage:    g.hasImage,
		buildapi.PutImage:    g.putImage,
		buildapi.StartBuild:  g.build,
		buildapi.AskResult:   g.result,
		buildapi.DropResult:  g.drop(g.results),
	} {
		mux.HandleFunc(call.Pattern(), func(w http.ResponseWriter, r *http.Request) {
			g.mu.Lock()
			mine := g.token != "" && r.Header.Get("Authorization") == "Bearer "+g.token
			g.mu.Unlock()
			g.farm.mu.Lock()
			obey := g.farm.obey
			g.farm.mu.Unlock()
			switch {
			case !mine:
				mistake(w, http.StatusUnauthorized, "who are you")
			case obey == nil:
				serve(w, r)
			default:
				if status := obey(g, r); status != 0 {
					mistake(w, status, "not today")
					return
				}
				serve(w, r)
			}
		})
	}
	return mux
}

func mistake(w http.ResponseWriter, status int, text string) {
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(buildapi.Mistake{Error: text})
}

func (g *guest) startProgram(w http.ResponseWriter, r *http.Request) {
	var in map[string]any
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		mistake(w, http.StatusBadRequest, err.Error())
		return
	}
	env, _ := in["env"].(map[string]any)
	token, _ := env[buildapi.TokenVariable].(string)
	g.mu.Lock()
	g.token, g.starts = token, append(g.starts, in)
	g.mu.Unlock()
	_, _ = io.WriteString(w, `{"pid":"7","name":"doze-builder"}`)
}

func (g *guest) status(w http.ResponseWriter, _ *http.Request) {
	g.mu.Lock()
	defer g.mu.Unlock()
	_ = json.NewEncoder(w).Encode(buildapi.Status{Version: buildapi.Version, CacheBytes: int64(1000 * len(g.known)), DiskBytes: 1 << 30, DiskFree: 1 << 29})
}

// drop forgets one thing.
func (g *guest) drop(from map[string][]byte) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(from, r.PathValue("id"))
		w.WriteHeader(http.StatusNoContent)
	}
}

func (g *guest) putContext(w http.ResponseWriter, r *http.Request) {
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		mistake(w, http.StatusInternalServerError, err.Error())
		return
	}
	if _, err := zip.NewReader(bytes.NewReader(raw), int64(len(raw))); err != nil {
		mistake(w, http.StatusBadRequest, "the archive is neither a zip nor a tar")
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.contexts[r.PathValue("id")] = raw
	_ = json.NewEncoder(w).Encode(buildapi.Context{Files: 1, Bytes: int64(len(raw))})
}

// dockerfile returns a file of a context.
func (g *guest) dockerfile(id, name string) (string, bool) {
	if name == "" {
		name = "Dockerfile"
	}
	g.mu.Lock()
	raw := g.contexts[id]
	g.mu.Unlock()
	z, err := zip.NewReader(bytes.NewReader(raw), int64(len(raw)))
	if err != nil {
		return "", false
	}
	f, err := z.Open(name)
	if err != nil {
		return "", false
	}
	defer f.Close()
	text, err := io.ReadAll(f)
	return string(text), err == nil
}

func (g *guest) plan(w http.ResponseWriter, r *http.Request) {
	var in buildapi.Plan
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		mistake(w, http.StatusBadRequest, err.Error())
		return
	}
	text, ok := g.dockerfile(r.PathValue("id"), in.Dockerfile)
	if !ok {
		mistake(w, http.StatusUnprocessableEntity, "the context has no file "+in.Dockerfile)
		return
	}
	var out buildapi.Planned
	for line := range strings.Lines(text) {
		if name, from := strings.CutPrefix(strings.TrimSpace(line), "FROM "); from {
			out.Images = append(out.Images, name)
		}
	}
	_ = json.NewEncoder(w).Encode(out)
}

func (g *guest) hasImage(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, ok := g.images[r.PathValue("id")]; !ok {
		w.WriteHeader(http.StatusNotFound)
	}
}

func (g *guest) putImage(w http.ResponseWriter, r *http.Request) {
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		mistake(w, http.StatusInternalServerError, err.Error())
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.images[r.PathValue("id")] = raw
	g.puts++
	w.WriteHeader(http.StatusCreated)
}

func (g *guest) build(w http.ResponseWriter, r *http.Request) {
	var in buildapi.Build
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		mistake(w, http.StatusBadRequest, err.Error())
		return
	}
	say := func(e buildapi.Event) {
		e.At = time.Now()
		_ = json.NewEncoder(w).Encode(e)
		_ = http.NewResponseController(w).Flush()
	}
	g.mu.Lock()
	g.orders = append(g.orders, in)
	g.mu.Unlock()
	text, ok := g.dockerfile(in.Context, in.Dockerfile)
	run := ""
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "RUN ") {
			run = strings.TrimSpace(line)
		}
	}
	step := buildapi.Event{Step: 2, Steps: 2, Name: run, Line: strings.Count(text, "\n")}
	event := func(state, stream, line string) {
		e := step
		e.State, e.Stream, e.Text = state, stream, line
		say(e)
	}
	g.mu.Lock()
	hit := g.known[text] && !in.NoCache
	g.mu.Unlock()
	switch {
	case !ok:
		say(buildapi.Event{Failure: &buildapi.Failure{Reason: buildapi.FailedDockerfile, Message: "there is no Dockerfile"}})
		return
	case in.Dockerfile == fleettest.Broken:
		event(buildapi.StateStarted, "", "")
		event("", buildapi.Stdout, "reason")
		event(buildapi.StateFailed, "", "")
		say(buildapi.Event{Failure: &buildapi.Failure{
			Reason: buildapi.FailedStep, Step: 2, Steps: 2, Name: run, Line: 3, Code: 7, Message: "the command ended with the exit code 7", Tail: []string{"reason"},
		}})
		return
	case in.Dockerfile == fleettest.Endless:
		event(buildapi.StateStarted, "", "")
		event("", buildapi.Stdout, "begun")
		<-r.Context().Done()
		return
	case hit:
		event(buildapi.StateCached, "", "")
	default:
		event(buildapi.StateStarted, "", "")
		event("", buildapi.Stdout, "built")
		event(buildapi.StateDone, "", "")
	}
	g.mu.Lock()
	g.known[text] = true
	g.results[in.ID] = []byte("layout of " + text)
	g.mu.Unlock()
	say(buildapi.Event{Result: &buildapi.Result{Digest: digestOf(text), Config: digestOf(text), Layers: 1, Bytes: 1}})
}

func (g *guest) result(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	raw, ok := g.results[r.PathValue("id")]
	g.mu.Unlock()
	if !ok {
		mistake(w, http.StatusNotFound, "there is no such result")
		return
	}
	_, _ = w.Write(raw)
}

func digestOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// shelf has images in memory.
type shelf struct {
	mu      sync.Mutex
	images  map[string][]byte // guarded by mu; what was imported, by reference
	ensured []fleet.Base      // guarded by mu
	bases   [][]fleet.Base    // guarded by mu; of each import
	torn    error             // guarded by mu; why an export breaks off
	gone    bool              // guarded by mu; mirrors have nothing
}

func newShelf() *shelf { return &shelf{images: map[string][]byte{}} }

func (s *shelf) Platform(name string) bool { return strings.HasPrefix(name, "doze/") }

func (s *shelf) CheckPlatform(name string) error {
	if strings.HasPrefix(name, "doze/none") {
		return doze.Errorf(doze.Invalid, "the platform has no image %q", name)
	}
	return nil
}

func (s *shelf) Mirrored(name string) (ref, registry string, ok bool) {
	return name, "mirrored.example.com", strings.HasPrefix(name, "mirrored.example.com/")
}

func (s *shelf) Pin(_ context.Context, ref string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return "", &doze.Error{Kind: doze.Invalid, Name: doze.NameInvalidImage, Message: "the mirror has no such image"}
	}
	return ref + "@now", nil
}

func (s *shelf) Ensure(_ context.Context, b fleet.Base) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ensured = append(s.ensured, b)
	if strings.Contains(b.Ref, " ") {
		return "", &doze.Error{Kind: doze.Invalid, Name: doze.NameInvalidImage, Message: "the image cannot be run"}
	}
	return digestOf(b.Ref), fleettest.CheckLogin(b.Ref, b.Login)
}

func (s *shelf) Export(_ context.Context, b fleet.Base, w io.Writer) error {
	s.mu.Lock()
	raw, imported := s.images[b.Ref]
	torn := s.torn
	s.mu.Unlock()
	if !imported {
		raw = []byte("layout of " + b.Ref)
	}
	if _, err := w.Write(raw); err != nil {
		return err
	}
	return torn
}

func (s *shelf) Import(_ context.Context, id string, archive io.Reader, bases []fleet.Base) (fleet.Built, error) {
	raw, err := io.ReadAll(archive)
	if err != nil {
		return fleet.Built{}, err
	}
	if !bytes.HasPrefix(raw, []byte("layout of ")) {
		return fleet.Built{}, &doze.Error{Kind: doze.Invalid, Name: doze.NameInvalidImage, Message: "the archive is no image"}
	}
	digest := digestOf(string(raw))
	ref := "built/" + id + "@" + digest
	s.mu.Lock()
	defer s.mu.Unlock()
	s.images[ref] = raw
	s.bases = append(s.bases, bases)
	return fleet.Built{Ref: ref, Digest: digest, Bytes: int64(len(raw))}, nil
}
