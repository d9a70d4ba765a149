package buildapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	// startPoll is the pause between attempts to reach a program that starts.
	startPoll = 5 * time.Millisecond
	// excerpt is how much of a refusal is repeated, in bytes.
	excerpt = 2 << 10
)

// A Client asks one builder. Its errors are those of the transport, a *RefusalError, or a
// *FailedError of a build.
type Client struct {
	// Transport reaches the builder's port, whatever the host of the request.
	Transport http.RoundTripper
	// Token is what the program was started with.
	Token string
}

// A RefusalError is an answer other than 2xx, or one that makes no sense.
type RefusalError struct {
	Call   Call
	Status int // of HTTP; 200 if the answer cannot be read
	Text   string
}

// Error implements error.
func (r *RefusalError) Error() string {
	return fmt.Sprintf("%s %s: %d: %s", r.Call.Method, r.Call.Path, r.Status, r.Text)
}

// A FailedError is a build that made nothing.
type FailedError struct {
	Failure Failure
}

// Error implements error.
func (f *FailedError) Error() string { return f.Failure.Message }

// Status asks how the builder is.
func (c Client) Status(ctx context.Context) (out Status, err error) {
	err = c.ask(ctx, AskStatus, nil, &out)
	return out, err
}

// Ready waits until a builder that starts answers.
func (c Client) Ready(ctx context.Context) (Status, error) {
	for {
		out, err := c.Status(ctx)
		if _, refused := errors.AsType[*RefusalError](err); err == nil || refused {
			return out, err
		}
		select {
		case <-ctx.Done():
			return out, errors.Join(context.Cause(ctx), err)
		case <-time.After(startPoll):
		}
	}
}

// PutContext sends an archive: zip, tar, or tar compressed by gzip. It replaces the context
// of that id. Refusals have the status 400 for a hostile or broken archive, and 413 for one
// that is too large. If the disk has no room for it, it is 507.
func (c Client) PutContext(ctx context.Context, id string, archive io.Reader) (out Context, err error) {
	err = c.send(ctx, PutContext.of(id), archive, &out)
	return out, err
}

// DropContext deletes a context. It is no error if there is none.
func (c Client) DropContext(ctx context.Context, id string) error {
	return c.send(ctx, DropContext.of(id), nil, nil)
}

// Plan asks which images a build of a context needs. A mistake in the Dockerfile is a
// RefusalError of status 422, and a context that does not exist of 404.
func (c Client) Plan(ctx context.Context, id string, in Plan) (out Planned, err error) {
	err = c.ask(ctx, MakePlan.of(id), in, &out)
	if len(out.Images) > ImagesMax {
		return Planned{}, &RefusalError{MakePlan, http.StatusOK, fmt.Sprintf("the Dockerfile names %d images, more than %d", len(out.Images), ImagesMax)}
	}
	return out, err
}

// HasImage reports whether an image was put under a digest.
func (c Client) HasImage(ctx context.Context, digest string) (bool, error) {
	err := c.send(ctx, HasImage.of(digest), nil, nil)
	if r, ok := errors.AsType[*RefusalError](err); ok && r.Status == http.StatusNotFound {
		return false, nil
	}
	return err == nil, err
}

// PutImage sends an image under a digest: an OCI layout as a tar, with one image. A
// builder that has it answers at once.
func (c Client) PutImage(ctx context.Context, digest string, layout io.Reader) error {
	return c.send(ctx, PutImage.of(digest), layout, nil)
}

// Build builds, and calls emit for what happens. The end of ctx cancels the build.
func (c Client) Build(ctx context.Context, in Build, emit func(Event)) (Result, error) {
	raw, err := json.Marshal(in)
	if err != nil {
		return Result{}, err
	}
	resp, err := c.do(ctx, StartBuild, bytes.NewReader(raw))
	if err != nil {
		return Result{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	out, err := ReadEvents(resp.Body, emit)
	if ctx.Err() != nil && err != nil {
		return Result{}, context.Cause(ctx)
	}
	return out, err
}

// Result returns an image that was built: an OCI layout as a tar, with uncompressed
// layers. Those of images that were put under a digest in without are missing, see
// [AnnotationImage]. The caller bounds what it reads, and closes it.
func (c Client) Result(ctx context.Context, id string, without ...string) (io.ReadCloser, error) {
	call := AskResult.of(id)
	if len(without) > 0 {
		call.Path += "?" + url.Values{withoutParam: without}.Encode()
	}
	resp, err := c.do(ctx, call, nil)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// DropResult deletes an image that was built. It is no error if there is none.
func (c Client) DropResult(ctx context.Context, id string) error {
	return c.send(ctx, DropResult.of(id), nil, nil)
}

// Prune deletes what earlier builds made.
func (c Client) Prune(ctx context.Context, in Prune) (out Pruned, err error) {
	err = c.ask(ctx, PruneCache, in, &out)
	return out, err
}

// of returns the call about one id.
func (c Call) of(id string) Call {
	c.Path = strings.ReplaceAll(c.Path, idParam, url.PathEscape(id))
	return c
}

// ask sends JSON, and reads JSON.
func (c Client) ask(ctx context.Context, call Call, in, out any) error {
	if in == nil {
		return c.send(ctx, call, nil, out)
	}
	raw, err := json.Marshal(in)
	if err != nil {
		return err
	}
	return c.send(ctx, call, bytes.NewReader(raw), out)
}

// send sends a body, and reads JSON, if out is not nil.
func (c Client) send(ctx context.Context, call Call, body io.Reader, out any) error {
	resp, err := c.do(ctx, call, body)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, answerMax+1))
	switch {
	case err != nil:
		return err
	case len(raw) > answerMax:
		return &RefusalError{call, resp.StatusCode, fmt.Sprintf("the answer has more than %d bytes", answerMax)}
	case out == nil:
		return nil
	}
	if err := json.Unmarshal(raw, out); err != nil {
		return &RefusalError{call, resp.StatusCode, err.Error()}
	}
	return nil
}

// do makes a request. The caller closes the body of the answer, which is 2xx.
func (c Client) do(ctx context.Context, call Call, body io.Reader) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, call.Method, "http://builder:"+strconv.Itoa(Port)+call.Path, body)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer "+c.Token)
	resp, err := c.Transport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	defer func() { _ = resp.Body.Close() }()
	raw, _ := io.ReadAll(io.LimitReader(resp.Body, answerMax)) // a part says more than nothing
	refusal := &RefusalError{Call: call, Status: resp.StatusCode}
	var m Mistake
	if json.Unmarshal(raw, &m) == nil && m.Error != "" {
		refusal.Text = CleanText(m.Error, excerpt)
	} else {
		refusal.Text = http.StatusText(resp.StatusCode)
	}
	return nil, refusal
}
