package fleet

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync"

	"github.com/dozehq/doze"
)

// The calls whose body, or whose answer, is a stream.
const (
	// buildCall takes an order in JSON and the archive right behind it. The query has
	// the length of the order: no address has its secrets. The answer is a sequence of
	// lines, each a [buildLine], and begins at once.
	buildCall = "Build"
	// saveImage takes arguments as other calls do. Its answer is the archive. One that
	// breaks off is incomplete.
	saveImage = "SaveImage"
	// loadImage takes an archive, and has its arguments in the query.
	loadImage = "LoadImage"
	// buildLineMax bounds a line of the answer to a build, in bytes: it has a line of
	// output, or the configuration of an image.
	buildLineMax = 8 << 20
)

// streams are all calls that have no row in [calls].
var streams = []string{importVolume, buildCall, saveImage, loadImage}

// buildLine is a line of the answer to a build. The last one has Built or Failure.
type buildLine struct {
	Event   *BuildEvent `json:",omitempty"`
	Built   *Built      `json:",omitempty"`
	Failure *failure    `json:",omitempty"`
}

func (s *Server) build(w http.ResponseWriter, r *http.Request) {
	o, err := decodeOrder(r)
	if err != nil {
		Answer(w, nil, err)
		return
	}
	to := lineWriter{w: w, control: http.NewResponseController(w)}
	if err := to.control.EnableFullDuplex(); err != nil { // events come while the archive is on its way
		Answer(w, nil, doze.Wrap(err, doze.Unsupported, "a build needs a connection that both sides write to"))
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)
	_ = to.control.Flush() // the caller is gone, then
	built, err := s.node.Build(r.Context(), o, r.Body, func(e BuildEvent) { to.line(buildLine{Event: &e}) })
	if err != nil {
		told := failureOf(doze.Public(err), err)
		to.line(buildLine{Failure: &told})
		return
	}
	to.line(buildLine{Built: &built})
}

// decodeOrder reads the order before the archive of a build.
func decodeOrder(r *http.Request) (o BuildOrder, err error) {
	n, err := strconv.Atoi(r.URL.Query().Get("order"))
	if err == nil && (n < 0 || n > callMax) {
		err = errors.New("its length is out of bounds")
	}
	if err == nil {
		raw := make([]byte, n)
		if _, err = io.ReadFull(r.Body, raw); err == nil {
			err = json.Unmarshal(raw, &o)
		}
	}
	if err != nil {
		return o, doze.Wrap(err, doze.Invalid, "the order of the build cannot be read")
	}
	return o, nil
}

// lineWriter writes lines of JSON that the caller reads at once.
type lineWriter struct {
	w       io.Writer
	control *http.ResponseController
}

// line writes a line. If that fails the caller is gone, and its context ends the build.
func (l *lineWriter) line(v buildLine) {
	raw, err := json.Marshal(v)
	if err != nil { // no field of a line can fail
		raw = []byte(`{"Failure":{"Kind":"internal","Message":"internal error"}}`)
	}
	_, _ = l.w.Write(append(raw, '\n'))
	_ = l.control.Flush()
}

// Build implements [Builder].
func (c *Client) Build(ctx context.Context, o BuildOrder, archive io.Reader, emit func(BuildEvent)) (Built, error) {
	raw, err := json.Marshal(o)
	if err != nil {
		return Built{}, fmt.Errorf("%s: %w", buildCall, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	body := &upload{from: io.MultiReader(bytes.NewReader(raw), archive)}
	defer func() { _ = body.Close() }() // nobody reads the archive when Build has returned
	resp, err := c.open(ctx, buildCall, url.Values{"order": {strconv.Itoa(len(raw))}}, body)
	if err != nil {
		return Built{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	return readBuild(ctx, resp.Body, emit)
}

// readBuild reads the answer to a build.
func readBuild(ctx context.Context, from io.Reader, emit func(BuildEvent)) (Built, error) {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, buildLineMax)
	for lines.Scan() {
		var l buildLine
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			return Built{}, fmt.Errorf("%s: the answer cannot be read: %w", buildCall, err)
		}
		switch {
		case l.Event != nil:
			emit(*l.Event)
		case l.Failure != nil:
			return Built{}, l.Failure.error(doze.ParseKind(l.Failure.Kind))
		case l.Built != nil:
			return *l.Built, nil
		}
	}
	err := lines.Err()
	if err == nil {
		err = io.ErrUnexpectedEOF
	}
	return Built{}, unreachable(ctx, nodePeer, buildCall, err)
}

// upload is a body that nobody reads any more once Close has returned.
type upload struct {
	mu     sync.Mutex
	from   io.Reader // guarded by mu
	closed bool      // guarded by mu
}

// Read implements [io.Reader].
func (u *upload) Read(p []byte) (int, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		return 0, http.ErrBodyReadAfterClose
	}
	return u.from.Read(p)
}

// Close implements [io.Closer].
func (u *upload) Close() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.closed = true
	return nil
}

func (s *Server) saveImage(w http.ResponseWriter, r *http.Request) {
	in, err := decode(w, r)
	if err != nil {
		Answer(w, nil, err)
		return
	}
	archive, err := s.node.SaveImage(r.Context(), in.Ref, in.Login)
	if err != nil {
		Answer(w, nil, err)
		return
	}
	defer func() { _ = archive.Close() }()
	w.Header().Set("Content-Type", "application/x-tar")
	if _, err := io.Copy(w, archive); err != nil {
		panic(http.ErrAbortHandler) // the caller must not take what came for all of it
	}
}

// SaveImage implements [Builder].
func (c *Client) SaveImage(ctx context.Context, ref string, login *Login) (io.ReadCloser, error) {
	raw, err := json.Marshal(arguments{Ref: ref, Login: login})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", saveImage, err)
	}
	resp, err := c.open(ctx, saveImage, nil, bytes.NewReader(raw)) //nolint:bodyclose // the caller closes it
	if err != nil {
		return nil, err
	}
	return &download{ctx, resp.Body}, nil
}

// download is the body of an answer whose errors are those of a call.
type download struct {
	ctx  context.Context //nolint:containedctx // of the call that the body belongs to
	body io.ReadCloser
}

// Read implements [io.Reader].
func (d *download) Read(p []byte) (int, error) {
	n, err := d.body.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = unreachable(d.ctx, nodePeer, saveImage, err)
	}
	return n, err
}

// Close implements [io.Closer].
func (d *download) Close() error { return d.body.Close() }

func (s *Server) loadImage(w http.ResponseWriter, r *http.Request) {
	built, err := s.node.LoadImage(r.Context(), r.URL.Query().Get("id"), r.Body)
	Answer(w, built, err)
}

// LoadImage implements [Builder].
func (c *Client) LoadImage(ctx context.Context, id string, archive io.Reader) (built Built, err error) {
	err = c.send(ctx, loadImage, url.Values{"id": {id}}, archive, &built)
	return built, err
}
