// Package contract_test holds the contract of the platform with its callers:
// conversations as they go over the wire, with the built binaries.
package contract_test

import (
	"flag"
	"log/slog"
	"maps"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/dozehq/doze/internal/testkit"
	"github.com/dozehq/doze/internal/testkit/bucket"
	"github.com/dozehq/doze/internal/testkit/dnstest"
)

var update = flag.Bool("update", false, "write the answers into the transcripts: read what changed before it is committed")

// images is the transcript that needs a registry, and a platform whose images
// nobody else finds.
const images = "images"

// The transcripts about nodes: one needs roles in processes of their own, the other one
// process.
const (
	nodes      = "nodes"
	nodesAlone = "nodes-alone"
)

// TestTranscripts holds every conversation but that about images.
func TestTranscripts(t *testing.T) {
	z, drives := dnstest.Serve(t), bucket.Serve(t)
	// Sandboxes stay awake: what they are does not depend on the moment.
	p := start(t, "--pause-after", "1h", "--resolver", z.Address, "--domain", "doze.example", "--regions", "local,us-pdx-1",
		"--drives", drives.URL, "--drives-credentials", drives.Credentials)
	for _, tr := range load(t) {
		if !slices.Contains([]string{images, nodes, nodesAlone}, tr.name) && !tr.inside() {
			t.Run(tr.name, func(t *testing.T) { hold(t, p, z, tr, map[string]string{"bucket": drives.URL}) })
		}
	}
}

// TestSandboxTranscripts holds the conversations with the API inside a sandbox,
// one after the other, with one sandbox.
func TestSandboxTranscripts(t *testing.T) {
	drives := bucket.Serve(t)
	p := start(t, "--pause-after", "1h", "--domain", "doze.example", "--drives", drives.URL, "--drives-credentials", drives.Credentials)
	s := talk(t, p, "inside")
	s.known["few"] = s.admit(t, "agents:list")
	s.known["admin"] = s.admit(t, "admin")
	s.hold(t, ask(t, `# keep box "url": "([^"]+)"
POST /sandboxes

{"metadata": {"name": "box"}, "spec": {"runtime": {"memory": 1024}}}`))
	for _, tr := range load(t) {
		if tr.inside() {
			t.Run(tr.name, func(t *testing.T) { s.converse(t, tr) })
		}
	}
}

// TestNodeTranscripts holds the conversations about nodes.
func TestNodeTranscripts(t *testing.T) {
	for _, tr := range load(t) {
		switch {
		case tr.name == nodes:
			t.Run(tr.name, func(t *testing.T) { hold(t, launch(t, testkit.Options{Roles: true}), nil, tr, nil) })
		case tr.name == nodesAlone && os.Getenv(testkit.RolesEnv) == "": //nolint:forbidigo // the environment of the tests says how
			t.Run(tr.name, func(t *testing.T) { hold(t, start(t), nil, tr, nil) })
		}
	}
}

func TestImageTranscript(t *testing.T) {
	p := start(t, "--pause-after", "1h", "--private-registries", "--images", "", "--images-dir", filepath.Join(t.TempDir(), "images"))
	for _, tr := range load(t) {
		if tr.name == images {
			registry, saved := serveImage(t)
			hold(t, p, nil, tr, map[string]string{"registry": registry, "saved": saved})
		}
	}
}

// hold holds a conversation in a workspace of its own, with a DNS that it may
// change. What is known in it besides is put in its place in answers too.
func hold(t *testing.T, p *testkit.Platform, z *dnstest.Zone, tr *transcript, besides map[string]string) {
	t.Helper()
	others := talk(t, p, "not-"+tr.name)
	s := talk(t, p, tr.name)
	s.zone = z
	s.known["stranger"] = others.admit(t, "admin")
	s.known["few"] = others.admit(t, "agents:list")
	s.known["admin"] = s.admit(t, "admin")
	maps.Copy(s.known, besides)
	for word := range besides {
		s.named = append(s.named, word)
	}
	s.converse(t, tr)
}

// converse holds the exchanges of a transcript, and compares the answers.
func (s *session) converse(t *testing.T, tr *transcript) {
	t.Helper()
	for _, e := range tr.exchanges {
		got := s.hold(t, e)
		if *update {
			e.answer = got
		} else if diff := cmp.Diff(e.answer, got); diff != "" {
			t.Errorf("%s: %s %s (-want +got):\n%s", e.title, e.method, e.target, diff)
		}
	}
	if *update {
		if err := tr.save(); err != nil {
			t.Error(err)
		}
	}
}

// start runs a platform for one test.
func start(t *testing.T, args ...string) *testkit.Platform {
	t.Helper()
	return launch(t, testkit.Options{Args: args})
}

// launch is start with all options but the directory.
func launch(t *testing.T, o testkit.Options) *testkit.Platform {
	t.Helper()
	if testing.Short() {
		t.Skip("SKIPPED: real sandboxes, in short mode")
	}
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: real sandboxes need root")
	}
	// Not t.TempDir: unix sockets in it would have too long a name.
	dir, err := os.MkdirTemp("", "doze-contract-") //nolint:usetesting // see above
	if err != nil {
		t.Fatal(err)
	}
	o.Dir = dir
	p, err := testkit.Start(t.Context(), o)
	t.Cleanup(func() {
		if p != nil {
			if err := p.Close(); err != nil {
				t.Error(err)
			}
			if t.Failed() {
				t.Logf("what dozed printed:\n%s", p.Tail())
			}
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// serveImage runs a registry with the image app:1, and returns its host, and the image
// as docker saves it.
func serveImage(t *testing.T) (host, saved string) {
	t.Helper()
	server := httptest.NewServer(registry.New(registry.Logger(slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo))))
	t.Cleanup(server.Close)
	host = strings.TrimPrefix(server.URL, "http://")
	base, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: "linux", Architecture: runtime.GOARCH, Config: v1.Config{
		Entrypoint: []string{"/usr/local/bin/sandbox-api"}, Env: []string{"PATH=/bin"}, WorkingDir: "/srv", StopSignal: "SIGINT",
		ExposedPorts: map[string]struct{}{"3000/tcp": {}}, Labels: map[string]string{"org.example": "app"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(base, static.NewLayer([]byte(archive(t)), types.DockerUncompressedLayer))
	if err != nil {
		t.Fatal(err)
	}
	to, err := name.ParseReference(host + "/app:1")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(to, img); err != nil {
		t.Fatal(err)
	}
	var archive strings.Builder
	if err := tarball.Write(to, img, &archive); err != nil {
		t.Fatal(err)
	}
	return host, archive.String()
}
