package settings

import (
	"flag"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/host"
	"github.com/dozehq/doze/internal/ingress"
)

// load reads the settings of dozed all, and returns the rest of its arguments.
func load(args []string) (Settings, []string, error) {
	flags := flag.NewFlagSet("dozed all", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	s, err := Load(flags, args)
	return s, flags.Args(), err
}

func TestLoad(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(file, []byte(`{"regions":["eu-1","us-1"],"pauseAfter":"1m","diskAfter":"1h"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	c, rest, err := load([]string{
		"--config", file, "--pause-after", "2m", "--listen", ":80",
		"--egress-pool", "203.0.113.7, 203.0.113.8/30", "--egress-interface", "eth0", "rest",
	})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(c.Regions, []string{"eu-1", "us-1"}) || c.PauseAfter.Duration != 2*time.Minute || c.DiskAfter.Duration != time.Hour || c.SaveAfter.Duration != 5*time.Second {
		t.Errorf("got %+v", c)
	}
	if c.PublicURL != "http://127.0.0.1:80" || len(rest) != 1 {
		t.Errorf("public URL %q, rest %q", c.PublicURL, rest)
	}
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
}

func TestValidateReportsEverything(t *testing.T) {
	t.Parallel()
	c := Defaults().resolve()
	if err := c.Validate(); err != nil {
		t.Fatalf("the defaults: %v", err)
	}
	c.SaveAfter.Duration = 0
	if err := c.Validate(); err != nil {
		t.Errorf("save at once: %v", err)
	}
	c.Workspace, c.Regions, c.Listen, c.PauseAfter.Duration, c.SaveAfter.Duration, c.Egress, c.Log = "Main!", nil, "nowhere", -1, -1, "ajar", "loud"
	c.SwapAfter.Duration, c.Swap, c.BudgetMB, c.Checkpoint.Duration, c.CheckPause.Duration = -1, "plain:1", -1, 1, -1
	c.EgressPool = []string{"203.0.113.7/24"}
	err := c.Validate()
	if err == nil {
		t.Fatal("all wrong, and no error")
	}
	for _, field := range []string{"workspace", "regions must name at least one region", "listen", "pauseAfter", "saveAfter", "swapAfter", "swap the size", "checkpointEvery must be at least 5s", "checkpointPause", "memoryBudgetMb", "egress", "egressPool is wrong", "egressInterface", "log"} {
		if !strings.Contains(err.Error(), field) {
			t.Errorf("%q does not mention %s", err, field)
		}
	}
}

// TestRegionSettings that are wrong.
func TestRegionSettings(t *testing.T) {
	t.Parallel()
	for args, says := range map[string]string{
		"--regions us-pdx-1,eu-lon-1": "", "--regions local": "",
		"--regions ,":            "regions must name at least one region",
		"--regions us-1,Mars!":   "regions[1]",
		"--regions us-1,eu,us-1": `regions must not have "us-1" here`,
		"--regions us-1,auto":    `regions must not have "auto" here`,
	} {
		c, _, err := load(strings.Fields(args))
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Validate(); (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", args, err, says)
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
		c, _, err := load(strings.Fields(args))
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Validate(); (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", args, err, says)
		}
	}
}

// TestRoutingSettings: secrets are masked, and references of sandboxes are not resolved,
// unless the operator says so.
func TestRoutingSettings(t *testing.T) {
	t.Parallel()
	s := Defaults()
	if o := s.Host(); o.GuestReferences || o.Unmasked {
		t.Errorf("by default: references %v, unmasked %v", o.GuestReferences, o.Unmasked)
	}
	s.GuestReferences, s.MaskResponses = true, false
	if o := s.Host(); !o.GuestReferences || !o.Unmasked {
		t.Errorf("as the operator says: references %v, unmasked %v", o.GuestReferences, o.Unmasked)
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
		"--metrics-per-sandbox 10001":                        "metricsPerSandbox must be 0 to 10000",
		"--otlp-endpoint http://token@otel.example.com":      "otlpEndpoint must have neither credentials nor a query: set headers with OTEL_EXPORTER_OTLP_HEADERS",
	} {
		c, _, err := load(strings.Fields(args))
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Validate(); (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
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
		"--leave-idle -1s":                                "leaveIdle must not be negative",
		"--write-stall-timeout -1s":                       "writeStallTimeout must be positive",
		"--trusted-proxies 10.0.0.0/8,fd00::/8":           "",
		"--trusted-proxies 10.0.0.1":                      `trustedProxies must be networks such as 10.0.0.0/8 or 192.0.2.1/32: "10.0.0.1" is none`,
	} {
		c, _, err := load(strings.Fields(args))
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Validate(); (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", args, err, says)
		}
	}
	c, _, err := load(strings.Fields("--trusted-proxies 10.1.2.3/8 --max-connections 7 --max-connections-per-source 3 --header-timeout 1s --body-idle-timeout 2s --write-stall-timeout 3s"))
	if err != nil {
		t.Fatal(err)
	}
	want := ingress.Limits{
		Connections: 7, PerSource: 3, Header: time.Second, BodyIdle: 2 * time.Second, WriteStall: 3 * time.Second,
		Proxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
	}
	if got := c.Limits(new(doze.Problems)); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestTwoDataDirectoriesShareNothing(t *testing.T) {
	t.Parallel()
	a, b := Defaults(), Defaults()
	a.Data, b.Data = "/srv/a", "/srv/b"
	a, b = a.resolve(), b.resolve()
	if a.Run == b.Run || a.Cgroup == b.Cgroup || a.ImagesDir == b.ImagesDir {
		t.Errorf("%+v and %+v", a, b)
	}
}

func TestAMistakeInAFlagIsOneLine(t *testing.T) {
	t.Parallel()
	for args, says := range map[string]string{"--pause-after soon": "-pause-after", "--fly": "-fly", "--ready": "-ready"} {
		_, _, err := load(strings.Fields(args))
		if err == nil || !strings.Contains(err.Error(), says) || !strings.HasSuffix(err.Error(), "; see dozed all --help") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", args, err)
		}
	}
}

// TestLocalURL is what others on this host find the address by.
func TestLocalURL(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ listen, cert, want string }{
		"loopback":    {"127.0.0.1:7080", "", "http://127.0.0.1:7080"},
		"everywhere":  {"[::]:80", "", "http://127.0.0.1:80"},
		"certificate": {"[::]:443", "/cert", "https://doze.example.com"},
	} {
		s := Defaults()
		s.TLSCert, s.PublicURL = tt.cert, "https://doze.example.com"
		if got := s.LocalURL(tt.listen); got != tt.want {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// TestBuildSettings that are wrong.
func TestBuildSettings(t *testing.T) {
	t.Parallel()
	for args, says := range map[string]string{
		"": "", "--builds 1 --build-memory-mb 2048 --build-disk-mb 1024 --build-cache-age 0s --build-timeout 1h": "",
		"--builds 0":            "builds must be 1 to 64",
		"--builds 65":           "builds must be 1 to 64",
		"--build-memory-mb 100": "buildMemoryMb must be 512 to",
		"--build-memory-mb -1":  "buildMemoryMb must be 512 to",
		"--build-memory-mb 1024 --build-disk-mb 1024": "buildDiskMb must be less than buildMemoryMb",
		"--build-disk-mb -1":                          "buildDiskMb",
		"--build-cache-age -1s":                       "buildCacheAge must not be negative",
		"--build-timeout 0s":                          "buildTimeout must be more than 0",
		"--build-timeout 25h":                         "buildTimeout",
	} {
		c, _, err := load(strings.Fields(args))
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Validate(); (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", args, err, says)
		}
	}
}

// TestBuilding: the options of builds are those of the settings.
func TestBuilding(t *testing.T) {
	t.Parallel()
	c, _, err := load(strings.Fields("--builds 3 --build-memory-mb 2048 --build-disk-mb 1024 --build-cache-age 2h --build-timeout 1h"))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := c.Host().Builds, (host.Builds{Most: 3, MemoryMB: 2048, DiskMB: 1024, CacheAge: 2 * time.Hour, Timeout: time.Hour}); got != want {
		t.Errorf("the options are %+v, want %+v", got, want)
	}
}
