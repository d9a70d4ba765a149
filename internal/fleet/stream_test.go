package fleet

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/dozehq/doze"
)

// mason is a node that builds as told.
type mason struct {
	Node

	build func(ctx context.Context, o BuildOrder, archive io.Reader, emit func(BuildEvent)) (Built, error)
	save  io.Reader
}

func (m mason) Build(ctx context.Context, o BuildOrder, archive io.Reader, emit func(BuildEvent)) (Built, error) {
	return m.build(ctx, o, archive, emit)
}

func (m mason) SaveImage(context.Context, string, *Login) (io.ReadCloser, error) {
	return io.NopCloser(m.save), nil
}

// serve returns a client of a node, over HTTP/2 as between roles.
func (m mason) serve(t *testing.T) *Client {
	t.Helper()
	mux := http.NewServeMux()
	NewServer(m, nil).Register(mux)
	s := httptest.NewUnstartedServer(mux)
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	return NewClient(s.URL, s.Client().Transport)
}

// TestBuildIsDuplex: the archive goes up while events come down, and the order is complete.
func TestBuildIsDuplex(t *testing.T) {
	t.Parallel()
	const rounds = 5
	sent := BuildOrder{ID: "b", Secrets: map[string]string{"token": "x"}, Network: &doze.Network{Segment: "s"}, Bases: map[string]Base{"app": {Ref: "r", Login: &Login{Password: "p"}}}}
	c := mason{build: func(_ context.Context, o BuildOrder, archive io.Reader, emit func(BuildEvent)) (Built, error) {
		if o.Secrets["token"] != "x" || o.Network.Segment != "s" || o.Bases["app"].Login.Password != "p" {
			t.Errorf("the order is %+v", o)
		}
		for range rounds {
			piece := make([]byte, 4)
			if _, err := io.ReadFull(archive, piece); err != nil {
				return Built{}, err
			}
			emit(BuildEvent{Text: string(piece)})
		}
		rest, err := io.ReadAll(archive)
		return Built{Ref: "built/b", Bytes: int64(len(rest))}, err
	}}.serve(t)
	pr, pw := io.Pipe()
	var heard []string
	go func() { _, _ = io.WriteString(pw, "0000") }()
	built, err := c.Build(t.Context(), sent, pr, func(e BuildEvent) {
		heard = append(heard, e.Text)
		go func() { // the next piece comes after the answer to this one
			if len(e.Text) > 0 && e.Text < "4444" {
				_, _ = io.WriteString(pw, strings.Repeat(string(e.Text[0]+1), 4))
				return
			}
			_ = pw.Close()
		}()
	})
	if err != nil || built.Ref != "built/b" || built.Bytes != 0 {
		t.Fatalf("it built %+v, %v", built, err)
	}
	if want := []string{"0000", "1111", "2222", "3333", "4444"}; !slices.Equal(heard, want) {
		t.Errorf("it told %v, want %v", heard, want)
	}
}

// TestBuildFails: an error of a build keeps its fields, and nobody reads the archive
// after it.
func TestBuildFails(t *testing.T) {
	t.Parallel()
	want := BuildFailure{Step: 2, Line: 3, Command: "RUN false", Code: 1, Output: []string{"a", "b"}}
	c := mason{build: func(context.Context, BuildOrder, io.Reader, func(BuildEvent)) (Built, error) {
		return Built{}, BuildFailed("it failed", want)
	}}.serve(t)
	archive := &counted{from: bytes.NewReader(make([]byte, 32<<20))} // more than is on its way at a time
	_, err := c.Build(t.Context(), BuildOrder{ID: "b"}, archive, func(BuildEvent) {})
	archive.n++ // a race, if anybody reads now
	got, failed := BuildFailureOf(err)
	if !failed || doze.Public(err).Message != "it failed" || got.Step != want.Step || got.Line != want.Line || got.Command != want.Command || got.Code != want.Code || !slices.Equal(got.Output, want.Output) {
		t.Errorf("%+v arrives as %+v, %v", want, got, err)
	}
	if archive.n > 32<<20 {
		t.Error("all of the archive was sent to a build that had failed")
	}
	if _, failed := BuildFailureOf(errors.New("another one")); failed {
		t.Error("every error is a failure of a build")
	}
	if f, failed := BuildFailureOf(BuildFailed("bare", BuildFailure{})); !failed || f.Line != 0 {
		t.Errorf("a bare failure is %+v, %t", f, failed)
	}
}

// TestStreamsBreakOff: what is not complete is never taken for it.
func TestStreamsBreakOff(t *testing.T) {
	t.Parallel()
	c := mason{
		build: func(_ context.Context, _ BuildOrder, _ io.Reader, emit func(BuildEvent)) (Built, error) {
			emit(BuildEvent{Text: "begun"})
			panic(http.ErrAbortHandler)
		},
		save: io.MultiReader(strings.NewReader(strings.Repeat("x", 1<<20)), errorReader{errors.New("the disk is broken")}),
	}.serve(t)
	if _, err := c.Build(t.Context(), BuildOrder{ID: "b"}, strings.NewReader(""), func(BuildEvent) {}); !errors.Is(err, ErrUnreachable) {
		t.Errorf("a build that breaks off is %v", err)
	}
	archive, err := c.SaveImage(t.Context(), "app", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer archive.Close()
	if _, err := io.ReadAll(archive); !errors.Is(err, ErrUnreachable) {
		t.Errorf("an archive that breaks off is %v", err)
	}
}

// counted counts the bytes that somebody reads.
type counted struct {
	from io.Reader
	n    int
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	c.n += n
	return n, err
}

type errorReader struct{ err error }

func (r errorReader) Read([]byte) (int, error) { return 0, r.err }

// TestBuildCanceled: the end of a caller is the end of its build.
func TestBuildCanceled(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{})
	c := mason{build: func(ctx context.Context, _ BuildOrder, archive io.Reader, emit func(BuildEvent)) (Built, error) {
		defer close(ended)
		_, _ = io.Copy(io.Discard, archive)
		emit(BuildEvent{Text: "begun"})
		<-ctx.Done()
		return Built{}, context.Cause(ctx)
	}}.serve(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	_, err := c.Build(ctx, BuildOrder{ID: "b"}, strings.NewReader("x"), func(BuildEvent) { cancel(enough) })
	if !errors.Is(err, enough) {
		t.Errorf("it is %v", err)
	}
	<-ended
}

// FuzzBuildAnswer: no answer of a node hangs or panics its caller, and only a complete one
// is an image.
func FuzzBuildAnswer(f *testing.F) {
	f.Add([]byte(`{"Event":{"Text":"a"}}` + "\n" + `{"Built":{"Ref":"r"}}` + "\n"))
	f.Add([]byte(`{"Failure":{"Kind":"invalid","Message":"m","Fields":{"line":"x"}}}`))
	f.Add([]byte("\n\n{}\n"))
	f.Add([]byte(`{"Built":`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		built, err := readBuild(t.Context(), bytes.NewReader(raw), func(BuildEvent) {})
		if err != nil && built.Ref != "" {
			t.Errorf("%q is %v, and the image %+v", raw, err, built)
		}
		_, _ = BuildFailureOf(err)
	})
}
