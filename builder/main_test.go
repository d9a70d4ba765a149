package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dozehq/doze/internal/buildapi"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/dozehq/doze/builder/engine"
	"github.com/dozehq/doze/builder/layout"
	"github.com/dozehq/doze/builder/step"
)

// The arguments that make the test program another one.
const (
	serveArgument = "serve" // doze-builder itself
	toolArgument  = "tool"  // what no busybox can do, in steps
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case step.Command:
			os.Exit(step.Main()) //nolint:forbidigo // it is main
		case serveArgument:
			os.Exit(command(os.Args[2:])) //nolint:forbidigo // likewise
		case toolArgument:
			if err := tool(os.Args[2:]); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1) //nolint:forbidigo // likewise
			}
			return
		}
	}
	os.Exit(m.Run()) //nolint:forbidigo // likewise
}

// tool does in a step what busybox cannot.
func tool(args []string) error {
	name := args[len(args)-1]
	switch args[0] {
	case "setcap": // cap_net_bind_service=ep, as setcap of libcap writes it
		value := binary.LittleEndian.AppendUint32(nil, 0x02000001)
		for _, word := range []uint32{1 << unix.CAP_NET_BIND_SERVICE, 0, 0, 0} {
			value = binary.LittleEndian.AppendUint32(value, word)
		}
		return unix.Setxattr(name, "security.capability", value, 0)
	case "times":
		at := time.Date(2001, 2, 3, 4, 5, 6, 789_000_000, time.UTC)
		return os.Chtimes(name, at, at)
	}
	return fmt.Errorf("no such tool: %q", args)
}

// needRoot skips a test that cannot run here.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("it needs root")
	}
	if _, err := os.Stat("/bin/busybox"); err != nil {
		t.Skip("it needs busybox-static: make deps-test")
	}
}

// diskMB is the size of the file system of an engine.
const diskMB = 1024

// bench is an engine of a test.
type bench struct {
	*engine.Engine

	dir     string
	program string
}

// open opens an engine; with the path of an OCI runtime, steps run by that.
func open(t *testing.T, runtime string) *bench {
	t.Helper()
	needRoot(t)
	// As in a builder machine. The disk of a host may be so full that the engine makes room.
	dir := t.TempDir()
	mountMemory(t, dir, diskMB)
	return reopen(t, dir, runtime)
}

// reopen opens an engine with the cache of a directory.
func reopen(t *testing.T, dir, runtime string) *bench {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	e, err := engine.Open(t.Context(), engine.Config{
		Dir: dir, Program: []string{program, step.Command}, Runtime: runtime, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	var once sync.Once
	b := &bench{Engine: e, dir: dir, program: program}
	t.Cleanup(func() {
		once.Do(func() {
			if err := e.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		})
	})
	return b
}

// files writes a context: names to texts. A name with a slash at its end is a directory, and
// "name -> target" a link. A text that begins with "@" is the path of a file to copy.
func files(t *testing.T, all map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	old := time.Date(2020, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		at, target, isLink := strings.Cut(name, " -> ")
		full := filepath.Join(dir, at)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		source := all[name]
		switch source {
		case localTar:
			source = "@" + writeTar(t)
		case testProgram:
			program, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			source = "@" + program
		}
		text := []byte(source)
		var err error
		if from, ok := strings.CutPrefix(source, "@"); ok {
			if text, err = os.ReadFile(from); err != nil {
				t.Fatal(err)
			}
		}
		switch {
		case isLink:
			err = os.Symlink(target, full)
		case strings.HasSuffix(name, "/"):
			err = os.MkdirAll(full, 0o755)
		default:
			mode := os.FileMode(0o644)
			if strings.HasPrefix(source, "@") || strings.HasPrefix(source, "#!") {
				mode = 0o755
			}
			if err = os.WriteFile(full, text, mode); err == nil {
				err = os.Chtimes(full, old, old)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// events are what a build told.
type events []buildapi.Event

// output is what the steps wrote.
func (all events) output() string {
	var lines []string
	for _, e := range all {
		if e.Stream != "" {
			lines = append(lines, e.Text)
		}
	}
	return strings.Join(lines, "\n")
}

// states returns the states of numbered steps, like "RUN make: cached".
func (all events) states() (states []string) {
	for _, e := range all {
		if e.Step > 0 && e.State != "" && e.State != buildapi.StateStarted {
			states = append(states, e.Name+": "+e.State)
		}
	}
	return states
}

// try builds.
func (b *bench) try(ctx context.Context, o engine.Order) (*buildapi.Result, *buildapi.Failure, events) {
	var all events
	result, failure := b.Build(ctx, o, func(e buildapi.Event) { all = append(all, e) })
	return result, failure, all
}

// must builds, and fails the test if that does not work.
func (b *bench) must(t *testing.T, o engine.Order) (*buildapi.Result, events) {
	t.Helper()
	result, failure, all := b.try(t.Context(), o)
	if failure != nil {
		t.Fatalf("build %s: %+v\n%s", o.ID, failure, all.output())
	}
	return result, all
}

// order is of a Dockerfile and other files.
func order(t *testing.T, id, dockerfile string, others map[string]string) engine.Order {
	t.Helper()
	all := maps.Clone(others)
	if all == nil {
		all = map[string]string{}
	}
	all["Dockerfile"] = dockerfile
	return engine.Order{Build: buildapi.Build{ID: id, Context: "c"}, Dir: files(t, all)}
}

// baseKey is the digest under which the base is put.
const baseKey = "sha256:ba5e"

var (
	baseOnce   sync.Once
	baseLayout []byte
)

// base puts an image with busybox, and returns the names for it. It is the same for each
// engine, byte for byte.
func (b *bench) base(t *testing.T) map[string]string {
	t.Helper()
	baseOnce.Do(func() {
		if *compareWith != "" {
			baseLayout = recorded(t).Base
			return
		}
		o := order(t, "base", `FROM scratch
COPY busybox /bin/busybox
COPY passwd group /etc/
RUN ["/bin/busybox", "mkdir", "-p", "/tmp", "/root", "/usr/bin", "/var/lib", "/home/ann"]
RUN ["/bin/busybox", "--install", "-s", "/bin"]
RUN chmod 1777 /tmp; chown 7:8 /home/ann; ln -s /var/lib /lib
ENV BASE=busybox
`, map[string]string{
			"busybox": "@/bin/busybox", "passwd": "root:x:0:0::/root:/bin/sh\nann:x:7:8::/home/ann:/bin/sh\n", "group": "root:x:0:\nann:x:8:\nstaff:x:9:ann\n",
		})
		b.must(t, o)
		var out bytes.Buffer
		if err := b.Result(t.Context(), "base", nil, &out); err != nil {
			t.Fatal(err)
		}
		baseLayout = out.Bytes()
	})
	if err := b.PutImage(t.Context(), baseKey, bytes.NewReader(baseLayout)); err != nil {
		t.Fatal(err)
	}
	return map[string]string{"busybox:1": baseKey}
}

// image is an image that a test reads.
type image struct {
	config ocispec.Image
	layers []ocispec.Descriptor
	files  map[string]file
}

// file is what a comparison of two images looks at.
type file struct {
	Type             byte
	Mode             int64
	UID, GID         int
	Time             time.Time
	Link             string
	Size             int64
	Sum              string
	Xattrs           map[string]string
	DevMajor, DevMin int64
}

// read reads a result with its files, layer upon layer.
func (b *bench) read(t *testing.T, id string, without ...string) image {
	t.Helper()
	var out bytes.Buffer
	if err := b.Result(t.Context(), id, without, &out); err != nil {
		t.Fatal(err)
	}
	blobs := map[digest.Digest][]byte{}
	desc, err := layout.Read(&out, func(d digest.Digest, _ int64, r io.Reader) error {
		raw, err := io.ReadAll(r)
		if digest.FromBytes(raw) != d {
			t.Errorf("blob %s is another one", d)
		}
		blobs[d] = raw
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	m, err := layout.Manifest(blobs[desc.Digest])
	if err != nil {
		t.Fatal(err)
	}
	img := image{layers: m.Layers, files: map[string]file{}}
	if err := json.Unmarshal(blobs[m.Config.Digest], &img.config); err != nil {
		t.Fatal(err)
	}
	for i, l := range m.Layers {
		raw, ok := blobs[l.Digest]
		if !ok {
			if l.Annotations[buildapi.AnnotationImage] == "" {
				t.Errorf("layer %d is missing", i)
			}
			continue
		}
		if want := img.config.RootFS.DiffIDs[i]; want != l.Digest {
			t.Errorf("layer %d is compressed: %s, %s", i, l.Digest, want)
		}
		img.apply(t, raw)
	}
	return img
}

// apply adds a layer.
func (img image) apply(t *testing.T, raw []byte) {
	t.Helper()
	in := tar.NewReader(bytes.NewReader(raw))
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		name := path.Clean("/" + h.Name)
		dir, last := path.Split(name)
		if last == ".wh..wh..opq" {
			maps.DeleteFunc(img.files, func(at string, _ file) bool { return strings.HasPrefix(at, dir) })
			continue
		}
		if gone, ok := strings.CutPrefix(last, ".wh."); ok {
			at := dir + gone
			maps.DeleteFunc(img.files, func(have string, _ file) bool { return have == at || strings.HasPrefix(have, at+"/") })
			continue
		}
		sum := sha256.New()
		if _, err := io.Copy(sum, in); err != nil {
			t.Fatal(err)
		}
		f := file{
			Type: h.Typeflag, Mode: h.Mode, UID: h.Uid, GID: h.Gid, Time: h.ModTime.UTC(), Link: h.Linkname, Size: h.Size,
			Sum: hex.EncodeToString(sum.Sum(nil)), DevMajor: h.Devmajor, DevMin: h.Devminor,
		}
		for key, value := range h.PAXRecords {
			if name, ok := strings.CutPrefix(key, "SCHILY.xattr."); ok {
				if f.Xattrs == nil {
					f.Xattrs = map[string]string{}
				}
				f.Xattrs[name] = hex.EncodeToString([]byte(value))
			}
		}
		if h.Typeflag == tar.TypeLink { // another name of a file of this layer: what it is says that one
			f = img.files[path.Clean("/"+h.Linkname)]
			f.Link = "hard: " + path.Clean("/"+h.Linkname)
		}
		img.files[name] = f
	}
}
