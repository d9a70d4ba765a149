package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/dozehq/doze/internal/disk"
)

// built puts an image into a library as a build does, and returns its file.
func built(t *testing.T, l *disk.Library, id string) string {
	t.Helper()
	layer, err := random.Layer(1<<20, types.DockerLayer)
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		t.Fatal(err)
	}
	file, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	file = file.DeepCopy()
	file.OS, file.Architecture = "linux", runtime.GOARCH
	if img, err = mutate.ConfigFile(img, file); err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	if err := tarball.Write(name.MustParseReference("test.example/image:1"), img, &archive); err != nil {
		t.Fatal(err)
	}
	image, err := l.ImportLayout(t.Context(), id, &archive, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return image.Path
}

// claims has an owner claim all images of a library, as a platform does that starts.
func claims(t *testing.T, dir, owner string) {
	t.Helper()
	l, err := disk.Open(dir, disk.Options{Owner: owner})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestTidy: what nobody claims goes when it is old, or when there is too much. What a
// platform claims that may run stays.
func TestTidy(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: images need root")
	}
	if _, err := exec.LookPath("mkfs.erofs"); err != nil {
		t.Skip("SKIPPED: ", err)
	}
	const all = 1 << 40
	for name, c := range map[string]struct {
		later time.Duration // when tidy runs
		most  int64
		runs  bool // the directory of the claiming platform is there
		left  []string
	}{
		"young":               {later: 2 * time.Hour, most: all, left: []string{"a", "b"}},
		"old":                 {later: 25 * time.Hour, most: all},
		"too much":            {later: 2 * time.Hour, most: 3 << 19, left: []string{"b"}},
		"claimed":             {later: 2 * time.Hour, most: 0, runs: true, left: []string{"a", "b"}},
		"claimed out of view": {later: 12 * time.Minute, most: 0, left: []string{"a", "b"}},
		"claimed by a ruin":   {later: 25 * time.Hour, most: all, runs: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			top := t.TempDir()
			dir, owner := filepath.Join(top, "images"), filepath.Join(top, "platform")
			l, err := disk.Open(dir, disk.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			files := map[string]string{"a": built(t, l, "a"), "b": built(t, l, "b")}
			now := time.Now()
			if err := os.Chtimes(files["a"], now, now.Add(-time.Minute)); err != nil {
				t.Fatal(err)
			}
			if c.runs {
				if err := os.Mkdir(owner, 0o700); err != nil {
					t.Fatal(err)
				}
			}
			claims(t, dir, owner)
			removed, err := tidy(dir, now.Add(c.later), c.most)
			if err != nil {
				t.Fatal(err)
			}
			var left []string
			for id, file := range files {
				if _, err := os.Stat(file); err == nil {
					left = append(left, id)
				}
			}
			slices.Sort(left)
			if !slices.Equal(left, c.left) || (removed > 0) != (len(left) < len(files)) {
				t.Errorf("%v is left, and %d bytes were removed", left, removed)
			}
			// The next platform finds a library that is whole.
			claims(t, dir, filepath.Join(top, "next"))
		})
	}
}

// TestDisownLeaves: a claim that cannot be read keeps its images.
func TestDisownLeaves(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	users := filepath.Join(dir, "users")
	if err := os.Mkdir(users, 0o700); err != nil {
		t.Fatal(err)
	}
	own, err := json.Marshal(map[string]any{"data": dir, "renewed": time.Time{}})
	if err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{"damaged.json": `{"data":`, "own.json": string(own)} {
		if err := os.WriteFile(filepath.Join(users, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := disown(dir, time.Now()); err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(filepath.Join(users, "*")); err != nil || len(left) != 2 {
		t.Errorf("%v, %v", left, err)
	}
}

// TestEnough: too little room is an error in one line, which says where.
func TestEnough(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "not", "yet")
	if err := enough(1, missing); err != nil {
		t.Error(err)
	}
	err := enough(1<<60, missing, "/")
	if err == nil || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), missing+" has ") || !strings.Contains(err.Error(), ", / has ") {
		t.Error(err)
	}
}
