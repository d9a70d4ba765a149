package disk

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"gvisor.dev/gvisor/pkg/erofs"

	"github.com/dozehq/doze"
)

func library(tb testing.TB, o Options) *Library {
	tb.Helper()
	if _, err := exec.LookPath("mkfs.erofs"); err != nil || os.Geteuid() != 0 {
		tb.Skip("SKIPPED: images need root and mkfs.erofs")
	}
	l, err := Open(filepath.Join(tb.TempDir(), "lib"), o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { l.Close() })
	return l
}

// leftovers reports what a library has on disk beside its images.
func leftovers(t *testing.T, l *Library) (names []string) {
	t.Helper()
	for _, dir := range []string{l.tempDir(), l.imageDir()} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if _, err := readRecord(l.imageDir(), strings.TrimSuffix(strings.TrimSuffix(e.Name(), imageSuffix), recordSuffix)); err != nil {
				names = append(names, e.Name())
			}
		}
	}
	return names
}

// TestSeal reads an image with the reader of the engine that will run it.
func TestSeal(t *testing.T) {
	t.Parallel()
	l := library(t, Options{})
	text := strings.Repeat("0123456789abcdef", 700) // not a whole number of blocks
	archive := layer(t,
		entry{'d', 0o755, 0, "etc", ""}, entry{'f', 0o640, 7, "etc/passwd", "root:x:0:0\n"}, entry{'f', 0o600, 0, "empty", ""},
		entry{'f', 0o4711, 0, "bin/su", text}, entry{'h', 0, 0, "bin/doas", "bin/su"}, entry{'l', 0o777, 0, "lib", "usr/lib"},
		entry{'p', 0o600, 0, "fifo", ""}, entry{'d', 0o1777, 0, "tmp", ""},
	)
	img, err := l.ImportTar(t.Context(), "test/seal", bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(img.Path)
	if err != nil {
		t.Fatal(err)
	}
	r, err := erofs.OpenImage(f)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	got, inodes := map[string]string{}, map[uint64]string{}
	var walk func(dir string, nid uint64)
	walk = func(dir string, nid uint64) {
		inode, err := r.Inode(nid)
		if err != nil {
			t.Fatalf("%s: %v", dir, err)
		}
		line := fmt.Sprintf("%o %d", inode.Mode(), inode.UID())
		switch {
		case inode.IsDir():
			if err := inode.IterDirents(func(name string, _ uint8, nid uint64) error {
				if name != "." && name != ".." {
					walk(dir+"/"+name, nid)
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		case inode.IsSymlink():
			target, err := inode.Readlink()
			if err != nil {
				t.Fatal(err)
			}
			line += " " + target
		case inode.IsRegular():
			line += " " + content(t, r, &inode)
			if first, ok := inodes[nid]; ok {
				line = fmt.Sprintf("is %s, %d names", first, inode.Nlink())
			}
			inodes[nid] = dir
		}
		if inode.Mtime() != uint64(day.Unix()) && !inode.IsDir() {
			t.Errorf("%s is of %d", dir, inode.Mtime())
		}
		got[dir] = line
	}
	walk("", r.RootNid())
	want := map[string]string{
		"": "40755 0", "/bin": "40755 0", "/bin/doas": "104711 0 " + text, "/bin/su": "is /bin/doas, 2 names",
		"/etc": "40755 0", "/etc/passwd": "100640 7 root:x:0:0\n", "/empty": "100600 0 ", "/fifo": "10600 0", "/lib": "120777 0 usr/lib",
		"/dev": "40755 0", "/proc": "40555 0", "/root": "40700 0", "/run": "40755 0", "/sys": "40555 0", "/tmp": "41777 0",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func content(t *testing.T, r *erofs.Image, inode *erofs.Inode) string {
	t.Helper()
	if inode.Size() == 0 {
		return ""
	}
	off, err := inode.DataOffset()
	if err != nil {
		t.Fatal(err)
	}
	b, err := r.BytesAt(off, inode.Size())
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestSealSame makes an image of equal trees, a second apart.
func TestSealSame(t *testing.T) {
	t.Parallel()
	a, b := library(t, Options{}), library(t, Options{})
	archive := layer(t, entry{'d', 0o755, 0, ".", ""}, entry{'d', 0o755, 0, "a", ""}, entry{'f', 0o600, 0, "a/f", "x"})
	one, err := a.ImportTar(t.Context(), "one", bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	z.Write(archive)
	z.Close()
	two, err := b.ImportTar(t.Context(), "two", &zipped)
	if err != nil || one.Digest != two.Digest {
		t.Errorf("%s and %s, %v", one.Digest, two.Digest, err)
	}
}

func TestLibraryReopen(t *testing.T) {
	t.Parallel()
	l := library(t, Options{})
	files := func(s string) io.Reader { return bytes.NewReader(layer(t, entry{'f', 0o600, 0, "f", s})) }
	imported := func(ref, s string) Image {
		img, err := l.ImportTar(t.Context(), ref, files(s))
		if err != nil {
			t.Fatal(err)
		}
		return img
	}
	old, also := imported("mine", "1"), imported("also", "1")
	young, slim := imported("mine", "2"), imported("slim", "3")
	if old.Digest != also.Digest || old.Digest == young.Digest {
		t.Fatalf("%v %v %v", old, also, young)
	}
	// What a kill leaves: a work directory, an image and a record half-done.
	for _, name := range []string{"tmp/build-1/tree/f", "images/aa.erofs", "images/bb.json.new"} {
		file := filepath.Join(l.dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte("x"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	working, err := l.workspace() // of a process that lives
	if err != nil {
		t.Fatal(err)
	}
	defer working.discard()

	again, err := Open(l.dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if diff := cmp.Diff(l.Images(), again.Images()); diff != "" {
		t.Errorf("after a restart: %s", diff)
	}
	for ref, want := range map[string]Image{"mine": young, "mine:latest": young, "also": also, "blaxel/slim:latest": slim} {
		got, err := again.Ensure(t.Context(), ref, nil)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v %s", ref, err, diff)
		}
	}
	if got := leftovers(t, again); len(got) != 1 || got[0] != filepath.Base(working.dir) {
		t.Errorf("left: %v", got)
	}
	if _, err := os.Stat(old.Path); err != nil {
		t.Errorf("the image that sandboxes may still have: %v", err)
	}
	// An image that another process made is found.
	if _, err := again.ImportTar(t.Context(), "late", files("4")); err != nil {
		t.Fatal(err)
	}
	if err := l.Check("late"); err != nil {
		t.Error(err)
	}
}

func TestRetain(t *testing.T) {
	t.Parallel()
	l := library(t, Options{})
	imported := map[string]Image{}
	for _, ref := range []string{"old", "used", "young", "same"} {
		img, err := l.ImportTar(t.Context(), ref, bytes.NewReader(layer(t, entry{'f', 0o600, 0, "f", strings.TrimPrefix(ref, "same")})))
		if err != nil {
			t.Fatal(err)
		}
		imported[ref] = img
	}
	// One image of two references.
	if _, err := l.ImportTar(t.Context(), "also", bytes.NewReader(layer(t, entry{'f', 0o600, 0, "f", "old"}))); err != nil {
		t.Fatal(err)
	}
	broken := filepath.Join(l.imageDir(), "bb.json")
	if err := os.WriteFile(broken, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	gone, err := l.Retain([]string{"/the/library/was/here/" + filepath.Base(imported["used"].Path), imported["young"].Path})
	if diff := cmp.Diff([]string{"also:latest", "old:latest", "same:latest"}, gone); diff != "" || err != nil {
		t.Errorf("%v %s", err, diff)
	}
	for ref, img := range imported {
		stays := ref == "used" || ref == "young"
		if _, err := os.Stat(img.Path); stays != (err == nil) {
			t.Errorf("%s: %v", ref, err)
		}
		if err := l.Check(ref); stays != (err == nil) {
			t.Errorf("%s: %v", ref, err)
		}
	}
	if _, err := os.Stat(broken); err != nil {
		t.Error(err)
	}
	again, err := Open(l.dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if diff := cmp.Diff(l.Images(), again.Images()); diff != "" || len(l.Images()) != 2 {
		t.Errorf("%d images; after a restart: %s", len(l.Images()), diff)
	}
}

// TestLasting names what a backup must have: images in use, and those that records name and
// no registry has.
func TestLasting(t *testing.T) {
	t.Parallel()
	l, h := library(t, Options{PrivateRegistries: true}), newHub(t)
	images := map[string]Image{}
	for _, name := range []string{"pulled", "running"} {
		h.push(t, name, v1.Config{}, layer(t, entry{'f', 0o600, 0, "f", name}))
		img, err := l.Ensure(t.Context(), h.host+"/"+name, nil)
		if err != nil {
			t.Fatal(err)
		}
		images[name] = img
	}
	for _, name := range []string{"mine", "others"} {
		img, err := l.ImportTar(t.Context(), name, bytes.NewReader(layer(t, entry{'f', 0o600, 0, "f", name})))
		if err != nil {
			t.Fatal(err)
		}
		images[name] = img
	}
	files, err := l.Lasting([]string{"/was/here/" + filepath.Base(images["running"].Path)}, []string{images["mine"].Ref, images["pulled"].Ref})
	if err != nil {
		t.Fatal(err)
	}
	for name, lasts := range map[string]bool{"pulled": false, "running": true, "mine": true, "others": false} {
		file := images[name].Path
		record := strings.TrimSuffix(file, imageSuffix) + recordSuffix
		if slices.Contains(files, file) != lasts || slices.Contains(files, record) != lasts {
			t.Errorf("%s is in %q: want %t", name, files, lasts)
		}
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	l := library(t, Options{})
	for ref, ok := range map[string]bool{
		"blaxel/base-image": true, "blaxel/base-image:1": false, "registry.example.com/a": true, "python:3.12": false, "blaxel/nothing": false, "blaxel/codex": true, "blaxel/tailscale": false, "a b": false,
	} {
		err := l.Check(ref)
		if ok != (err == nil) || err != nil && doze.Public(err).Name != "INVALID_IMAGE" {
			t.Errorf("%s: %v", ref, err)
		}
		if !ok {
			if _, err := l.Ensure(t.Context(), ref, nil); doze.Public(err).Name != "INVALID_IMAGE" {
				t.Errorf("ensure %s: %v", ref, err)
			}
		}
	}
}

// A hub is a registry in this process, on loopback.
type hub struct {
	host  string
	login atomic.Value  // if set, the user:password that it wants
	blobs atomic.Int32  // how often a blob was asked for
	gate  chan struct{} // if not nil, blobs come only after it is closed
	fail  atomic.Int32  // if not 0, the status of all answers
}

func newHub(t *testing.T) *hub {
	t.Helper()
	h := &hub{}
	inner := registry.New(registry.Logger(slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)))
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); h.login.Load() != nil && user+":"+password != h.login.Load() {
			w.Header().Set("WWW-Authenticate", `Basic realm="hub"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if code := h.fail.Load(); code != 0 && r.URL.Path != "/v2/" {
			w.WriteHeader(int(code))
			return
		}
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
			h.blobs.Add(1)
			if h.gate != nil {
				select {
				case <-h.gate:
				case <-r.Context().Done():
					return
				}
			}
		}
		inner.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	h.host = strings.TrimPrefix(s.URL, "http://")
	return h
}

func (h *hub) push(t *testing.T, ref string, c v1.Config, layers ...[]byte) v1.Image {
	t.Helper()
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for _, b := range layers {
		var err error
		if img, err = mutate.AppendLayers(img, static.NewLayer(b, types.OCIUncompressedLayer)); err != nil {
			t.Fatal(err)
		}
	}
	file, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Config = "linux", runtime.GOARCH, c
	if img, err = mutate.ConfigFile(img, file); err != nil {
		t.Fatal(err)
	}
	to, err := name.ParseReference(h.host + "/" + ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(to, img); err != nil {
		t.Fatal(err)
	}
	h.blobs.Store(0)
	return img
}

func TestPull(t *testing.T) {
	t.Parallel()
	l, h := library(t, Options{PrivateRegistries: true}), newHub(t)
	pushed := h.push(t, "team/app:1", v1.Config{Env: []string{"A=b"}, User: "app:app", WorkingDir: "/srv"},
		layer(t, entry{'f', 0o600, 0, "a", "1"}, entry{'f', 0o600, 0, "b", "1"}),
		layer(t, entry{'f', 0, 0, ".wh.a", ""}, entry{'f', 0o600, 0, "b", "2"}))
	var steps []Progress
	img, err := l.Ensure(t.Context(), h.host+"/team/app:1", func(p Progress) { steps = append(steps, p) })
	if err != nil {
		t.Fatal(err)
	}
	digest, _ := pushed.Digest()
	want := Image{Ref: h.host + "/team/app:1", Digest: digest.String(), Path: img.Path, Bytes: img.Bytes, ImageConfig: doze.ImageConfig{Env: []string{"A=b"}, User: "app:app", WorkDir: "/srv"}}
	if diff := cmp.Diff(want, img); diff != "" {
		t.Error(diff)
	}
	if len(steps) == 0 || steps[len(steps)-1].Percent < 90 {
		t.Errorf("progress: %v", steps)
	}
	f, err := os.Open(img.Path)
	if err != nil {
		t.Fatal(err)
	}
	r, err := erofs.OpenImage(f)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	root, err := r.Inode(r.RootNid())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := root.Lookup("a"); err == nil {
		t.Error("a is there in spite of its whiteout")
	}
	if _, err := root.Lookup("b"); err != nil {
		t.Errorf("b: %v", err)
	}

	// Another tag of the same image costs no download, and the same one not
	// even a question.
	h.push(t, "team/app:2", v1.Config{Env: []string{"A=b"}, User: "app:app", WorkingDir: "/srv"},
		layer(t, entry{'f', 0o600, 0, "a", "1"}, entry{'f', 0o600, 0, "b", "1"}),
		layer(t, entry{'f', 0, 0, ".wh.a", ""}, entry{'f', 0o600, 0, "b", "2"}))
	two, err := l.Ensure(t.Context(), h.host+"/team/app:2", nil)
	if err != nil || two.Digest != img.Digest || h.blobs.Load() != 0 {
		t.Errorf("the second tag: %+v, %v, %d blobs", two, err, h.blobs.Load())
	}
	h.fail.Store(500)
	if _, err := l.Ensure(t.Context(), h.host+"/team/app:1", nil); err != nil {
		t.Errorf("what is here needs no registry: %v", err)
	}
}

func TestPullShared(t *testing.T) {
	t.Parallel()
	l, h := library(t, Options{PrivateRegistries: true}), newHub(t)
	h.push(t, "a", v1.Config{}, layer(t, entry{'f', 0o600, 0, "f", "x"}))
	h.gate = make(chan struct{})
	impatient, leave := context.WithCancel(t.Context())
	defer leave()
	var wg sync.WaitGroup
	for i := range 10 {
		wg.Go(func() {
			ctx := t.Context()
			if i == 0 {
				ctx = impatient
			}
			_, err := l.Ensure(ctx, h.host+"/a", func(Progress) {
				if i == 0 {
					leave()
				}
			})
			if (i == 0) != errors.Is(err, context.Canceled) || i != 0 && err != nil {
				t.Errorf("caller %d: %v", i, err)
			}
			if i == 0 {
				close(h.gate) // the others get their image although the first has left
			}
		})
	}
	wg.Wait()
	if n := h.blobs.Load(); n != 2 { // one layer, one configuration
		t.Errorf("%d blobs were sent for one image", n)
	}
	if left := leftovers(t, l); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestClose(t *testing.T) {
	t.Parallel()
	l, h := library(t, Options{PrivateRegistries: true}), newHub(t)
	h.push(t, "a", v1.Config{}, layer(t, entry{'f', 0o600, 0, "f", "x"}))
	h.gate = make(chan struct{})
	defer close(h.gate)
	begun := make(chan struct{})
	var once sync.Once
	done := make(chan error, 1)
	go func() {
		_, err := l.Ensure(t.Context(), h.host+"/a", func(Progress) { once.Do(func() { close(begun) }) })
		done <- err
	}()
	<-begun
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; doze.Public(err).Kind != doze.Unavailable {
		t.Errorf("the caller got %v", err)
	}
	if left := leftovers(t, l); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	if _, err := l.Ensure(t.Context(), h.host+"/b", nil); doze.Public(err).Kind != doze.Unavailable {
		t.Errorf("after the end: %v", err)
	}
}

func TestPullRefused(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		private bool
		prepare func(t *testing.T, h *hub, l *Library)
		kind    doze.Kind
		says    string
	}{
		"no such image":    {true, func(*testing.T, *hub, *Library) {}, doze.Invalid, "has no image"},
		"no credentials":   {true, func(_ *testing.T, h *hub, _ *Library) { h.fail.Store(401) }, doze.Invalid, "credentials"},
		"too often":        {true, func(_ *testing.T, h *hub, _ *Library) { h.fail.Store(429) }, doze.Unavailable, "later"},
		"out of order":     {true, func(_ *testing.T, h *hub, _ *Library) { h.fail.Store(418) }, doze.Unavailable, "418"},
		"on loopback":      {false, func(*testing.T, *hub, *Library) {}, doze.Invalid, "private"},
		"a broken archive": {true, func(t *testing.T, h *hub, _ *Library) { t.Helper(); h.push(t, "a", v1.Config{}, []byte("no archive")) }, doze.Invalid, "cannot be read"},
		"too many layers": {true, func(t *testing.T, h *hub, l *Library) {
			t.Helper()
			l.limits.layers = 1
			h.push(t, "a", v1.Config{}, layer(t), layer(t, entry{'f', 0, 0, "x", ""}))
		}, doze.Invalid, "layers"},
		"a hostile archive": {true, func(t *testing.T, h *hub, _ *Library) {
			t.Helper()
			h.push(t, "a", v1.Config{}, layer(t, entry{'f', 0o600, 0, "../x", ""}))
		}, doze.Invalid, "leads out"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, h := library(t, Options{PrivateRegistries: tt.private}), newHub(t)
			tt.prepare(t, h, l)
			_, err := l.Ensure(t.Context(), h.host+"/a", nil)
			if err == nil {
				t.Fatal("it was pulled")
			}
			public := doze.Public(err)
			if public.Kind != tt.kind || !strings.Contains(public.Message, tt.says) {
				t.Errorf("got %v %q from %v", public.Kind, public.Message, err)
			}
			if left := leftovers(t, l); len(left) != 0 || len(l.Images()) != 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// TestPullPrivate pulls with credentials: what comes is for their owner alone,
// and costs one download.
func TestPullPrivate(t *testing.T) {
	t.Parallel()
	l, h := library(t, Options{PrivateRegistries: true}), newHub(t)
	h.push(t, "team/app:1", v1.Config{}, layer(t, entry{'f', 0o600, 0, "f", "x"}))
	h.login.Store("me:word")
	ref := h.host + "/team/app:1"
	mine, theirs := &Login{"mine", "me", "word"}, &Login{"theirs", "me", "guess"}
	pinned, img, err := l.Pin(t.Context(), ref, mine, nil)
	if err != nil || pinned != h.host+"/team/app@"+img.Digest {
		t.Fatalf("%s, %+v, %v", pinned, img, err)
	}
	for _, ask := range []string{ref, pinned} {
		if again, err := l.EnsureFor(t.Context(), ask, mine, nil); err != nil || again.Path != img.Path {
			t.Errorf("%s again: %+v, %v", ask, again, err)
		}
		for who, says := range map[*Login]string{nil: "put credentials", theirs: "refuses the credentials"} {
			if _, err := l.EnsureFor(t.Context(), ask, who, nil); err == nil || !strings.Contains(doze.Public(err).Message, says) || doze.Public(err).Name != "INVALID_IMAGE" {
				t.Errorf("%s by %v: %v", ask, who, err)
			}
		}
	}
	h.blobs.Store(0)
	if other, err := l.EnsureFor(t.Context(), ref, &Login{"other", "me", "word"}, nil); err != nil || other.Path != img.Path || h.blobs.Load() != 0 {
		t.Errorf("another with credentials: %+v, %v, %d blobs", other, err, h.blobs.Load())
	}
	// The tag moves: what is pinned stays.
	h.login.Store(":") // of nobody
	h.push(t, "team/app:1", v1.Config{}, layer(t, entry{'f', 0o600, 0, "f", "y"}))
	if moved, _, err := l.Pin(t.Context(), ref, nil, nil); err != nil || moved == pinned {
		t.Errorf("%s, %v", moved, err)
	}
	if _, _, err := l.Pin(t.Context(), "blaxel/base-image", nil, nil); doze.Public(err).Name != "INVALID_IMAGE" {
		t.Errorf("no registry: %v", err)
	}
}

// TestPullTampered serves other bytes than those of the digest.
func TestPullTampered(t *testing.T) {
	t.Parallel()
	good := layer(t, entry{'f', 0o600, 0, "f", "good"})
	evil := layer(t, entry{'f', 0o600, 0, "f", "evil"})
	inner := registry.New(registry.Logger(slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)))
	var swap atomic.Bool
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !swap.Load() || r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/blobs/") {
			inner.ServeHTTP(w, r)
			return
		}
		answer := httptest.NewRecorder()
		inner.ServeHTTP(answer, r)
		w.Write(bytes.ReplaceAll(answer.Body.Bytes(), good, evil))
	}))
	defer s.Close()
	h := &hub{host: strings.TrimPrefix(s.URL, "http://")}
	h.push(t, "a", v1.Config{}, good)
	swap.Store(true)
	l := library(t, Options{PrivateRegistries: true})
	img, err := l.Ensure(t.Context(), h.host+"/a", nil)
	if err == nil {
		t.Fatalf("got %+v", img)
	}
	if doze.Public(err).Kind != doze.Invalid || len(leftovers(t, l)) != 0 {
		t.Errorf("%v, left: %v", err, leftovers(t, l))
	}
}

// TestUnreachable asks a registry that is not there.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	l := library(t, Options{PrivateRegistries: true})
	s := httptest.NewServer(nil)
	host := strings.TrimPrefix(s.URL, "http://")
	s.Close()
	_, err := l.Ensure(t.Context(), host+"/a", nil)
	if public := doze.Public(err); public.Kind != doze.Unavailable || !strings.Contains(public.Message, "cannot be reached") {
		t.Errorf("got %v", err)
	}
}

func TestImportRefused(t *testing.T) {
	t.Parallel()
	l := library(t, Options{})
	l.limits = limits{bytes: 8 << 10, files: 10}
	var cut bytes.Buffer
	tar.NewWriter(&cut).WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "f", Size: 50})
	for name, b := range map[string][]byte{
		"cut": cut.Bytes(), "gzip": {0x1f, 0x8b, 0}, "large": layer(t, entry{'f', 0o600, 0, "f", strings.Repeat("x", 8<<10+1)}), "out": layer(t, entry{'f', 0o600, 0, "../f", ""}),
	} {
		if img, err := l.ImportTar(t.Context(), "mine", bytes.NewReader(b)); err == nil || doze.Public(err).Kind == doze.Internal {
			t.Errorf("%s: %v, %v", name, img, err)
		}
	}
	if left := leftovers(t, l); len(left) != 0 || len(l.Images()) != 0 {
		t.Errorf("left: %v, %v", left, l.Images())
	}
	if _, err := os.Stat(filepath.Join(l.dir, "..", "f")); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

func TestPublic(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]bool{
		"9.9.9.9": true, "2606:4700::1": true, "127.0.0.1": false, "10.1.2.3": false, "169.254.169.254": false, "100.64.1.1": false, "0.0.0.0": false,
		"::1": false, "::ffff:10.0.0.1": false, "::ffff:9.9.9.9": true, "64:ff9b::a00:1": false, "2002:a00:1::": false, "fd00::1": false, "fe80::1": false, "255.255.255.255": false,
	} {
		if got := public(netip.MustParseAddr(s)); got != want {
			t.Errorf("%s is public: %v", s, got)
		}
	}
}

func TestFlightProgress(t *testing.T) {
	t.Parallel()
	f := newFlight(func(error) {})
	f.report(Progress{"a", 50})
	f.report(Progress{"b", 10})
	if now, _ := f.latest(); now != (Progress{"b", 50}) {
		t.Errorf("progress fell: %v", now)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := f.wait(ctx, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}
