package disk

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/dozehq/doze"
)

// TestCommission: an image of a Dockerfile is built once, however many ask for it, and is
// there for the next library. A failed build leaves nothing, and the next caller tries again.
func TestCommission(t *testing.T) {
	t.Parallel()
	const ref = "blaxel/ts-app:latest"
	var l *Library
	var calls atomic.Int32
	var broken atomic.Bool
	l = library(t, Options{Build: func(ctx context.Context, name string, report func(Progress)) (string, error) {
		calls.Add(1)
		if name != "ts-app" {
			t.Errorf("it builds %s", name)
		}
		if broken.Load() {
			return "", doze.Errorf(doze.Unavailable, "the registry is away")
		}
		report(Progress{Step: "a step", Percent: 50})
		archive := files(t, unpacked(t, picture(t, v1.Config{}, layer(t, entry{'f', 0o644, 0, "hello", "hello"}))))
		img, err := l.ImportLayout(ctx, "build", bytes.NewReader(archive), nil, nil)
		return img.Digest, err
	}})
	if err := l.Check(ref); err != nil || !l.NeedsBuilder(ref) || !l.Platform(ref) {
		t.Errorf("before the build: %v", err)
	}
	if l.Making(ref) == "" || l.Making("registry.example.com/a:1") != "" || l.Making("no image: at all") != "" {
		t.Errorf("what has to be made: %q", l.Making(ref))
	}
	broken.Store(true)
	if _, err := l.Ensure(t.Context(), ref, nil); doze.Public(err).Kind != doze.Unavailable {
		t.Errorf("a failed build is %v", err)
	}
	broken.Store(false)
	calls.Store(0)
	var all sync.WaitGroup
	var told atomic.Bool
	for range 8 {
		all.Go(func() {
			img, err := l.Ensure(t.Context(), ref, func(p Progress) { told.Store(told.Load() || p.Step == "a step") })
			if err != nil || !strings.HasPrefix(img.Ref, "ts-app+") {
				t.Errorf("it is %+v, %v", img, err)
			}
		})
	}
	all.Wait()
	if n := calls.Load(); n != 1 || !told.Load() {
		t.Errorf("%d builds, told: %v", n, told.Load())
	}
	if l.Making(ref) != "" || len(leftovers(t, l)) > 0 {
		t.Errorf("after the build: %q, left: %v", l.Making(ref), leftovers(t, l))
	}
	again, err := Open(l.dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if _, err := again.Ensure(t.Context(), ref, nil); err != nil {
		t.Errorf("another library: %v", err)
	}
}

// TestCommissionNobody: without a builder there is an error that says what to do, and the
// recipes go on.
func TestCommissionNobody(t *testing.T) {
	t.Parallel()
	l := library(t, Options{})
	_, err := l.Ensure(t.Context(), "blaxel/ts-app", nil)
	var public *doze.Error
	if !errors.As(err, &public) || public.Kind != doze.Unsupported || !strings.Contains(public.Message, "--images") {
		t.Errorf("without a builder: %v", err)
	}
}
