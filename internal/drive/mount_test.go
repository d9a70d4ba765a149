package drive_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze/internal/drive"
	"github.com/dozehq/doze/internal/drive/op"
	"github.com/dozehq/doze/internal/testkit/bucket"
)

// bench is one mount, as an agent sees it.
type bench struct {
	*testing.T

	bucket *drive.Bucket
	srv    *bucket.Bucket
	dir    string
	mount  *drive.Mount
}

func newBench(t *testing.T, part string, readOnly bool) *bench {
	t.Helper()
	b, srv := open(t)
	w := &bench{T: t, bucket: b, srv: srv, dir: t.TempDir()}
	w.open(part, readOnly)
	return w
}

// open makes the mount again, as the next process does.
func (w *bench) open(part string, readOnly bool) {
	w.Helper()
	var err error
	if w.mount, err = w.bucket.Mount("id", part, readOnly, w.dir); err != nil {
		w.Fatal(err)
	}
}

// ask makes a call.
func (w *bench) ask(c op.Call, data string) (string, error) {
	w.Helper()
	target, err := c.Target()
	if err != nil {
		w.Fatal(err)
	}
	rec := httptest.NewRecorder()
	w.mount.ServeHTTP(rec, httptest.NewRequest(http.MethodPost, target, strings.NewReader(data)))
	resp := rec.Result()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		w.Fatal(err)
	}
	return string(raw), op.Refusal(resp)
}

// do makes a call that works, and returns what it answers.
func (w *bench) do(c op.Call, data string) op.Answer {
	w.Helper()
	raw, err := w.ask(c, data)
	var a op.Answer
	if err == nil {
		err = json.Unmarshal([]byte(raw), &a)
	}
	if err != nil {
		w.Fatalf("%+v: %v", c, err)
	}
	return a
}

// fails makes a call that is refused.
func (w *bench) fails(want syscall.Errno, c op.Call) {
	w.Helper()
	if raw, err := w.ask(c, ""); !errors.Is(err, want) {
		w.Errorf("%+v: %q, %v; want %v", c, raw, err, want)
	}
}

// text is what a file has.
func (w *bench) text(path string) string {
	w.Helper()
	raw, err := w.ask(op.Call{Op: op.Read, Path: path, Size: op.DataMax}, "")
	if err != nil {
		w.Fatal(path, err)
	}
	return raw
}

// write makes a file.
func (w *bench) write(handle uint64, path, text string) {
	w.Helper()
	w.do(op.Call{Op: op.Open, Path: path, Handle: handle, Write: true, Create: true, Truncate: true}, "")
	w.do(op.Call{Op: op.Write, Handle: handle}, text)
	w.do(op.Call{Op: op.Flush, Handle: handle}, "")
	w.do(op.Call{Op: op.Release, Handle: handle}, "")
}

// TestMount does what programs do with files.
func TestMount(t *testing.T) {
	t.Parallel()
	w := newBench(t, "/", false)
	w.srv.Put(t, "idx/other", "of another drive")
	w.write(1, "a", "hello")
	w.do(op.Call{Op: op.Mkdir, Path: "d"}, "")
	w.write(2, "d/b", "deep")
	w.do(op.Call{Op: op.Open, Path: "a", Handle: 3, Write: true}, "")
	w.do(op.Call{Op: op.Write, Handle: 3, Offset: 5}, " world")
	if got := w.text("a"); got != "hello world" {
		t.Errorf("who reads meanwhile finds %q", got)
	}
	if n := w.do(op.Call{Op: op.Stat, Path: "a"}, "").Node; n.Size != 11 {
		t.Errorf("it is %+v", n)
	}
	w.do(op.Call{Op: op.Rename, Path: "a", To: "d/c"}, "") // and is written on
	w.do(op.Call{Op: op.Write, Handle: 3, Offset: 11}, "!")
	w.do(op.Call{Op: op.Release, Handle: 3}, "")
	if got, _ := w.srv.Text(t, "id/d/c"); got != "hello world!" {
		t.Errorf("the bucket has %q", got)
	}
	var names []string
	for _, n := range w.do(op.Call{Op: op.List, Path: "d"}, "").Nodes {
		names = append(names, n.Name)
	}
	if diff := cmp.Diff([]string{"b", "c"}, names); diff != "" {
		t.Errorf("in the directory are (-want +got):\n%s", diff)
	}
	if n := w.do(op.Call{Op: op.Truncate, Path: "d/c", Size: 4}, "").Node; n.Size != 4 || w.text("d/c") != "hell" {
		t.Errorf("cut, it is %+v", n)
	}
	if got, err := w.ask(op.Call{Op: op.Read, Path: "d/c", Offset: 100, Size: 10}, ""); got != "" || err != nil {
		t.Errorf("behind its end are %q, %v", got, err)
	}
	w.do(op.Call{Op: op.Open, Path: "d/c", Handle: 4, Write: true}, "")
	w.do(op.Call{Op: op.Unlink, Path: "d/c"}, "")
	w.do(op.Call{Op: op.Write, Handle: 4}, "into nothing")
	w.do(op.Call{Op: op.Release, Handle: 4}, "")
	for errno, c := range map[syscall.Errno]op.Call{
		syscall.ENOENT:       {Op: op.Stat, Path: "d/c"},
		syscall.EEXIST:       {Op: op.Mkdir, Path: "d"},
		syscall.ENOTEMPTY:    {Op: op.Rmdir, Path: "d"},
		syscall.EXDEV:        {Op: op.Rename, Path: "d", To: "e"},
		syscall.EISDIR:       {Op: op.Open, Path: "d"},
		syscall.ENOTDIR:      {Op: op.List, Path: "d/b"},
		syscall.EBADF:        {Op: op.Write, Handle: 99},
		syscall.EFBIG:        {Op: op.Truncate, Path: "d/b", Size: 1 << 40},
		syscall.ENOSYS:       {Op: "link", Path: "d/b"},
		syscall.ENAMETOOLONG: {Op: op.Stat, Path: strings.Repeat("x", 1024)},
	} {
		w.fails(errno, c)
	}
	w.fails(syscall.EEXIST, op.Call{Op: op.Open, Path: "d/b", Handle: 5, Write: true, Create: true, Exclusive: true})
	w.do(op.Call{Op: op.Unlink, Path: "d/b"}, "")
	w.do(op.Call{Op: op.Stat, Path: "d"}, "") // it was made, and stays
	w.do(op.Call{Op: op.Rmdir, Path: "d"}, "")
	if diff := cmp.Diff([]string{"idx/other"}, w.srv.Keys(t)); diff != "" {
		t.Errorf("the bucket has (-want +got):\n%s", diff)
	}
}

// TestMountHasNoEscape: no path leads out of the part, and a read-only mount
// changes nothing, whatever an agent asks.
func TestMountHasNoEscape(t *testing.T) {
	t.Parallel()
	w := newBench(t, "/part", true)
	for _, key := range []string{"id/part/in", "id/partner/out", "id/out", "idx/out"} {
		w.srv.Put(t, key, "text")
	}
	before := w.srv.Keys(t)
	if got := w.text("in"); got != "text" {
		t.Errorf("inside is %q", got)
	}
	for _, path := range []string{"../out", "x/../../out", "/in", "in/", "./in", "a//b", "..", "in\x00"} {
		w.fails(syscall.EINVAL, op.Call{Op: op.Stat, Path: path})
		w.fails(syscall.EINVAL, op.Call{Op: op.Read, Path: path, Size: 1})
	}
	for _, c := range []op.Call{
		{Op: op.Open, Path: "in", Handle: 1, Write: true},
		{Op: op.Open, Path: "new", Handle: 2, Create: true},
		{Op: op.Open, Path: "in", Truncate: true},
		{Op: op.Write, Handle: 1},
		{Op: op.Truncate, Path: "in"},
		{Op: op.Mkdir, Path: "d"},
		{Op: op.Unlink, Path: "in"},
		{Op: op.Rmdir, Path: "d"},
		{Op: op.Rename, Path: "in", To: "out"},
	} {
		w.fails(syscall.EROFS, c)
	}
	nodes := w.do(op.Call{Op: op.List}, "").Nodes
	if len(nodes) != 1 || nodes[0].Name != "in" {
		t.Errorf("the part has %+v", nodes)
	}
	if diff := cmp.Diff(before, w.srv.Keys(t)); diff != "" {
		t.Errorf("the bucket changed:\n%s", diff)
	}
	rec := httptest.NewRecorder()
	w.mount.ServeHTTP(rec, httptest.NewRequest(http.MethodPost, "/?call=nonsense", bytes.NewReader(nil)))
	if err := op.Refusal(rec.Result()); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("nonsense: %v", err)
	}
}

// TestMountOutlivesItsProcess: what was being written is there when the next
// process serves the mount, and calls of which nobody knows the end are made
// again.
func TestMountOutlivesItsProcess(t *testing.T) {
	t.Parallel()
	w := newBench(t, "/", false)
	w.do(op.Call{Op: op.Open, Path: "log", Handle: 1, Write: true, Create: true}, "")
	w.do(op.Call{Op: op.Write, Handle: 1}, "first ")
	w.open("/", false)
	w.do(op.Call{Op: op.Open, Path: "log", Handle: 1, Write: true, Create: true, Exclusive: true, Again: true}, "")
	w.do(op.Call{Op: op.Write, Handle: 1, Offset: 6}, "second")
	w.do(op.Call{Op: op.Flush, Handle: 1}, "")
	if got, _ := w.srv.Text(t, "id/log"); got != "first second" {
		t.Errorf("the bucket has %q", got)
	}
	w.do(op.Call{Op: op.Release, Handle: 1}, "")
	w.do(op.Call{Op: op.Release, Handle: 1, Again: true}, "")
	w.do(op.Call{Op: op.Mkdir, Path: "d"}, "")
	w.do(op.Call{Op: op.Mkdir, Path: "d", Again: true}, "")
	w.do(op.Call{Op: op.Rmdir, Path: "d"}, "")
	w.do(op.Call{Op: op.Rmdir, Path: "d", Again: true}, "")
	w.do(op.Call{Op: op.Rename, Path: "log", To: "old"}, "")
	w.do(op.Call{Op: op.Rename, Path: "log", To: "old", Again: true}, "")
	w.do(op.Call{Op: op.Unlink, Path: "old"}, "")
	w.do(op.Call{Op: op.Unlink, Path: "old", Again: true}, "")

	// Who ends with an open file loses nothing of it.
	w.do(op.Call{Op: op.Open, Path: "rest", Handle: 2, Write: true, Create: true}, "")
	w.do(op.Call{Op: op.Write, Handle: 2}, "unclosed")
	w.do(op.Call{Op: op.Open, Path: "removed", Handle: 3, Write: true, Create: true}, "")
	w.do(op.Call{Op: op.Unlink, Path: "removed"}, "")
	w.open("/", false)
	if err := w.mount.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(w.dir); err != nil || len(left) > 0 {
		t.Errorf("%v are left on the host, %v", left, err)
	}
	if got, _ := w.srv.Text(t, "id/rest"); got != "unclosed" {
		t.Errorf("the bucket has %q", got)
	}
}

// FuzzCall never answers about what is outside of the part.
func FuzzCall(f *testing.F) {
	f.Add("stat", "../out", "")
	f.Add("rename", "in", "../out")
	f.Add("open", "a/b", "")
	f.Fuzz(func(t *testing.T, name, path, to string) {
		w := newBench(t, "/part", false)
		w.srv.Put(t, "id/out", "secret")
		raw, _ := w.ask(op.Call{Op: op.Name(name), Path: path, To: to, Handle: 1, Size: 10, Create: true, Write: true}, "x")
		if text, _ := w.srv.Text(t, "id/out"); text != "secret" || strings.Contains(raw, "secret") {
			t.Errorf("it answers %q, and the other file has %q", raw, text)
		}
	})
}
