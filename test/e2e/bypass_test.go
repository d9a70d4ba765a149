package e2e_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A bypass is a way past the rules of a network that somebody found somewhere.
type bypass struct {
	closed string // what shows that it is closed
	twin   string // what shows that the same way leads to where it may
}

// bypasses are all that are known. Each names rows of [internet.rows] or
// [internet.withoutRules], or, with a slash, a test by its package and name.
var bypasses = map[string]bypass{
	"a tool that knows no proxy":           {"curl, elsewhere, without", "curl without a proxy"},
	"a static program":                     {"a static program, by TLS, elsewhere", "a static program, by TLS"},
	"QUIC":                                 {"UDP to a name", "by TLS"},
	"labels of the DNS":                    {"a secret in a label", "a tool without a proxy"},
	"a resolver elsewhere":                 {"a text", "a resolver elsewhere"},
	"a resolver elsewhere, by TCP":         {"DNS over TLS", "a resolver elsewhere, by TCP"},
	"DNS over HTTPS":                       {"DNS over HTTPS", "by TLS"},
	"more in a question":                   {"internal/egress/TestAnswer", "more in a question"},
	"an allowed name, another address":     {"a packet of its own", "the address of somebody else"},
	"fronting":                             {"fronted", "a later request to the same"},
	"a later request":                      {"a later request", "a later request to the same"},
	"a tunnel, another name in it":         {"a tunnel, another name", "a tunnel"},
	"no name":                              {"no name, to a name", "by TLS"},
	"a name that is hidden":                {"a key for a hidden name", "a resolver elsewhere"},
	"an address":                           {"an address", "a tool without a proxy"},
	"odd spellings of an address":          {"in octal", "upper case"},
	"a name of a private network":          {"a name of the metadata, by TLS", "by TLS"},
	"the metadata":                         {"the metadata", "an address"},
	"the host":                             {"this machine, another port", "a port of an entry"},
	"the router":                           {"the gateway", "a port of an entry"},
	"a neighbour":                          {"another sandbox", "test/e2e/TestSubnets"},
	"a shared network":                     {"a shared network", "by TLS"},
	"version 6":                            {"version 6", "by TLS"},
	"version 4 in version 6":               {"version 4 in version 6, metadata", "by TLS"},
	"UDP":                                  {"UDP", "test/e2e/TestDedicatedAddress"},
	"ICMP":                                 {"ping elsewhere", "ping"},
	"packets of its own":                   {"a packet of its own, a private network", "a packet of its own, for the DNS"},
	"another port":                         {"another one than that", "a port of an entry"},
	"mail":                                 {"mail", "a port of an entry"},
	"a forged Host in clear":               {"test/e2e/TestRouting", "test/e2e/TestRouting"},
	"a secret in the environment":          {"test/e2e/TestRouting", "test/e2e/TestRouting"},
	"a secret in the log":                  {"internal/intercept/TestNothingIsLogged", "test/e2e/TestRouting"},
	"a placeholder that leaves unchanged":  {"internal/intercept/TestReferences", "internal/intercept/TestInjection"},
	"a secret that is echoed":              {"internal/intercept/TestEncodedAnswers", "internal/intercept/TestRedaction"},
	"a path that becomes a host":           {"internal/intercept/TestPaths", "internal/egress/TestPaths"},
	"a path that leaves a rule":            {"internal/intercept/TestScope", "internal/intercept/TestInjection"},
	"rules that come after the first byte": {"internal/hostnet/TestModesBeginClosed", "internal/hostnet/TestProxied"},
	"rules that are not there":             {"internal/hostnet/TestFailClosed", "internal/hostnet/TestLease"},
	"a proxy that its guests configure":    {"test/e2e/TestIsolation", "test/e2e/TestEgress"},
	"a connection from before":             {"internal/egress/TestTightened", "test/e2e/TestEgress"},
	"a name that moves":                    {"internal/egress/TestNamesAreBounded", "test/e2e/TestEgress"},
	"a proxy that moves":                   {"internal/hostnet/TestProxied", "curl as it comes"},
}

// TestBypasses: there is a test for each way past the rules, and one for its twin.
func TestBypasses(t *testing.T) {
	t.Parallel()
	var n internet
	rows, open := n.rows("", ""), n.withoutRules("", "")
	there := func(what string) bool {
		if strings.Contains(what, "/") {
			return hasTest(t, filepath.Dir(what), filepath.Base(what))
		}
		_, with := rows[what]
		_, without := open[what]
		return with || without
	}
	for name, b := range bypasses {
		for _, what := range []string{b.closed, b.twin} {
			if !there(what) {
				t.Errorf("%s: there is no %q", name, what)
			}
		}
	}
}

// hasTest reports whether a package has a test.
func hasTest(t *testing.T, dir, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", "..", dir, "*_test.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s has no tests: %v", dir, err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(b, []byte("\nfunc "+name+"(t *testing.T)")) {
			return true
		}
	}
	return false
}
