// Package body reads the bodies of requests. Each has a bound, and all of them
// together hold a bounded part of the memory.
package body

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/mistake"
	"github.com/dozehq/doze/internal/httpx"
)

// Max bounds a JSON body. But for the contents of files, it is held in memory;
// larger files go as multipart/form-data.
var Max = Bound{64 << 20, "write what is large to a file, as multipart/form-data"}

// Decode reads a JSON body. Unknown members are ignored.
func Decode[In any](w http.ResponseWriter, r *http.Request) (in In, err error) {
	b, err := Read(w, r, Max)
	if err != nil {
		return in, err
	}
	return Parse[In](b)
}

// Parse reads a JSON body and has it check itself, if it can. Every error is
// Invalid, and names all mistakes.
func Parse[In any](b []byte) (in In, err error) {
	in, p, err := Unchecked[In](b)
	if err != nil {
		return in, err
	}
	if c, ok := any(&in).(checker); ok {
		c.Check(&p)
	}
	return in, p.Err()
}

// checker is a body that finds its own mistakes. Members of a wrong type, which p
// has already, are as if they were not there.
type checker interface{ Check(p *doze.Problems) }

// Unchecked reads a JSON body without checking more than its types, as far as these
// are right. Every error is Invalid.
func Unchecked[In any](b []byte) (in In, p doze.Problems, err error) {
	if len(b) == 0 {
		return in, nil, doze.Errorf(doze.Invalid, "the body is empty; send a JSON object")
	}
	if err := httpx.CheckText(b); err != nil {
		return in, nil, err
	}
	err = json.Unmarshal(b, &in)
	switch wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); {
	case err == nil:
		return in, nil, nil
	case !ok:
		return in, nil, doze.Wrap(err, doze.Invalid, "the body must be a JSON object: %v", err)
	case wrong.Field == "":
		return in, nil, doze.Wrap(err, doze.Invalid, "the body must be a JSON object, not %s", wrong.Value)
	}
	return in, mistake.Types[In](b), nil
}

// Bound is how large a body may be, and what who needs more does.
type Bound struct {
	Bytes  int64
	Advice string
}

// Read reads a whole body within a bound.
func Read(w http.ResponseWriter, r *http.Request, limit Bound) ([]byte, error) {
	src, err := Limited(w, r, limit)
	if err != nil {
		return nil, err
	}
	in, ok := r.Body.(*Incoming)
	if !ok {
		return nil, nil // there is none
	}
	b, err := in.readAll(src)
	if err != nil {
		return nil, CutOff(err, "send it again")
	}
	return b, nil
}

// Limited returns the body of a request, which is TooLarge beyond its bound:
// without a byte of it, if its sender says so.
func Limited(w http.ResponseWriter, r *http.Request, limit Bound) (io.Reader, error) {
	if r.ContentLength > limit.Bytes {
		return nil, limit.exceeded()
	}
	return &capped{http.MaxBytesReader(w, r.Body, limit.Bytes), limit}, nil
}

// capped is a body that says what to do if it is too large.
type capped struct {
	io.Reader
	limit Bound
}

func (c *capped) Read(b []byte) (int, error) {
	n, err := c.Reader.Read(b)
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		err = c.limit.exceeded()
	}
	return n, err
}

func (b Bound) exceeded() error {
	return doze.Errorf(doze.TooLarge, "the body has more than %d MiB; %s", b.Bytes>>20, b.Advice)
}

// Small bounds bodies that only describe something: the parts of an upload,
// at most.
var Small = Bound{4 << 20, "leave out what is not needed"}

// CutOff says why a body has no end, and what that means for the file. A body
// that came whole and is wrong says so itself.
func CutOff(err error, then string) error {
	if _, ok := errors.AsType[*doze.Error](err); ok {
		return err
	}
	return doze.Wrap(err, doze.Invalid, "the body ended early; %s", then)
}
