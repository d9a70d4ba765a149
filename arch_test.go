package doze_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/dozehq/doze"

// imports is the architecture: for each package, the packages of ours that it
// may import. A package that is not a key may not exist; an entry that is not
// used is an error too, so the table never grows stale.
var imports = map[string][]string{
	".":                                            {},
	"builder":                                      {"builder/engine", "builder/serve", "builder/step", "internal/buildapi"},
	"builder/engine":                               {"builder/layout", "builder/progress", "builder/recipe", "builder/step", "internal/buildapi"},
	"builder/layout":                               {"internal/buildapi"},
	"builder/progress":                             {"internal/buildapi"},
	"builder/recipe":                               {"internal/buildapi"},
	"builder/serve":                                {"builder/engine", "builder/layout", "builder/recipe", "builder/unpack", "internal/buildapi"},
	"builder/step":                                 {},
	"builder/unpack":                               {"internal/buildapi"},
	"builder/yardstick":                            {"builder/engine", "internal/buildapi"},
	"client":                                       {".", "internal/httpx"},
	"cmd/doze":                                     {".", "client", "internal/relay"},
	"cmd/doze-agent":                               {"internal/agent", "internal/agent/drive", "internal/agent/sshd"},
	"cmd/dozed":                                    {".", "internal/access", "internal/backup", "internal/checkup", "internal/clock", "internal/command", "internal/daemon", "internal/doctor", "internal/edge", "internal/fleet", "internal/fleet/mtls", "internal/front", "internal/handover", "internal/host", "internal/instance", "internal/metric", "internal/plane", "internal/quota", "internal/replica", "internal/settings", "internal/trace", "internal/trace/otlp"},
	"cmd/doze-sentry":                              {"internal/lease", "internal/machine/gvisor/launcher", "internal/machine/gvisor/launcher/early", "internal/machine/gvisor/launcher/filters", "internal/machine/gvisor/launcher/tune", "internal/machine/hostproc"},
	"internal/access":                              {"."},
	"internal/agent":                               {"internal/agent/account", "internal/agent/child", "internal/agent/command", "internal/agent/drive", "internal/agent/entrypoint", "internal/agent/environ", "internal/agent/etc", "internal/agent/export", "internal/agent/file", "internal/agent/identity", "internal/agent/loopback", "internal/agent/memory", "internal/agent/netstate", "internal/agent/owner", "internal/agent/place", "internal/agent/port", "internal/agent/process", "internal/agent/route", "internal/agent/serve", "internal/agent/sshd", "internal/agent/system", "internal/agent/terminal", "internal/agent/tool", "internal/agent/tree", "internal/agent/tunnel", "internal/agent/upload", "internal/agent/watch", "internal/agentapi", "internal/manual"},
	"internal/agent/account":                       {".", "internal/agent/mistake"},
	"internal/agent/agenttest":                     {"internal/agent", "internal/testkit/freeport"},
	"internal/agent/archive":                       {".", "internal/agent/subtree"},
	"internal/agent/batch":                         {},
	"internal/agent/body":                          {".", "internal/agent/mistake", "internal/httpx"},
	"internal/agent/child":                         {"internal/agent/account", "internal/agent/environ", "internal/agent/spawn"},
	"internal/agent/command":                       {".", "internal/agent/body", "internal/agent/environ", "internal/agent/mistake"},
	"internal/agent/description":                   {".", "internal/agent", "internal/agent/archive", "internal/agent/command", "internal/agent/environ", "internal/agent/export", "internal/agent/file", "internal/agent/port", "internal/agent/process", "internal/agent/search", "internal/agent/system", "internal/agent/terminal", "internal/agent/tree", "internal/agent/tunnel", "internal/agent/upload", "internal/agent/watch", "internal/openapi"},
	"internal/agent/drive":                         {".", "internal/agent/account", "internal/agent/body", "internal/agent/proc", "internal/agentapi", "internal/drive/op", "internal/httpx"},
	"internal/agent/entrypoint":                    {".", "internal/agent/child", "internal/agent/command", "internal/agent/process", "internal/agent/pump", "internal/agent/spawn", "internal/agent/system", "internal/agentapi"},
	"internal/agent/environ":                       {".", "internal/agent/body", "internal/agent/mistake"},
	"internal/agent/etc":                           {".", "internal/agent/environ"},
	"internal/agent/export":                        {".", "internal/agent/archive", "internal/agent/body", "internal/agent/command", "internal/agent/environ", "internal/agent/mistake", "internal/agent/process", "internal/agentapi", "internal/httpx"},
	"internal/agent/file":                          {".", "internal/agent/account", "internal/agent/batch", "internal/agent/body", "internal/agent/owner", "internal/agent/place", "internal/agent/route", "internal/agent/scratch", "internal/agent/search", "internal/agent/subtree", "internal/agent/text", "internal/agent/upload", "internal/agent/watch", "internal/httpx"},
	"internal/agent/identity":                      {".", "internal/agent/account", "internal/agent/body", "internal/agent/drive", "internal/agent/environ", "internal/agent/etc", "internal/agent/mistake", "internal/agentapi", "internal/httpx"},
	"internal/agent/journal":                       {"internal/agent/mistake", "internal/httpx"},
	"internal/agent/loopback":                      {".", "internal/agentapi", "internal/relay"},
	"internal/agent/memory":                        {},
	"internal/agent/mistake":                       {"."},
	"internal/agent/netstate":                      {".", "internal/agentapi"},
	"internal/agent/output":                        {"internal/agent/pump", "internal/agentapi"},
	"internal/agent/owner":                         {".", "internal/agent/account", "internal/agent/body", "internal/agent/mistake", "internal/agent/place", "internal/agent/scratch", "internal/agent/upload", "internal/agent/watch"},
	"internal/agent/place":                         {".", "internal/agent/environ"},
	"internal/agent/port":                          {".", "internal/agent/body", "internal/agent/mistake", "internal/agent/proc", "internal/agent/process", "internal/agent/route", "internal/httpx"},
	"internal/agent/proc":                          {},
	"internal/agent/process":                       {".", "internal/agent/batch", "internal/agent/body", "internal/agent/child", "internal/agent/command", "internal/agent/journal", "internal/agent/memory", "internal/agent/mistake", "internal/agent/output", "internal/agent/proc", "internal/agent/pump", "internal/agent/route", "internal/agent/spawn", "internal/agent/text", "internal/agentapi", "internal/httpx"},
	"internal/agent/pump":                          {"internal/agent/scratch"},
	"internal/agent/route":                         {".", "internal/agent/body", "internal/agentapi", "internal/httpx"},
	"internal/agent/scratch":                       {},
	"internal/agent/search":                        {"."},
	"internal/agent/serve":                         {".", "internal/agent/body", "internal/agent/environ", "internal/agent/journal", "internal/agent/memory", "internal/agent/route", "internal/agent/scratch", "internal/httpx"},
	"internal/agent/spawn":                         {},
	"internal/agent/subtree":                       {"internal/agent/proc"},
	"internal/agent/sshd":                          {".", "internal/agent/account", "internal/agent/child", "internal/agent/environ", "internal/agent/journal", "internal/agent/spawn"},
	"internal/agent/system":                        {".", "internal/agent/body", "internal/agent/mistake", "internal/httpx"},
	"internal/agent/terminal":                      {".", "internal/agent/child", "internal/agent/command", "internal/agent/environ", "internal/agent/journal", "internal/agent/mistake", "internal/agent/proc", "internal/agent/pump", "internal/agent/route", "internal/agent/spawn", "internal/agent/text", "internal/page"},
	"internal/agent/text":                          {".", "internal/agent/body", "internal/agent/mistake"},
	"internal/agent/tool":                          {".", "internal/agent/body", "internal/agent/command", "internal/agent/environ", "internal/agent/file", "internal/agent/mistake", "internal/agent/output", "internal/agent/owner", "internal/agent/place", "internal/agent/process", "internal/agent/route", "internal/agent/search", "internal/httpx"},
	"internal/agent/tree":                          {".", "internal/agent/body", "internal/agent/file", "internal/agent/mistake", "internal/agent/owner", "internal/agent/place", "internal/agent/route", "internal/agent/scratch", "internal/agent/subtree", "internal/agent/text", "internal/agent/upload", "internal/httpx"},
	"internal/agent/tunnel":                        {".", "internal/agent/body", "internal/agent/mistake", "internal/agent/route"},
	"internal/agent/upload":                        {".", "internal/agent/scratch"},
	"internal/agent/watch":                         {"."},
	"internal/agentapi":                            {"."},
	"internal/api":                                 {".", "internal/access", "internal/audit", "internal/httpx", "internal/listing", "internal/openapi", "internal/quota"},
	"internal/audit":                               {".", "internal/ratelimit"},
	"internal/backup":                              {".", "internal/durable", "internal/fleet/mtls", "internal/host", "internal/httpx", "internal/instance", "internal/node", "internal/seal", "internal/settings", "internal/sparse", "internal/store"},
	"internal/bell":                                {},
	"internal/build":                               {".", "internal/access", "internal/api", "internal/audit", "internal/bell", "internal/buildapi", "internal/durable", "internal/fleet", "internal/keylock", "internal/openapi", "internal/store"},
	"internal/buildapi":                            {},
	"internal/builder":                             {".", "internal/agentapi", "internal/buildapi", "internal/durable", "internal/fleet"},
	"internal/catalogue":                           {"."},
	"internal/certificate":                         {"."},
	"internal/clock":                               {},
	"internal/command":                             {},
	"internal/console":                             {".", "internal/httpx"},
	"internal/control":                             {".", "internal/access", "internal/api", "internal/audit", "internal/bell", "internal/build", "internal/fleet", "internal/httpx", "internal/image", "internal/keylock", "internal/listing", "internal/network", "internal/openapi", "internal/quota", "internal/seal", "internal/store", "internal/trace"},
	"internal/daemon":                              {},
	"internal/depot":                               {".", "internal/durable", "internal/fleet", "internal/keylock", "internal/node", "internal/vault"},
	"internal/disk":                                {".", "internal/catalogue", "internal/durable", "internal/npm", "internal/outproxy"},
	"internal/doctor":                              {"internal/hostnet", "internal/swap"},
	"internal/drive":                               {"internal/drive/op"},
	"internal/drive/op":                            {},
	"internal/durable":                             {},
	"internal/edge":                                {".", "internal/access", "internal/fleet", "internal/greeting", "internal/httpx", "internal/page", "internal/relay", "internal/trace"},
	"internal/egress":                              {".", "internal/httpx", "internal/outproxy"},
	"internal/failpoint":                           {},
	"internal/feed":                                {".", "internal/access", "internal/api"},
	"internal/fleet":                               {".", "internal/lease", "internal/trace"},
	"internal/fleet/crew":                          {".", "internal/fleet", "internal/placement"},
	"internal/fleet/desk":                          {".", "internal/access", "internal/fleet", "internal/httpx"},
	"internal/fleet/enroll":                        {".", "internal/durable", "internal/fleet", "internal/fleet/mtls", "internal/httpx"},
	"internal/fleet/fleettest":                     {".", "internal/fleet"},
	"internal/fleet/mtls":                          {".", "internal/durable", "internal/httpx"},
	"internal/front":                               {".", "internal/certificate", "internal/daemon", "internal/greeting", "internal/handover", "internal/httpx", "internal/ingress", "internal/metric"},
	"internal/handover":                            {},
	"internal/host":                                {".", "internal/builder", "internal/catalogue", "internal/daemon", "internal/depot", "internal/disk", "internal/drive", "internal/durable", "internal/egress", "internal/fleet", "internal/fleet/mtls", "internal/hostnet", "internal/intercept", "internal/lease", "internal/logbook", "internal/machine", "internal/machine/fence", "internal/machine/gvisor", "internal/machine/hostproc", "internal/metric", "internal/node", "internal/npm", "internal/outproxy", "internal/seal", "internal/space", "internal/swap", "internal/trace", "internal/vault", "internal/volume"},
	"internal/checkup":                             {".", "internal/access", "internal/api", "internal/doctor", "internal/fleet/mtls", "internal/front", "internal/host", "internal/instance", "internal/settings", "internal/swap"},
	"internal/history":                             {".", "internal/access", "internal/api", "internal/durable", "internal/fleet", "internal/metric", "internal/trace"},
	"internal/hostnet":                             {".", "internal/durable"},
	"internal/httpx":                               {"."},
	"internal/image":                               {".", "internal/access", "internal/api", "internal/build", "internal/fleet", "internal/keylock", "internal/openapi", "internal/store"},
	"internal/greeting":                            {"."},
	"internal/ingress":                             {".", "internal/greeting", "internal/httpx", "internal/ratelimit"},
	"internal/instance":                            {".", "internal/disk", "internal/drive", "internal/durable", "internal/fleet", "internal/fleet/enroll", "internal/fleet/mtls", "internal/host", "internal/hostnet", "internal/seal", "internal/settings", "internal/store", "internal/swap", "internal/teardown", "internal/vault"},
	"internal/intercept":                           {".", "internal/httpx"},
	"internal/keylock":                             {},
	"internal/lease":                               {"internal/bell"},
	"internal/machine":                             {},
	"internal/machine/checkpoint":                  {"internal/durable", "internal/failpoint", "internal/machine", "internal/sparse"},
	"internal/machine/fence":                       {".", "internal/machine"},
	"internal/machine/gvisor":                      {"internal/durable", "internal/failpoint", "internal/machine", "internal/machine/checkpoint", "internal/machine/hostproc", "internal/trace"},
	"internal/machine/gvisor/launcher":             {".", "internal/failpoint", "internal/machine", "internal/machine/checkpoint", "internal/machine/gvisor", "internal/machine/gvisor/launcher/patch", "internal/machine/gvisor/launcher/tune", "internal/machine/hostproc", "internal/trace"},
	"internal/machine/gvisor/launcher/early":       {},
	"internal/machine/gvisor/launcher/filters":     {},
	"internal/machine/gvisor/launcher/filters/gen": {},
	"internal/machine/gvisor/launcher/patch":       {},
	"internal/machine/gvisor/launcher/patch/apply": {"internal/machine/gvisor/launcher/patch"},
	"internal/machine/gvisor/launcher/tune":        {},
	"internal/machine/hostproc":                    {},
	"internal/machine/machinetest":                 {"internal/machine", "internal/sparse"},
	"internal/machine/machinetest/guest":           {"internal/machine/machinetest"},
	"internal/machine/machinetest/rig":             {"internal/machine", "internal/machine/checkpoint", "internal/swap"},
	"internal/listing":                             {"."},
	"internal/manual":                              {"internal/httpx"},
	"internal/logbook":                             {".", "internal/agentapi", "internal/fleet", "internal/keylock"},
	"internal/metric":                              {".", "internal/access", "internal/httpx", "internal/machine", "internal/trace"},
	"internal/network":                             {".", "internal/access", "internal/api", "internal/openapi", "internal/store"},
	"internal/node":                                {".", "internal/agentapi", "internal/bell", "internal/durable", "internal/failpoint", "internal/fleet", "internal/machine", "internal/node/conn", "internal/node/descent", "internal/node/entry", "internal/node/idle", "internal/node/lifecycle", "internal/node/mount", "internal/node/renewal", "internal/sparse", "internal/trace"},
	"internal/node/conn":                           {"."},
	"internal/node/descent":                        {".", "internal/machine", "internal/node/renewal"},
	"internal/node/entry":                          {"."},
	"internal/node/idle":                           {"."},
	"internal/node/lifecycle":                      {".", "internal/fleet"},
	"internal/node/mount":                          {"internal/agentapi", "internal/fleet"},
	"internal/node/renewal":                        {},
	"internal/npm":                                 {"."},
	"internal/oauth":                               {".", "internal/access", "internal/audit", "internal/httpx", "internal/ratelimit", "internal/store"},
	"internal/openapi":                             {},
	"internal/page":                                {},
	"internal/outproxy":                            {},
	"internal/placement":                           {"."},
	"internal/plane":                               {".", "internal/access", "internal/api", "internal/audit", "internal/build", "internal/catalogue", "internal/checkup", "internal/console", "internal/control", "internal/drive", "internal/edge", "internal/feed", "internal/fleet", "internal/fleet/crew", "internal/fleet/desk", "internal/fleet/enroll", "internal/fleet/mtls", "internal/history", "internal/image", "internal/instance", "internal/metric", "internal/network", "internal/oauth", "internal/preview", "internal/quota", "internal/reference", "internal/registry", "internal/roster", "internal/schedule", "internal/seal", "internal/settings", "internal/store", "internal/tenancy", "internal/vault"},
	"internal/plane/planetest":                     {".", "internal/access", "internal/audit", "internal/control", "internal/fleet", "internal/fleet/fleettest", "internal/plane", "internal/preview", "internal/quota", "internal/seal", "internal/store", "internal/tenancy"},
	"internal/preview":                             {".", "internal/access", "internal/api", "internal/bell", "internal/fleet", "internal/keylock", "internal/openapi", "internal/store"},
	"internal/python":                              {"internal/openapi"},
	"internal/quota":                               {".", "internal/ratelimit"},
	"internal/ratelimit":                           {"."},
	"internal/reference":                           {".", "internal/httpx", "internal/manual", "internal/openapi"},
	"internal/registry":                            {".", "internal/access", "internal/quota"},
	"internal/relay":                               {},
	"internal/replica":                             {"internal/access", "internal/fleet", "internal/fleet/desk", "internal/quota"},
	"internal/roster":                              {".", "internal/access", "internal/api", "internal/bell", "internal/control", "internal/fleet", "internal/fleet/crew", "internal/fleet/enroll", "internal/fleet/mtls", "internal/httpx", "internal/keylock", "internal/lease", "internal/metric", "internal/placement", "internal/quota", "internal/ratelimit", "internal/seal", "internal/store", "internal/vault"},
	"internal/schedule":                            {".", "internal/api", "internal/audit", "internal/bell", "internal/fleet", "internal/listing", "internal/openapi", "internal/store"},
	"internal/seal":                                {"internal/durable"},
	"internal/settings":                            {".", "internal/certificate", "internal/daemon", "internal/disk", "internal/drive", "internal/front", "internal/host", "internal/ingress", "internal/machine", "internal/outproxy", "internal/space", "internal/store", "internal/swap", "internal/teardown", "internal/trace/otlp"},
	"internal/space":                               {"."},
	"internal/sparse":                              {},
	"internal/store":                               {".", "internal/audit", "internal/listing", "internal/seal"},
	"internal/swap":                                {"."},
	"internal/teardown":                            {"internal/handover"},
	"internal/tenancy":                             {".", "internal/access", "internal/api", "internal/audit", "internal/bell", "internal/httpx", "internal/keylock", "internal/listing", "internal/oauth", "internal/openapi", "internal/quota", "internal/store"},
	"internal/testkit":                             {".", "client", "internal/machine/checkpoint", "internal/machine/gvisor", "internal/npm", "internal/swap", "internal/teardown", "internal/testkit/freeport"},
	"internal/testkit/authority":                   {},
	"internal/testkit/bucket":                      {},
	"internal/testkit/collector":                   {},
	"internal/testkit/dnstest":                     {},
	"internal/testkit/forwarder":                   {},
	"internal/testkit/freeport":                    {},
	"internal/testkit/imagetest":                   {},
	"internal/testkit/postgres":                    {},
	"internal/testkit/power":                       {},
	"internal/trace":                               {"."},
	"internal/trace/otlp":                          {".", "internal/trace"},
	"internal/vault":                               {"internal/durable", "internal/sparse"},
	"internal/volume":                              {".", "internal/durable", "internal/sparse"},
	"packaging/image":                              {},
	"test/bench":                                   {".", "client", "internal/agent", "internal/doctor", "internal/egress", "internal/fleet", "internal/fleet/mtls", "internal/intercept", "internal/npm", "internal/placement", "internal/seal", "internal/store", "internal/testkit", "internal/testkit/bucket", "internal/testkit/freeport"},
	"test/compat":                                  {".", "client", "internal/npm", "internal/testkit"},
	"test/fleet":                                   {".", "client", "internal/machine/gvisor", "internal/teardown", "internal/testkit", "internal/testkit/postgres"},
	"test/room":                                    {"internal/disk", "internal/testkit"},
	"test/soak":                                    {".", "client", "internal/swap", "internal/testkit", "internal/testkit/power"},
}

func TestArchitecture(t *testing.T) {
	used, docs := map[string][]string{}, map[string]int{}
	for name, f := range sources(t) {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		dir := path.Dir(filepath.ToSlash(name))
		used[dir] = slices.Concat(used[dir], ours(f))
		if f.Doc != nil {
			docs[dir]++
		}
	}
	for dir, got := range used {
		allowed, known := imports[dir]
		if !known {
			t.Errorf("package %s is not in the table", dir)
		}
		if docs[dir] != 1 {
			t.Errorf("package %s has %d package comments, want 1", dir, docs[dir])
		}
		for _, imp := range got {
			if !slices.Contains(allowed, imp) {
				t.Errorf("%s may not import %s", dir, imp)
			}
		}
		for _, imp := range allowed {
			if !slices.Contains(got, imp) {
				t.Errorf("%s does not import %s: drop it from the table", dir, imp)
			}
		}
	}
	for dir := range imports {
		if _, ok := used[dir]; !ok {
			t.Errorf("package %s is in the table only", dir)
		}
	}
}

// tenants are the rooms that know neither a node nor what control says to one.
var tenants = []string{"internal/api", "internal/network", "internal/tenancy"}

// TestTenantsKnowNoNode: package fleet is the bridge between the roles. What is about callers
// and their rights works without a node, whatever becomes of nodes.
func TestTenantsKnowNoNode(t *testing.T) {
	for _, dir := range tenants {
		for below := range reach(dir, map[string]bool{}) {
			if within(below, "internal/fleet") || within(below, "internal/control") || within(below, "internal/node") {
				t.Errorf("%s reaches %s: ask for an interface in its Config", dir, below)
			}
		}
	}
	if used := imports["internal/api"]; slices.Contains(used, "internal/store") || slices.Contains(used, "internal/tenancy") {
		t.Error("internal/api imports records: let the room of the records do that, and hand over a function")
	}
}

// roles are the programs that [fleet] connects, and the agent, which a node asks by
// package agentapi.
var roles = []string{"internal/agent", "internal/control", "internal/edge", "internal/egress", "internal/node"}

// TestFleetIsTheOnlyBridge: no role reaches another one by any path of imports. So each
// can run in a process of its own.
func TestFleetIsTheOnlyBridge(t *testing.T) {
	for dir := range imports {
		for _, role := range roles {
			if !within(dir, role) {
				continue
			}
			for below := range reach(dir, map[string]bool{}) {
				if !within(below, role) && under(below, roles) {
					t.Errorf("%s reaches %s: have it ask by a type of internal/fleet", dir, below)
				}
			}
		}
	}
	for _, role := range roles {
		if _, exists := imports[role]; !exists {
			t.Errorf("there is no package %s", role)
		}
	}
}

// TestPrivatePathsHaveOneOwner: package agentapi alone writes the paths that a node asks
// of an agent.
func TestPrivatePathsHaveOneOwner(t *testing.T) {
	for name, f := range sources(t) {
		if strings.HasSuffix(name, "_test.go") || path.Dir(filepath.ToSlash(name)) == "internal/agentapi" {
			continue
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if text, ok := n.(*ast.BasicLit); ok && strings.HasPrefix(text.Value, `"/doze/`) {
				t.Errorf("%s writes the path %s: use the call of internal/agentapi", name, text.Value)
			}
			return true
		})
	}
}

// reach adds what a package imports, and what that imports.
func reach(dir string, known map[string]bool) map[string]bool {
	for _, imp := range imports[dir] {
		if !known[imp] {
			known[imp] = true
			reach(imp, known)
		}
	}
	return known
}

// rooms serve the control API, each its part.
var rooms = []string{
	"internal/api", "internal/build", "internal/control", "internal/image", "internal/network", "internal/oauth", "internal/preview", "internal/schedule", "internal/tenancy",
}

// methodsMax is what control.Server needs, and a few more: its sandboxes, snapshots, volumes
// and drives share the turns of sandboxes and the reconcile loop. The next largest type has
// about half as many. A type that has more does the job of several.
const methodsMax = 150

// TestRoomsAreNoHalls: in Go, a hall is a type with all the methods of a package. Each of
// them can use the locks and loops of all others.
func TestRoomsAreNoHalls(t *testing.T) {
	methods := map[string]int{}
	for name, f := range sources(t) {
		dir := path.Dir(filepath.ToSlash(name))
		if strings.HasSuffix(name, "_test.go") || !slices.Contains(rooms, dir) {
			continue
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv != nil {
				methods[dir+"."+receiver(fn.Recv.List[0].Type)]++
			}
		}
	}
	for name, n := range methods {
		if n > methodsMax {
			t.Errorf("%s has %d methods, more than %d: give a noun a package of its own", name, n, methodsMax)
		}
	}
}

// receiver is the name of the type that a method is of.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

// wiringMax bounds cmd/dozed, which composes the roles and nothing else.
const wiringMax = 800

// TestWiring: what cmd/dozed does besides composing belongs to a package, where it
// has a name and tests, and where others can compose it.
func TestWiring(t *testing.T) {
	const dir = "cmd/dozed"
	total := 0
	for name, f := range sources(t) {
		if path.Dir(filepath.ToSlash(name)) != dir || strings.HasSuffix(name, "_test.go") {
			continue
		}
		raw, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		total += bytes.Count(raw, []byte("\n"))
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv != nil {
				t.Errorf("%s has the method %s: move its type to a package", name, fn.Name)
			}
		}
	}
	if total >= wiringMax {
		t.Errorf("%s has %d lines without tests, and must have fewer than %d", dir, total, wiringMax)
	}
}

// driver is the one that there is, with all below it.
const driver = "internal/machine/gvisor"

// composers may name the driver: who opens it, its launcher's program, and those
// who test and measure what is built.
var composers = []string{driver, "cmd/doze-sentry", "cmd/dozed", "internal/host", "internal/testkit", "test"}

// diskTest reads a root file system as the engine does that it is made for.
const diskTest = "internal/disk/library_test.go"

// engineWords are in the names of an engine's types, functions and fields.
var engineWords = regexp.MustCompile(`(?i)gvisor|runsc|sentry|systrap`)

// lookalikes are words that contain the name of an engine by accident, and why.
var lookalikes = map[string]string{
	"Sourcesentry": "a field in the output of apt-get indextargets",
}

// TestDriverIsHidden: packages that compose no node ask a machine, a driver or its
// traits. They cannot know which driver it is, neither by a name nor by a text. The
// engine itself is linked into one binary only.
func TestDriverIsHidden(t *testing.T) {
	for name, f := range sources(t) {
		dir := path.Dir(filepath.ToSlash(name))
		for _, imp := range f.Imports {
			p := strings.Trim(imp.Path.Value, `"`)
			switch {
			case within(p, "gvisor.dev") && !within(dir, driver) && dir != "cmd/doze-sentry" && filepath.ToSlash(name) != diskTest:
				t.Errorf("%s imports %s, which only %s may", name, p, driver)
			case within(p, "gvisor.dev") && dir == driver:
				t.Errorf("%s imports %s, which only the launcher may: it would be linked into dozed", name, p)
			case within(p, module+"/"+driver) && !under(dir, composers):
				t.Errorf("%s imports %s: ask for a machine.Driver", name, p)
			}
		}
		if under(dir, composers) || name == "arch_test.go" { // this file has the rules
			continue
		}
		check := func(text string) {
			for word := range lookalikes {
				text = strings.ReplaceAll(text, word, "")
			}
			if word := engineWords.FindString(text); word != "" {
				t.Errorf("%s names %s in %q: only %v know an engine", name, word, text, composers)
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ImportSpec: // see above
				return false
			case *ast.Ident:
				check(n.Name)
			case *ast.BasicLit:
				check(n.Value)
			}
			return true
		})
		for _, c := range f.Comments {
			check(c.Text())
		}
	}
}

// within reports whether a path is another one or below it.
func within(p, root string) bool { return p == root || strings.HasPrefix(p, root+"/") }

// under reports whether a path is within one of some.
func under(p string, roots []string) bool {
	return slices.ContainsFunc(roots, func(root string) bool { return within(p, root) })
}

// trackedMax is far above the largest file that a person or a generator of ours
// writes.
const trackedMax = 1 << 20

// What is built does not belong into the history: everybody who clones it has it
// for ever.
func TestTrackedFiles(t *testing.T) {
	list, err := exec.CommandContext(t.Context(), "git", "ls-files", "-z").Output()
	if err != nil {
		t.Skip("SKIPPED: this is no git checkout: ", err)
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(list), "\x00"), "\x00") {
		info, err := os.Stat(name)
		switch {
		case err != nil || !info.Mode().IsRegular(): // deleted, and not committed yet; or a link
		case info.Size() == 0:
			t.Errorf("%s is empty: remove it", name)
		case info.Size() > trackedMax:
			t.Errorf("%s has %d bytes, more than %d: make it in the build, or in the test that needs it", name, info.Size(), trackedMax)
		case isELF(t, name):
			t.Errorf("%s is a binary: build it, and ignore it", name)
		}
	}
}

func isELF(t *testing.T, name string) bool {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	head := make([]byte, 4)
	_, err = f.Read(head)
	return err == nil && bytes.Equal(head, []byte("\x7fELF"))
}

// sources parses every Go file of the module.
func sources(t *testing.T) map[string]*ast.File {
	t.Helper()
	files, fset := map[string]*ast.File{}, token.NewFileSet()
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || d.Name() == "tools" || name == "bin" || len(name) > 1 && name[0] == '.'):
			return fs.SkipDir
		case !strings.HasSuffix(name, ".go"):
			return nil
		}
		f, err := parser.ParseFile(fset, name, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		files[name] = f
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// ours returns the packages of this module that f imports, without the prefix.
func ours(f *ast.File) (dirs []string) {
	for _, imp := range f.Imports {
		p := strings.Trim(imp.Path.Value, `"`)
		switch rest, ok := strings.CutPrefix(p, module+"/"); {
		case p == module:
			dirs = append(dirs, ".")
		case ok:
			dirs = append(dirs, rest)
		}
	}
	return dirs
}
