package progress

import (
	"slices"
	"strings"
	"time"

	"github.com/distribution/reference"
	"github.com/dozehq/doze/internal/buildapi"
	"github.com/moby/buildkit/client"
	"github.com/opencontainers/go-digest"
)

const (
	// extracting begins the id of a status of BuildKit about a layer that is unpacked. Such a
	// status has no amounts.
	extracting = "extracting "
	// pulled and unpacked are what events about progress say of their amounts.
	pulled       = "pulled"
	unpackedText = "unpacked"
)

// Unpacked returns how many bytes of a layer were read to unpack it, and how many it has.
// Unknown amounts are 0.
type Unpacked func(layer digest.Digest) (current, total int64)

// amount is how many bytes of a whole are done.
type amount struct{ current, total int64 }

// base is an image from the FROM that names it until its files are there.
//
// BuildKit looks an image up, and ends the vertex of it. The layers come before the first step
// that needs their files: then the vertex begins and ends again for each layer. A step that
// needs an image begins after the last of these.
type base struct {
	event   buildapi.Event // without a state; At is its begin
	context string         // see vertex; empty for an image that BuildKit pulls
	vertex  digest.Digest  // of an image that BuildKit pulls
	worked  bool           // layers were pulled or unpacked
}

// end returns what it means for a base that its files are there.
func (b *base) end() string {
	if b.worked || b.vertex != "" {
		return buildapi.StateDone
	}
	return buildapi.StateCached // nothing of it had to be unpacked
}

// work takes note that layers of an image are pulled or unpacked. Callers hold mu.
func (r *Recorder) work(d digest.Digest, v *vertex) {
	for _, b := range r.open {
		b.worked = b.worked || b.of(d, v)
	}
}

// ContextName returns the name by which BuildKit knows an image that was put here.
func ContextName(image string) string {
	if named, err := reference.ParseNormalizedNamed(image); err == nil {
		return strings.TrimSuffix(reference.FamiliarString(named), ":latest")
	}
	return image
}

// Unpacks gives the recorder a function that counts, for [Recorder.Tick].
func (r *Recorder) Unpacks(count Unpacked) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unpacked = count
}

// openBase emits that an image is looked for. Callers hold mu.
func (r *Recorder) openBase(b *base) {
	r.open = append(r.open, b)
	e := b.event
	e.State = buildapi.StateStarted
	r.emit(e)
}

// of reports whether a base is the image of a vertex.
func (b *base) of(d digest.Digest, v *vertex) bool {
	return b.vertex == d || b.vertex == "" && v.context != "" && b.context == v.context
}

// closeBases emits that the images among the inputs of a step are there. Callers hold mu.
func (r *Recorder) closeBases(inputs []digest.Digest, at time.Time) {
	for _, d := range inputs {
		if v := r.vertices[d]; v != nil {
			r.closeOf(d, v, at)
		}
	}
}

// closeOf emits that the image of a vertex is there. Callers hold mu.
func (r *Recorder) closeOf(d digest.Digest, v *vertex, at time.Time) {
	r.open = slices.DeleteFunc(r.open, func(b *base) bool {
		if !b.of(d, v) {
			return false
		}
		r.tell(v, b, at) // a small image is unpacked between two ticks
		if b.vertex != "" {
			v.state = b.end()
		}
		r.endBase(b, b.end(), at)
		return true
	})
}

// endBase emits the end of a base. Callers hold mu.
func (r *Recorder) endBase(b *base, state string, at time.Time) {
	e := b.event
	e.At, e.State = at.UTC(), state
	if state != buildapi.StateCached {
		e.Took = max(at.Sub(b.event.At), 0)
	}
	r.emit(e)
}

// Finish emits the end of what has none when BuildKit has ended. Without success, these are
// steps that did not run.
func (r *Recorder) Finish(success bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, d := range r.held {
		state := buildapi.StateCanceled
		if success {
			state = buildapi.StateCached
		}
		r.resolve(d, state)
	}
	for _, b := range r.open {
		state := buildapi.StateCanceled
		if success {
			state = b.end()
		}
		r.endBase(b, state, time.Now())
	}
	r.held, r.open = nil, nil
}

// unpacking takes note that a layer begins or ends to be unpacked. Callers hold mu.
func (r *Recorder) unpacking(s *client.VertexStatus, v *vertex, layer string) {
	if v.layers == nil {
		v.layers = map[string]*amount{}
	}
	a := v.layers[layer]
	if a == nil {
		a = &amount{}
		v.layers[layer] = a
		if _, known := r.baseOf(s.Vertex, v); !known && v.context != "" { // COPY --from needs it
			at := s.Timestamp.UTC()
			r.openBase(&base{event: buildapi.Event{At: at, Name: "unpack the image " + v.context, Vertex: "unpack-" + v.context}, context: v.context})
		}
	}
	r.work(s.Vertex, v)
	if r.unpacked == nil {
		return
	}
	_, a.total = r.unpacked(digest.Digest(layer))
	if s.Completed != nil {
		a.current = a.total
	}
}

// baseOf returns the first base that is the image of a vertex. Callers hold mu.
func (r *Recorder) baseOf(d digest.Digest, v *vertex) (*base, bool) {
	at := slices.IndexFunc(r.open, func(b *base) bool { return b.of(d, v) })
	if at < 0 {
		return nil, false
	}
	return r.open[at], true
}

// Tick emits how far layers are that are unpacked. BuildKit tells nothing while it unpacks one.
func (r *Recorder) Tick(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for d, v := range r.vertices {
		if b, known := r.baseOf(d, v); known {
			r.tell(v, b, now)
		}
	}
}

// tell emits how far the layers of a base are, if that is not known yet. Callers hold mu.
func (r *Recorder) tell(v *vertex, b *base, now time.Time) {
	if r.unpacked == nil || len(v.layers) == 0 {
		return
	}
	var sum amount
	for layer, a := range v.layers {
		if current, _ := r.unpacked(digest.Digest(layer)); current > a.current {
			a.current = current
		}
		sum.current, sum.total = sum.current+a.current, sum.total+a.total
	}
	if sum.current == v.told {
		return
	}
	v.told = sum.current
	e := b.event
	e.At, e.Text, e.Progress = now.UTC(), unpackedText, &buildapi.Progress{Current: sum.current, Total: sum.total}
	r.emit(e)
}
