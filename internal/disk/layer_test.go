package disk

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
)

var day = time.Date(2020, 2, 3, 4, 5, 6, 0, time.UTC)

// entry is one line of a layer: type letter, mode, owner, name, and the
// content or the target.
type entry struct {
	kind byte // f, d, l (symbolic link), h (hard link), p, c
	mode int64
	uid  int
	name string
	rest string
}

var kinds = map[byte]byte{'f': tar.TypeReg, 'd': tar.TypeDir, 'l': tar.TypeSymlink, 'h': tar.TypeLink, 'p': tar.TypeFifo, 'c': tar.TypeChar}

func layer(tb testing.TB, entries ...entry) []byte {
	tb.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := &tar.Header{Typeflag: kinds[e.kind], Name: e.name, Mode: e.mode, Uid: e.uid, Gid: e.uid, ModTime: day}
		if e.kind == 'f' {
			h.Size = int64(len(e.rest))
		} else {
			h.Linkname = e.rest
		}
		if err := w.WriteHeader(h); err != nil {
			tb.Fatal(err)
		}
		if e.kind == 'f' {
			w.Write([]byte(e.rest))
		}
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return b.Bytes()
}

// apply applies layers to a new directory.
func apply(tb testing.TB, l limits, layers ...[]byte) (dir string, err error) {
	tb.Helper()
	if os.Geteuid() != 0 {
		tb.Skip("SKIPPED: owners of files need root")
	}
	dir = tb.TempDir()
	tree, err := openTree(dir, l)
	if err != nil {
		tb.Fatal(err)
	}
	for _, b := range layers {
		if err := tree.apply(tb.Context(), bytes.NewReader(b)); err != nil {
			return dir, errors.Join(err, tree.Close())
		}
	}
	return dir, tree.Close()
}

// list describes a tree: one line for each file, without its root.
func list(tb testing.TB, dir string) (lines []string) {
	tb.Helper()
	inodes := map[uint64]string{}
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == dir {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		rel, _ := filepath.Rel(dir, name)
		line := fmt.Sprintf("%v %d %s", info.Mode(), st.Uid, rel)
		switch mode := info.Mode(); {
		case mode.IsRegular():
			if first, ok := inodes[st.Ino]; ok {
				line += " = " + first
				break
			}
			inodes[st.Ino] = rel
			b, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %q", b)
		case mode.Type() == fs.ModeSymlink:
			target, err := os.Readlink(name)
			if err != nil {
				return err
			}
			line += " -> " + target
		}
		lines = append(lines, line)
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
	return lines
}

func TestLayers(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		layers [][]entry
		want   []string
	}{
		"plain": {
			[][]entry{{{'d', 0o700, 5, "a", ""}, {'f', 0o4755, 5, "./a/f", "x"}, {'l', 0o777, 6, "a/l", "/nowhere"}, {'p', 0o600, 7, "a/p", ""}, {'c', 0o600, 0, "a/null", ""}, {'h', 0, 9, "b", "/a/f"}}},
			[]string{`drwx------ 5 a`, `urwxr-xr-x 5 a/f "x"`, `Lrwxrwxrwx 6 a/l -> /nowhere`, `prw------- 7 a/p`, `urwxr-xr-x 5 b = a/f`},
		},
		"an implied directory keeps what it has": {
			[][]entry{{{'d', 0o2750, 5, "opt", ""}}, {{'f', 0o644, 0, "opt/f", ""}, {'f', 0o644, 0, "new/deep/f", ""}}},
			[]string{`drwxr-xr-x 0 new`, `drwxr-xr-x 0 new/deep`, `-rw-r--r-- 0 new/deep/f ""`, `dgrwxr-x--- 5 opt`, `-rw-r--r-- 0 opt/f ""`},
		},
		"a file before its directory": {
			[][]entry{{{'f', 0o600, 0, "a/f", ""}, {'d', 0o711, 3, "a/", ""}}},
			[]string{`drwx--x--x 3 a`, `-rw------- 0 a/f ""`},
		},
		"whiteouts": {
			[][]entry{{{'f', 0o600, 0, "a/f", ""}, {'f', 0o600, 0, "a/g", ""}, {'f', 0o600, 0, "b/f", ""}, {'f', 0o600, 0, "c", ""}}, {{'f', 0, 0, "a/.wh.f", ""}, {'f', 0, 0, ".wh.b", ""}, {'f', 0, 0, ".wh.none", ""}, {'f', 0, 0, "x/y/.wh.z", ""}, {'f', 0, 0, ".wh..wh.plnk", ""}}},
			[]string{`drwxr-xr-x 0 a`, `-rw------- 0 a/g ""`, `-rw------- 0 c ""`},
		},
		"a whiteout spares its own layer": {
			[][]entry{{{'f', 0o600, 0, "a/low", ""}, {'f', 0o600, 0, "a/both", "low"}}, {{'f', 0o600, 0, "a/both", "high"}, {'f', 0o600, 0, "a/d/high", ""}, {'f', 0, 0, "a/.wh.both", ""}, {'f', 0, 0, "a/.wh.d", ""}, {'f', 0, 0, ".wh.a", ""}}},
			[]string{`drwxr-xr-x 0 a`, `-rw------- 0 a/both "high"`, `drwxr-xr-x 0 a/d`, `-rw------- 0 a/d/high ""`},
		},
		"an opaque directory, its marker last": {
			[][]entry{{{'d', 0o711, 4, "a", ""}, {'f', 0o600, 0, "a/low", ""}, {'f', 0o600, 0, "a/d/low", ""}}, {{'f', 0o600, 0, "a/high", ""}, {'f', 0o600, 0, "a/d/high", ""}, {'f', 0, 0, "a/.wh..wh..opq", ""}}},
			[]string{`drwx--x--x 4 a`, `drwxr-xr-x 0 a/d`, `-rw------- 0 a/d/high ""`, `-rw------- 0 a/high ""`},
		},
		"one kind replaces another": {
			[][]entry{{{'f', 0o600, 0, "a", ""}, {'f', 0o600, 0, "b/f", ""}, {'l', 0, 0, "c", "b"}, {'f', 0o600, 0, "d", "old"}, {'h', 0, 0, "e", "d"}}, {{'d', 0o700, 0, "a", ""}, {'f', 0o600, 0, "a/f", ""}, {'f', 0o600, 0, "b", ""}, {'d', 0o700, 0, "c", ""}, {'f', 0o600, 0, "c/f", ""}, {'f', 0o600, 0, "d", "new"}}},
			[]string{`drwx------ 0 a`, `-rw------- 0 a/f ""`, `-rw------- 0 b ""`, `drwx------ 0 c`, `-rw------- 0 c/f ""`, `-rw------- 0 d "new"`, `-rw------- 0 e "old"`},
		},
		"links to directories are those of the image": {
			[][]entry{{{'d', 0o755, 0, "run", ""}, {'d', 0o755, 0, "var", ""}, {'l', 0, 0, "var/run", "/run"}, {'l', 0, 0, "up", "../../../run"}}, {{'f', 0o600, 0, "var/run/f", ""}, {'f', 0o600, 0, "up/g", ""}, {'h', 0, 0, "h", "var/run/f"}, {'f', 0, 0, "var/run/.wh.g", ""}}},
			[]string{`-rw------- 0 h ""`, `drwxr-xr-x 0 run`, `-rw------- 0 run/f = h`, `-rw------- 0 run/g ""`, `Lrwxrwxrwx 0 up -> ../../../run`, `drwxr-xr-x 0 var`, `Lrwxrwxrwx 0 var/run -> /run`},
		},
		"a link that is replaced while names lead through it": {
			[][]entry{{{'d', 0o755, 0, "x", ""}, {'d', 0o755, 0, "y", ""}, {'l', 0, 0, "l", "x"}, {'f', 0o600, 0, "l/a", ""}, {'l', 0, 0, "l", "y"}, {'f', 0o600, 0, "l/b", ""}}},
			[]string{`Lrwxrwxrwx 0 l -> y`, `drwxr-xr-x 0 x`, `-rw------- 0 x/a ""`, `drwxr-xr-x 0 y`, `-rw------- 0 y/b ""`},
		},
		"a directory that removes what it was reached by": {
			[][]entry{{{'d', 0o755, 0, "d", ""}, {'l', 0, 0, "d/me", "."}, {'f', 0o600, 0, "d/me/a", ""}, {'f', 0o600, 0, "d/me/me", ""}, {'f', 0o600, 0, "d/b", ""}}},
			[]string{`drwxr-xr-x 0 d`, `-rw------- 0 d/a ""`, `-rw------- 0 d/b ""`, `-rw------- 0 d/me ""`},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var layers [][]byte
			for _, l := range tt.layers {
				layers = append(layers, layer(t, l...))
			}
			dir, err := apply(t, limitsDefault, layers...)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, list(t, dir)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestLayerTimes(t *testing.T) {
	t.Parallel()
	dir, err := apply(t, limitsDefault, layer(t, entry{'d', 0o755, 0, "a", ""}, entry{'f', 0o600, 0, "a/f", ""}, entry{'l', 0, 0, "a/l", "x"}, entry{'p', 0, 0, "a/p", ""}))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "a/f", "a/l", "a/p"} {
		info, err := os.Lstat(filepath.Join(dir, name))
		if err != nil || !info.ModTime().Equal(day) {
			t.Errorf("%s: %v, %v", name, info.ModTime(), err)
		}
	}
}

func TestHostileLayers(t *testing.T) {
	t.Parallel()
	small := limits{bytes: 1 << 16, files: 20}
	deep := strings.Repeat("d/", depthMax+1)
	var many []entry
	for i := range small.files + 1 {
		many = append(many, entry{'f', 0o600, 0, fmt.Sprint(i), ""})
	}
	loop := []entry{{'l', 0, 0, "a", "b"}, {'l', 0, 0, "b", "a"}, {'f', 0o600, 0, "a/f", ""}}
	tests := map[string]struct {
		layer []byte
		kind  doze.Kind
	}{
		"a name that climbs":          {layer(t, entry{'f', 0o600, 0, "../out", "x"}), doze.Invalid},
		"a name that climbs later":    {layer(t, entry{'f', 0o600, 0, "a/../../out", "x"}), doze.Invalid},
		"a hard link that climbs":     {layer(t, entry{'h', 0, 0, "h", "../out"}), doze.Invalid},
		"a hard link to nothing":      {layer(t, entry{'h', 0, 0, "h", "none"}), doze.Invalid},
		"a hard link to itself":       {layer(t, entry{'f', 0o600, 0, "h", ""}, entry{'h', 0, 0, "h", "h"}), doze.Invalid},
		"a hard link to a directory":  {layer(t, entry{'d', 0o700, 0, "d", ""}, entry{'h', 0, 0, "h", "d"}), doze.Invalid},
		"a file as the root":          {layer(t, entry{'l', 0, 0, ".", "x"}), doze.Invalid},
		"a file below a file":         {layer(t, entry{'f', 0o600, 0, "f", ""}, entry{'f', 0o600, 0, "f/g", ""}), doze.Invalid},
		"a loop":                      {layer(t, loop...), doze.Invalid},
		"a whiteout of nothing":       {layer(t, entry{'f', 0, 0, ".wh.", ""}), doze.Invalid},
		"a whiteout of its parent":    {layer(t, entry{'f', 0, 0, "a/f", ""}, entry{'f', 0, 0, "a/.wh...", ""}), doze.Invalid},
		"an owner that does not fit":  {layer(t, entry{'f', 0o600, 1 << 32, "f", ""}), doze.Invalid},
		"too deep":                    {layer(t, entry{'d', 0o700, 0, deep, ""}), doze.Invalid},
		"a long name":                 {layer(t, entry{'f', 0o600, 0, strings.Repeat("n", nameMax+1), ""}), doze.Invalid},
		"too many files":              {layer(t, many...), doze.TooLarge},
		"too many implied files":      {layer(t, entry{'f', 0o600, 0, strings.Repeat("d/", small.files+1) + "f", ""}), doze.TooLarge},
		"too many bytes":              {layer(t, entry{'f', 0o600, 0, "f", strings.Repeat("x", 1<<16+1)}), doze.TooLarge},
		"a long end":                  {append(layer(t), make([]byte, 1<<20)...), doze.TooLarge},
		"no archive":                  {[]byte(strings.Repeat("x", 1024)), doze.Invalid},
		"an archive that is cut":      {layer(t, entry{'f', 0o600, 0, "f", "xyz"})[:514], doze.Invalid},
		"a size that is not there":    {huge(t), doze.TooLarge},
		"a file behind an outer link": {layer(t, entry{'l', 0, 0, "l", "/etc"}, entry{'d', 0o700, 0, "l/x/../y", ""}), doze.Invalid},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := apply(t, small, tt.layer)
			if err == nil || doze.Public(err).Kind != tt.kind {
				t.Errorf("got %v, want kind %v", err, tt.kind)
			}
		})
	}
}

// huge is a header that promises a terabyte.
func huge(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := tar.NewWriter(&b).WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "f", Size: 1 << 40}); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestApplyStops(t *testing.T) {
	t.Parallel()
	tree, err := openTree(t.TempDir(), limitsDefault)
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := tree.apply(ctx, bytes.NewReader(layer(t, entry{'f', 0o600, 0, "f", ""}))); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// FuzzApply looks for anything that happens outside of the tree.
func FuzzApply(f *testing.F) {
	f.Add(layer(f, entry{'l', 0, 0, "a", "../.."}, entry{'f', 0o644, 0, "a/out/f", "x"}))
	f.Add(layer(f, entry{'l', 0, 0, "a", "/.."}, entry{'h', 0, 0, "b", "a/out/keep"}, entry{'f', 0o666, 9, "b", "y"}))
	f.Add(layer(f, entry{'l', 0, 0, "a", ".."}, entry{'f', 0, 0, "a/.wh.out", ""}, entry{'f', 0, 0, "a/.wh..wh..opq", ""}))
	f.Add(layer(f, entry{'d', 0o7777, 1, ".", ""}, entry{'p', 0, 0, "p", ""}, entry{'c', 0, 0, "c", ""}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if os.Geteuid() != 0 {
			t.Skip("SKIPPED: owners of files need root")
		}
		top := t.TempDir()
		in, out := filepath.Join(top, "in"), filepath.Join(top, "out")
		if err := errors.Join(os.Mkdir(in, 0o755), os.Mkdir(out, 0o755), os.WriteFile(filepath.Join(out, "keep"), []byte("keep"), 0o640)); err != nil {
			t.Fatal(err)
		}
		before := list(t, out)
		tree, err := openTree(in, limits{bytes: 1 << 16, files: 100})
		if err != nil {
			t.Fatal(err)
		}
		err = tree.apply(t.Context(), bytes.NewReader(b))
		if n := blocks(in); err == nil && n > 1<<16+100*blockSize {
			t.Errorf("%d bytes of disk", n)
		}
		if err := tree.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if err != nil && doze.Public(err).Kind != doze.Invalid && doze.Public(err).Kind != doze.TooLarge {
			t.Errorf("not the fault of the layer: %v", err)
		}
		if diff := cmp.Diff(before, list(t, out)); diff != "" {
			t.Error(diff)
		}
		names, err := os.ReadDir(top)
		if err != nil || !slices.EqualFunc(names, []string{"in", "out"}, func(e fs.DirEntry, s string) bool { return e.Name() == s }) {
			t.Errorf("beside the tree: %v, %v", names, err)
		}
	})
}
