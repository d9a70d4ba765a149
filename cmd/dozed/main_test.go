package main

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/doctor"
	"github.com/dozehq/doze/internal/ingress"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestUsageIsCurrent(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	usage(&out)
	c := defaults()
	for _, command := range []struct {
		name string
		bind func(*flag.FlagSet)
	}{{"all:", c.bind}, {"doctor, besides:", new(doctorOptions).bind}, {"destroy, besides:", new(destroyOptions).bind}} {
		flags := quiet(command.name)
		command.bind(flags)
		out.WriteString("\ndozed " + command.name + "\n")
		printFlags(&out, flags)
	}

	const file = "testdata/usage.golden"
	if *update {
		if err := os.WriteFile(file, out.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if out.String() != string(want) {
		t.Errorf("%s is stale: run go test ./cmd/dozed -update", file)
	}
}

func TestEveryCommandHasHelp(t *testing.T) {
	t.Parallel()
	for _, c := range commands {
		if err := c.run(t.Context(), []string{"--help"}); !errors.Is(err, flag.ErrHelp) {
			t.Errorf("dozed %s --help: %v", c.name, err)
		}
	}
	for _, tt := range []struct{ args, want string }{
		{"image", "build, ls"}, {"image rm", "build, ls"}, {"config", "check, print"}, {"config --config /none print", "check, print"},
	} {
		if err := run(t.Context(), strings.Fields(tt.args)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("dozed %s: %v, want to hear of %s", tt.args, err, tt.want)
		}
	}
}

func TestLoad(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(file, []byte(`{"region":"eu-1","pauseAfter":"1m","diskAfter":"1h"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	c, rest, err := load("all", []string{
		"--config", file, "--pause-after", "2m", "--listen", ":80",
		"--egress-pool", "203.0.113.7, 203.0.113.8/30", "--egress-interface", "eth0", "rest",
	})
	if err != nil {
		t.Fatal(err)
	}
	if c.Region != "eu-1" || c.PauseAfter.Duration != 2*time.Minute || c.DiskAfter.Duration != time.Hour || c.SaveAfter.Duration != 5*time.Second {
		t.Errorf("got %+v", c)
	}
	if c.PublicURL != "http://127.0.0.1:80" || len(rest) != 1 {
		t.Errorf("public URL %q, rest %q", c.PublicURL, rest)
	}
	if err := c.validate(); err != nil {
		t.Error(err)
	}
}

func TestDoctorFlags(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]doctorOptions{
		"": {}, "--apply": {apply: true}, "-apply --data /tmp": {apply: true}, "--apply=false": {}, "--apply --only swap": {true, "swap"},
	} {
		var got doctorOptions
		if _, rest, err := load("doctor", strings.Fields(args), got.bind); err != nil || len(rest) > 0 || got != want {
			t.Errorf("%q: %+v, rest %q, %v", args, got, rest, err)
		}
	}
	if _, _, err := load("all", []string{"--apply"}); err == nil {
		t.Error("dozed all takes --apply")
	}
}

func TestMend(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	for name, text := range map[string]string{a: "always within_size [advise] never\n", b: "65530\n"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	found := []doctor.Finding{
		{Check: "pages", Mend: &doctor.Setting{File: a, Value: "never"}}, {Check: "maps", Mend: &doctor.Setting{File: b, Value: "262144"}}, {Check: "user"},
	}
	for _, tc := range []struct{ only, a, b, said string }{
		{"pages", "never", "65530\n", "changed: pages, until the next reboot; to undo: echo advise > " + a + "\n"},
		{"", "never", "262144", "echo 65530 > " + b + "\n"},
	} {
		var out bytes.Buffer
		if err := mend(&out, found, tc.only); err != nil {
			t.Error(err)
		}
		for name, want := range map[string]string{a: tc.a, b: tc.b} {
			if got, err := os.ReadFile(name); string(got) != want || err != nil {
				t.Errorf("only %q: %s is %q, %v", tc.only, name, got, err)
			}
		}
		if !strings.HasSuffix(out.String(), tc.said) {
			t.Errorf("only %q: it said %q", tc.only, out.String())
		}
	}
	if err := mend(io.Discard, []doctor.Finding{{Check: "gone", Mend: &doctor.Setting{File: filepath.Join(dir, "c")}}}, ""); err == nil {
		t.Error("a file that is not there was changed")
	}
}

func TestValidateReportsEverything(t *testing.T) {
	t.Parallel()
	c := defaults().resolve()
	if err := c.validate(); err != nil {
		t.Fatalf("the defaults: %v", err)
	}
	c.SaveAfter.Duration = 0
	if err := c.validate(); err != nil {
		t.Errorf("save at once: %v", err)
	}
	c.Workspace, c.Region, c.Listen, c.PauseAfter.Duration, c.SaveAfter.Duration, c.Egress, c.Log = "Main!", "", "nowhere", -1, -1, "ajar", "loud"
	c.SwapAfter.Duration, c.Swap, c.BudgetMB, c.Checkpoint.Duration = -1, "plain:1", -1, 1
	c.EgressPool = []string{"203.0.113.7/24"}
	err := c.validate()
	if err == nil {
		t.Fatal("all wrong, and no error")
	}
	for _, field := range []string{"workspace", "region", "listen", "pauseAfter", "saveAfter", "swapAfter", "swap the size", "checkpointEvery must be at least 5s", "memoryBudgetMb", "egress", "egressPool is wrong", "egressInterface", "log"} {
		if !strings.Contains(err.Error(), field) {
			t.Errorf("%q does not mention %s", err, field)
		}
	}
}

// TestCertificateSettings that do not go together.
func TestCertificateSettings(t *testing.T) {
	t.Parallel()
	for args, says := range map[string]string{
		"--acme":                                                           "publicUrl is https://127.0.0.1:7080",
		"--acme --public-url https://localhost":                            "publicUrl",
		"--acme --public-url https://doze.test":                            "",
		"--acme --tls-cert a --tls-key b":                                  "",
		"--acme --public-url https://doze.test --acme-email nobody":        "acmeEmail",
		"--acme --public-url https://doze.test --acme-email ops@doze.test": "",
		"--acme --public-url https://doze.test --acme-directory http://x":  "acmeDirectory",
		"--http-listen 127.0.0.1:80":                                       "httpListen is for plain HTTP next to TLS",
		"--tls-cert a --tls-key b --http-listen 127.0.0.1:80":              "",
		"--tls-cert a --tls-key b --http-listen :80":                       "httpListen must have the host of listen",
		"--tls-cert a --tls-key b --http-listen 80":                        "httpListen must be host:port",
		"--listen :443 --tls-cert a --tls-key b --http-listen :80":         "",
		"--listen 0.0.0.0:7080":                                            "",
		"--tls-cert a":                                                     "tlsCert and tlsKey go together",
	} {
		c, _, err := load("all", strings.Fields(args))
		if err != nil {
			t.Fatal(err)
		}
		if err := c.validate(); (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", args, err, says)
		}
	}
}

// TestTraceSettings: dozed does not start with a collector that it could never
// reach.
func TestTraceSettings(t *testing.T) {
	t.Parallel()
	for args, says := range map[string]string{
		"--otlp-endpoint http://127.0.0.1:4318":              "",
		"--otlp-endpoint https://otel.example.com/v1/traces": "",
		"--otlp-endpoint 127.0.0.1:4318":                     "otlpEndpoint must be a URL",
		"--otlp-endpoint grpc://127.0.0.1:4317":              "otlpEndpoint must be a URL that begins with http:// or https://",
		"--otlp-endpoint http://token@otel.example.com":      "otlpEndpoint must have neither credentials nor a query: set headers with OTEL_EXPORTER_OTLP_HEADERS",
	} {
		c, _, err := load("all", strings.Fields(args))
		if err != nil {
			t.Fatal(err)
		}
		if err := c.validate(); (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", args, err, says)
		}
	}
}

// TestIngressSettings that are wrong, and what the right ones become.
func TestIngressSettings(t *testing.T) {
	t.Parallel()
	for args, says := range map[string]string{
		"": "", "--max-connections 100 --max-connections-per-source 10": "",
		"--max-connections -1":                            "maxConnections must not be negative",
		"--max-connections-per-source -1":                 "maxConnectionsPerSource must not be negative",
		"--source-rate 100:500 --source-failure-rate off": "",
		"--source-rate fast":                              `sourceRate is wrong: "fast" is no rate`,
		"--source-failure-rate 1:0":                       "sourceFailureRate is wrong",
		"--header-timeout 0s":                             "headerTimeout must be positive",
		"--body-idle-timeout 0s":                          "bodyIdleTimeout must be positive",
		"--write-stall-timeout -1s":                       "writeStallTimeout must be positive",
		"--trusted-proxies 10.0.0.0/8,fd00::/8":           "",
		"--trusted-proxies 10.0.0.1":                      `trustedProxies must be networks such as 10.0.0.0/8 or 192.0.2.1/32: "10.0.0.1" is none`,
	} {
		c, _, err := load("all", strings.Fields(args))
		if err != nil {
			t.Fatal(err)
		}
		if err := c.validate(); (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", args, err, says)
		}
	}
	c, _, err := load("all", strings.Fields("--trusted-proxies 10.1.2.3/8 --max-connections 7 --max-connections-per-source 3 --header-timeout 1s --body-idle-timeout 2s --write-stall-timeout 3s"))
	if err != nil {
		t.Fatal(err)
	}
	want := ingress.Limits{
		Connections: 7, PerSource: 3, Header: time.Second, BodyIdle: 2 * time.Second, WriteStall: 3 * time.Second,
		Proxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
	}
	if got := c.limits(new(doze.Problems)); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestTwoDataDirectoriesShareNothing(t *testing.T) {
	t.Parallel()
	a, b := defaults(), defaults()
	a.Data, b.Data = "/srv/a", "/srv/b"
	a, b = a.resolve(), b.resolve()
	if a.Run == b.Run || a.Cgroup == b.Cgroup || a.ImagesDir == b.ImagesDir {
		t.Errorf("%+v and %+v", a, b)
	}
}

func TestLockKeepsASecondProcessOut(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	unlock, err := lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lock(dir); err == nil || !strings.Contains(err.Error(), "another dozed") {
		t.Errorf("the second lock: %v", err)
	}
	unlock()
	unlock, err = lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	unlock()
}

func TestAMistakeInAFlagIsOneLine(t *testing.T) {
	t.Parallel()
	for args, says := range map[string]string{"--pause-after soon": "-pause-after", "--fly": "-fly", "--ready": "-ready"} {
		_, _, err := load("all", strings.Fields(args))
		if err == nil || !strings.Contains(err.Error(), says) || !strings.HasSuffix(err.Error(), "; see dozed all --help") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", args, err)
		}
	}
}

func TestAnnounce(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ listen, cert, want string }{
		"loopback":    {"127.0.0.1:7080", "", "http://127.0.0.1:7080"},
		"everywhere":  {"[::]:80", "", "http://127.0.0.1:80"},
		"certificate": {"[::]:443", "/cert", "https://doze.example.com"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := defaults()
			c.Data, c.TLSCert, c.PublicURL, c.Run, c.Cgroup = t.TempDir(), tt.cert, "https://doze.example.com", "/run/elsewhere", "elsewhere"
			if err := announce(c, tt.listen); err != nil {
				t.Fatal(err)
			}
			raw, err := os.ReadFile(filepath.Join(c.Data, instanceFile))
			if err != nil || !strings.Contains(string(raw), `"`+tt.want+`"`) {
				t.Errorf("%s, %v", raw, err)
			}
			w, err := remainsOf(config{Data: c.Data, Run: "/run/x", Cgroup: "x"})
			if err != nil || w.Run != c.Run || w.Cgroup != c.Cgroup {
				t.Errorf("%+v, %v", w, err)
			}
		})
	}
	c := config{Data: t.TempDir(), Run: "/run/x", Cgroup: "x"}
	if w, err := remainsOf(c); err != nil || w.Run != "/run/x" {
		t.Errorf("without the file: %+v, %v", w, err)
	}
	for _, raw := range []string{"{", `{"run":"here"}`, `{"cgroup":"../x"}`} {
		if err := os.WriteFile(filepath.Join(c.Data, instanceFile), []byte(raw), 0o600); err != nil {
			t.Fatal(err)
		}
		if w, err := remainsOf(c); err == nil {
			t.Errorf("%s: %+v", raw, w)
		}
	}
}

func TestConfirm(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]bool{"yes\n": true, " yes": true, "": false, "y\n": false, "no\nyes\n": false} {
		var out bytes.Buffer
		if err := confirm(strings.NewReader(in), &out, "/data", false); (err == nil) != want || !strings.Contains(out.String(), "/data") {
			t.Errorf("%q: %v, %s", in, err, out.String())
		}
	}
}

func TestEraseKeepsWhatIsNotOurs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	data := filepath.Join(dir, "data")
	for _, name := range append([]string{"photo"}, ours...) {
		if err := os.MkdirAll(filepath.Join(data, name, "x"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := erase(data); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(data); err != nil || len(left) != 1 || left[0].Name() != "photo" {
		t.Errorf("left %v, %v", left, err)
	}
	if err := errors.Join(os.RemoveAll(filepath.Join(data, "photo")), erase(data)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(data); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory: %v", err)
	}
}

func TestDestroyTouchesNothingElse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := destroy(t.Context(), []string{"--data", dir, "--yes", "--all"}); err == nil || !strings.Contains(err.Error(), "no data directory") {
		t.Errorf("a directory of somebody else: %v", err)
	}
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "lock"), nil, 0o600), os.Mkdir(filepath.Join(dir, "images"), 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := destroy(t.Context(), []string{"--data", dir, "--yes", "--all"}); err == nil || !strings.Contains(err.Error(), "no data directory") {
		t.Errorf("one that looks a little like ours: %v", err)
	}
	unlock, err := lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	if err := announce(config{Data: dir, Run: filepath.Join(dir, "run"), Cgroup: "doze-test-none"}, "127.0.0.1:1"); err != nil {
		t.Fatal(err)
	}
	if err := destroy(t.Context(), []string{"--data", dir, "--yes", "--all"}); err == nil || !strings.Contains(err.Error(), "another dozed") {
		t.Errorf("a directory in use: %v", err)
	}
}

func TestAStartThatFailsLeavesNothing(t *testing.T) {
	t.Parallel()
	taken, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	dir := t.TempDir()
	data, run := filepath.Join(dir, "data"), filepath.Join(dir, "run")
	c := defaults()
	c.Data, c.Run, c.Listen = data, run, taken.Addr().String()
	if _, _, err := claim(t.Context(), c.resolve()); err == nil || !strings.Contains(err.Error(), "--listen") {
		t.Errorf("two listeners: %v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}
