package e2e_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// endless reads zeros.
type endless struct{}

func (endless) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// TestDisk asks the platform for more of the disk than is anybody's share, and for
// an image that nothing needs any more.
func TestDisk(t *testing.T) {
	t.Parallel()
	images := filepath.Join(t.TempDir(), "images")
	p, _ := start(t, "--private-registries", "--images", "", "--images-dir", images)
	server := httptest.NewServer(registry.New(registry.Logger(slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo))))
	t.Cleanup(server.Close)
	hub := strings.TrimPrefix(server.URL, "http://")

	const expanded = 1 << 30
	var bomb bytes.Buffer
	z, err := gzip.NewWriterLevel(&bomb, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(z)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "zeros", Mode: 0o644, Size: expanded}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(w, endless{}, expanded); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	push(t, hub+"/bomb:1", bomb.Bytes(), v1.Config{})
	sandbox := fmt.Sprintf(`{"metadata":{"name":"bomb"},"spec":{"runtime":{"image":%q,"memory":512}}}`, hub+"/bomb:1")
	if a := (call{method: "POST", url: p.Address + "/v0/sandboxes", body: sandbox}).want(t, p, 400); !strings.Contains(a.body, "INVALID_IMAGE") || !strings.Contains(a.body, "times its compressed size") {
		t.Errorf("a bomb of %d KB: %s", bomb.Len()>>10, a.body)
	}
	a := call{method: "POST", url: p.Address + "/v0/volumes", body: `{"metadata":{"name":"huge"},"spec":{"size":4194304}}`}.want(t, p, 429)
	if !strings.Contains(a.body, "4194304 MB more") {
		t.Errorf("a volume of 4 TiB: %s", a.body)
	}
	call{url: p.Address + "/v0/volumes/huge"}.want(t, p, 404)

	files := func() int {
		all, err := filepath.Glob(filepath.Join(images, "images", "*.erofs"))
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	push(t, hub+"/app:1", shellLayer(t, nil), v1.Config{})
	call{method: "POST", url: p.Address + "/v0/images", body: fmt.Sprintf(`{"name":"app:1","image":%q}`, hub+"/app:1")}.want(t, p, 200)
	if n := files(); n != 1 {
		t.Errorf("%d images after one was added, and one refused", n)
	}
	call{method: "DELETE", url: p.Address + "/v0/images/sandbox/app"}.want(t, p, 200)
	for end := time.Now().Add(10 * time.Second); files() > 0; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the image of no record is still there")
		}
	}
	if left, err := os.ReadDir(filepath.Join(images, "tmp")); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	// The image is counted once its file is gone.
	metrics := func() string { return call{url: p.Address + "/metrics"}.want(t, p, 200).body }
	got := metrics()
	for end := time.Now().Add(10 * time.Second); !strings.Contains(got, "doze_images_removed_total 1") && time.Now().Before(end); got = metrics() {
		time.Sleep(50 * time.Millisecond)
	}
	for _, name := range []string{"doze_images_removed_total 1", `doze_disk_bytes{kind="volume"} 0`, "doze_disk_free_bytes", "doze_disk_reserve_bytes"} {
		if !strings.Contains(got, name) {
			t.Errorf("no metric %s", name)
		}
	}
}
