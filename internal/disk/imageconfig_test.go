package disk

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/dozehq/doze"
)

// wholeConfig is what an image can say about its process, and whole is how we have it.
var (
	wholeConfig = v1.Config{
		Env: []string{"A=b", "C=$A"}, User: "app:app", WorkingDir: "/srv", Entrypoint: []string{"/start", "--"}, Cmd: []string{"serve", "a b"},
		ExposedPorts: map[string]struct{}{"8443": {}, "80/tcp": {}, "53/UDP": {}, "3000-3002/tcp": {}, "8443/tcp": {}},
		Labels:       map[string]string{"org.example": "x"}, StopSignal: "SIGQUIT",
		Healthcheck: &v1.HealthConfig{
			Test: []string{"CMD-SHELL", "curl -f localhost"}, Interval: 5 * time.Second, Timeout: 500 * time.Millisecond, StartPeriod: time.Minute, Retries: 7,
		},
	}
	whole = doze.ImageConfig{
		Env: []string{"A=b", "C=$A"}, User: "app:app", WorkDir: "/srv", Entrypoint: []string{"/start", "--"}, Cmd: []string{"serve", "a b"},
		Ports:  []string{"53/udp", "80/tcp", "3000/tcp", "3001/tcp", "3002/tcp", "8443/tcp"},
		Labels: map[string]string{"org.example": "x"}, StopSignal: "SIGQUIT",
		Health: &doze.ImageHealth{Test: []string{"CMD-SHELL", "curl -f localhost"}, Interval: 5, Timeout: 0.5, StartPeriod: 60, Retries: 7},
	}
)

func TestConfigOf(t *testing.T) {
	t.Parallel()
	if err := checkConfig("x", &v1.ConfigFile{Config: wholeConfig}); err != nil {
		t.Fatal(err)
	}
	c := configOf(v1.ConfigFile{Config: wholeConfig})
	if diff := cmp.Diff(whole, c.ImageConfig); diff != "" {
		t.Error(diff)
	}
	c.readRaw([]byte(`{"config":{"Healthcheck":{"StartInterval":2500000000}}}`))
	if got := c.Health.StartInterval; got != 2.5 {
		t.Errorf("the start interval is %v", got)
	}
	for name, raw := range map[string]string{"no number": `{"config":{"Healthcheck":{"StartInterval":"5s"}}}`, "none": `{}`, "negative": `{"config":{"Healthcheck":{"StartInterval":-1}}}`} {
		c.Health.StartInterval = 0
		if c.readRaw([]byte(raw)); c.Health.StartInterval != 0 {
			t.Errorf("%s: %v", name, c.Health.StartInterval)
		}
	}
	for name, test := range map[string][]string{"none": {"NONE"}, "inherited": {}} {
		if got := healthOf(&v1.HealthConfig{Test: test}); got != nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if got := configOf(v1.ConfigFile{}); !cmp.Equal(got.ImageConfig, doze.ImageConfig{}) {
		t.Errorf("of nothing: %+v", got)
	}
}

// TestHostileConfigs: an image that nobody can obey is refused with the reason.
func TestHostileConfigs(t *testing.T) {
	t.Parallel()
	many := map[string]struct{}{"1-1001": {}}
	for want, c := range map[string]v1.Config{
		"is no variable":    {Env: []string{"=x"}},
		"has a NUL byte":    {WorkingDir: "/a\x00b"},
		"given a NUL byte":  {Cmd: []string{"a\x00"}},
		"longer than":       {Labels: map[string]string{"a": strings.Repeat("x", recordBytesMax)}},
		"which is no port":  {ExposedPorts: map[string]struct{}{"http": {}}},
		`"80/icmp"`:         {ExposedPorts: map[string]struct{}{"80/icmp": {}}},
		`"0/tcp"`:           {ExposedPorts: map[string]struct{}{"0/tcp": {}}},
		`"9-8"`:             {ExposedPorts: map[string]struct{}{"9-8": {}}},
		`"65536"`:           {ExposedPorts: map[string]struct{}{"65536": {}}},
		"more than 1000":    {ExposedPorts: many},
		"the stop signal":   {StopSignal: "SIGNOTHING"},
		"it must be CMD":    {Healthcheck: &v1.HealthConfig{Test: []string{"curl"}}},
		`["CMD"]`:           {Healthcheck: &v1.HealthConfig{Test: []string{"CMD"}}},
		`"CMD-SHELL" "a" "`: {Healthcheck: &v1.HealthConfig{Test: []string{"CMD-SHELL", "a", "b"}}},
		"has a time of":     {Healthcheck: &v1.HealthConfig{Test: []string{"CMD", "a"}, Timeout: -1}},
		"a time of 48h0m0s": {Healthcheck: &v1.HealthConfig{Test: []string{"CMD", "a"}, Interval: 48 * time.Hour}},
		"has -1 retries":    {Healthcheck: &v1.HealthConfig{Test: []string{"CMD", "a"}, Retries: -1}},
		" given a NUL byte": {Healthcheck: &v1.HealthConfig{Test: []string{"CMD", "a\x00"}}},
	} {
		err := checkConfig("hub.test/app:1", &v1.ConfigFile{Config: c})
		if e := doze.Public(err); err == nil || e.Kind != doze.Invalid || e.Name != doze.NameInvalidImage || !strings.Contains(e.Message, strings.TrimSpace(want)) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

// TestPullHasTheConfiguration: a pulled image has the whole of it, also after a restart.
func TestPullHasTheConfiguration(t *testing.T) {
	t.Parallel()
	l, h := library(t, Options{PrivateRegistries: true}), newHub(t)
	h.push(t, "team/app:1", wholeConfig, layer(t, entry{'f', 0o755, 0, "start", "x"}))
	ref := h.host + "/team/app:1"
	if _, err := l.Ensure(t.Context(), ref, nil); err != nil {
		t.Fatal(err)
	}
	again, err := Open(l.dir, l.o)
	if err != nil {
		t.Fatal(err)
	}
	img, err := again.Ensure(t.Context(), ref, nil)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(whole, img.ImageConfig); diff != "" {
		t.Error(diff)
	}
	h.push(t, "team/bad:1", v1.Config{StopSignal: "x"}, layer(t, entry{'f', 0o755, 0, "start", "x"}))
	if _, err := l.Ensure(t.Context(), h.host+"/team/bad:1", nil); doze.Public(err).Name != doze.NameInvalidImage {
		t.Errorf("a hostile one: %v", err)
	}
}

// forget makes the record of an image one from before all of its configuration counted.
func forget(t *testing.T, l *Library, digest string) {
	t.Helper()
	file := filepath.Join(l.imageDir(), strings.TrimPrefix(digest, "sha256:")+recordSuffix)
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]any{}
	if err := json.Unmarshal(raw, &all); err != nil {
		t.Fatal(err)
	}
	for name := range all {
		if !slices.Contains([]string{"ref", "digest", "bytes", "env", "user", "workDir", "refs"}, name) {
			delete(all, name)
		}
	}
	if raw, err = json.Marshal(all); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, raw, recordMode); err != nil {
		t.Fatal(err)
	}
	if err := l.load(); err != nil {
		t.Fatal(err)
	}
}

// TestOldRecords: an image from before the entry point counted is as it was, until
// somebody asks its registry for it again. Then its configuration comes anew, and none of
// its files.
func TestOldRecords(t *testing.T) {
	t.Parallel()
	l, h := library(t, Options{PrivateRegistries: true}), newHub(t)
	h.push(t, "team/app:1", wholeConfig, layer(t, entry{'f', 0o755, 0, "start", "x"}))
	ref := h.host + "/team/app:1"
	first, err := l.Ensure(t.Context(), ref, nil)
	if err != nil {
		t.Fatal(err)
	}
	old := doze.ImageConfig{Env: whole.Env, User: whole.User, WorkDir: whole.WorkDir}
	h.push(t, "team/app:2", wholeConfig, layer(t, entry{'f', 0o755, 0, "start", "x"})) // the same image
	for name, ask := range map[string]func() (Image, error){
		"pinned":      func() (Image, error) { _, img, err := l.Pin(t.Context(), ref, nil, nil); return img, err },
		"another tag": func() (Image, error) { return l.Ensure(t.Context(), h.host+"/team/app:2", nil) },
	} {
		forget(t, l, first.Digest)
		img, err := l.Ensure(t.Context(), ref, nil)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(old, img.ImageConfig); diff != "" {
			t.Error(diff)
		}
		img, err = ask()
		if err != nil || img.Path != first.Path {
			t.Fatalf("%s: %+v, %v", name, img, err)
		}
		if diff := cmp.Diff(whole, img.ImageConfig); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if img, err = l.Ensure(t.Context(), ref, nil); err != nil || !cmp.Equal(img.ImageConfig, whole) {
			t.Errorf("%s: after that %+v, %v", name, img.ImageConfig, err)
		}
	}
}

// FuzzConfig: whatever a registry says, an image is refused, or has ports, times and
// arguments that can be used.
func FuzzConfig(f *testing.F) {
	raw, err := json.Marshal(v1.ConfigFile{Config: wholeConfig})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Add([]byte(`{"config":{"Healthcheck":{"Test":["CMD","a"],"StartInterval":1e300},"ExposedPorts":{"1-65535/tcp":{},"/":{}},"StopSignal":"SIGRTMIN+99"}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var file v1.ConfigFile
		if json.Unmarshal(raw, &file) != nil || checkConfig("x", &file) != nil {
			return
		}
		c := configOf(file)
		c.readRaw(raw)
		if len(c.Ports) > portsMax || strings.ContainsRune(strings.Join(c.Program(), ""), 0) {
			t.Errorf("%d ports, %q", len(c.Ports), c.Program())
		}
		if h := c.Health; h != nil {
			for _, s := range []float64{h.Interval, h.Timeout, h.StartPeriod, h.StartInterval} {
				if s < 0 || s > healthTimeMax.Seconds() {
					t.Errorf("a time of %v", s)
				}
			}
		}
	})
}
