package upload_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/upload"
)

// left lists what is on disk.
func left(tb testing.TB, dir string) (names []string) {
	tb.Helper()
	_ = filepath.WalkDir(dir, func(name string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			names = append(names, name)
		}
		return nil
	})
	return names
}

func put(tb testing.TB, s *upload.Store, id string, number int, content string) upload.Part {
	tb.Helper()
	p, err := s.Put(id, number, strings.NewReader(content))
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

func TestUpload(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "uploads")
	s := upload.New(dir)
	t.Cleanup(s.Close)
	up, err := s.Begin("/tmp/target", 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`).MatchString(up.ID) {
		t.Errorf("the id %q is no UUID", up.ID)
	}
	two := put(t, s, up.ID, 2, "world")
	put(t, s, up.ID, 1, "bye ")
	one := put(t, s, up.ID, 1, "hello ")
	put(t, s, up.ID, 3, "not listed")
	if diff := cmp.Diff(upload.Part{Number: 2, ETag: "7d793037a0760186574b0282f2f435e7", Size: 5}, two); diff != "" {
		t.Error(diff)
	}
	parts, err := s.Parts(up.ID)
	if err != nil || len(parts) != 3 || parts[0].ETag != one.ETag || parts[0].UploadedAt.IsZero() || parts[2].Number != 3 {
		t.Errorf("parts %v, %v", parts, err)
	}
	if all := s.List(); len(all) != 1 || all[0].Permissions != 0o600 || all[0].Path != "/tmp/target" || len(all[0].Parts) != 3 {
		t.Errorf("uploads %v", all)
	}

	var got []byte
	_, err = s.Complete(up.ID, []upload.Part{two, one}, func(_ upload.Upload, src io.Reader) (err error) {
		got, err = io.ReadAll(src)
		return err
	})
	if err != nil || string(got) != "hello world" {
		t.Errorf("completed with %q, %v", got, err)
	}
	if all := s.List(); len(all) != 0 || len(left(t, dir)) != 0 {
		t.Errorf("still there: %v, %v", all, left(t, dir))
	}
}

func TestErrors(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "uploads")
	s := upload.New(dir)
	t.Cleanup(s.Close)
	up, err := s.Begin("/x", 0o644)
	if err != nil {
		t.Fatal(err)
	}
	one := put(t, s, up.ID, 1, "1")
	refuse := func(upload.Upload, io.Reader) error { return doze.Errorf(doze.Unprocessable, "is a directory") }
	complete := func(id string, parts ...upload.Part) error {
		_, err := s.Complete(id, parts, refuse)
		return err
	}
	number := func(n int) error { _, err := s.Put(up.ID, n, strings.NewReader("")); return err }
	unknown := func(id string) error { _, err := s.Put(id, 1, strings.NewReader("")); return err }
	broken := func() error { _, err := s.Put(up.ID, 2, iotest.ErrReader(errors.New("cut"))); return err }
	parts := func() error { _, err := s.Parts("none"); return err }
	tests := map[string]struct {
		err  error
		kind doze.Kind
	}{
		"number 0":              {number(0), doze.Internal},
		"number too high":       {number(10_001), doze.Internal},
		"unknown upload":        {unknown("none"), doze.Internal},
		"an id that is a path":  {unknown("../" + up.ID), doze.Internal},
		"broken body":           {broken(), doze.Invalid},
		"parts of nothing":      {parts(), doze.NotFound},
		"abort of nothing":      {s.Abort("none"), doze.NotFound},
		"complete nothing":      {complete("none", one), doze.NotFound},
		"complete without":      {complete(up.ID), doze.Invalid},
		"a part that is not":    {complete(up.ID, upload.Part{Number: 7}), doze.Internal},
		"a part without number": {complete(up.ID, upload.Part{ETag: one.ETag}), doze.Internal},
		"another etag":          {complete(up.ID, upload.Part{Number: 1, ETag: "x"}), doze.Internal},
		"a part twice":          {complete(up.ID, one, one), doze.Invalid},
		"target is not a file":  {complete(up.ID, one), doze.Unprocessable},
		"it can be tried again": {complete(up.ID, one), doze.Unprocessable},
	}
	for name, test := range tests {
		if test.err == nil || doze.Public(test.err).Kind != test.kind {
			t.Errorf("%s: %v, want %v", name, test.err, test.kind)
		}
	}
	if got := left(t, dir); len(got) != 1 {
		t.Errorf("besides one part there is %v", got)
	}

	for want, parts := range map[string][]upload.Part{
		"part 0 is none: partNumber must be 1 to 10000": {{ETag: one.ETag}},
		"part 1 is listed twice":                        {one, one},
		"part 7 is missing; upload it first; part 10001 is none: partNumber must be 1 to 10000": {{Number: 10_001}, {Number: 7}, one},
	} {
		if got := complete(up.ID, parts...).Error(); got != want {
			t.Errorf("it says %q, want %q", got, want)
		}
	}

	// After a part is gone, it cannot.
	two := put(t, s, up.ID, 2, strings.Repeat("x", 100))
	_, err = s.Complete(up.ID, []upload.Part{one, two}, func(_ upload.Upload, src io.Reader) error {
		_, _ = io.CopyN(io.Discard, src, 50)
		return doze.Errorf(doze.Unprocessable, "no space")
	})
	if p := doze.Public(err); err == nil || p.Message != "no space; the upload is lost, start a new one" {
		t.Errorf("got %v", err)
	}
	if err := s.Abort(up.ID); err == nil || len(left(t, dir)) != 0 {
		t.Errorf("it is still there: %v", left(t, dir))
	}
}

// gate blocks a reader until it is opened.
type gate struct {
	io.Reader
	open, reached chan struct{}
	once          sync.Once
}

func (g *gate) Read(b []byte) (int, error) {
	g.once.Do(func() { close(g.reached) })
	<-g.open
	return g.Reader.Read(b)
}

func TestAbortWhilePartComesIn(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "uploads")
	s := upload.New(dir)
	t.Cleanup(s.Close)
	up, err := s.Begin("/x", 0o644)
	if err != nil {
		t.Fatal(err)
	}
	body := &gate{Reader: strings.NewReader("late"), open: make(chan struct{}), reached: make(chan struct{})}
	done := make(chan error)
	go func() { _, err := s.Put(up.ID, 1, body); done <- err }()
	<-body.reached
	if err := s.Abort(up.ID); err != nil {
		t.Error(err)
	}
	close(body.open)
	if err := <-done; err == nil {
		t.Error("the part was taken")
	}
	if got := left(t, dir); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
}

func TestCompleteOnce(t *testing.T) {
	t.Parallel()
	s := upload.New(filepath.Join(t.TempDir(), "uploads"))
	t.Cleanup(s.Close)
	up, err := s.Begin("/x", 0o644)
	if err != nil {
		t.Fatal(err)
	}
	one := put(t, s, up.ID, 1, "x")
	_, err = s.Complete(up.ID, []upload.Part{one}, func(_ upload.Upload, src io.Reader) error {
		if _, err := s.Complete(up.ID, []upload.Part{one}, nil); doze.Public(err).Kind != doze.Conflict {
			t.Errorf("the second one: %v", err)
		}
		if err := s.Abort(up.ID); doze.Public(err).Kind != doze.Conflict {
			t.Errorf("abort: %v", err)
		}
		var b bytes.Buffer
		_, err := b.ReadFrom(src)
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestExpiry(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "uploads")
	synctest.Test(t, func(t *testing.T) {
		s := upload.New(dir)
		defer s.Close()
		old, _ := s.Begin("/old", 0o644)
		used, _ := s.Begin("/used", 0o644)
		put(t, s, old.ID, 1, "x")
		time.Sleep(23 * time.Hour)
		put(t, s, used.ID, 1, "x")
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if all := s.List(); len(all) != 1 || all[0].Path != "/used" || len(left(t, dir)) != 1 {
			t.Errorf("after 25 hours: %v, %v", all, left(t, dir))
		}
		time.Sleep(23 * time.Hour)
		synctest.Wait()
		if all := s.List(); len(all) != 0 || len(left(t, dir)) != 0 {
			t.Errorf("after 48 hours: %v, %v", all, left(t, dir))
		}
	})
}

func TestTooMany(t *testing.T) {
	t.Parallel()
	s := upload.New(filepath.Join(t.TempDir(), "uploads"))
	t.Cleanup(s.Close)
	for range 1000 {
		if _, err := s.Begin("/x", 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Begin("/x", 0o644); err == nil || doze.Public(err).Kind != doze.Unprocessable {
		t.Errorf("got %v", err)
	}
}
