package watch

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
)

// follow runs a watch to its end or that of the test, and sends what it says as
// "OP path relative to root".
func follow(t *testing.T, root string, recursive bool, ignore ...string) (events <-chan string, stop func() error) {
	t.Helper()
	w, err := Open(root, recursive, ignore)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	out, done := make(chan string, 10_000), make(chan error, 1)
	go func() {
		defer w.Close()
		defer close(out)
		done <- w.Run(ctx, func(e Event) error {
			if e.Error != nil {
				out <- "ERROR " + *e.Error
				return nil
			}
			rel, err := filepath.Rel(root, filepath.Join(e.Path, e.Name))
			out <- e.Op + " " + rel
			return err
		}, time.Hour, func() error { return nil })
	}()
	stop = func() error { cancel(); return <-done }
	t.Cleanup(func() { cancel() })
	return out, stop
}

// until collects events to one that is certain to be the last. Repetitions
// count once: how often a write is reported is the kernel's choice.
func until(t *testing.T, events <-chan string, last string) (got []string) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		select {
		case e, ok := <-events:
			if !ok {
				t.Fatalf("it ended after %v", got)
			}
			if len(got) == 0 || got[len(got)-1] != e {
				got = append(got, e)
			}
			if e == last {
				return got
			}
		case <-deadline:
			t.Fatalf("no %s, only %v", last, got)
		}
	}
}

// do is a chain of file operations that must all work.
func do(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func TestOneLevel(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	do(t, os.Mkdir(root+"/sub", 0o755), os.WriteFile(root+"/there", nil, 0o644))
	events, stop := follow(t, root, false, "ignored", "/sub/")
	do(t,
		os.WriteFile(root+"/a", []byte("x"), 0o644),
		os.WriteFile(root+"/sub/b", []byte("x"), 0o644),
		os.WriteFile(root+"/x.ignored", []byte("x"), 0o644),
		os.Chmod(root+"/a", 0o600),
		os.Rename(root+"/a", root+"/c"),
		os.Rename(root+"/there", root+"/sub/there"),
		os.Rename(root+"/sub/there", root+"/back"),
		os.Remove(root+"/c"),
	)
	want := []string{"CREATE a", "WRITE a", "CHMOD a", "RENAME a", "CREATE c", "RENAME there", "CREATE back", "REMOVE c"}
	if diff := cmp.Diff(want, until(t, events, "REMOVE c")); diff != "" {
		t.Error(diff)
	}
	if err := stop(); !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
}

func TestRecursive(t *testing.T) {
	t.Parallel()
	root, outside := t.TempDir(), t.TempDir()
	do(t, os.MkdirAll(root+"/old/deep", 0o755), os.MkdirAll(root+"/node_modules/x", 0o755))
	events, _ := follow(t, root, true, "node_modules")
	do(t, os.WriteFile(root+"/old/deep/f", nil, 0o644), os.WriteFile(root+"/node_modules/x/f", nil, 0o644))
	if diff := cmp.Diff([]string{"CREATE old/deep/f"}, until(t, events, "CREATE old/deep/f")); diff != "" {
		t.Error(diff)
	}

	// What is in a directory that comes is reported, and watched.
	do(t, os.MkdirAll(outside+"/in/deep", 0o755), os.WriteFile(outside+"/in/deep/f", nil, 0o644), os.Rename(outside+"/in", root+"/in"))
	if diff := cmp.Diff([]string{"CREATE in", "CREATE in/deep", "CREATE in/deep/f"}, until(t, events, "CREATE in/deep/f")); diff != "" {
		t.Error(diff)
	}
	do(t, os.WriteFile(root+"/in/deep/g", nil, 0o644))
	until(t, events, "CREATE in/deep/g")

	// After it moved, its new name counts.
	do(t, os.Rename(root+"/in", root+"/old/moved"))
	until(t, events, "CREATE old/moved/deep/g")
	do(t, os.Remove(root+"/old/moved/deep/f"))
	if diff := cmp.Diff([]string{"REMOVE old/moved/deep/f"}, until(t, events, "REMOVE old/moved/deep/f")); diff != "" {
		t.Error(diff)
	}

	// When it has left, nothing of it is reported.
	do(t, os.Rename(root+"/old/moved", outside+"/out"), os.WriteFile(outside+"/out/deep/h", nil, 0o644), os.Mkdir(root+"/last", 0o755))
	if diff := cmp.Diff([]string{"RENAME old/moved", "CREATE last"}, until(t, events, "CREATE last")); diff != "" {
		t.Error(diff)
	}
}

// However fast directories come, nothing in them is missed.
func TestNothingIsMissed(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	events, _ := follow(t, root, true)
	want := map[string]bool{}
	for a := range strings.SplitSeq("abcdefghij", "") {
		dir := filepath.Join(root, a, a, a)
		do(t, os.MkdirAll(dir, 0o755), os.WriteFile(dir+"/f", nil, 0o644))
		want["CREATE "+a+"/"+a+"/"+a+"/f"] = true
	}
	deadline := time.After(20 * time.Second)
	for len(want) > 0 {
		select {
		case e := <-events:
			delete(want, e)
		case <-deadline:
			t.Fatalf("missed: %v", want)
		}
	}
}

func TestOurTemporaryFiles(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	events, _ := follow(t, root, false)
	do(t,
		os.WriteFile(root+"/"+Creating+"1", []byte("x"), 0o644), os.Rename(root+"/"+Creating+"1", root+"/a"),
		os.WriteFile(root+"/"+Replacing+"2", []byte("x"), 0o644), os.Rename(root+"/"+Replacing+"2", root+"/a"),
		os.WriteFile(root+"/"+Replacing+"3", []byte("x"), 0o644), os.Remove(root+"/"+Replacing+"3"),
		os.Remove(root+"/a"),
	)
	if diff := cmp.Diff([]string{"CREATE a", "WRITE a", "REMOVE a"}, until(t, events, "REMOVE a")); diff != "" {
		t.Error(diff)
	}
}

func TestRootGoes(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		act  func(root string) error
		want string
	}{
		"removed": {os.Remove, "REMOVE ."},
		"moved":   {func(root string) error { return os.Rename(root, root+"2") }, "RENAME ."},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := filepath.Join(t.TempDir(), "root")
			do(t, os.Mkdir(root, 0o755))
			events, stop := follow(t, root, true)
			do(t, test.act(root))
			if diff := cmp.Diff([]string{test.want}, until(t, events, test.want)); diff != "" {
				t.Error(diff)
			}
			if _, more := <-events; more {
				t.Error("it goes on")
			}
			if err := stop(); err != nil {
				t.Errorf("it ended with %v", err)
			}
		})
	}
}

func TestOverflow(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	w, err := Open(root, true, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	do(t, os.MkdirAll(root+"/came/deep", 0o755)) // its events are as good as lost
	var got []string
	w.emit = func(e Event) error {
		got = append(got, e.Op)
		if e.Error != nil {
			got = append(got, *e.Error)
		}
		return nil
	}
	if over, err := w.handle(notice{wd: -1, mask: syscall.IN_Q_OVERFLOW}); over || err != nil {
		t.Error(over, err)
	}
	if diff := cmp.Diff([]string{"", "changes came faster than they were read; some are lost"}, got); diff != "" {
		t.Error(diff)
	}
	if len(w.dirs) != 3 {
		t.Errorf("watched: %v", w.dirs)
	}
}

func TestSilence(t *testing.T) {
	t.Parallel()
	w, err := Open(t.TempDir(), false, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	enough := errors.New("enough")
	idle := 0
	err = w.Run(t.Context(), nil, time.Millisecond, func() error {
		if idle++; idle == 3 {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) {
		t.Errorf("it ended with %v", err)
	}
}

func TestErrors(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	do(t, os.WriteFile(dir+"/file", nil, 0o644), os.Symlink("loop", dir+"/loop"))
	for root, kind := range map[string]doze.Kind{
		dir + "/none": doze.Invalid, dir + "/file": doze.Invalid, dir + "/file/x": doze.Invalid, dir + "/loop": doze.Unprocessable,
	} {
		if _, err := Open(root, false, nil); err == nil || doze.Public(err).Kind != kind {
			t.Errorf("%s: %v, want %v", root, err, kind)
		}
	}
}

// FuzzNotice reads whatever the kernel might send.
func FuzzNotice(f *testing.F) {
	b := binary.NativeEndian.AppendUint32(nil, 1)
	b = binary.NativeEndian.AppendUint32(b, syscall.IN_CREATE)
	b = binary.NativeEndian.AppendUint32(b, 0)
	b = binary.NativeEndian.AppendUint32(b, 16)
	f.Add(append(b, "name\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"...))
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		for len(b) > 0 {
			n, rest := parse(b)
			if len(rest) >= len(b) || strings.Contains(n.name, "\x00") {
				t.Fatalf("%d of %d bytes are left, %+v", len(rest), len(b), n)
			}
			b = rest
		}
	})
}
