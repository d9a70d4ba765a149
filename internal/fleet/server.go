package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"

	"github.com/dozehq/doze"
)

const (
	// Prefix is before the calls, in the version that this build speaks.
	Prefix = "/fleet/v1/"
	// importVolume is a call whose body is a stream: its arguments are in the query. See
	// stream.go for others.
	importVolume = "ImportVolume"
	// metricsCall is the call of [RegisterMetrics], which is about the process.
	metricsCall = "Metrics"
	// callMax bounds the arguments of a call, in bytes: an order has the variables
	// of a sandbox, and a list of statuses some thousand ids.
	callMax = 16 << 20
	// answerMax bounds the answer to a call, in bytes: the usage of a node names each
	// thing on its disk.
	answerMax = 256 << 20
)

// A Server answers the calls of a [Client] by asking a [Node], and carries the
// tunnels of [Ports].
type Server struct {
	node   Node
	dialer Dialer
}

// NewServer returns a server for a node. Without a dialer, there are no tunnels.
func NewServer(n Node, d Dialer) *Server { return &Server{n, d} }

// Register adds all routes of the server, which are for control.
func (s *Server) Register(mux *http.ServeMux) {
	mux.HandleFunc("POST "+Prefix+"{call}", s.serve)
	mux.HandleFunc("POST "+Prefix+importVolume, s.importVolume)
	mux.HandleFunc("POST "+Prefix+buildCall, s.build)
	mux.HandleFunc("POST "+Prefix+saveImage, s.saveImage)
	mux.HandleFunc("POST "+Prefix+loadImage, s.loadImage)
	if s.dialer != nil {
		s.RegisterTunnels(mux)
	}
}

// RegisterMetrics adds the route of what the process counts, in the text format of
// Prometheus.
func RegisterMetrics(mux *http.ServeMux, text func(context.Context) ([]byte, error)) {
	mux.HandleFunc("POST "+Prefix+metricsCall, func(w http.ResponseWriter, r *http.Request) {
		raw, err := text(r.Context())
		Answer(w, raw, err)
	})
}

// RegisterTunnels adds the route of tunnels, which is all that an edge needs.
func (s *Server) RegisterTunnels(mux *http.ServeMux) {
	mux.HandleFunc("POST "+tunnelPath, s.serveTunnel)
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	serveCall(w, r, calls, s.node, func(*arguments) error { return nil })
}

// serveCall does what a row of a table says, and answers. may is an error if the peer may
// not say that.
func serveCall[Role any](w http.ResponseWriter, r *http.Request, table map[string]func(context.Context, Role, *arguments) (any, error), role Role, may func(*arguments) error) {
	do := table[r.PathValue("call")]
	if do == nil {
		Answer(w, nil, doze.Errorf(doze.Unsupported, "this role does not know the call %.40q: it is of another version", r.PathValue("call")))
		return
	}
	in, err := decode(w, r)
	if err == nil {
		err = may(&in)
	}
	if err != nil {
		Answer(w, nil, err)
		return
	}
	ctx, caller := arrive(r)
	defer caller.Leave()
	out, err := do(ctx, role, &in)
	Answer(w, out, err)
}

// decode returns the arguments of a call.
func decode(w http.ResponseWriter, r *http.Request) (in arguments, err error) {
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, callMax))
	if err == nil {
		err = json.Unmarshal(raw, &in)
	}
	if err != nil {
		return in, doze.Wrap(err, doze.Invalid, "the arguments of the call cannot be read")
	}
	return in, nil
}

func (s *Server) importVolume(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	size, err := strconv.Atoi(q.Get("size"))
	if err != nil {
		Answer(w, nil, doze.Wrap(err, doze.Invalid, "the size of the volume cannot be read"))
		return
	}
	bytes, err := s.node.ImportVolume(r.Context(), q.Get("id"), doze.Megabytes(size), r.Body)
	Answer(w, bytes, err)
}

// failure is an error on the way.
type failure struct {
	Kind     string
	Name     string `json:",omitempty"`
	Message  string
	Fields   map[string]any `json:",omitempty"`
	Stopping bool           `json:",omitempty"` // it is ErrStopping
	Full     bool           `json:",omitempty"` // it has ErrFull in it
	Moved    bool           `json:",omitempty"` // it has ErrMoved in it
}

// failureOf is what the caller is told of an error: the cause is in the log of this
// process.
func failureOf(e *doze.Error, err error) failure {
	return failure{e.Kind.String(), e.Name, e.Message, e.Fields, errors.Is(err, ErrStopping), errors.Is(err, ErrFull), errors.Is(err, ErrMoved)}
}

// error is the error that a failure was made of, with a kind.
func (f *failure) error(kind doze.Kind) error {
	if f.Stopping {
		return ErrStopping
	}
	e := &doze.Error{Kind: kind, Name: f.Name, Message: f.Message, Fields: f.Fields}
	switch {
	case f.Full:
		e.Err = ErrFull
	case f.Moved:
		e.Err = ErrMoved
	}
	return e
}

// Answer writes the result of a call. Of an error, the public part is told: the
// cause is in the log of this process.
func Answer(w http.ResponseWriter, out any, err error) {
	status := http.StatusOK
	if err != nil {
		e := doze.Public(err)
		status = e.Kind.Status()
		out = failureOf(e, err)
	}
	raw, err := json.Marshal(out)
	if err != nil {
		status, raw = http.StatusInternalServerError, []byte(`{"Message":"internal error"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(raw) // the caller is gone, then
}
