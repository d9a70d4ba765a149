package disk

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/testkit/imagetest"
)

// picture is an image of some layers, which are not compressed.
func picture(tb testing.TB, c v1.Config, layers ...[]byte) v1.Image {
	tb.Helper()
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for _, b := range layers {
		var err error
		if img, err = mutate.AppendLayers(img, static.NewLayer(b, types.OCIUncompressedLayer)); err != nil {
			tb.Fatal(err)
		}
	}
	file, err := img.ConfigFile()
	if err != nil {
		tb.Fatal(err)
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Config = "linux", runtime.GOARCH, c
	if img, err = mutate.ConfigFile(img, file); err != nil {
		tb.Fatal(err)
	}
	return img
}

// files is a tar of files, in the order of their names.
func files(tb testing.TB, all map[string][]byte) []byte {
	tb.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	var names []string
	for name := range all {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(all[name]))}); err != nil {
			tb.Fatal(err)
		}
		if _, err := w.Write(all[name]); err != nil {
			tb.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return b.Bytes()
}

// unpacked are the files of an OCI layout of an image, by name.
func unpacked(tb testing.TB, img v1.Image) map[string][]byte {
	tb.Helper()
	all := map[string][]byte{"oci-layout": []byte(`{"imageLayoutVersion":"1.0.0"}`)}
	put := func(h v1.Hash, b []byte, err error) {
		if err != nil {
			tb.Fatal(err)
		}
		all["blobs/sha256/"+h.Hex] = b
	}
	m, err := img.Manifest()
	if err != nil {
		tb.Fatal(err)
	}
	raw, err := img.RawManifest()
	digest, _ := img.Digest()
	put(digest, raw, err)
	config, err := img.RawConfigFile()
	put(m.Config.Digest, config, err)
	layers, err := img.Layers()
	if err != nil {
		tb.Fatal(err)
	}
	for i, l := range layers {
		r, err := l.Compressed()
		if err != nil {
			tb.Fatal(err)
		}
		b, err := io.ReadAll(r)
		put(m.Layers[i].Digest, b, err)
	}
	index, err := json.Marshal(v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: []v1.Descriptor{
		{MediaType: types.OCIManifestSchema1, Digest: digest, Size: int64(len(raw))},
	}})
	if err != nil {
		tb.Fatal(err)
	}
	all["index.json"] = index
	return all
}

// saved is the archive of an image.
func saved(t *testing.T, l *Library, ref string) (digest string, archive []byte) {
	t.Helper()
	var b bytes.Buffer
	digest, err := l.Export(t.Context(), ref, nil, &b)
	if err != nil {
		t.Fatal(err)
	}
	return digest, b.Bytes()
}

// load imports an archive.
func load(t *testing.T, l *Library, id string, archive []byte, bases ...Image) Image {
	t.Helper()
	img, err := l.ImportLayout(t.Context(), id, bytes.NewReader(archive), bases, nil)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// rich are the entries of a layer with all that a file can be.
func rich(tb testing.TB) []byte {
	tb.Helper()
	text := strings.Repeat("0123456789abcdef", 700) // not a whole number of blocks
	long := strings.Repeat("n", 200)
	entries := []entry{
		{'d', 0o755, 0, ".", ""},
		{'d', 0o750, 3, "etc", ""},
		{'f', 0o640, 7, "etc/passwd", "root:x:0:0\n"},
		{'f', 0o600, 70_000, "empty", ""},
		{'f', 0o4711, 0, "bin/su", text},
		{'h', 0, 0, "bin/doas", "bin/su"},
		{'l', 0o777, 5, "lib", "usr/lib"},
		{'f', 0o644, 0, "block", strings.Repeat("x", 4096)},
		{'p', 0o600, 0, "fifo", ""},
		{'d', 0o1777, 0, "tmp", ""},
		{'d', 0o755, 0, long, ""},
		{'d', 0o755, 0, long + "/" + long, ""},
		{'f', 0o644, 0, long + "/" + long + "/ümlaut \x80", "a"},
		{'l', 0o777, 0, "far", "/" + long + "/" + long},
		{'d', 0o700, 0, "many", ""},
	}
	for i := range 500 { // more than one block of names
		entries = append(entries, entry{'f', 0o644, 0, fmt.Sprintf("many/%s-%d", strings.Repeat("f", 40), i), ""})
	}
	return layer(tb, entries...)
}

// TestExport takes an image out and in again. What others see of it is a good image with
// all its files, and the second one has the same bytes as the first.
func TestExport(t *testing.T) {
	t.Parallel()
	l, other := library(t, Options{}), library(t, Options{})
	c := v1.Config{
		Env: []string{"A=b"}, User: "7:8", WorkingDir: "/srv", Entrypoint: []string{"/bin/su"}, Cmd: []string{"-"}, Labels: map[string]string{"l": "m"},
		ExposedPorts: map[string]struct{}{"80/tcp": {}}, StopSignal: "SIGINT", Healthcheck: &v1.HealthConfig{Test: []string{"CMD", "true"}, Interval: 5e9, Retries: 3},
	}
	img := load(t, l, "one", files(t, unpacked(t, picture(t, c, rich(t)))))
	if !isBuilt(img.Ref) || l.Check(img.Ref) != nil || img.User != "7:8" || len(img.Ports) != 1 {
		t.Errorf("%+v", img)
	}
	digest, archive := saved(t, l, img.Ref)
	if again, same := saved(t, l, img.Ref); digest != again || !bytes.Equal(archive, same) {
		t.Error("the second archive is another one")
	}
	r, err := readRecord(l.imageDir(), img.hex())
	if err != nil || r.Export.Bytes == 0 {
		t.Errorf("remembered: %+v, %v", r.Export, err)
	}

	dir := t.TempDir()
	for in := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		b, err2 := io.ReadAll(in)
		if err := errors.Join(err, err2); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, h.Name)
		if h.Typeflag == tar.TypeReg {
			err = errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, b, 0o600))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	h, err := v1.NewHash(digest)
	if err != nil {
		t.Fatal(err)
	}
	outside, err := index.Image(h)
	if err == nil {
		err = imagetest.Verify(outside)
	}
	if err != nil {
		t.Fatal(err)
	}
	file, err := outside.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(c, file.Config); diff != "" {
		t.Error(diff)
	}
	docker, err := tarball.Image(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive)), nil }, nil)
	if err == nil {
		err = validate.Image(docker)
	}
	if err != nil {
		t.Errorf("as docker loads it: %v", err)
	}

	copied := load(t, other, "two", archive)
	if copied.Digest != digest {
		t.Errorf("the copy is %s, not %s", copied.Digest, digest)
	}
	if diff := cmp.Diff(img.ImageConfig, copied.ImageConfig); diff != "" {
		t.Error(diff)
	}
	if back, same := saved(t, other, copied.Ref); back != digest || !bytes.Equal(same, archive) {
		t.Error("the copy becomes another archive")
	}
}

// TestSealedTree compares the files of an image with those that it was made of, and
// their metadata: read from the archive, and unpacked again.
func TestSealedTree(t *testing.T) {
	t.Parallel()
	l := library(t, Options{})
	img, err := l.ImportTar(t.Context(), "test/tree", bytes.NewReader(rich(t)))
	if err != nil {
		t.Fatal(err)
	}
	s, err := openSealed(img.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	var b bytes.Buffer
	if err := s.layer(t.Context(), &b); err != nil {
		t.Fatal(err)
	}
	want, err := apply(t, limitsDefault, rich(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := addMountPoints(want); err != nil {
		t.Fatal(err)
	}
	got, err := apply(t, limitsDefault, b.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(list(t, want), list(t, got)); diff != "" {
		t.Error(diff)
	}
}

// TestLoad loads what tools write: layouts in each compression, lists of several
// machines, and what docker saves, old and new.
func TestLoad(t *testing.T) {
	t.Parallel()
	plain := layer(t, entry{'f', 0o600, 0, "f", "x"})
	img := picture(t, v1.Config{Env: []string{"A=b"}}, plain, layer(t, entry{'f', 0o600, 0, "g", "y"}))
	flat := unpacked(t, img)
	digest, _ := img.Digest()

	var docker bytes.Buffer
	if err := tarball.Write(nil, img, &docker); err != nil {
		t.Fatal(err)
	}

	listed := unpacked(t, img)
	inner := listed["index.json"]
	delete(listed, "index.json")
	d := descriptorOf(types.OCIImageIndex, inner)
	listed["blobs/sha256/"+d.Digest.Hex] = inner
	about := descriptorOf(types.OCIManifestSchema1, []byte(`{}`))
	about.Platform = &v1.Platform{OS: "unknown", Architecture: "unknown"}
	listed["blobs/sha256/"+about.Digest.Hex] = []byte(`{}`)
	listed["index.json"], _ = json.Marshal(v1.IndexManifest{SchemaVersion: 2, Manifests: []v1.Descriptor{d, about}})

	config, _ := img.RawConfigFile()
	old := map[string][]byte{
		"abc.json": config, "one/layer.tar": plain, "two/layer.tar": layer(t, entry{'f', 0o600, 0, "g", "y"}),
		"manifest.json": []byte(`[{"Config":"abc.json","RepoTags":["a:1"],"Layers":["one/layer.tar","two/layer.tar"]}]`),
	}

	for name, tt := range map[string]struct {
		archive []byte
		digest  string // empty: any
	}{
		"layout":  {files(t, flat), digest.String()},
		"gzip":    {squeeze(t, func(w io.Writer) { _, _ = w.Write(files(t, flat)) }), digest.String()},
		"a list":  {files(t, listed), digest.String()},
		"docker":  {docker.Bytes(), ""},
		"old one": {files(t, old), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := library(t, Options{})
			got := load(t, l, "id", tt.archive)
			if tt.digest != "" && got.Digest != tt.digest || len(got.Env) != 1 {
				t.Errorf("%+v", got)
			}
			if left := leftovers(t, l); len(left) != 0 {
				t.Errorf("left: %v", left)
			}
			again := load(t, l, "again", tt.archive)
			if again.Path != got.Path || again.Ref == got.Ref {
				t.Errorf("the same archive again is %+v", again)
			}
			if _, err := l.EnsureFor(t.Context(), got.Ref, nil, nil); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestHostileLayouts loads what a stranger may upload. Each is the fault of the caller,
// and nothing of it stays.
func TestHostileLayouts(t *testing.T) {
	t.Parallel()
	plain := layer(t, entry{'f', 0o600, 0, "f", "x"})
	img := picture(t, v1.Config{}, plain)
	m, err := img.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	layerName, configName := "blobs/sha256/"+m.Layers[0].Digest.Hex, "blobs/sha256/"+m.Config.Digest.Hex
	with := func(change func(all map[string][]byte)) []byte {
		all := unpacked(t, img)
		change(all)
		return files(t, all)
	}
	wrap := func(c v1.ConfigFile, layers ...[]byte) []byte {
		config, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		all, list := map[string][]byte{"c": config}, dockerImage{Config: "c"}
		for i, b := range layers {
			all[fmt.Sprint(i)] = b
			list.Layers = append(list.Layers, fmt.Sprint(i))
		}
		all["manifest.json"], _ = json.Marshal([]dockerImage{list})
		return files(t, all)
	}
	diff := func(b []byte) v1.Hash { return descriptorOf("", b).Digest }
	ours := func(layers ...[]byte) v1.ConfigFile {
		c := v1.ConfigFile{OS: "linux", Architecture: runtime.GOARCH}
		for _, b := range layers {
			c.RootFS.DiffIDs = append(c.RootFS.DiffIDs, diff(b))
		}
		return c
	}
	deep := func(all map[string][]byte) { // lists in lists
		for range nestingMax + 2 {
			d := descriptorOf(types.OCIImageIndex, all["index.json"])
			all["blobs/sha256/"+d.Digest.Hex] = all["index.json"]
			all["index.json"], _ = json.Marshal(v1.IndexManifest{SchemaVersion: 2, Manifests: []v1.Descriptor{d}})
		}
	}
	var many bytes.Buffer
	w := tar.NewWriter(&many)
	for i := range entriesMax + 1 {
		_ = w.WriteHeader(&tar.Header{Name: fmt.Sprint(i), Typeflag: tar.TypeDir})
	}
	var linked bytes.Buffer
	lw := tar.NewWriter(&linked)
	_ = lw.WriteHeader(&tar.Header{Name: "index.json", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"})
	_ = lw.Close()
	evil := layer(t, entry{'f', 0o600, 0, "../x", ""})
	bombed := bomb(t, 300<<20)
	for name, tt := range map[string]struct {
		archive []byte
		says    string
	}{
		"nothing":                 {nil, "no image"},
		"no tar":                  {bytes.Repeat([]byte("text"), 1000), "no tar"},
		"cut":                     {files(t, unpacked(t, img))[:700], "no tar"},
		"bad gzip":                {[]byte{0x1f, 0x8b, 8, 0, 1, 2, 3}, "no tar"},
		"neither":                 {files(t, map[string][]byte{"a": nil}), "neither"},
		"a link out":              {linked.Bytes(), "neither"},
		"too many entries":        {many.Bytes(), "entries"},
		"no JSON":                 {with(func(all map[string][]byte) { all["index.json"] = []byte("<html>") }), "list of images"},
		"deep JSON":               {with(func(all map[string][]byte) { all["index.json"] = bytes.Repeat([]byte("["), 1<<19) }), "list of images"},
		"a large document":        {with(func(all map[string][]byte) { all["index.json"] = make([]byte, listBytesMax+1) }), "bytes"},
		"lists in lists":          {with(deep), "deep"},
		"no manifest":             {with(func(all map[string][]byte) { all["index.json"] = []byte(`{"schemaVersion":2,"manifests":[]}`) }), "0 images"},
		"no configuration":        {with(func(all map[string][]byte) { delete(all, configName) }), "configuration is missing"},
		"another configuration":   {with(func(all map[string][]byte) { all[configName] = append(all[configName], ' ') }), "configuration is missing"},
		"no layer":                {with(func(all map[string][]byte) { delete(all, layerName) }), "layer 1 is missing"},
		"another layer":           {with(func(all map[string][]byte) { all[layerName] = layer(t, entry{'f', 0o600, 0, "f", "z"}) }), "layer 1 is missing"},
		"docker without image":    {files(t, map[string][]byte{"manifest.json": []byte(`[]`)}), "0 images"},
		"docker without a config": {files(t, map[string][]byte{"manifest.json": []byte(`[{"Config":"../../etc/passwd"}]`)}), "configuration is missing"},
		"docker without a layer":  {files(t, map[string][]byte{"c": []byte(`{}`), "manifest.json": []byte(`[{"Config":"c","Layers":["x"]}]`)}), "layer 1 is missing"},
		"another system":          {wrap(v1.ConfigFile{OS: "windows", Architecture: runtime.GOARCH}), "windows"},
		"fewer diff ids":          {wrap(ours(), plain), "diff_ids"},
		"a wrong diff id":         {wrap(ours(evil), plain), "diff_id"},
		"a variable that is none": {wrap(func() v1.ConfigFile { c := ours(plain); c.Config.Env = []string{"A"}; return c }(), plain), "environment"},
		"a name that climbs":      {wrap(ours(evil), evil), "leads out"},
		"a bomb":                  {wrap(ours(plain), bombed), "layer 1"},
		"too many layers":         {wrap(ours(slicesOf(plain, 300)...), slicesOf(plain, 300)...), "layers"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := library(t, Options{})
			_, err := l.ImportLayout(t.Context(), "id", bytes.NewReader(tt.archive), nil, nil)
			public := doze.Public(err)
			if err == nil || public.Kind != doze.Invalid && public.Kind != doze.TooLarge || !strings.Contains(public.Message, tt.says) {
				t.Errorf("got %v %q from %v", public.Kind, public.Message, err)
			}
			if left := leftovers(t, l); len(left) != 0 || len(l.Images()) != 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
	t.Run("too large", func(t *testing.T) {
		t.Parallel()
		l := library(t, Options{BytesMax: 1 << 20})
		large := layer(t, entry{'f', 0o600, 0, "f", strings.Repeat("x", 2<<20)})
		_, err := l.ImportLayout(t.Context(), "id", bytes.NewReader(wrap(ours(large), large)), nil, nil)
		if public := doze.Public(err); public.Kind != doze.TooLarge || !strings.Contains(public.Message, "--image-max-mb") || len(leftovers(t, l)) != 0 {
			t.Errorf("got %v", err)
		}
	})
}

// TestOnlyNewLayers makes an image on another one without the layer of that one: on a
// host that mounts images, and on one that cannot. Both become the image that all layers
// become.
func TestOnlyNewLayers(t *testing.T) {
	t.Parallel()
	base := rich(t)
	changes := layer(t,
		entry{'f', 0, 0, "etc/.wh.passwd", ""}, entry{'f', 0o644, 0, "etc/shadow", "s"}, entry{'f', 0, 0, "many/.wh..wh..opq", ""},
		entry{'f', 0o600, 0, "many/one", "1"}, entry{'f', 0o755, 9, "bin/su", "other"}, entry{'h', 0, 0, "bin/sudo", "bin/doas"}, entry{'f', 0o644, 0, "lib2/a", "b"},
		entry{'d', 0o711, 4, "tmp", ""},
	)
	var want []byte
	for name, dir := range map[string]string{"mounted": "lib", "copied": "a,lib"} {
		library(t, Options{}) // or skip
		l, err := Open(filepath.Join(t.TempDir(), dir), Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		under := load(t, l, "base", files(t, unpacked(t, picture(t, v1.Config{}, base))))
		_, archive := saved(t, l, under.Ref)
		lowest := lastFile(t, archive)
		img := picture(t, v1.Config{Env: []string{"A=b"}}, lowest, changes)
		all := unpacked(t, img)
		whole := files(t, all)
		delete(all, "blobs/sha256/"+descriptorOf("", lowest).Digest.Hex)
		if _, err := l.ImportLayout(t.Context(), "none", bytes.NewReader(files(t, all)), nil, nil); err == nil || !strings.Contains(doze.Public(err).Message, "layer 1 is missing") {
			t.Errorf("%s: without a base: %v", name, err)
		}
		got := load(t, l, "new", files(t, all), under)
		digest, _ := img.Digest()
		if got.Digest != digest.String() || got.Path == under.Path {
			t.Errorf("%s: %+v", name, got)
		}
		_, stacked := saved(t, l, got.Ref)

		alone := library(t, Options{})
		_, full := saved(t, alone, load(t, alone, "all", whole).Ref)
		if !bytes.Equal(stacked, full) {
			t.Errorf("%s: the image is another one: %s", name, cmp.Diff(names(t, lastFile(t, full)), names(t, lastFile(t, stacked))))
		}
		if want == nil {
			want = stacked
		}
		if !bytes.Equal(stacked, want) {
			t.Error("a host that cannot mount makes another image")
		}
		if left := leftovers(t, l); len(left) != 0 {
			t.Errorf("%s: left: %v", name, left)
		}
	}
}

// lastFile is the last file of an archive: its one layer.
func lastFile(tb testing.TB, archive []byte) []byte {
	tb.Helper()
	var last []byte
	for in := tar.NewReader(bytes.NewReader(archive)); ; {
		_, err := in.Next()
		if errors.Is(err, io.EOF) {
			return last
		}
		if err == nil {
			last, err = io.ReadAll(in)
		}
		if err != nil {
			tb.Fatal(err)
		}
	}
}

// names are the headers of a layer.
func names(t *testing.T, layer []byte) (all []string) {
	t.Helper()
	for in := tar.NewReader(bytes.NewReader(layer)); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, fmt.Sprint(h.Name, h.Mode, h.Uid, h.ModTime, h.Linkname, h.Size))
	}
}

// TestOnlyWords makes an image whose files are there already: no file is written.
func TestOnlyWords(t *testing.T) {
	t.Parallel()
	l := library(t, Options{})
	plain := layer(t, entry{'f', 0o600, 0, "f", "x"})
	one := load(t, l, "one", files(t, unpacked(t, picture(t, v1.Config{}, plain))))
	two := load(t, l, "two", files(t, unpacked(t, picture(t, v1.Config{Cmd: []string{"a"}}, plain))))
	a, err := os.Stat(one.Path)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.Stat(two.Path)
	if err != nil || one.Digest == two.Digest || !os.SameFile(a, b) || len(two.Cmd) != 1 {
		t.Errorf("%+v and %+v, %v", one, two, err)
	}
	if _, err := l.Retain([]string{two.Path}); err != nil {
		t.Fatal(err)
	}
	if _, archive := saved(t, l, two.Ref); len(archive) == 0 {
		t.Error("it went with the other one")
	}
}

// TestNoLayerOfOthers names layers of an image that somebody else has: the files of that
// one stay with their owner, whatever a configuration or a list says.
func TestNoLayerOfOthers(t *testing.T) {
	t.Parallel()
	l := library(t, Options{})
	secret := layer(t, entry{'f', 0o600, 0, "secret", "word"})
	load(t, l, "theirs", files(t, unpacked(t, picture(t, v1.Config{}, secret))))
	garbage := layer(t, entry{'f', 0o600, 0, "garbage", ""})
	config, err := json.Marshal(v1.ConfigFile{OS: "linux", Architecture: runtime.GOARCH, RootFS: v1.RootFS{DiffIDs: []v1.Hash{descriptorOf("", secret).Digest}}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = l.ImportLayout(t.Context(), "mine", bytes.NewReader(files(t, map[string][]byte{
		"c": config, "l": garbage, "manifest.json": []byte(`[{"Config":"c","Layers":["l"]}]`),
	})), nil, nil)
	if err == nil || !strings.Contains(doze.Public(err).Message, "diff_id") {
		t.Errorf("docker: %v", err)
	}
	all := unpacked(t, picture(t, v1.Config{}, secret))
	delete(all, "blobs/sha256/"+descriptorOf("", secret).Digest.Hex)
	if _, err := l.ImportLayout(t.Context(), "mine", bytes.NewReader(files(t, all)), nil, nil); err == nil || !strings.Contains(doze.Public(err).Message, "missing") {
		t.Errorf("layout: %v", err)
	}
}

// TestPullNewLayers pulls the next version of an image: of it, only the layer that is new
// is downloaded. Another repository is another matter, since its registry has not shown
// the layer.
func TestPullNewLayers(t *testing.T) {
	t.Parallel()
	l, h := library(t, Options{PrivateRegistries: true}), newHub(t)
	low, one, two := layer(t, entry{'f', 0o600, 0, "a", "1"}), layer(t, entry{'f', 0o600, 0, "b", "1"}), layer(t, entry{'f', 0o600, 0, "c", "1"})
	h.push(t, "team/app:1", v1.Config{}, low, one)
	if _, err := l.Ensure(t.Context(), h.host+"/team/app:1", nil); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		ref   string
		blobs int32
	}{
		{"team/app:2", 2}, // its configuration, and one layer
		{"team/other:2", 4},
	} {
		h.push(t, tt.ref, v1.Config{}, low, one, two)
		if tt.ref == "team/other:2" { // equal digests are one image
			h.push(t, tt.ref, v1.Config{User: "7"}, low, one, two)
		}
		img, err := l.Ensure(t.Context(), h.host+"/"+tt.ref, nil)
		if n := h.blobs.Load(); err != nil || n != tt.blobs {
			t.Errorf("%s: %d blobs, %v", tt.ref, n, err)
		}
		var got []string
		for _, name := range names(t, lastFile(t, func() []byte { _, b := saved(t, l, img.Ref); return b }())) {
			if strings.HasPrefix(name, "a") || strings.HasPrefix(name, "b") || strings.HasPrefix(name, "c") {
				got = append(got, name[:1])
			}
		}
		if strings.Join(got, "") != "abc" {
			t.Errorf("%s has %v", tt.ref, got)
		}
	}
}

// TestCollectBuilt: an image that was built goes when no record names it any more.
func TestCollectBuilt(t *testing.T) {
	t.Parallel()
	l := library(t, Options{Owner: t.TempDir()})
	img := load(t, l, "id", files(t, unpacked(t, picture(t, v1.Config{}, layer(t, entry{'f', 0o600, 0, "f", "x"})))))
	if gone, err := l.Collect(nil, []string{img.Ref}, 1); err != nil || len(gone) != 0 {
		t.Errorf("named: %v, %v", gone, err)
	}
	l.mu.Lock()
	delete(l.started, filepath.Base(img.Path)) // as after the time for a start
	l.mu.Unlock()
	l.Release(img.Ref)
	if gone, err := l.Collect(nil, nil, 0); err != nil || len(gone) != 1 {
		t.Errorf("released: %v, %v", gone, err)
	}
	if all, err := l.Stored(); err != nil || len(all) != 0 {
		t.Errorf("%v, %v", all, err)
	}
}

// FuzzLayout: whatever an archive says, it becomes an image or a mistake of its caller.
func FuzzLayout(f *testing.F) {
	img := picture(f, v1.Config{}, layer(f, entry{'f', 0o600, 0, "f", "x"}))
	f.Add(files(f, unpacked(f, img)))
	var docker bytes.Buffer
	if err := tarball.Write(nil, img, &docker); err != nil {
		f.Fatal(err)
	}
	f.Add(docker.Bytes())
	dir := f.TempDir() // one for each would cost a disk that discards more than the test
	f.Fuzz(func(t *testing.T, archive []byte) {
		l := &Library{limits: limits{bytes: 1 << 20, files: 100, layers: 10}}
		s, err := l.spool(t.Context(), dir, bytes.NewReader(archive))
		if err == nil {
			_, err = s.bundle(l.limits)
			s.file.Close()
		}
		if err := os.Remove(filepath.Join(dir, "archive")); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		if kind := doze.Public(err).Kind; err != nil && kind != doze.Invalid && kind != doze.TooLarge {
			t.Errorf("%v", err)
		}
	})
}

// FuzzSealed: a file that is no image, or a damaged one, is an error and no more.
func FuzzSealed(f *testing.F) {
	l := library(f, Options{})
	img, err := l.ImportTar(f.Context(), "test/fuzz", bytes.NewReader(layer(f, entry{'d', 0o755, 0, "d", ""}, entry{'f', 0o600, 0, "d/f", "x"}, entry{'l', 0o777, 0, "l", "d"})))
	if err != nil {
		f.Fatal(err)
	}
	b, err := os.ReadFile(img.Path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := readSealed(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			return
		}
		count := &counter{w: io.Discard}
		err = s.layer(t.Context(), count)
		if most := int64(len(b))*int64(len(b)) + 1<<20; count.n > most { // each inode may have all the bytes
			t.Errorf("%d bytes of a file of %d, %v", count.n, len(b), err)
		}
	})
}
