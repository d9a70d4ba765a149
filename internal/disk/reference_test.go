package disk

import (
	"strings"
	"testing"

	"github.com/dozehq/doze"
)

const someDigest = "sha256:e80eb8649cc81aa7a79a5fe6c1afab1b4f906ce899c0a5dd4da420188e0d50bc"

func TestParse(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ key, wrong string }{
		"blaxel/base-image:latest":            {key: "base"},
		"blaxel/base-image":                   {key: "base"},
		"blaxel/node:latest":                  {key: "base"},
		"blaxel/nextjs":                       {key: "base"},
		"doze/slim:latest":                    {key: "slim"},
		"base":                                {key: "base"},
		"slim":                                {key: "slim"},
		"sandbox/mine":                        {key: "sandbox/mine:latest"},
		"mine:2":                              {key: "mine:2"},
		"python:3.12":                         {key: "python:3.12"}, // known only if it was imported
		"registry.example.com/a/b":            {key: "registry.example.com/a/b:latest"},
		"registry.example.com:5000/a:1":       {key: "registry.example.com:5000/a:1"},
		"localhost/a":                         {key: "localhost/a:latest"},
		"docker.io/python:3.12":               {key: "index.docker.io/library/python:3.12"},
		"ghcr.io/a/blaxel/node@" + someDigest: {key: "ghcr.io/a/blaxel/node@" + someDigest},
		"blaxel/base-image:doesnotexist":      {wrong: "write blaxel/base-image:latest"},
		"blaxel/node:22":                      {wrong: "write blaxel/node:latest"},
		"slim:1":                              {wrong: "write slim:latest"},
		"blaxel/chromium:latest":              {wrong: "Chromium"},
		"doze/jupyter-server":                 {wrong: "Jupyter"},
		"blaxel/base-image@" + someDigest:     {wrong: "leave it out"},
		"mine@" + someDigest:                  {wrong: "needs a registry"},
		"":                                    {wrong: "not an image reference"},
		"Base":                                {wrong: "not an image reference"},
		"a b":                                 {wrong: "not an image reference"},
		"../etc":                              {wrong: "not an image reference"},
		"a//b":                                {wrong: "not an image reference"},
		"base:":                               {wrong: "malformed tag"},
		"base:a/b":                            {wrong: "not an image reference"},
		"base:" + strings.Repeat("t", 129):    {wrong: "malformed tag"},
		"a@sha256:12":                         {wrong: "malformed digest"},
		"registry.example.com/":               {wrong: "not an image reference"},
		"https://registry.example.com/a":      {wrong: "not an image reference"},
		"user:pw@registry.example.com/a":      {wrong: "malformed digest"},
		strings.Repeat("a/", doze.ImageMax) + "a": {wrong: "at most"},
	}
	for ref, want := range tests {
		got, err := parse(ref)
		if got.key != want.key || (err != nil) != (want.wrong != "") {
			t.Errorf("%.60q is %q, %v; want %q", ref, got.key, err, want.key)
			continue
		}
		if err == nil {
			continue
		}
		public := doze.Public(err)
		if public.Kind != doze.Invalid || public.Name != "INVALID_IMAGE" || !strings.Contains(public.Message, want.wrong) {
			t.Errorf("%.60q: %s %s", ref, public.Name, public.Message)
		}
		details, _ := public.Fields["details"].(map[string]any)
		if s, _ := details["requested_image"].(string); s != ref[:min(len(ref), doze.ImageMax)] || len(details["supported_images"].([]string)) == 0 {
			t.Errorf("%.60q: details %v", ref, details)
		}
	}
}

// TestHub: what is offered can be ordered, and the default is offered.
func TestHub(t *testing.T) {
	t.Parallel()
	found := false
	for _, o := range Hub() {
		r, err := parse(o.Image)
		if err != nil || r.recipe == nil || o.Memory < doze.MemoryMin || o.Name == "" || o.DisplayName == "" || o.Description == "" {
			t.Errorf("offer %+v: %v", o, err)
		}
		found = found || o.Image == doze.ImageDefault
	}
	if !found {
		t.Errorf("%s is not on offer", doze.ImageDefault)
	}
	for _, row := range catalog {
		if (row.recipe == nil) != (row.missing != "") {
			t.Errorf("%s: a name has a recipe or lacks something", row.name)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"blaxel/base-image:latest", "registry.example.com:5000/a/b:1@" + someDigest, "localhost/a", "[::1]:5000/a", "a:b:c", "..", "a@b@c"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := parse(s)
		if err != nil {
			if doze.Public(err).Name != "INVALID_IMAGE" {
				t.Errorf("%q: %v", s, err)
			}
			return
		}
		if r.key == "" || strings.Contains(r.key, "..") || r.recipe != nil && r.remote != nil {
			t.Errorf("%q is %+v", s, r)
		}
		if again, err := parse(r.key); err != nil || again.key != r.key {
			t.Errorf("%q is %q, which is %q, %v", s, r.key, again.key, err)
		}
	})
}
