package disk

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/npm"
)

// packed is an archive as npm makes them: files below package, without directories.
func packed(t *testing.T, headers ...tar.Header) []byte {
	t.Helper()
	var archive bytes.Buffer
	z := gzip.NewWriter(&archive)
	w := tar.NewWriter(z)
	for _, h := range headers {
		h.Uid, h.Gid, h.Size = 1000, 1000, int64(len(h.Name))
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Typeflag != tar.TypeReg {
			h.Size = 0
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(h.Name[:h.Size])); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return archive.Bytes()
}

// TestInstall puts a package of a registry into a tree, and nothing besides.
func TestInstall(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: files of packages become those of root, which needs root")
	}
	tests := map[string]struct {
		archive []byte
		wrong   string
	}{
		"a program":       {archive: packed(t, tar.Header{Name: "package/bin/tool", Mode: 0o755}, tar.Header{Name: "package/lib/a/b.js", Mode: 0o644})},
		"without a file":  {packed(t, tar.Header{Name: "package/other", Mode: 0o755}), "no such file"},
		"a hostile path":  {packed(t, tar.Header{Name: "../../outside", Mode: 0o644}), "outside"},
		"a hostile link":  {packed(t, tar.Header{Name: "package", Typeflag: tar.TypeSymlink, Linkname: "/etc"}, tar.Header{Name: "package/bin/tool", Mode: 0o755}), "no such file"},
		"another archive": {[]byte("nothing"), "EOF"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				_, _ = w.Write(test.archive) // the client notices
			}))
			t.Cleanup(server.Close)
			sum := sha512.Sum512(test.archive)
			pack := npm.Package{Name: "tool", Version: "1.0.0", Integrity: "sha512-" + base64.StdEncoding.EncodeToString(sum[:])}
			p := program{
				by:    map[string]npm.Package{runtime.GOARCH: pack},
				moves: map[string]string{"package/bin/tool": "usr/local/bin/tool", "package/lib": "usr/local/lib/tool"},
			}
			work := t.TempDir()
			tree := filepath.Join(work, "tree")
			if err := os.Mkdir(tree, 0o755); err != nil {
				t.Fatal(err)
			}
			err := p.install(t.Context(), npm.Registry{URL: server.URL}, work, tree)
			left, _ := filepath.Glob(filepath.Join(work, "*")) // the pattern is well formed
			if len(left) != 1 {
				t.Errorf("there is %q", left)
			}
			if test.wrong != "" {
				if err == nil || !strings.Contains(fmt.Sprint(err, doze.Public(err).Message), test.wrong) {
					t.Errorf("it says %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			info, err := os.Stat(filepath.Join(tree, "usr/local/bin/tool"))
			if err != nil || info.Mode().Perm() != 0o755 {
				t.Errorf("the program: %v, %v", info, err)
			}
			if _, err := os.Stat(filepath.Join(tree, "usr/local/lib/tool/a/b.js")); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestProgramsArePinned: each program has a version and a sum for the machines that
// Doze runs on.
func TestProgramsArePinned(t *testing.T) {
	t.Parallel()
	sum := regexp.MustCompile(`^sha512-[A-Za-z0-9+/]{86}==$`)
	for _, r := range recipes {
		for _, p := range r.programs {
			for _, arch := range []string{"amd64", "arm64"} {
				pack, err := p.of(arch)
				if err != nil || pack.Name == "" || pack.Version == "" || !sum.MatchString(pack.Integrity) {
					t.Errorf("%s on %s: %+v, %v", r.name, arch, pack, err)
				}
			}
		}
	}
}
