package e2e_test

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/fleet/mtls"
	"github.com/dozehq/doze/internal/testkit"
	"github.com/dozehq/doze/internal/testkit/freeport"
)

// works is a node that builds, as control sees it.
type works struct {
	*testing.T

	p *testkit.Platform
	n *fleet.Client
}

// startWorks starts a platform of three processes, and returns its node.
func startWorks(t *testing.T, args ...string) *works {
	t.Helper()
	address, err := freeport.Address(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p, _ := launch(t, nil, testkit.Options{Roles: true, Args: append([]string{
		"--node-listen", address, "--pause-after", "1s", "--save-after", "0s", "--disk-after", "2s", "--build-memory-mb", "1024", "--build-timeout", "5m",
	}, args...)})
	who, err := mtls.Open(filepath.Join(p.Data, "fleet"), mtls.Control)
	if err != nil {
		t.Fatal(err)
	}
	transport := who.Transport(mtls.Node)
	w := &works{t, p, fleet.NewClient("https://"+address, transport)}
	t.Cleanup(func() { // before the platform looks for what is left
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
		defer cancel()
		all, err := w.n.Builders(ctx)
		for id := range all {
			err = errors.Join(err, w.n.DropBuilder(ctx, id))
		}
		if err != nil {
			t.Error(err)
		}
		transport.CloseIdleConnections()
	})
	return w
}

// buildFiles is the context of a build.
type buildFiles map[string]string

func (f buildFiles) zip(t *testing.T) io.Reader {
	t.Helper()
	var raw bytes.Buffer
	w := zip.NewWriter(&raw)
	for _, name := range slices.Sorted(maps.Keys(f)) {
		to, err := w.Create(name)
		if err == nil {
			_, err = io.WriteString(to, f[name])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &raw
}

// builtLog is what a build told.
type builtLog struct {
	mu     sync.Mutex
	output []string // guarded by mu
	cached int      // guarded by mu; steps
}

func (l *builtLog) add(e fleet.BuildEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e.Stream != "" {
		l.output = append(l.output, e.Text)
	}
	if e.State == fleet.BuildCached {
		l.cached++
	}
}

func (l *builtLog) printed(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.output, func(line string) bool { return strings.Contains(line, text) })
}

func (l *builtLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fmt.Sprintf("%d steps of the cache, and\n%s", l.cached, strings.Join(l.output, "\n"))
}

// try builds for a workspace.
func (w *works) try(ctx context.Context, id, workspace string, files buildFiles, watch func(fleet.BuildEvent)) (fleet.Built, *builtLog, error) {
	w.Helper()
	log := new(builtLog)
	o := fleet.BuildOrder{ID: id, Workspace: workspace, WorkspaceID: "id-of-" + workspace, Network: new(doze.Network), Secrets: map[string]string{"token": "hunter2"}}
	built, err := w.n.Build(ctx, o, files.zip(w.T), func(e fleet.BuildEvent) {
		log.add(e)
		if watch != nil {
			watch(e)
		}
	})
	return built, log, err
}

func (w *works) build(id, workspace string, files buildFiles) (fleet.Built, *builtLog) {
	w.Helper()
	begin := time.Now()
	built, log, err := w.try(w.Context(), id, workspace, files, nil)
	if err != nil {
		w.Fatalf("%s: %v: %s", id, err, log)
	}
	w.Logf("built %s in %v", id, time.Since(begin))
	return built, log
}

// saved returns the files of an image that the node saves.
func (w *works) saved(ref string) map[string]string {
	w.Helper()
	archive, err := w.n.SaveImage(w.Context(), ref, nil)
	if err != nil {
		w.Fatal(err)
	}
	defer archive.Close()
	files := map[string]string{}
	var walk func(from io.Reader, depth int)
	walk = func(from io.Reader, depth int) {
		for r := tar.NewReader(from); ; {
			h, err := r.Next()
			if err != nil {
				return // at the end of an archive, or in what is none
			}
			if depth == 0 && strings.HasPrefix(h.Name, "blobs/") {
				walk(r, 1)
				continue
			}
			text, err := io.ReadAll(io.LimitReader(r, 1<<10))
			if err != nil {
				w.Fatal(err)
			}
			files[strings.TrimPrefix(h.Name, "./")] = fmt.Sprintf("%o %d:%d %s", h.Mode&0o7777, h.Uid, h.Gid, text)
		}
	}
	walk(archive, 0)
	return files
}

// asleep waits until the builder of a workspace sleeps on disk.
func (w *works) asleep(workspace string) {
	w.Helper()
	until(w.T, "the builder sleeps on disk", func() bool {
		all, err := w.n.Builders(w.Context())
		return err == nil && all["id-of-"+workspace].Tier == "disk"
	})
}

// app is a small image that needs no network.
var app = buildFiles{
	"Dockerfile": `FROM doze/slim
COPY hello.txt /srv/hello.txt
RUN echo first step && mkdir /made && cp /srv/hello.txt /made/copy && chmod 640 /made/copy && chown 7:8 /made/copy
RUN --mount=type=secret,id=token cat /run/secrets/token | wc -c
RUN date +%s.%N >/made/stamp
ENV GREETING=hello
WORKDIR /srv
`,
	"hello.txt": "hello\n",
}

// TestBuilder: a real builder makes an image, remembers its steps while it sleeps on disk,
// and nobody else has them. What kills its node, or its caller, costs one build.
func TestBuilder(t *testing.T) {
	t.Parallel()
	w := startWorks(t)
	first, log := w.build("b1", "main", app)
	if !log.printed("first step") || log.printed("hunter2") {
		t.Errorf("it told %s", log)
	}
	files := w.saved(first.Ref)
	if got := files["made/copy"]; got != "640 7:8 hello\n" {
		t.Errorf("the copy is %q", got)
	}
	for name, text := range files {
		if strings.Contains(text, "hunter2") {
			t.Errorf("%s has the secret", name)
		}
	}
	stamp := files["made/stamp"]

	w.asleep("main")
	again, log := w.build("b2", "main", app)
	if log.printed("first step") || w.saved(again.Ref)["made/stamp"] != stamp {
		t.Errorf("after a sleep, a step ran again: %s", log)
	}
	changed := maps.Clone(app)
	changed["Dockerfile"] = strings.Replace(app["Dockerfile"], "date +%s.%N", "echo changed", 1)
	if _, log := w.build("b3", "main", changed); log.printed("first step") || log.cached == 0 {
		t.Errorf("a change of the last step ran an earlier one: %s", log)
	}
	if _, log := w.build("b4", "other", app); !log.printed("first step") {
		t.Errorf("the cache of another workspace was used: %s", log)
	}

	// A failing step says where.
	broken := buildFiles{"Dockerfile": "FROM doze/slim\n\nRUN echo reason >&2; exit 7\n"}
	_, log, err := w.try(t.Context(), "b5", "main", broken, nil)
	if where, ok := fleet.BuildFailureOf(err); !ok || where.Line != 3 || where.Code != 7 || !slices.Contains(where.Output, "reason") {
		t.Errorf("a failing step: %v, %+v: %s", err, where, log)
	}

	// A caller that gives up, and a node that is killed, leave a builder that works.
	slow := buildFiles{"Dockerfile": "FROM doze/slim\nRUN echo begun; sleep 600\n"}
	for id, end := range map[string]func(cancel func()){
		"b6": func(cancel func()) { cancel() },
		"b7": func(func()) {
			if err := w.p.KillRole(testkit.Node); err != nil {
				t.Error(err)
			}
		},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		_, _, err := w.try(ctx, id, "main", slow, func(e fleet.BuildEvent) {
			if e.Text == "begun" {
				end(cancel)
			}
		})
		cancel()
		if err == nil {
			t.Errorf("%s: a build that never ends succeeded", id)
		}
		if id == "b7" {
			if err := w.p.StartRole(testkit.Node); err != nil {
				t.Fatal(err)
			}
		}
		if _, log := w.build(id+"-after", "main", app); log.printed("first step") {
			t.Errorf("after %v, the cache is gone: %s", err, log)
		}
	}
	// The end of the machine costs the build, and what the cache got since its last sleep.
	_, _, err = w.try(t.Context(), "b9", "main", slow, func(e fleet.BuildEvent) {
		if e.Text != "begun" {
			return
		}
		for _, uid := range w.machines() {
			for _, pid := range w.p.Engines(uid) {
				if err := testkit.Shoot(t.Context(), pid); err != nil {
					t.Error(err)
				}
			}
		}
	})
	if doze.Public(err).Kind != doze.Unavailable {
		t.Errorf("the end of the machine is %v", err)
	}
	w.build("b9-after", "main", app)
	if err := w.n.DropBuilder(t.Context(), "id-of-main"); err != nil {
		t.Fatal(err)
	}
	if _, log := w.build("b8", "main", app); !log.printed("first step") {
		t.Errorf("the cache outlived its builder: %s", log)
	}
}

// hostileSteps try to reach what a step must not, and ADDRESS is that of the machine. Each
// prints "reached", and what, if it does.
const hostileSteps = `FROM doze/slim
RUN for port in 8080 8079; do for to in 127.0.0.1 localhost ADDRESS; do \
    curl -s -m 5 -i http://$to:$port/health | grep -q . && echo "reached $to:$port"; \
    curl -s -m 5 -i --interface ADDRESS http://$to:$port/health | grep -q . && echo "reached $to:$port by the own address"; \
    done; done || true
RUN mount -t tmpfs none /mnt 2>/dev/null && echo "reached the power to mount"; true
RUN unshare -m true 2>/dev/null && echo "reached the power to make namespaces"; true
RUN ls -d /.doze /b/cache.db /b/contexts 2>/dev/null | sed 's/^/reached /'; true
RUN [ "$(ls -d /proc/[0-9]* | wc -l)" -lt 8 ] || echo "reached the processes of the machine"
RUN tr '\0' '\n' </proc/1/environ | grep DOZE | sed 's/^/reached /'; true
RUN (sleep 600 &) ; true
RUN grep -l sleep /proc/[0-9]*/comm | sed 's/^/reached a process of another step, /'; true
`

// machines returns the UIDs of the builder machines that there are.
func (w *works) machines() (uids []string) {
	w.Helper()
	found, err := filepath.Glob(filepath.Join(w.p.Data, "sandboxes", "builder-*"))
	if err != nil || len(found) == 0 {
		w.Errorf("the builders are %v, %v", found, err)
	}
	for _, dir := range found {
		uids = append(uids, filepath.Base(dir))
	}
	return uids
}

// addressOf returns the address of the builder machine that there is.
func (w *works) addressOf() string {
	w.Helper()
	found, err := filepath.Glob(filepath.Join(w.p.Data, "sandboxes", "builder-*", "record.json"))
	if err != nil || len(found) != 1 {
		w.Fatalf("the builders are %v, %v", found, err)
	}
	raw, err := os.ReadFile(found[0])
	if err != nil {
		w.Fatal(err)
	}
	var record struct {
		Config struct{ Link struct{ IP string } } `json:"config"`
	}
	if err := json.Unmarshal(raw, &record); err != nil || record.Config.Link.IP == "" {
		w.Fatalf("its record is %s, %v", raw, err)
	}
	return record.Config.Link.IP
}

// TestHostileSteps does harm to one builder, which has its base image from the first build on.
// A step reaches what the rules of its order allow. It reaches neither the agent, nor the
// program that builds, nor what that has. What it takes costs its own build. See
// docs/design/0093-hostile-steps.md.
func TestHostileSteps(t *testing.T) {
	t.Parallel()
	w := startWorks(t, "--egress", "open")
	t.Run("reach", func(t *testing.T) { w.in(t).reach() })
	t.Run("network", func(t *testing.T) { w.in(t).network() })
	t.Run("take", func(t *testing.T) { w.in(t).take() })
}

// in returns the same node for another test.
func (w *works) in(t *testing.T) *works {
	t.Helper()
	own := *w
	own.T = t
	return &own
}

// reach: a step reaches neither the agent, nor the program that builds, nor what that has.
func (w *works) reach() {
	w.Helper()
	if _, log := w.build("b1", "main", buildFiles{"Dockerfile": "FROM doze/slim\nRUN curl --version\n"}); !log.printed("curl") {
		w.Fatalf("the image has no curl to attack with: %s", log)
	}
	steps := strings.ReplaceAll(hostileSteps, "ADDRESS", w.addressOf())
	if _, log := w.build("b2", "main", buildFiles{"Dockerfile": steps}); log.printed("reached") {
		w.Error(log)
	}
}

// network: steps reach what the rules of their order allow, and those of an earlier build
// count no more.
func (w *works) network() {
	w.Helper()
	for id, domain := range map[string]string{"b3": "first.test", "b4": "second.test"} {
		o := fleet.BuildOrder{
			ID: id, Workspace: "main", WorkspaceID: "id-of-main", NoCache: true, Network: &doze.Network{ForbiddenDomains: []string{domain}},
		}
		files := buildFiles{"Dockerfile": "FROM doze/slim\nRUN for name in first second; do echo $name $(curl -s -m 5 http://$name.test/); done\n"}
		log := new(builtLog)
		if _, err := w.n.Build(w.Context(), o, files.zip(w.T), log.add); err != nil {
			w.Fatalf("%v: %s", err, log)
		}
		log.mu.Lock()
		for _, line := range log.output {
			name, answer, _ := strings.Cut(line, " ")
			if denied := strings.Contains(answer, "forbiddenDomains[0]"); denied != (name+".test" == domain) {
				w.Errorf("without %s, a step that asks for %s.test is answered %q", domain, name, answer)
			}
		}
		if len(log.output) != 2 {
			w.Errorf("the step printed %q", log.output)
		}
		log.mu.Unlock()
	}
}

// take: what takes all of the disk, of the memory or of the log of a builder costs that build,
// says why, and leaves a builder that works.
func (w *works) take() {
	w.Helper()
	small := buildFiles{"Dockerfile": "FROM doze/slim\nRUN echo small\n"}
	w.build("b5", "main", small)
	for id, c := range map[string]struct {
		command string
		kinds   []doze.Kind
		says    string // in the message, or in the last lines
	}{
		"disk":   {"dd if=/dev/zero of=/big bs=1M count=4000", []doze.Kind{doze.Invalid}, "No space left"},
		"memory": {"tail /dev/zero", []doze.Kind{doze.Invalid, doze.Unavailable}, ""}, // the command ends, or the machine
		"output": {"yes", []doze.Kind{doze.Invalid}, "output"},
	} {
		_, log, err := w.try(w.Context(), "b-"+id, "main", buildFiles{"Dockerfile": "FROM doze/slim\nRUN " + c.command + "\n"}, nil)
		where, _ := fleet.BuildFailureOf(err)
		if err == nil || !slices.Contains(c.kinds, doze.Public(err).Kind) || !strings.Contains(err.Error()+strings.Join(where.Output, "\n"), c.says) {
			w.Errorf("%s: %v, %+v, after %d lines", id, err, where, len(log.output))
		}
		w.Logf("%s: %v", id, err)
		w.build("b-after-"+id, "main", small)
	}
}
