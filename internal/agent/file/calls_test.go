package file_test

import (
	"bytes"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze/internal/agent/agenttest"
)

func TestReadFile(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	file := s.Write(t, "a b/ü.txt", "one <two>\n\xff\xc3")
	if err := os.Chtimes(file, time.Time{}, time.Date(2026, 1, 2, 3, 4, 5, 120e6, time.UTC)); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(file, 0, 54321); err != nil {
		t.Fatal(err)
	}
	want := agenttest.File{
		Path: file, Name: "ü.txt", Permissions: "644", Size: 12,
		LastModified: "2026-01-02T03:04:05.12Z", Owner: "root", Group: "54321",
		Content: "one <two>\n\ufffd\ufffd",
	}
	for _, path := range []string{agenttest.At(file), "/filesystem/" + file, "/filesystem%2F" + file[1:]} {
		path = strings.NewReplacer(" ", "%20", "ü", "%C3%BC").Replace(path) // as a client has to
		if diff := cmp.Diff(want, agenttest.Get[agenttest.File](t, s, "GET", path, "")); diff != "" {
			t.Errorf("%s: %s", path, diff)
		}
	}
	want.Path = "a b/ü.txt"
	if diff := cmp.Diff(want, agenttest.Get[agenttest.File](t, s, "GET", "/filesystem/a%20b/ü.txt", "")); diff != "" {
		t.Error(diff)
	}
}

func TestReadLargeFileAsJSON(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	content := strings.Repeat("aü€😀\"\n", 100_000) // characters cross every boundary
	s.Write(t, "large", content)
	if got := agenttest.Get[agenttest.File](t, s, "GET", "/filesystem/large", ""); got.Content != content {
		t.Errorf("%d bytes came back, want %d", len(got.Content), len(content))
	}
}

func TestReadRaw(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	s.Write(t, "f.tar", "0123456789")
	s.Write(t, `q"ö.svg`, "x")
	tests := map[string]struct {
		path    string
		headers []string
		status  int
		body    string
		want    map[string]string
	}{
		"octets":      {"/filesystem/f.tar", []string{"Accept: application/json, application/octet-stream"}, 200, "0123456789", map[string]string{"Content-Type": "application/x-tar", "Content-Disposition": `attachment; filename="f.tar"`, "Accept-Ranges": "bytes"}},
		"other type":  {"/filesystem/f.tar", []string{"Accept: text/plain"}, 200, "0123456789", nil},
		"download":    {"/filesystem/f.tar?download=true", nil, 200, "0123456789", nil},
		"range":       {"/filesystem/f.tar?download=true", []string{"Range: bytes=2-4"}, 206, "234", map[string]string{"Content-Range": "bytes 2-4/10"}},
		"bad range":   {"/filesystem/f.tar?download=true", []string{"Range: bytes=20-"}, 416, "", nil},
		"not changed": {"/filesystem/f.tar?download=true", []string{"If-Modified-Since: " + time.Now().Add(time.Hour).UTC().Format(http.TimeFormat)}, 304, "", nil},
		"changed":     {"/filesystem/f.tar?download=true", []string{"If-Unmodified-Since: " + time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat)}, 412, "", nil},
		"other range": {"/filesystem/f.tar?download=true", []string{"Range: bytes=2-4", "If-Range: " + time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat)}, 200, "0123456789", nil},
		"odd name":    {"/filesystem/q%22%C3%B6.svg?download=true", nil, 200, "x", map[string]string{"Content-Type": "image/svg+xml", "Content-Disposition": `attachment; filename="q'_.svg"; filename*=UTF-8''q%22%C3%B6.svg`}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			resp := s.Do(t, "GET", test.path, "", test.headers...)
			b, _ := io.ReadAll(resp.Body)
			if resp.StatusCode != test.status || test.status < 400 && string(b) != test.body {
				t.Errorf("status %d: %q", resp.StatusCode, b)
			}
			for k, want := range test.want {
				if got := resp.Header.Get(k); got != want {
					t.Errorf("%s: %q, want %q", k, got, want)
				}
			}
		})
	}
	t.Run("sizeless", func(t *testing.T) {
		t.Parallel()
		if _, b := s.Call(t, "GET", "/filesystem//proc/self/status?download=true", ""); !strings.HasPrefix(b, "Name:") {
			t.Errorf("got %q", b)
		}
		if got := agenttest.Get[agenttest.File](t, s, "GET", "/filesystem//proc/self/status", ""); !strings.HasPrefix(got.Content, "Name:") {
			t.Errorf("got %q", got.Content)
		}
	})
}

func TestAcceptDecides(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	s.Write(t, "f.txt", "x")
	for accept, raw := range map[string]bool{
		"": false, "*/*": false, "application/json": false, "text/html, */*": false, "text/html,application/json": false,
		"application/octet-stream": true, "application/json, application/octet-stream": true, "text/plain": true, "image/*": true,
	} {
		_, body := s.Call(t, "GET", "/filesystem/f.txt", "", "Accept: "+accept)
		if got := body == "x"; got != raw {
			t.Errorf("Accept %q: %q", accept, body)
		}
	}
}

func TestReadRefuses(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	if err := syscall.Mkfifo(filepath.Join(s.Dir, "fifo"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("nowhere", filepath.Join(s.Dir, "dangling")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("loop", filepath.Join(s.Dir, "loop")); err != nil {
		t.Fatal(err)
	}
	s.Write(t, "file", "")
	s.Fails(t, 404, "no such file or directory", "GET", "/filesystem/none", "")
	s.Fails(t, 404, "not a directory", "GET", "/filesystem/file/x", "")
	s.Fails(t, 404, "no such file", "GET", "/filesystem/dangling", "")
	s.Fails(t, 500, "too many levels", "GET", "/filesystem/loop", "")
	s.Fails(t, 422, "not a regular file", "GET", "/filesystem/fifo", "")
	s.Fails(t, 422, "not a regular file", "GET", "/filesystem//dev/zero", "")
	s.Fails(t, 422, "input/output error", "GET", "/filesystem//proc/self/mem", "")
	s.Fails(t, 400, "NUL", "GET", "/filesystem/a%00b", "")
	s.Fails(t, 400, "at most 4095", "GET", "/filesystem/"+strings.Repeat("x", 5000), "")
	s.Fails(t, 400, "path is not a directory", "GET", "/filesystem/tree"+s.Dir+"/file", "")
	s.Fails(t, 400, "path is not a directory", "GET", "/filesystem/tree/no/such", "")
}

func TestList(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	s.Write(t, "d/b", "bb")
	s.Write(t, "d/a", "")
	s.Write(t, "d/sub/deep", "")
	if err := os.Symlink("sub", filepath.Join(s.Dir, "d/link")); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{agenttest.At(s.Dir + "/d"), agenttest.At(s.Dir+"/d") + "?download=true", "/filesystem/tree" + s.Dir + "/d"} {
		got := agenttest.Get[agenttest.Directory](t, s, "GET", path, "")
		var names []string
		for _, f := range got.Files {
			names = append(names, f.Name)
			if f.Path != s.Dir+"/d/"+f.Name {
				t.Errorf("%s is at %s", f.Name, f.Path)
			}
		}
		if diff := cmp.Diff([]string{"a", "b", "link"}, names); diff != "" {
			t.Errorf("%s: %s", path, diff)
		}
		if got.Path != s.Dir+"/d" || got.Name != "d" || len(got.Subdirectories) != 1 || got.Subdirectories[0].Path != s.Dir+"/d/sub" || got.Files[1].Size != 2 {
			t.Errorf("%s: %+v", path, got)
		}
	}
	if got := agenttest.Get[agenttest.Directory](t, s, "GET", "/filesystem/d/link", ""); len(got.Files) != 1 || got.Files[0].Path != "d/link/deep" {
		t.Errorf("through a link: %+v", got)
	}
	if got := agenttest.Get[agenttest.Directory](t, s, "GET", "/filesystem/", ""); got.Path != s.Dir {
		t.Errorf("the working directory is %q", got.Path)
	}
	if err := os.Mkdir(s.Dir+"/empty", 0o755); err != nil {
		t.Fatal(err)
	}
	_, body := s.Call(t, "GET", "/filesystem/empty", "")
	if want := `{"path":"empty","name":"empty","files":[],"subdirectories":[]}` + "\n"; body != want {
		t.Errorf("empty: %s", body)
	}
}

func TestWriteFile(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	const created, made = "File created/updated successfully", "Directory created successfully"
	tests := map[string]struct {
		file, body, message string
		mode                os.FileMode
	}{
		"plain":          {"f", `{"content":"x"}`, created, 0o644},
		"parents":        {"p/q/r", `{"content":"x"}`, created, 0o644},
		"empty":          {"e", `{}`, created, 0o644},
		"mode":           {"m", `{"content":"x","permissions":"0755"}`, created, 0o755},
		"umask":          {"u", `{"content":"x","permissions":"666"}`, created, 0o644},
		"high bits":      {"h", `{"content":"x","permissions":"4755"}`, created, 0o755},
		"directory":      {"d", `{"isDirectory":true}`, made, os.ModeDir | 0o755},
		"directory mode": {"dm/x", `{"isDirectory":true,"permissions":"0700"}`, made, os.ModeDir | 0o700},
		"trailing slash": {"ts/", `{"isDirectory":true}`, made, os.ModeDir | 0o755},
		"unknown field":  {"uf", `{"content":"x","encoding":"y"}`, created, 0o644},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(s.Dir, test.file)
			got := agenttest.Get[map[string]string](t, s, "PUT", "/filesystem/"+test.file, test.body)
			if diff := cmp.Diff(map[string]string{"path": test.file, "message": test.message}, got); diff != "" {
				t.Error(diff)
			}
			fi, err := os.Stat(file)
			if err != nil || fi.Mode() != test.mode {
				t.Errorf("%v, %v", fi, err)
			}
			if b, _ := os.ReadFile(file); strings.Contains(test.body, `"x"`) && string(b) != "x" {
				t.Errorf("content %q", b)
			}
		})
	}
}

func TestWriteIsAtomic(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	file := s.Write(t, "f", "old")
	if err := os.Chmod(file, 0o4751); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(file, 1234, 2345); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(file, 0o751|os.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	old, err := os.Open(file) // a program that has it open
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	agenttest.Get[map[string]string](t, s, "PUT", "/filesystem/f", `{"content":"new","permissions":"0600"}`)
	fi, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	st := fi.Sys().(*syscall.Stat_t)
	if fi.Mode() != 0o751|os.ModeSetuid || st.Uid != 1234 || st.Gid != 2345 {
		t.Errorf("now %v of %d:%d", fi.Mode(), st.Uid, st.Gid)
	}
	if b, _ := io.ReadAll(old); string(b) != "old" {
		t.Errorf("the open file has %q: it was not replaced whole", b)
	}
	if err := os.Mkdir(s.Dir+"/d", 0o700); err != nil {
		t.Fatal(err)
	}
	agenttest.Get[map[string]string](t, s, "PUT", "/filesystem/d", `{"isDirectory":true,"permissions":"0755"}`)
	if fi, err := os.Stat(s.Dir + "/d"); err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("the directory: %v, %v", fi, err)
	}
}

func TestWriteFollowsLinks(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	s.Write(t, "dir/target", "old")
	s.Write(t, "far/away/x", "")
	for link, target := range map[string]string{
		"abs": s.Dir + "/dir/target2", "rel": "dir/target", "twice": "rel", "dangling": "dir/new",
		"away": "far/away", "up": "away/../made", // the parent of away's target, not of away
	} {
		if err := os.Symlink(target, filepath.Join(s.Dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	for link, target := range map[string]string{
		"abs": "dir/target2", "twice": "dir/target", "dangling": "dir/new", "up": "far/made",
	} {
		agenttest.Get[map[string]string](t, s, "PUT", "/filesystem/"+link, `{"content":"`+link+`"}`)
		if b, err := os.ReadFile(filepath.Join(s.Dir, target)); string(b) != link {
			t.Errorf("%s: %s has %q, %v", link, target, b, err)
		}
		if fi, err := os.Lstat(filepath.Join(s.Dir, link)); err != nil || fi.Mode()&os.ModeSymlink == 0 {
			t.Errorf("%s is no link any more", link)
		}
	}
}

func TestWriteRefuses(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	s.Write(t, "file", "old")
	if err := os.Mkdir(s.Dir+"/dir", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("loop", s.Dir+"/loop"); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(s.Dir+"/fifo", 0o644); err != nil {
		t.Fatal(err)
	}
	form := "Content-Type: multipart/form-data; boundary=b"
	tests := map[string]struct {
		path, body string
		headers    []string
		status     int
		want       string
	}{
		"empty body":      {"file", "", nil, 400, "empty"},
		"bad json":        {"file", "{", nil, 400, "JSON"},
		"raw":             {"file", "hello", []string{"Content-Type: application/octet-stream"}, 400, "JSON"},
		"wrong type":      {"file", `{"content":7}`, nil, 400, "content"},
		"bad mode":        {"file", `{"permissions":"rwx"}`, nil, 400, "octal"},
		"huge mode":       {"file", `{"permissions":"77777777777777"}`, nil, 400, "octal"},
		"directory":       {"dir", `{"content":"x"}`, nil, 422, "is a directory"},
		"as a directory":  {"new/", `{"content":"x"}`, nil, 422, "new/ ends with a slash"},
		"file in the way": {"file/x", `{"content":"x"}`, nil, 422, "not a directory"},
		"dir over file":   {"file", `{"isDirectory":true}`, nil, 422, "create the directory: file: not a directory"},
		"loop":            {"loop", `{"content":"x"}`, nil, 422, "too many levels"},
		"fifo":            {"fifo", `{"content":"x"}`, nil, 422, "not a regular file"},
		"long name":       {strings.Repeat("n", 300), `{"content":"x"}`, nil, 422, "name too long"},
		"no boundary":     {"file", "", []string{"Content-Type: multipart/form-data"}, 400, "boundary"},
		"no parts":        {"file", "--b--\r\n", []string{form}, 400, "no part named file"},
		"no file part":    {"file", part("other", "x", "1") + "--b--\r\n", []string{form}, 400, "no part named file"},
		"no filename":     {"file", part("file", "", "1") + "--b--\r\n", []string{form}, 400, "has no filename"},
		"form, bad mode":  {"file", part("permissions", "", "9") + part("file", "f", "1") + "--b--\r\n", []string{form}, 400, "octal"},
		"cut off":         {"file", part("file", "f", strings.Repeat("new", 100)), []string{form}, 400, "the file is unchanged"},
		"form, directory": {"dir", part("file", "f", "1") + "--b--\r\n", []string{form}, 422, "is a directory"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s.Fails(t, test.status, test.want, "PUT", "/filesystem/"+test.path, test.body, test.headers...)
			if b, err := os.ReadFile(s.Dir + "/file"); string(b) != "old" {
				t.Errorf("the file has %q, %v", b, err)
			}
		})
	}
	t.Cleanup(func() { // after all of them
		if left, _ := filepath.Glob(s.Dir + "/.doze-*"); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	})
}

// part is one part of a multipart body with the boundary b.
func part(name, filename, content string) string {
	disposition := fmt.Sprintf(`form-data; name=%q`, name)
	if filename != "" {
		disposition += fmt.Sprintf(`; filename=%q`, filename)
	}
	return "--b\r\nContent-Disposition: " + disposition + "\r\n\r\n" + content + "\r\n"
}

func TestUpload(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	content := strings.Repeat("\x00\xff\r\n--b", 300_000)
	send := func(path string, fields ...[2]string) (int, string) {
		var b bytes.Buffer
		w := multipart.NewWriter(&b)
		for _, f := range fields {
			h := textproto.MIMEHeader{"Content-Disposition": {`form-data; name="` + f[0] + `"`}}
			if f[0] == "file" {
				h.Set("Content-Disposition", `form-data; name="file"; filename="blob"`)
			}
			p, _ := w.CreatePart(h)
			_, _ = io.WriteString(p, f[1])
		}
		w.Close()
		return s.Call(t, "PUT", path, b.String(), "Content-Type: "+w.FormDataContentType())
	}
	before, after := [2]string{"permissions", "0700"}, [2]string{"permissions", "0777"}
	for name, test := range map[string]struct {
		fields [][2]string
		mode   os.FileMode
	}{
		"before": {[][2]string{before, {"path", "/x"}, {"file", content}, after}, 0o700},
		"after":  {[][2]string{{"file", content}, after}, 0o644},
	} {
		status, body := send("/filesystem/up/"+name, test.fields...)
		want := `{"path":"up/` + name + `","message":"Binary file uploaded successfully"}` + "\n"
		if status != 200 || body != want {
			t.Errorf("%s: status %d: %s", name, status, body)
		}
		fi, err := os.Stat(s.Dir + "/up/" + name)
		if err != nil || fi.Mode() != test.mode {
			t.Errorf("%s: %v, %v", name, fi, err)
		}
		if b, _ := os.ReadFile(s.Dir + "/up/" + name); string(b) != content {
			t.Errorf("%s: %d bytes, want %d", name, len(b), len(content))
		}
	}
}

// Readers see one of the contents, whole, however many write.
func TestWritesAreAtomic(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	const size = 100_000
	file := s.Write(t, "f", strings.Repeat("0", size))
	var all sync.WaitGroup
	for _, c := range "1234" {
		all.Go(func() {
			for range 10 {
				agenttest.Get[map[string]string](t, s, "PUT", "/filesystem/f", `{"content":"`+strings.Repeat(string(c), size)+`"}`)
			}
		})
	}
	for range 200 {
		b, err := os.ReadFile(file)
		if err != nil || len(b) != size || strings.Trim(string(b), string(b[:1])) != "" {
			t.Fatalf("%d mixed bytes, %v", len(b), err)
		}
	}
	all.Wait()
}

func TestDelete(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	s.Write(t, "file", "")
	s.Write(t, "full/x", "")
	s.Write(t, "tree/x", "")
	s.Write(t, "target/x", "")
	for _, d := range []string{"empty", "tree/empty"} {
		if err := os.Mkdir(filepath.Join(s.Dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for link, target := range map[string]string{"flink": "target/x", "dlink": "target", "dangling": "none"} {
		if err := os.Symlink(target, filepath.Join(s.Dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	s.Fails(t, 404, "file or directory not found", "DELETE", "/filesystem/none", "")
	s.Fails(t, 404, "file or directory not found", "DELETE", "/filesystem/dangling", "")
	s.Fails(t, 422, "full is not empty; add recursive=true", "DELETE", "/filesystem/full", "")
	s.Fails(t, 422, "not empty", "DELETE", "/filesystem/full?recursive=1", "")
	s.Fails(t, 422, "cannot be deleted", "DELETE", "/filesystem/?recursive=true", "")
	s.Fails(t, 422, "cannot be deleted", "DELETE", "/filesystem/%2F?recursive=true", "")
	if err := os.Symlink(filepath.Dir(s.Dir), filepath.Join(s.Dir, "up")); err != nil {
		t.Fatal(err)
	}
	s.Fails(t, 422, "cannot be deleted", "DELETE", "/filesystem/up/"+filepath.Base(s.Dir)+"?recursive=true", "")
	if err := os.Symlink("/proc", filepath.Join(s.Dir, "kernel")); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"//proc/self/root", "/tree/proc/self/cwd", "//proc/1/root/tmp/x", "/kernel/self/root", "//sys/kernel"} {
		s.Fails(t, 422, "kernel's", "DELETE", "/filesystem"+path+"?recursive=true", "")
	}
	s.Fails(t, 422, "mount point", "DELETE", "/filesystem//proc?recursive=true", "")
	s.Fails(t, 422, "not a directory", "DELETE", "/filesystem/tree"+s.Dir+"/file", "")
	s.Fails(t, 422, "not a directory", "DELETE", "/filesystem/tree"+s.Dir+"/none", "")
	s.Fails(t, 422, "not empty", "DELETE", "/filesystem/tree"+s.Dir+"/tree", "")

	const file, directory = "File deleted successfully", "Directory deleted successfully"
	for _, test := range []struct{ path, message, gone string }{
		{"/filesystem/flink", file, "flink"},
		{"/filesystem/dlink?recursive=true", directory, "dlink"},
		{"/filesystem/file?recursive=true", file, "file"},
		{"/filesystem/empty", directory, "empty"},
		{"/filesystem/full?recursive=true", directory, "full"},
		{"/filesystem/tree" + s.Dir + "/tree/empty", directory, "tree/empty"},
		{"/filesystem/tree" + s.Dir + "/tree?recursive=true", directory, "tree"},
	} {
		if got := agenttest.Get[map[string]string](t, s, "DELETE", test.path, ""); got["message"] != test.message {
			t.Errorf("%s: %v", test.path, got)
		}
		if _, err := os.Lstat(filepath.Join(s.Dir, test.gone)); !os.IsNotExist(err) {
			t.Errorf("%s is still there: %v", test.gone, err)
		}
	}
	if _, err := os.Stat(s.Dir + "/target/x"); err != nil {
		t.Errorf("a link's target is gone: %v", err)
	}
}
