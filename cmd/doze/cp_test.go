//go:build linux

package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze/internal/agent"
)

// newInside runs the agent of a sandbox called web, with its files in dir. Handle
// may answer a request before the agent does.
func newInside(t *testing.T, handle func(w http.ResponseWriter, r *http.Request) bool) (s *server, dir string) {
	t.Helper()
	dir = t.TempDir()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	hidden := t.TempDir()
	a := agent.New(agent.Config{Env: append(os.Environ(), "WORKDIR="+dir), LogDir: filepath.Join(hidden, "logs"), UploadDir: filepath.Join(hidden, "uploads")})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	const below = "/run/w/sandboxes/web"
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: l.Addr().String()})
	proxy.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	pass := http.StripPrefix(below, proxy)
	s = &server{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/v0/sandboxes/web":
			fmt.Fprintf(w, sandboxJSON, "web", s.URL+below)
		case handle == nil || !handle(w, r):
			pass.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return s, dir
}

// plant makes files, directories, which end in a slash, and links.
func plant(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		full := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(full), 0o755)
		target, isLink := strings.CutPrefix(content, "-> ")
		switch {
		case err != nil:
		case strings.HasSuffix(name, "/"):
			err = os.MkdirAll(full, 0o755)
		case isLink:
			err = os.Symlink(target, full)
		default:
			err = os.WriteFile(full, []byte(content), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// harvest is what plant makes.
func harvest(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(dir, name)
		if err != nil || rel == "." {
			return err
		}
		if d.IsDir() {
			files[rel+"/"] = ""
			return nil
		}
		content, err := os.ReadFile(name)
		files[rel] = string(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestCopy(t *testing.T) {
	t.Parallel()
	tree := map[string]string{"app/a b.txt": "one", "app/sub/ü": "two", "app/sub/empty": "", "app/none/": ""}
	copied := func(top string) map[string]string {
		return map[string]string{top: "", top + "a b.txt": "one", top + "sub/": "", top + "sub/ü": "two", top + "sub/empty": "", top + "none/": ""}
	}
	for name, tt := range map[string]struct {
		there, here map[string]string // before
		from, to    string            // HERE is the directory here
		in          string
		code        int
		wantThere   map[string]string // nil: as it was
		wantHere    map[string]string
		out, says   string
	}{
		"a file in": {
			here: map[string]string{"f": "x"}, from: "HERE/f", to: "web:g", wantThere: map[string]string{"g": "x"},
		},
		"into a directory": {
			here: map[string]string{"f": "x"}, there: map[string]string{"d/": ""}, from: "HERE/f", to: "web:d",
			wantThere: map[string]string{"d/": "", "d/f": "x"},
		},
		"into a directory to be": {
			here: map[string]string{"f": "x"}, from: "HERE/f", to: "web:d/", wantThere: map[string]string{"d/": "", "d/f": "x"},
		},
		"over a file": {
			here: map[string]string{"f": "x"}, there: map[string]string{"g": "a longer one"}, from: "HERE/f", to: "web:g",
			wantThere: map[string]string{"g": "x"},
		},
		"a tree in":               {here: tree, from: "HERE/app", to: "web:", wantThere: copied("app/")},
		"a tree under a new name": {here: tree, from: "HERE/app", to: "web:new", wantThere: copied("new/")},
		"a tree out":              {there: tree, from: "web:app", to: "HERE", wantHere: copied("app/")},
		"a tree out, new name":    {there: tree, from: "web:app", to: "HERE/new", wantHere: copied("new/")},
		"all of it":               {there: tree, from: "web:", to: "HERE/all", wantHere: map[string]string{"all/": "", "all/app/": "", "all/app/a b.txt": "one", "all/app/sub/": "", "all/app/sub/ü": "two", "all/app/sub/empty": "", "all/app/none/": ""}},
		"a file out":              {there: map[string]string{"f": "x"}, from: "web:f", to: "HERE/g", wantHere: map[string]string{"g": "x"}},
		"a file out over another": {there: map[string]string{"f": "x"}, here: map[string]string{"f": "old"}, from: "web:f", to: "HERE", wantHere: map[string]string{"f": "x"}},
		"input":                   {from: "-", to: "web:f", in: "piped", wantThere: map[string]string{"f": "piped"}},
		"output":                  {there: map[string]string{"f": "x\x00y"}, from: "web:f", to: "-", out: "x\x00y"},
		"links in": {
			here: map[string]string{"d/f": "x", "d/l": "-> f", "d/up": "-> ..", "d/gone": "-> none"}, from: "HERE/d", to: "web:", code: 1,
			wantThere: map[string]string{"d/": "", "d/f": "x", "d/l": "x"}, says: "skipped links",
		},
		"links out": {
			there: map[string]string{"d/f": "x", "d/l": "-> f", "d/up": "-> ..", "d/gone": "-> none"}, from: "web:d", to: "HERE", code: 1,
			wantHere: map[string]string{"d/": "", "d/f": "x", "d/l": "x"}, says: "skipped links",
		},
		"nothing here":    {from: "HERE/none", to: "web:f", code: 1, says: "no such file"},
		"nothing there":   {from: "web:none", to: "HERE/f", code: 3, says: "no such file"},
		"no directory":    {there: map[string]string{"f": "x"}, from: "web:f", to: "HERE/none/", code: 1, says: "no such directory"},
		"both here":       {from: "HERE/a", to: "./web:b", code: 2, says: "one of the two"},
		"both there":      {from: "web:a", to: "web:b", code: 2, says: "one of the two"},
		"a file as a dir": {here: map[string]string{"f": "x"}, there: map[string]string{"g": "x"}, from: "HERE/f", to: "web:g/h", code: 1, says: "not a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, dir := newInside(t, nil)
			home := t.TempDir()
			plant(t, home, tt.here)
			plant(t, dir, tt.there)
			wantThere, wantHere := tt.wantThere, tt.wantHere
			if wantThere == nil && tt.says == "" {
				wantThere = harvest(t, dir)
			}
			if wantHere == nil && tt.says == "" {
				wantHere = harvest(t, home)
			}
			code, out, errs := s.command(t.Context(), t, tt.in, "sandbox", "cp", strings.Replace(tt.from, "HERE", home, 1), strings.Replace(tt.to, "HERE", home, 1))
			if code != tt.code || out != tt.out || !strings.Contains(errs, tt.says) || tt.says == "" && errs != "" {
				t.Errorf("exit code %d, %q, %q", code, out, errs)
			}
			if wantThere != nil {
				if diff := cmp.Diff(wantThere, harvest(t, dir)); diff != "" {
					t.Errorf("in the sandbox (-want +got):\n%s", diff)
				}
			}
			if wantHere != nil {
				if diff := cmp.Diff(wantHere, harvest(t, home)); diff != "" {
					t.Errorf("here (-want +got):\n%s", diff)
				}
			}
		})
	}
}

func TestCopyPreservesPermissions(t *testing.T) {
	t.Parallel()
	s, dir := newInside(t, nil)
	home := t.TempDir()
	plant(t, home, map[string]string{"run": "#!/bin/sh"})
	if err := os.Chmod(filepath.Join(home, "run"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{filepath.Join(home, "run"), "web:run"}, {"web:run", filepath.Join(home, "back")}} {
		if code, _, errs := s.command(t.Context(), t, "", "sandbox", "cp", args[0], args[1]); code != 0 {
			t.Fatal(errs)
		}
	}
	for _, name := range []string{filepath.Join(dir, "run"), filepath.Join(home, "back")} {
		if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
}

// TestCopyOfALargeFile goes in parts, of which one may be lost.
func TestCopyOfALargeFile(t *testing.T) {
	t.Parallel()
	const size = 20<<20 + 1
	content := make([]byte, size)
	_, _ = rand.Read(content)
	var parts, lose atomic.Int32
	s, dir := newInside(t, func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "/part") {
			return false
		}
		if parts.Add(1) != lose.Load() {
			return false
		}
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	})
	home := t.TempDir()
	plant(t, home, map[string]string{"large": string(content)})
	plant(t, dir, map[string]string{"large": "before"})

	lose.Store(2)
	if code, _, errs := s.command(t.Context(), t, "", "sandbox", "cp", filepath.Join(home, "large"), "web:"); code != 5 {
		t.Errorf("with a part that is lost: exit code %d, %q", code, errs)
	}
	if got := harvest(t, dir); got["large"] != "before" || len(got) != 1 {
		t.Error("a half file took the place of a whole one")
	}
	parts.Store(0)
	lose.Store(0)
	if code, _, errs := s.command(t.Context(), t, "", "sandbox", "cp", filepath.Join(home, "large"), "web:"); code != 0 {
		t.Fatal(errs)
	}
	if parts.Load() != 3 {
		t.Errorf("%d parts", parts.Load())
	}
	if code, _, errs := s.command(t.Context(), t, "", "sandbox", "cp", "web:large", filepath.Join(home, "back")); code != 0 {
		t.Fatal(errs)
	}
	if back := harvest(t, home)["back"]; !bytes.Equal([]byte(back), content) {
		t.Errorf("%d bytes came back, and not the same", len(back))
	}
}

// TestCopyThatBreaksOff leaves nothing that looks like a file.
func TestCopyThatBreaksOff(t *testing.T) {
	t.Parallel()
	s, dir := newInside(t, func(w http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("Accept") != "application/octet-stream" || r.Header.Get("Range") != "" {
			return false
		}
		w.Header().Set("Content-Disposition", "attachment")
		w.Header().Set("Content-Length", "1000")
		_, _ = io.WriteString(w, "the beginning")
		http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	plant(t, dir, map[string]string{"f": "x"})
	home := t.TempDir()
	plant(t, home, map[string]string{"f": "before"})
	if code, _, errs := s.command(t.Context(), t, "", "sandbox", "cp", "web:f", home); code != 1 || errs == "" {
		t.Errorf("exit code %d, %q", code, errs)
	}
	if diff := cmp.Diff(map[string]string{"f": "before"}, harvest(t, home)); diff != "" {
		t.Error(diff)
	}
}

// TestNamesOfASandboxLeadNowhere: who wrote them may wish the one harm who
// copies.
func TestNamesOfASandboxLeadNowhere(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"../evil", "..", ".", "", "/etc/evil", "a/../../evil"} {
		for _, kind := range []string{`{"path":"d","files":[{"name":%q,"permissions":"644"}],"subdirectories":[]}`, `{"path":"d","files":[],"subdirectories":[{"name":%q}]}`} {
			s, dir := newInside(t, func(w http.ResponseWriter, r *http.Request) bool {
				if !strings.HasPrefix(r.Header.Get("Accept"), "application/json") {
					return false
				}
				fmt.Fprintf(w, kind, name)
				return true
			})
			plant(t, dir, map[string]string{"d/f": "x"})
			home := t.TempDir()
			if code, _, errs := s.command(t.Context(), t, "", "sandbox", "cp", "web:d", filepath.Join(home, "in")); code != 1 || !strings.Contains(errs, "cannot create a local file") {
				t.Errorf("%q: exit code %d, %q", name, code, errs)
			}
			for got := range harvest(t, home) {
				if got != "in/" {
					t.Errorf("%q: there is %s", name, got)
				}
			}
		}
	}
}

func TestSpecialFilesAreLeftOut(t *testing.T) {
	t.Parallel()
	s, dir := newInside(t, nil)
	home := t.TempDir()
	for _, at := range []string{dir, home} {
		plant(t, at, map[string]string{"d/f": "x"})
		if err := syscall.Mkfifo(filepath.Join(at, "d", "pipe"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{filepath.Join(home, "d"), "web:copy"}, {"web:d", filepath.Join(home, "copy")}} {
		if code, _, errs := s.command(t.Context(), t, "", "sandbox", "cp", args[0], args[1]); code != 1 || !strings.Contains(errs, "d/pipe") {
			t.Errorf("exit code %d, %q", code, errs)
		}
	}
	for _, at := range []string{dir, home} {
		if diff := cmp.Diff(map[string]string{"f": "x"}, harvest(t, filepath.Join(at, "copy"))); diff != "" {
			t.Error(diff)
		}
	}
}
