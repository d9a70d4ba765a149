package disk

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/space"
)

// squeeze compresses what a function writes.
func squeeze(tb testing.TB, write func(w io.Writer)) []byte {
	tb.Helper()
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestSpeed)
	if err != nil {
		tb.Fatal(err)
	}
	write(z)
	if err := z.Close(); err != nil {
		tb.Fatal(err)
	}
	return b.Bytes()
}

// bomb is a small layer with one file of n zeros.
func bomb(tb testing.TB, n int64) []byte {
	tb.Helper()
	return squeeze(tb, func(w io.Writer) {
		t := tar.NewWriter(w)
		if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "zeros", Mode: 0o644, Size: n}); err != nil {
			tb.Fatal(err)
		}
		if _, err := io.CopyN(t, zeros{}, n); err != nil {
			tb.Fatal(err)
		}
		if err := t.Close(); err != nil {
			tb.Fatal(err)
		}
	})
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// window is a frame of zstd that wants a window of 2 GiB.
func window() []byte {
	return []byte{0x28, 0xb5, 0x2f, 0xfd, 0x00, 21 << 3, 0x01, 0x00, 0x00}
}

// pushRaw pushes an image whose layers are the bytes given, whatever they are, and
// whose manifest and configuration may be altered.
func (h *hub) pushRaw(t *testing.T, alter func(m *v1.Manifest, c *v1.ConfigFile), layers ...[]byte) {
	t.Helper()
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	to, err := name.NewRepository(h.host + "/a")
	if err != nil {
		t.Fatal(err)
	}
	m, err := img.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	m = m.DeepCopy()
	m.Config.Size = 0
	c := &v1.ConfigFile{OS: "linux", Architecture: runtime.GOARCH, RootFS: v1.RootFS{Type: "layers"}}
	for _, b := range layers {
		blob := static.NewLayer(b, types.OCILayer)
		if err := remote.WriteLayer(to, blob); err != nil {
			t.Fatal(err)
		}
		digest, _ := blob.Digest()
		m.Layers = append(m.Layers, v1.Descriptor{MediaType: types.OCILayer, Digest: digest, Size: int64(len(b))})
		plain := io.Reader(bytes.NewReader(b))
		if z, err := gzip.NewReader(bytes.NewReader(b)); err == nil {
			plain = z
		}
		diff, _, err := v1.SHA256(plain)
		if err != nil { // no archive: any sum is as wrong as the other
			diff = digest
		}
		c.RootFS.DiffIDs = append(c.RootFS.DiffIDs, diff)
	}
	if alter != nil {
		alter(m, c)
	}
	raw, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	config := static.NewLayer(raw, types.OCIConfigJSON)
	if err := remote.WriteLayer(to, config); err != nil {
		t.Fatal(err)
	}
	if m.Config.Size == 0 {
		m.Config.Size = int64(len(raw))
	}
	m.Config.MediaType = types.OCIConfigJSON
	m.Config.Digest, _ = config.Digest()
	if raw, err = json.Marshal(m); err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://"+h.host+"/v2/a/manifests/latest", bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", string(types.OCIManifestSchema1))
	answer, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusCreated {
		t.Fatalf("the registry answers %s", answer.Status)
	}
}

// TestHostileImages pulls what a stranger may have put into a registry. Each is
// refused as an image that cannot be used, which is the fault of the caller, and
// nothing of it stays.
func TestHostileImages(t *testing.T) {
	t.Parallel()
	plain := layer(t, entry{'f', 0o600, 0, "f", "x"})
	zip := func(b []byte) []byte { return squeeze(t, func(w io.Writer) { _, _ = w.Write(b) }) }
	files := func(n int) (all []entry) {
		for i := range n {
			all = append(all, entry{'f', 0o600, 0, fmt.Sprint(i), ""})
		}
		return all
	}
	chain := []entry{{'d', 0o700, 0, "d", ""}} // each name is short, and leads deep
	at := "d"
	for i := range 40 {
		at += "/" + strings.Repeat("n", 200)
		chain = append(chain, entry{'d', 0o700, 0, at[max(0, len(at)-3000):], ""})
		if i == 12 {
			chain = append(chain, entry{'l', 0, 0, "l", at}, entry{'d', 0o700, 0, "l/" + strings.Repeat("m/"+strings.Repeat("n", 200)+"/", 14), ""})
		}
	}
	tests := map[string]struct {
		alter  func(m *v1.Manifest, c *v1.ConfigFile)
		layers [][]byte
		says   string
	}{
		"a bomb":                       {nil, [][]byte{bomb(t, 300<<20)}, "times its compressed size"},
		"a bomb of small files":        {nil, [][]byte{zip(layer(t, files(60_000)...))}, "files"},
		"a bomb behind a good layer":   {nil, [][]byte{plain, bomb(t, 300<<20)}, "layer 2"},
		"bad gzip":                     {nil, [][]byte{{0x1f, 0x8b, 8, 0, 1, 2, 3}}, "cannot be read"},
		"gzip that is cut":             {nil, [][]byte{zip(plain)[:100]}, "cannot be read"},
		"bytes behind the gzip":        {nil, [][]byte{append(zip(plain), "more"...)}, "cannot be read"},
		"bad zstd":                     {nil, [][]byte{{0x28, 0xb5, 0x2f, 0xfd, 1, 2, 3, 4, 5, 6, 7, 8}}, "cannot be read"},
		"a huge window":                {nil, [][]byte{window()}, "cannot be read"},
		"bad tar":                      {nil, [][]byte{zip(bytes.Repeat([]byte("text"), 1000))}, "cannot be read"},
		"a tar that is cut":            {nil, [][]byte{zip(plain[:512])}, "cannot be read"},
		"a name that climbs":           {nil, [][]byte{layer(t, entry{'f', 0o600, 0, "../x", ""})}, "leads out"},
		"a hard link that climbs":      {nil, [][]byte{layer(t, entry{'h', 0, 0, "h", "/../../etc/passwd"})}, "leads out"},
		"a file below a file":          {nil, [][]byte{layer(t, entry{'f', 0o600, 0, "f", ""}, entry{'f', 0o600, 0, "f/g", ""})}, "same place"},
		"a pipe with children":         {nil, [][]byte{layer(t, entry{'p', 0o600, 0, "p", ""}, entry{'f', 0o600, 0, "p/g", ""})}, "same place"},
		"a loop":                       {nil, [][]byte{layer(t, entry{'l', 0, 0, "a", "b"}, entry{'l', 0, 0, "b", "a"}, entry{'f', 0o600, 0, "a/f", ""})}, "symbolic links"},
		"a whiteout of nothing":        {nil, [][]byte{layer(t, entry{'f', 0, 0, ".wh.", ""})}, "whiteout"},
		"a whiteout that climbs":       {nil, [][]byte{layer(t, entry{'f', 0, 0, ".wh...", ""})}, "whiteout"},
		"a file in place of the root":  {nil, [][]byte{layer(t, entry{'l', 0, 0, "./", "/etc"})}, "root directory"},
		"a path beyond all paths":      {nil, [][]byte{layer(t, chain...)}, "too long"},
		"too many layers":              {nil, slicesOf(plain, 300), "layers"},
		"a wrong size":                 {func(m *v1.Manifest, _ *v1.ConfigFile) { m.Layers[0].Size-- }, [][]byte{zip(plain)}, "no image"},
		"a wrong diff id":              {func(_ *v1.Manifest, c *v1.ConfigFile) { c.RootFS.DiffIDs[0].Hex = strings.Repeat("0", 64) }, [][]byte{zip(plain)}, "diff_id"},
		"fewer diff ids than layers":   {func(_ *v1.Manifest, c *v1.ConfigFile) { c.RootFS.DiffIDs = c.RootFS.DiffIDs[:1] }, [][]byte{plain, plain}, "diff_id"},
		"a layer without a size":       {func(m *v1.Manifest, _ *v1.ConfigFile) { m.Layers[0].Size = -1 }, [][]byte{zip(plain)}, "size"},
		"a layer beyond all sizes":     {func(m *v1.Manifest, _ *v1.ConfigFile) { m.Layers[0].Size = 1 << 50 }, [][]byte{zip(plain)}, "MB"},
		"sizes that overflow":          {func(m *v1.Manifest, _ *v1.ConfigFile) { m.Layers[0].Size, m.Layers[1].Size = 1<<62, 1<<62 }, [][]byte{plain, plain}, "MB"},
		"a configuration without size": {func(m *v1.Manifest, _ *v1.ConfigFile) { m.Config.Size = -1 }, [][]byte{plain}, "size"},
		"a long environment": {
			func(_ *v1.Manifest, c *v1.ConfigFile) {
				c.Config.Env = []string{"A=" + strings.Repeat("x", recordBytesMax)}
			},
			[][]byte{plain},
			"environment",
		},
		"a variable that is none": {func(_ *v1.Manifest, c *v1.ConfigFile) { c.Config.Env = []string{"A=b\x00c"} }, [][]byte{plain}, "environment"},
		"another system":          {func(_ *v1.Manifest, c *v1.ConfigFile) { c.OS = "windows" }, [][]byte{plain}, "windows"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, h := library(t, Options{PrivateRegistries: true}), newHub(t)
			l.limits.files = 50_000
			h.pushRaw(t, tt.alter, tt.layers...)
			_, err := l.Ensure(t.Context(), h.host+"/a", nil)
			public := doze.Public(err)
			if err == nil || public.Kind != doze.Invalid || public.Name != doze.NameInvalidImage || !strings.Contains(public.Message, tt.says) {
				t.Errorf("got %v %q from %v", public.Kind, public.Message, err)
			}
			if left := leftovers(t, l); len(left) != 0 || len(l.Images()) != 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// TestHostileManifests has a registry that answers with anything as a manifest.
func TestHostileManifests(t *testing.T) {
	t.Parallel()
	digest := "sha256:" + strings.Repeat("a", 64)
	list := fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"manifests":[{"mediaType":%q,"digest":%q,"size":2,"platform":{"os":"linux","architecture":%q}}]}`,
		types.OCIImageIndex, types.OCIImageIndex, digest, runtime.GOARCH)
	for name, tt := range map[string]struct {
		kind types.MediaType
		body string
	}{
		"nothing":            {types.OCIManifestSchema1, ""},
		"no JSON":            {types.OCIManifestSchema1, "<html>"},
		"another JSON":       {types.OCIManifestSchema1, `[1,2]`},
		"deep JSON":          {types.OCIManifestSchema1, strings.Repeat("[", 1<<20)},
		"nested lists":       {types.OCIImageIndex, list},
		"a huge manifest":    {types.OCIManifestSchema1, `{"schemaVersion":2,"x":"` + strings.Repeat("x", 64<<20) + `"}`},
		"a digest of no sum": {types.OCIManifestSchema1, `{"schemaVersion":2,"config":{"digest":"md5:00","size":1},"layers":[]}`},
		"an old schema":      {types.DockerManifestSchema1, `{"schemaVersion":1}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if strings.Contains(r.URL.Path, "/manifests/") {
					w.Header().Set("Content-Type", string(tt.kind))
					_, _ = io.WriteString(w, tt.body)
				}
			}))
			defer s.Close()
			l := library(t, Options{PrivateRegistries: true})
			_, err := l.Ensure(t.Context(), strings.TrimPrefix(s.URL, "http://")+"/a", nil)
			if public := doze.Public(err); public.Kind != doze.Invalid || public.Name != doze.NameInvalidImage || len(leftovers(t, l)) != 0 {
				t.Errorf("got %v %q from %.200v", public.Kind, public.Message, err)
			}
		})
	}
}

func slicesOf(b []byte, n int) (all [][]byte) {
	for range n {
		all = append(all, b)
	}
	return all
}

// TestZstd pulls a layer that is compressed with it.
func TestZstd(t *testing.T) {
	t.Parallel()
	l, h := library(t, Options{PrivateRegistries: true}), newHub(t)
	plain := layer(t, entry{'f', 0o600, 0, "f", "x"})
	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	h.pushRaw(t, func(_ *v1.Manifest, c *v1.ConfigFile) {
		c.RootFS.DiffIDs[0], _, _ = v1.SHA256(bytes.NewReader(plain))
	}, z.EncodeAll(plain, nil))
	if _, err := l.Ensure(t.Context(), h.host+"/a", nil); err != nil {
		t.Error(err)
	}
}

// TestBrokenTransfer ends in the middle of a layer: the fault is not the image's.
func TestBrokenTransfer(t *testing.T) {
	t.Parallel()
	inner := registry.New(registry.Logger(slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)))
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := httptest.NewRecorder()
		inner.ServeHTTP(answer, r)
		b := answer.Body.Bytes()
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") && len(b) > 2000 {
			w.Header().Set("Content-Length", fmt.Sprint(len(b)))
			_, _ = w.Write(b[:1000])
			return
		}
		maps.Copy(w.Header(), answer.Header())
		w.WriteHeader(answer.Code)
		_, _ = w.Write(b)
	}))
	defer s.Close()
	h := &hub{host: strings.TrimPrefix(s.URL, "http://")}
	h.pushRaw(t, nil, layer(t, entry{'f', 0o600, 0, "f", strings.Repeat("x", 5000)}))
	l := library(t, Options{PrivateRegistries: true})
	_, err := l.Ensure(t.Context(), h.host+"/a", nil)
	if public := doze.Public(err); public.Kind != doze.Unavailable || len(leftovers(t, l)) != 0 {
		t.Errorf("got %v %q from %v", public.Kind, public.Message, err)
	}
}

// TestWork measures how much disk the making of an image takes: no more than twice
// the size of the image.
func TestWork(t *testing.T) {
	t.Parallel()
	l := library(t, Options{})
	const size = 96 << 20
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := range 6 {
		header := tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprint(i), Mode: 0o644, Size: size / 6}
		if i > 3 { // links must not become copies
			header = tar.Header{Typeflag: tar.TypeLink, Name: fmt.Sprint(i), Linkname: "0"}
		}
		if err := w.WriteHeader(&header); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(bytes.Repeat([]byte{byte(i) + 1}, int(header.Size))); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	var most int64
	var watch sync.WaitGroup
	end := make(chan struct{})
	watch.Go(func() {
		for {
			most = max(most, blocks(l.dir))
			select {
			case <-end:
				return
			case <-time.After(2 * time.Millisecond):
			}
		}
	})
	img, err := l.ImportTar(t.Context(), "work", &b)
	close(end)
	watch.Wait()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("an image of %d MB took up to %d MB on the way, %.2f times as much", img.Bytes>>20, most>>20, float64(most)/float64(img.Bytes))
	if img.Bytes > size*4/6+1<<20 || most > img.Bytes*2+1<<20 {
		t.Errorf("an image of %d MB took up to %d MB on the way", img.Bytes>>20, most>>20)
	}
	if now := blocks(l.dir); now > img.Bytes+1<<20 {
		t.Errorf("%d MB stay of an image of %d MB", now>>20, img.Bytes>>20)
	}
}

// TestNoRoom pulls images onto a small file system: one that would take the reserve
// is refused with figures, wherever on the way that turns out, and leaves nothing.
func TestNoRoom(t *testing.T) {
	t.Parallel()
	library(t, Options{}) // or skip
	dir := t.TempDir()
	file, at := filepath.Join(dir, "disk"), filepath.Join(dir, "at")
	f, err := os.Create(file)
	if err := errors.Join(err, f.Truncate(200<<20), f.Close(), os.Mkdir(at, 0o700)); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"mkfs.ext4", "-q", "-F", "-m", "0", file}, {"mount", "-o", "loop", file, at}} {
		if out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Skipf("SKIPPED: no file system of its own: %v: %s", err, out)
		}
	}
	t.Cleanup(func() {
		if err := unix.Unmount(at, 0); err != nil {
			t.Error(err)
		}
	})
	d, err := space.Open(at, space.Options{Reserve: 40 << 20})
	if err != nil {
		t.Fatal(err)
	}
	l, err := Open(filepath.Join(at, "lib"), Options{PrivateRegistries: true, Room: d.Claim})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for name, tt := range map[string]struct {
		size int64
		fits bool
	}{
		"the tree does not fit":  {170 << 20, false},
		"the image does not fit": {90 << 20, false},
		"both fit":               {30 << 20, true},
	} {
		h := newHub(t)
		h.pushRaw(t, nil, bomb(t, tt.size))
		_, err := l.Ensure(t.Context(), h.host+"/a", nil)
		if public := doze.Public(err); tt.fits != (err == nil) || !tt.fits && (public.Kind != doze.Exhausted || !strings.Contains(public.Message, "40 MB stay free")) {
			t.Errorf("%s: %v", name, err)
		}
		if left := leftovers(t, l); len(left) != 0 {
			t.Errorf("%s: left: %v", name, left)
		}
		s, err := d.State()
		if err != nil || s.Free < 40<<20 {
			t.Errorf("%s: %d MB are free, %v", name, s.Free>>20, err)
		}
	}
}

// blocks are the bytes that everything below a directory takes of the disk.
func blocks(dir string) (total int64) {
	seen := map[uint64]bool{}
	_ = filepath.WalkDir(dir, func(_ string, d os.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // it is gone
		}
		if info, err := d.Info(); err == nil {
			if st, ok := info.Sys().(*syscall.Stat_t); ok && !seen[st.Ino] {
				seen[st.Ino] = true
				total += st.Blocks * blockUnit
			}
		}
		return nil
	})
	return total
}
