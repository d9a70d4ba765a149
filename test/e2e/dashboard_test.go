package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dozehq/doze/internal/testkit"
	"github.com/dozehq/doze/internal/testkit/freeport"
)

const (
	rulesFile     = "../../deploy/prometheus/doze.rules.yaml"
	rulesTestFile = "../../deploy/prometheus/doze.rules.test.yaml"
	dashboardFile = "../../deploy/grafana/doze.json"
)

// quietPanels are those that show nothing on a platform that is well, by what has to happen.
var quietPanels = map[string]string{
	"Clients":                 "a client is refused, but for the open connections",
	"Failed wakes and sleeps": "something fails",
}

// dashboard is what matters of one of Grafana's.
type dashboard struct{ Panels []panel }

type panel struct {
	Title   string
	Targets []struct{ Expr string }
}

// prometheus unpacks the package of Debian, and returns the directory of its programs.
func prometheus(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, file := range download(t, "prometheus") {
		if out, err := exec.CommandContext(t.Context(), "dpkg-deb", "-x", file, dir).CombinedOutput(); err != nil {
			t.Fatalf("dpkg-deb: %v\n%s", err, out)
		}
	}
	return filepath.Join(dir, "usr/bin")
}

// TestAlerts: Prometheus reads the alert rules, and each alert has a test in which it fires.
func TestAlerts(t *testing.T) {
	t.Parallel()
	promtool := filepath.Join(prometheus(t), "promtool")
	for _, args := range [][]string{{"check", "rules", rulesFile}, {"test", "rules", rulesTestFile}} {
		if out, err := exec.CommandContext(t.Context(), promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %q: %v\n%s", args, err, out)
		}
	}
	rules, tests := text(t, rulesFile), text(t, rulesTestFile)
	for _, alert := range regexp.MustCompile(`alert: (\w+)`).FindAllStringSubmatch(rules, -1) {
		if !strings.Contains(tests, `alertname="`+alert[1]+`"`) {
			t.Errorf("%s has no test in %s", alert[1], rulesTestFile)
		}
	}
}

// TestDeployedMetrics: the dashboard and the alert rules name metrics that Doze has.
func TestDeployedMetrics(t *testing.T) {
	t.Parallel()
	sources, err := filepath.Glob("../../internal/metric/*.go")
	if err != nil || len(sources) == 0 {
		t.Fatal(sources, err)
	}
	var has strings.Builder
	for _, name := range sources {
		has.WriteString(text(t, name))
	}
	suffix := regexp.MustCompile(`(_seconds)(_bucket|_count|_sum)$`)
	for _, name := range []string{rulesFile, rulesTestFile, dashboardFile} {
		for _, metric := range regexp.MustCompile(`doze_\w+`).FindAllString(text(t, name), -1) {
			if metric = suffix.ReplaceAllString(metric, "$1"); !strings.Contains(has.String(), `"`+metric+`"`) {
				t.Errorf("%s: there is no metric %s", name, metric)
			}
		}
	}
}

// TestDashboard: Prometheus scrapes a platform, and answers each query of the dashboard.
func TestDashboard(t *testing.T) {
	t.Parallel()
	p, c := start(t, "--pause-after", "500ms", "--save-after", "200ms", "--disk-after", "1s", "--swap", "off")
	server := scrape(t, p)
	var board dashboard
	if err := json.Unmarshal([]byte(text(t, dashboardFile)), &board); err != nil {
		t.Fatal(err)
	}
	_, agent := create(t, c, named("a", 512))
	for range 2 {
		awaitTier(t, p, "a", "disk")
		sh(t, agent, "true")
	}
	for _, panel := range board.Panels {
		for _, target := range panel.Targets {
			query := strings.NewReplacer("$__rate_interval", "1m", "$instance", ".*").Replace(target.Expr)
			if strings.Contains(query, "$") {
				t.Errorf("%s: %s has a variable that this test does not know", panel.Title, query)
				continue
			}
			answered := func() bool { return len(answerOf(t, server, query)) > 0 }
			if quietPanels[panel.Title] != "" || strings.HasSuffix(query, "> 0") {
				answered()
				continue
			}
			until(t, panel.Title+": an answer to "+query, answered)
		}
	}
	for title, why := range quietPanels {
		if !slices.ContainsFunc(board.Panels, func(p panel) bool { return p.Title == title }) {
			t.Errorf("no panel is called %s, which shows nothing until %s", title, why)
		}
	}
}

// scrape starts Prometheus with the alert rules, and returns its address.
func scrape(t *testing.T, p *testkit.Platform) string {
	t.Helper()
	dir := t.TempDir()
	rules, err := filepath.Abs(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	target, err := url.Parse(p.Address)
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(config, fmt.Appendf(nil, `global: {scrape_interval: 250ms, evaluation_interval: 1s}
rule_files: [%q]
scrape_configs:
  - job_name: doze
    authorization: {credentials: %q}
    static_configs: [{targets: [%q]}]
`, rules, p.Key, target.Host), 0o600); err != nil {
		t.Fatal(err)
	}
	address, err := freeport.Address(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	server := exec.CommandContext(t.Context(), filepath.Join(prometheus(t), "prometheus"),
		"--config.file", config, "--storage.tsdb.path", filepath.Join(dir, "data"), "--web.listen-address", address, "--log.level", "warn")
	var printed strings.Builder
	server.Stdout, server.Stderr = &printed, &printed
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait() // killed
		if t.Failed() {
			t.Log("what Prometheus printed:\n" + printed.String())
		}
	})
	until(t, "Prometheus is ready", func() bool {
		resp, err := fetch(t, "http://"+address+"/-/ready")
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	return address
}

// fetch asks Prometheus.
func fetch(t *testing.T, address string) (*http.Response, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	return (&http.Client{Timeout: patience}).Do(r)
}

// answerOf returns the series that answer a query.
func answerOf(t *testing.T, server, query string) []json.RawMessage {
	t.Helper()
	resp, err := fetch(t, "http://"+server+"/api/v1/query?query="+url.QueryEscape(query))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	var answer struct {
		Status, Error string
		Data          struct{ Result []json.RawMessage }
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || answer.Status != "success" {
		t.Fatalf("%s: %v %s", query, err, answer.Error)
	}
	return answer.Data.Result
}

// text returns a file of the repository.
func text(t *testing.T, name string) string {
	t.Helper()
	raw, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}
