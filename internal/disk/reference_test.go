package disk

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/catalogue"
)

const someDigest = "sha256:e80eb8649cc81aa7a79a5fe6c1afab1b4f906ce899c0a5dd4da420188e0d50bc"

func TestParse(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ key, wrong string }{
		"blaxel/base-image:latest":            {key: (own{name: "base"}).key()},
		"blaxel/base-image":                   {key: (own{name: "base"}).key()},
		"blaxel/node:latest":                  {key: (own{name: "base"}).key()},
		"blaxel/nextjs":                       {key: (own{name: "nextjs"}).key()},
		"blaxel/node":                         {key: (own{name: "base"}).key()},
		"blaxel/expo":                         {key: (own{name: "base"}).key()},
		"base+0123456789ab":                   {key: "base+0123456789ab"}, // of another release,
		"doze/slim:latest":                    {key: (own{name: "slim"}).key()},
		"base":                                {key: (own{name: "base"}).key()},
		"slim":                                {key: (own{name: "slim"}).key()},
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
		"blaxel/lightpanda:latest":            {wrong: "Lightpanda"},
		"doze/tailscale":                      {wrong: "Tailscale"},
		"base+0123":                           {wrong: "not an image reference"},
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

// TestOwnKeys: each image of ours is made by one thing, and has a key that is its own.
func TestOwnKeys(t *testing.T) {
	t.Parallel()
	keys := map[string]string{}
	for _, o := range catalogue.Hub() {
		r, err := parse(o.Image)
		if err != nil || !r.ours() || r.recipe != nil && r.built != "" || r.remote != nil || r.retired() {
			t.Errorf("%s is %+v, %v", o.Image, r, err)
			continue
		}
		if again, err := parse(r.key); err != nil || again != r {
			t.Errorf("%s: its key is %+v, %v", o.Image, again, err)
		}
		maker := r.built
		if r.recipe != nil {
			maker = r.recipe.name
		}
		if known, ok := keys[r.key]; ok && known != maker {
			t.Errorf("%s and %s have the key %s", known, maker, r.key)
		}
		keys[r.key] = maker
	}
	other := base
	other.packages = append(slices.Clone(base.packages), "one-more")
	if other.revision() == base.revision() {
		t.Error("another recipe has the same revision")
	}
}

// TestRetired: what an earlier release made is not of the platform any more.
func TestRetired(t *testing.T) {
	t.Parallel()
	for ref, want := range map[string]bool{
		(own{name: "base"}).key(): true, (own{name: "slim"}).key(): true, (own{name: "ts-app"}).key(): true, "mine:1": true, "no reference": true,
		"base+0123456789ab": false, "gone+0123456789ab": false, "ts-app+0123456789ab": false, "base": false, "registry.example.com/a:1": false,
	} {
		if got := (record{Refs: map[string]time.Time{ref: {}}}).platform(); got != want {
			t.Errorf("%s: of the platform: %v", ref, got)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"blaxel/base-image:latest", "base+0123456789ab", "registry.example.com:5000/a/b:1@" + someDigest, "localhost/a", "[::1]:5000/a", "a:b:c", "..", "a@b@c"} {
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

// TestCheckPlatform: a name of the platform's family that means nothing says what there is.
func TestCheckPlatform(t *testing.T) {
	t.Parallel()
	l := library(t, Options{})
	for ref, want := range map[string]string{
		"blaxel/xyz": "doze image catalog. There are blaxel/base-image:latest, ", "doze/xyz:1": "the platform has no image", "blaxel/tailscale": "does not ship Tailscale",
		"blaxel/node:20": "has a tag that images of the platform do not have", "blaxel/node": "", "doze/slim:latest": "", "debian:12": "", "team/blaxel/xyz": "", "hub.test/blaxel/xyz": "",
	} {
		err := l.CheckPlatform(ref)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", ref, err, want)
		}
	}
}
