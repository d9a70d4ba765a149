package npm

import (
	"crypto/sha512"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/dozehq/doze"
)

func sumOf(content string) string {
	sum := sha512.Sum512([]byte(content))
	return "sha512-" + base64.StdEncoding.EncodeToString(sum[:])
}

// TestFetch gets a package of a registry with an authority of its own, which fails once.
func TestFetch(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/root/@team/tool/-/tool-1.2.3.tgz" && asked.Add(1) == 1:
			w.WriteHeader(http.StatusBadGateway)
		case r.URL.Path == "/root/@team/tool/-/tool-1.2.3.tgz":
			_, _ = w.Write([]byte("an archive")) // the client notices
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(server.Close)
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	r := Registry{URL: server.URL + "/root", Authorities: authority}
	tests := map[string]struct {
		Package

		wrong string
		kind  doze.Kind
	}{
		"the package":   {Package: Package{"@team/tool", "1.2.3", sumOf("an archive")}},
		"another sum":   {Package{"@team/tool", "1.2.3", sumOf("else")}, "has the sum sha512-", doze.Invalid},
		"no such thing": {Package{"@team/tool", "9.9.9", sumOf("")}, "answered with status 404", doze.Invalid},
	}
	for name, test := range tests {
		file := filepath.Join(t.TempDir(), "package.tgz")
		err := r.Fetch(t.Context(), test.Package, file)
		got, readErr := os.ReadFile(file)
		if test.wrong == "" {
			if err != nil || string(got) != "an archive" {
				t.Errorf("%s: %q, %v", name, got, err)
			}
			continue
		}
		if public := doze.Public(err); err == nil || public.Kind != test.kind || !strings.Contains(public.Message, test.wrong) {
			t.Errorf("%s: %v", name, err)
		}
		if !errors.Is(readErr, fs.ErrNotExist) {
			t.Errorf("%s: there is a file: %q, %v", name, got, readErr)
		}
	}
	if err := (Registry{URL: server.URL}).Fetch(t.Context(), Package{Name: "a", Version: "1"}, filepath.Join(t.TempDir(), "a")); doze.Public(err).Kind != doze.Unavailable {
		t.Errorf("without the authority: %v", err)
	}
}

// TestFind takes the registry from the environment, and refuses what is no address.
func TestFind(t *testing.T) {
	t.Setenv("PATH", t.TempDir()) // without npm
	for set, want := range map[string]string{
		"":                               Default,
		"https://npm.example.com/":       "https://npm.example.com",
		"http://127.0.0.1:4873/npm/sub/": "http://127.0.0.1:4873/npm/sub",
		"npm.example.com":                Default,
		"file:///tmp":                    Default,
	} {
		t.Setenv("NPM_CONFIG_REGISTRY", set)
		if got := Find(t.Context()); got.URL != want || len(got.Authorities) != 0 {
			t.Errorf("%q is %+v", set, got)
		}
	}
}

// TestFindAsksNpm takes the registry and the authorities of npm.
func TestFindAsksNpm(t *testing.T) {
	dir := t.TempDir()
	authorities := filepath.Join(dir, "ca.pem")
	script := "#!/bin/sh\n[ \"$*\" = 'config list --json' ] && echo '{\"registry\":\"https://npm.example.com/x/\",\"cafile\":\"" + authorities + "\",\"other\":null}'\n"
	for name, content := range map[string]string{"npm": script, "ca.pem": "some"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":/bin:/usr/bin")
	t.Setenv("NPM_CONFIG_REGISTRY", "")
	got := Find(t.Context())
	if got.URL != "https://npm.example.com/x" || string(got.Authorities) != "some" {
		t.Errorf("it is %+v", got)
	}
	if want := "registry=https://npm.example.com/x/\nupdate-notifier=false\ncafile=/run/ca\n"; got.Config("/run/ca") != want {
		t.Errorf("the configuration is %q", got.Config("/run/ca"))
	}
}

// TestBelieve: of many authorities, a build gets the one that it needs.
func TestBelieve(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	bundle := filepath.Join(t.TempDir(), "all.pem")
	many := append([]byte(strings.Repeat("# many others\n", authoritiesMax/10)), authority...)
	if err := os.WriteFile(bundle, many, 0o600); err != nil {
		t.Fatal(err)
	}
	r := Registry{URL: server.URL}
	if err := r.believe(t.Context(), bundle); err != nil || string(r.Authorities) != string(authority) {
		t.Errorf("it believes %d bytes, %v", len(r.Authorities), err)
	}
	if err := os.Truncate(bundle, bundleMax+1); err != nil {
		t.Fatal(err)
	}
	if err := r.believe(t.Context(), bundle); err == nil {
		t.Error("it reads a file of any size")
	}
}
