package instance

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLockExcludesASecondProcess(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	unlock, err := Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(dir); err == nil || !strings.Contains(err.Error(), "another dozed") {
		t.Errorf("the second lock: %v", err)
	}
	unlock()
	unlock, err = Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	unlock()
}

func TestConfirm(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]bool{"yes\n": true, " yes": true, "": false, "y\n": false, "no\nyes\n": false} {
		var out bytes.Buffer
		if err := confirm(strings.NewReader(in), &out, "/data", false); (err == nil) != want || !strings.Contains(out.String(), "/data") {
			t.Errorf("%q: %v, %s", in, err, out.String())
		}
	}
}

func TestEraseLeavesWhatIsNotOurs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	data := filepath.Join(dir, "data")
	for _, name := range append([]string{"photo"}, ours...) {
		if err := os.MkdirAll(filepath.Join(data, name, "x"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := erase(data); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(data); err != nil || len(left) != 1 || left[0].Name() != "photo" {
		t.Errorf("left %v, %v", left, err)
	}
	if err := errors.Join(os.RemoveAll(filepath.Join(data, "photo")), erase(data)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(data); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory: %v", err)
	}
}

// TestLockIsAllOrNothing: of several directories, none stays locked if one is taken.
func TestLockIsAllOrNothing(t *testing.T) {
	t.Parallel()
	first, second := t.TempDir(), t.TempDir()
	unlock, err := Lock(second)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	if _, err := Lock(first, second); err == nil || !strings.Contains(err.Error(), second) {
		t.Errorf("both locks: %v", err)
	}
	again, err := Lock(first)
	if err != nil {
		t.Fatal(err)
	}
	again()
}

func TestRemains(t *testing.T) {
	t.Parallel()
	data, other := t.TempDir(), Instance{Run: "/run/x", Cgroup: "x"}
	if w, err := Remains(data, other); err != nil || w.Run != "/run/x" || w.Data != data || len(w.Programs) == 0 {
		t.Errorf("without the file: %+v, %v", w, err)
	}
	if err := Announce(data, Instance{Address: "http://127.0.0.1:1", Run: "/run/elsewhere", Cgroup: "elsewhere"}); err != nil {
		t.Fatal(err)
	}
	if w, err := Remains(data, other); err != nil || w.Run != "/run/elsewhere" || w.Cgroup != "elsewhere" {
		t.Errorf("%+v, %v", w, err)
	}
	for _, raw := range []string{"{", `{"run":"here"}`, `{"cgroup":"../x"}`} {
		if err := os.WriteFile(filepath.Join(data, file), []byte(raw), 0o600); err != nil {
			t.Fatal(err)
		}
		if w, err := Remains(data, other); err == nil {
			t.Errorf("%s: %+v", raw, w)
		}
	}
}

func TestDestroyTouchesNothingElse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := (&Destruction{Data: dir, Run: filepath.Join(dir, "run"), Cgroup: "doze-test-none", All: true, Yes: true, Out: io.Discard}).do(t.Context()); err == nil || !strings.Contains(err.Error(), "no data directory") {
		t.Errorf("a directory of somebody else: %v", err)
	}
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "lock"), nil, 0o600), os.Mkdir(filepath.Join(dir, "images"), 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := (&Destruction{Data: dir, Run: filepath.Join(dir, "run"), Cgroup: "doze-test-none", All: true, Yes: true, Out: io.Discard}).do(t.Context()); err == nil || !strings.Contains(err.Error(), "no data directory") {
		t.Errorf("one that looks a little like ours: %v", err)
	}
	unlock, err := Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	if err := Announce(dir, Instance{Address: "http://127.0.0.1:1", Run: filepath.Join(dir, "run"), Cgroup: "doze-test-none"}); err != nil {
		t.Fatal(err)
	}
	if err := (&Destruction{Data: dir, Run: filepath.Join(dir, "run"), Cgroup: "doze-test-none", All: true, Yes: true, Out: io.Discard}).do(t.Context()); err == nil || !strings.Contains(err.Error(), "another dozed") {
		t.Errorf("a directory in use: %v", err)
	}
}
