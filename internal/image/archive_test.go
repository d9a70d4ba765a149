package image_test

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/plane/planetest"
)

// archive is what a node writes of an image.
func archive(tb testing.TB, content string) string {
	tb.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range [][2]string{
		{"oci-layout", `{"imageLayoutVersion":"1.0.0"}`},
		{"index.json", `{"schemaVersion":2,"manifests":[{"digest":"sha256:00","size":2}]}`},
		{"manifest.json", `[{"Config":"c","RepoTags":[],"Layers":[]}]`},
		{"blobs/sha256/00", content},
	} {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: f[0], Mode: 0o644, Size: int64(len(f[1]))}); err != nil {
			tb.Fatal(err)
		}
		if _, err := io.WriteString(w, f[1]); err != nil {
			tb.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return b.String()
}

// unpack are the files of an archive.
func unpack(tb testing.TB, raw []byte) map[string]string {
	tb.Helper()
	all := map[string]string{}
	for in := tar.NewReader(bytes.NewReader(raw)); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			tb.Fatal(err)
		}
		b, err := io.ReadAll(in)
		if err != nil {
			tb.Fatal(err)
		}
		all[h.Name] = string(b)
	}
}

// TestArchives loads an image, saves it under its name, and does so once more in a
// workspace that it is shared with.
func TestArchives(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, true)
	planetest.Want[doze.Workspace](p, 200, "POST", "/workspaces", `{"name":"other"}`)
	in := []string{"X-Blaxel-Workspace", "other"}
	made := planetest.Want[doze.ImageResponse](p, 200, "PUT", "/images/sandbox/own-app:1/archive", archive(t, "one"))
	if made.Name != "own-app" || made.ResourceType != "sandbox" || !strings.Contains(made.Image, "@sha256:") {
		t.Errorf("%+v", made)
	}
	i := planetest.Want[doze.Image](p, 200, "GET", "/images/sandbox/own-app", "")
	if len(i.Spec.Tags) != 1 || i.Spec.Tags[0].Name != "1" || i.Spec.Tags[0].Image != made.Image || i.Spec.Size == 0 {
		t.Errorf("%+v", i)
	}
	p.Create(imaged("own-app:1"))
	if image, _ := orderedImage(p); image != made.Image {
		t.Errorf("the node was asked for %s", image)
	}
	planetest.Want[doze.Image](p, 200, "POST", "/images/sandbox/own-app/share", `{"targetWorkspace":"other"}`)
	for _, headers := range [][]string{nil, in} {
		w := p.Do("GET", "/images/sandbox/own-app:1/archive", "", headers...)
		if w.Code != 200 || w.Header().Get("Content-Type") != "application/x-tar" || !strings.Contains(w.Header().Get("Content-Disposition"), "own-app-1.tar") {
			t.Fatalf("%d %v", w.Code, w.Header())
		}
		got := unpack(t, w.Body.Bytes())
		var docker []struct{ RepoTags []string }
		if err := json.Unmarshal([]byte(got["manifest.json"]), &docker); err != nil || len(docker) != 1 || len(docker[0].RepoTags) != 1 || docker[0].RepoTags[0] != "own-app:1" {
			t.Errorf("%s, %v", got["manifest.json"], err)
		}
		if !strings.Contains(got["index.json"], `"org.opencontainers.image.ref.name":"own-app:1"`) || got["blobs/sha256/00"] != "one" {
			t.Errorf("%v", got)
		}
	}

	// The tag moves: the node may remove what it meant.
	again := planetest.Want[doze.ImageResponse](p, 200, "PUT", "/images/sandbox/own-app:1/archive", archive(t, "two"))
	if freed := p.Node.Released(); again.Image == made.Image || len(freed) != 1 || freed[0] != made.Image {
		t.Errorf("%+v, %v", again, freed)
	}
	// Its reference is for records alone.
	if w := p.Do("POST", "/sandboxes", imaged("built/x@sha256:"+strings.Repeat("0", 64))); w.Code != 400 || !strings.Contains(w.Body.String(), "no name of an image") {
		t.Errorf("%d %s", w.Code, w.Body)
	}

	key := p.KeyFor("main", time.Time{}, "sandboxes:get")
	for _, tt := range []struct {
		status             int
		method, path, body string
		says               string
		headers            []string
	}{
		{404, "GET", "/images/sandbox/own-app/archive", "", "no tag", nil},
		{404, "GET", "/images/sandbox/own-none/archive", "", "image", nil},
		{404, "GET", "/images/agent/own-app:1/archive", "", "image", nil},
		{403, "GET", "/images/sandbox/own-app:1/archive", "", access.Admin, planetest.As(key)},
		{403, "PUT", "/images/sandbox/own-app:1/archive", archive(t, ""), access.Admin, planetest.As(key)},
		{409, "PUT", "/images/sandbox/own-app:2/archive", archive(t, ""), "shares", in},
		{409, "PUT", "/images/sandbox/base/archive", archive(t, ""), "the platform has an image", nil},
		{400, "PUT", "/images/sandbox/own-a/archive", "no tar", "no image", nil},
		{400, "PUT", "/images/sandbox/Own/archive", archive(t, ""), "lowercase", nil},
		{501, "PUT", "/images/agent/own-a/archive", archive(t, ""), "sandboxes only", nil},
	} {
		w := p.Do(tt.method, tt.path, tt.body, tt.headers...)
		planetest.CheckError(t, w)
		if w.Code != tt.status || !strings.Contains(w.Body.String(), tt.says) {
			t.Errorf("%s %s: %d %s, want %d %q", tt.method, tt.path, w.Code, w.Body, tt.status, tt.says)
		}
	}
	planetest.Want[any](p, 404, "GET", "/images/sandbox/own-a", "")
}

// TestTransfers holds as many uploads of a workspace as may be on their way: the next one
// is too many, until they end.
func TestTransfers(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, true)
	var held []*io.PipeWriter
	var uploads sync.WaitGroup
	for i := range 4 {
		r, w := io.Pipe()
		held = append(held, w)
		uploads.Go(func() {
			q := httptest.NewRequestWithContext(t.Context(), http.MethodPut, fmt.Sprintf("/v0/images/sandbox/own-%d/archive", i), r)
			q.Header.Set("Authorization", "Bearer "+p.Key)
			p.HTTP.ServeHTTP(httptest.NewRecorder(), q)
		})
	}
	status := func() int { return p.Do("PUT", "/images/sandbox/own-more/archive", "no tar").Code }
	for deadline := time.Now().Add(10 * time.Second); status() != http.StatusTooManyRequests; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a fifth upload is let in")
		}
	}
	for _, w := range held {
		_ = w.CloseWithError(io.ErrUnexpectedEOF) // never fails
	}
	uploads.Wait()
	if got := status(); got != http.StatusBadRequest {
		t.Errorf("after all ended: %d", got)
	}
}
