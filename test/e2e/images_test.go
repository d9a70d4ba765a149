package e2e_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
	"github.com/dozehq/doze/internal/builder"
	"github.com/dozehq/doze/internal/catalogue"
	"github.com/dozehq/doze/internal/disk"
	"github.com/dozehq/doze/internal/npm"
	"github.com/dozehq/doze/internal/testkit"
)

// wholeCatalogue has the images built that take minutes each.
var wholeCatalogue = flag.Bool("catalogue", false, "build every image of the catalogue, and check what is in it")

// startCatalogue starts a platform whose builder reaches Debian and npm, and its builder
// ends with the test.
func startCatalogue(t *testing.T, args ...string) *works {
	t.Helper()
	all := append([]string{"--egress", "open", "--build-timeout", "30m"}, packageNetworks(t)...)
	w := startWorks(t, append(all, args...)...)
	t.Cleanup(func() { // before the platform looks for what is left
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
		defer cancel()
		if err := w.n.DropBuilder(ctx, builder.Platform); err != nil {
			t.Error(err)
		}
	})
	return w
}

// packageNetworks lets the builder reach Debian and npm on a host that has them under
// addresses that are not public. Without them the test is skipped.
func packageNetworks(t *testing.T) (args []string) {
	t.Helper()
	registry, err := url.Parse(npm.Find(t.Context()).URL)
	if err != nil {
		t.Fatal(err)
	}
	var networks []string
	for _, host := range []string{registry.Hostname(), "deb.debian.org"} {
		found, err := net.DefaultResolver.LookupNetIP(t.Context(), "ip4", host)
		if err != nil {
			t.Skipf("SKIPPED: images are built of packages, and %s is not there: %v", host, err)
		}
		for _, a := range found {
			network := a.String() + "/32"
			if _, err := doze.ParsePrivateNetworks([]string{network}); err == nil && !slices.Contains(networks, network) {
				networks = append(networks, network)
			}
		}
	}
	if len(networks) == 0 {
		return nil
	}
	return []string{"--egress-allow", strings.Join(networks, ",")}
}

// freshImages is a directory of images that has the base image alone, so that all others
// are built.
func freshImages(t *testing.T) string {
	t.Helper()
	shared, err := disk.Open(testkit.Images, disk.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer shared.Close()
	base, err := shared.Ensure(t.Context(), doze.ImageDefault, nil)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(filepath.Dir(testkit.Images), "fresh-") //nolint:usetesting // beside the others, for links
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	record := strings.TrimSuffix(base.Path, filepath.Ext(base.Path)) + ".json"
	err = os.MkdirAll(filepath.Join(dir, "images"), 0o755)
	for _, file := range []string{base.Path, record} {
		err = errors.Join(err, os.Link(file, filepath.Join(dir, "images", filepath.Base(file))))
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// make creates a sandbox of an image of the catalogue.
func (w *works) make(c *client.Client, name, image string) (doze.Sandbox, *client.Agent) {
	w.Helper()
	sb := named(name, 2048)
	sb.Spec.Runtime.Image = "blaxel/" + image + ":" + doze.TagDefault
	if image == "docker-in-sandbox" {
		sb.Spec.Runtime.ExtraArgs = extra(name, doze.ExtraContainers).Spec.Runtime.ExtraArgs
	}
	begin := time.Now()
	sb, agent := create(w.T, c, sb)
	w.Logf("a sandbox of %s after %v", image, time.Since(begin).Round(time.Second))
	return sb, agent
}

// TestCatalogueImage: an image of the catalogue is really built at its first use, once for
// two sandboxes that want it, after a build that a crash ended. The events say so.
func TestCatalogueImage(t *testing.T) {
	t.Parallel()
	w := startCatalogue(t, "--images-dir", freshImages(t))
	c, err := w.p.Client()
	if err != nil {
		t.Fatal(err)
	}
	// The first build is cut off in its middle.
	cut := make(chan error, 1)
	go func() {
		sb := named("cut", 2048)
		sb.Spec.Runtime.Image = "blaxel/ts-app"
		_, err := c.Create(t.Context(), sb, false)
		cut <- err
	}()
	w.prints("image blaxel/ts-app:", "npm ci")
	if err := w.p.KillRole(testkit.Node); err != nil {
		t.Fatal(err)
	}
	if err := w.p.StartRole(testkit.Node); err != nil {
		t.Fatal(err)
	}
	if err := <-cut; err == nil {
		t.Error("a create succeeded whose build was cut off")
	}
	until(t, "the node is back", func() bool { return w.n.CheckImage(t.Context(), "blaxel/ts-app") == nil })

	var both sync.WaitGroup
	for _, name := range []string{"one", "two"} {
		both.Go(func() {
			sb := named(name, 2048)
			sb.Spec.Runtime.Image = "blaxel/ts-app"
			if _, err := c.Create(t.Context(), sb, true); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	both.Wait()
	if t.Failed() {
		return
	}
	if n := strings.Count(w.p.Printed(), `"msg":"built an image"`); n != 1 {
		t.Errorf("%d builds succeeded", n)
	}
	one, err := c.Sandbox(t.Context(), "one")
	if err != nil {
		t.Fatal(err)
	}
	told := false
	for _, e := range one.Events {
		told = told || strings.Contains(e.Message, "makes the image blaxel/ts-app")
	}
	if !told {
		t.Errorf("no event says that the image is built: %+v", one.Events)
	}
	agent, err := c.Agent(one)
	if err != nil {
		t.Fatal(err)
	}
	checkImage(t, agent, "ts-app")
}

// buildPatience is for the first steps of a build, with the load of its base image.
const buildPatience = 5 * time.Minute

// prints waits until the platform printed a line that has all of some texts.
func (w *works) prints(texts ...string) {
	w.Helper()
	lacks := func(line string) bool {
		return slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(line, text) })
	}
	for end := time.Now().Add(buildPatience); ; time.Sleep(50 * time.Millisecond) {
		for line := range strings.Lines(w.p.Printed()) {
			if !lacks(line) {
				return
			}
		}
		if time.Now().After(end) {
			w.Fatalf("it does not print %q", texts)
		}
	}
}

// imageChecks is what must work in the image of each row: commands of which each must
// succeed.
var imageChecks = map[string][]string{
	"ts-app": {
		"cd /blaxel/app && npx tsc --version && npm run check",
		serves("npm run dev", 3000, "Hello from TypeScript"),
	},
	"py-app": {
		"python -c 'import fastapi, uvicorn'",
		"pip --version",
		serves("uvicorn main:app --host 0.0.0.0 --port 8000", 8000, "Hello from Python"),
	},
	"nextjs": {serves("npm run dev -- --port 3000", 3000, "Your Next.js app runs")},
	"vite":   {serves("npm run dev", 5173, "/src/main.tsx"), "cd /blaxel/app && npm run build"},
	"astro":  {serves("npm run dev", 4321, "Your Astro app runs"), "cd /blaxel/app && npm run build"},
	"chromium": {
		"chromium --version",
		picture("chromium --headless --disable-gpu --screenshot=/tmp/page.png file:///tmp/page.html"),
	},
	"playwright-chromium": {
		"cd /blaxel/app && " + picture("node screenshot.mjs file:///tmp/page.html /tmp/page.png"),
	},
	"xfce-vnc": {
		"for i in $(seq 100); do curl -fsS http://127.0.0.1:6080/vnc.html >/dev/null && break; sleep 0.3; done; curl -fsS http://127.0.0.1:6080/vnc.html | grep -q noVNC",
		"for i in $(seq 100); do pgrep -x xfce4-panel >/dev/null && break; sleep 0.3; done; pgrep -x xfce4-panel",
		"DISPLAY=:1 scrot /tmp/page.png && file /tmp/page.png | grep -q '1280 x 800'",
	},
	"jupyter-server": {
		"/usr/bin/python3 -c 'import ipykernel, jupyter_client, matplotlib, numpy, pandas, tornado'",
		`for i in $(seq 240); do curl -fsS http://127.0.0.1:8888/health | grep -q typescript && exit 0; sleep 0.5; done; exit 1`,
	},
	"docker-in-sandbox": {
		"for i in $(seq 100); do docker info >/dev/null 2>&1 && break; sleep 0.3; done; docker info >/dev/null",
		"mkdir -p /tmp/box/bin && cp /bin/busybox /tmp/box/bin/sh && tar -C /tmp/box -c . | docker import - box && tar -C /tmp/box -c . | podman import - box",
		"docker run --rm --network host box /bin/sh -c 'echo from docker' | grep -q 'from docker'",
		"podman run --rm box /bin/sh -c 'echo from podman' | grep -q 'from podman'",
		"printf 'FROM box\nRUN echo made >/made\n' | docker build --network host -t built - && docker run --rm --network host built /bin/sh -c 'read said </made; echo $said' | grep -q made",
	},
	"claude-code": {"claude --version"},
	"codex":       {"codex --version"},
}

// serves starts a dev server in the directory of the project, and wants a text in its page.
func serves(command string, port int, text string) string {
	return fmt.Sprintf(`cd /blaxel/app && (setsid %s >/tmp/dev.log 2>&1 </dev/null &)
for i in $(seq 240); do curl -fsS --max-time 60 http://127.0.0.1:%d/ 2>/dev/null | grep -q %q && exit 0; sleep 0.5; done
tail -30 /tmp/dev.log; exit 1`, command, port, text)
}

// picture has a command write a picture of a page to /tmp/page.png.
func picture(command string) string {
	return `echo '<body style="background:#0a7">' >/tmp/page.html && ` + command + ` && file /tmp/page.png | grep -q 'PNG image data'`
}

// checkImage runs the checks of an image.
func checkImage(t *testing.T, agent *client.Agent, name string) {
	t.Helper()
	for _, command := range imageChecks[name] {
		sh(t, agent, command)
	}
}

// TestImageChecks: each image of a Dockerfile has a check.
func TestImageChecks(t *testing.T) {
	t.Parallel()
	for _, row := range catalogue.Rows() {
		if (row.Recipe == catalogue.Dockerfile) != (len(imageChecks[row.Name]) > 0) {
			t.Errorf("%s: a Dockerfile: %v, checks: %d", row.Name, row.Recipe == catalogue.Dockerfile, len(imageChecks[row.Name]))
		}
	}
}

// TestCatalogue builds each image, creates a sandbox, and runs its checks there. It takes
// half an hour: -catalogue runs it.
func TestCatalogue(t *testing.T) {
	if !*wholeCatalogue {
		t.Skip("SKIPPED: it builds every image of the catalogue: make images-test runs it")
	}
	t.Parallel()
	w := startCatalogue(t)
	c, err := w.p.Client()
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range catalogue.Rows() {
		if row.Recipe != catalogue.Dockerfile {
			continue
		}
		t.Run(row.Name, func(t *testing.T) {
			w := &works{t, w.p, w.n}
			sb, agent := w.make(c, row.Name, row.Name)
			checkImage(t, agent, row.Name)
			if _, err := c.Delete(t.Context(), sb.Metadata.Name); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestNextJSPreview starts the dev server of blaxel/nextjs with the unmodified client: see
// nextjs.mjs.
func TestNextJSPreview(t *testing.T) { scriptOn(t, "nextjs", "nextjs.mjs") }

// TestInterpreter drives blaxel/jupyter-server with the code interpreter of the unmodified
// client: see interpreter.mjs.
func TestInterpreter(t *testing.T) { scriptOn(t, "jupyter-server", "interpreter.mjs") }

// scriptOn runs a script that uses a large image. The image is built before: the client
// gives up after five minutes, which a first build may take.
func scriptOn(t *testing.T, image, file string) {
	t.Helper()
	if !*wholeCatalogue {
		t.Skip("SKIPPED: it builds a large image: make images-test runs it")
	}
	t.Parallel()
	w := startCatalogue(t)
	c, err := w.p.Client()
	if err != nil {
		t.Fatal(err)
	}
	sb, _ := w.make(c, "first", image)
	if _, err := c.Delete(t.Context(), sb.Metadata.Name); err != nil {
		t.Fatal(err)
	}
	script(t, w.p, file, "BL_API_KEY="+w.p.Key)
}
