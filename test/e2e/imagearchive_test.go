package e2e_test

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
	"github.com/dozehq/doze/internal/testkit/imagetest"
)

// TestImageTravels saves an image, loads it into another workspace, runs it there, pulls
// it back as docker does, and has it refused for those who may not have it.
func TestImageTravels(t *testing.T) {
	t.Parallel()
	p, c := start(t, "--private-registries", "--images", "", "--images-dir", filepath.Join(t.TempDir(), "images"))
	server := httptest.NewServer(registry.New(registry.Logger(slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo))))
	t.Cleanup(server.Close)
	source := strings.TrimPrefix(server.URL, "http://") + "/team/app:1"
	push(t, source, shellLayer(t, map[string]string{"srv/note": "from the first workspace\n"}), v1.Config{Env: []string{"GREETING=hello"}, WorkingDir: "/srv"})
	if _, err := c.CreateImage(t.Context(), "own-app:1", source); err != nil {
		t.Fatal(err)
	}
	call{method: "POST", url: p.Address + "/v0/workspaces", body: `{"name":"second"}`}.want(t, p, 200)
	// A program of the second workspace: a key of its admin, who is that of the first
	// one, too, would open both.
	var account, key struct {
		ID     string `json:"client_id"`
		APIKey string `json:"apiKey"`
	}
	call{method: "POST", url: p.Address + "/v0/service_accounts?workspace=second", body: `{"name":"ci","scopes":["admin"]}`}.want(t, p, 200).into(t, &account)
	call{method: "POST", url: p.Address + "/v0/service_accounts/" + account.ID + "/api_keys?workspace=second", body: `{"scopes":["admin"]}`}.want(t, p, 200).into(t, &key)
	second, err := client.New(client.Config{Address: p.Address, Key: key.APIKey, Workspace: "second"})
	if err != nil {
		t.Fatal(err)
	}

	archive, err := c.SaveImage(t.Context(), "own-app:1")
	if err != nil {
		t.Fatal(err)
	}
	saved, err := io.ReadAll(archive)
	if err != nil {
		t.Fatal(err)
	}
	_ = archive.Close()
	loaded, err := second.LoadImage(t.Context(), "own-copy:2", bytes.NewReader(saved))
	if err != nil || !strings.HasPrefix(loaded.Image, doze.BuiltPrefix) {
		t.Fatalf("%+v, %v", loaded, err)
	}
	sb := named("copy", 512)
	sb.Spec.Runtime.Image = "own-copy:2"
	sb, agent := create(t, second, sb)
	if got := sh(t, agent, "pwd; echo $GREETING; read line <note; echo $line"); got != "/srv\nhello\nfrom the first workspace" {
		t.Errorf("it says %q", got)
	}
	if _, err := second.Delete(t.Context(), sb.Metadata.Name); err != nil {
		t.Error(err)
	}

	at := strings.TrimPrefix(p.Address, "http://")
	pull := func(ref, key string) (v1.Image, error) {
		r, err := name.ParseReference(at + "/" + ref)
		if err != nil {
			t.Fatal(err)
		}
		return remote.Image(r, remote.WithAuth(&authn.Basic{Username: "doze", Password: key}))
	}
	first, err := pull("main/own-app:1", p.Key)
	if err == nil {
		err = imagetest.Verify(first)
	}
	if err != nil {
		t.Fatal(err)
	}
	copied, err := pull("second/own-copy:2", key.APIKey)
	if err == nil {
		err = imagetest.Verify(copied)
	}
	if err != nil {
		t.Fatal(err)
	}
	one, _ := first.Digest()
	two, _ := copied.Digest()
	if one != two {
		t.Errorf("the image is %s, and its copy %s", one, two)
	}
	file, err := copied.ConfigFile()
	if err != nil || file.Config.WorkingDir != "/srv" || len(file.Config.Env) != 1 {
		t.Errorf("%+v, %v", file, err)
	}
	for ref, status := range map[string]int{"main/own-app:1": http.StatusForbidden, "second/own-app:1": http.StatusNotFound} {
		if _, err := pull(ref, key.APIKey); err == nil || !strings.Contains(err.Error(), http.StatusText(status)) && !strings.Contains(err.Error(), "DENIED") && !strings.Contains(err.Error(), "UNKNOWN") {
			t.Errorf("%s for a key of the second workspace: %v", ref, err)
		}
	}
	if _, err := pull("main/own-app:1", "wrong"); err == nil {
		t.Error("a wrong key pulls")
	}
	// The archive of before, in the same workspace, is the image of before.
	again, err := second.LoadImage(t.Context(), "own-copy:3", bytes.NewReader(saved))
	if err != nil || again.Image == loaded.Image {
		t.Errorf("%+v, %v", again, err)
	}
	if err := second.DeleteImage(t.Context(), "own-copy"); err != nil {
		t.Error(err)
	}
}
