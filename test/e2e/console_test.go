package e2e_test

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
	"github.com/dozehq/doze/internal/testkit"
)

// axeFile is a program that looks for what keeps people from using a page.
const axeFile = "../../internal/console/app/node_modules/axe-core/axe.min.js"

// refusedCommand asks for what the rules of its sandbox refuse.
const refusedCommand = `python3 -c 'import urllib.request as u; u.urlopen("http://192.0.2.1", timeout=3)' 2>/dev/null; curl -s -m 3 http://b.test:8080 >/dev/null; curl -s -m 3 http://a.test >/dev/null`

// watched has a page note what its policy refuses, the errors of its scripts, and each
// address of another origin that it asks for.
const watched = `
	window.refused = [];
	addEventListener("securitypolicyviolation", (e) => refused.push(e.violatedDirective + " " + e.blockedURI));
	addEventListener("error", (e) => refused.push(e.message));
	addEventListener("unhandledrejection", (e) => refused.push(String(e.reason)));
	new PerformanceObserver((all) => all.getEntries().filter((e) => new URL(e.name).origin !== origin).forEach((e) => refused.push(e.name)))
		.observe({ type: "resource", buffered: true });`

// watch has each page of a tab be watched from now on.
func (b tab) watch() {
	b.t.Helper()
	do(b, func(ctx context.Context, to *chromedp.Target) (page.AddScriptToEvaluateOnNewDocumentResult, error) {
		return cdp.Call(ctx, to, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: watched})
	})
}

// until waits until an expression is true in the page.
func (b tab) until(what, expression string) {
	b.t.Helper()
	for end := time.Now().Add(patience); b.script("return "+expression) != "true"; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			b.t.Fatalf("still not: %s; the page shows\n%.1500s", what, b.script("return document.body.innerText"))
		}
	}
}

// press has the browser click what a selector finds, and what has a text.
func (b tab) press(selector, text string) {
	b.t.Helper()
	find := `[...document.querySelectorAll("` + selector + `")].find((e) => e.textContent.trim().startsWith("` + text + `") && !e.disabled)`
	b.until(text+" can be pressed", find+" !== undefined")
	b.script(find + ".focus(); " + find + ".click()")
}

// enter types into the field that a selector finds, and presses Enter.
func (b tab) enter(selector, text string) {
	b.t.Helper()
	b.until(selector+" is there", `document.querySelector("`+selector+`") !== null`)
	do(b, chromedp.SendKeys(selector, text+"\r"))
}

// front has the browser show the tab again: a page that is hidden asks for nothing.
func (b tab) front() {
	b.t.Helper()
	do(b, func(ctx context.Context, to *chromedp.Target) (cdp.Empty, error) {
		return cdp.Call(ctx, to, page.BringToFront, cdp.Empty{})
	})
}

// prefer has the browser say what its user prefers.
func (b tab) prefer(scheme, motion string) {
	b.t.Helper()
	do(b, func(ctx context.Context, to *chromedp.Target) (cdp.Empty, error) {
		return cdp.Call(ctx, to, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
			{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: motion},
		}})
	})
}

// usable fails if the page keeps people out, in dark colours or in light ones.
func (b tab) usable(view string) {
	b.t.Helper()
	axe, err := os.ReadFile(axeFile)
	if err != nil {
		b.t.Fatalf("%v: make deps-test installs it", err)
	}
	do(b, chromedp.Evaluate[chromedp.Void](string(axe)+"; undefined"))
	for _, scheme := range []string{"light", "dark"} {
		b.prefer(scheme, "reduce")
		b.until("the colours are "+scheme, `document.documentElement.dataset.theme === "`+scheme+`"`)
		found := b.script(`
			const all = await axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"] });
			if (all.passes.length < 10) return "axe looked at nothing";
			return all.violations.map((v) => v.id + ": " + v.help + "\n" + v.nodes.slice(0, 4).map((n) => n.html + " " + n.failureSummary).join("\n")).join("\n")`)
		if found != "" {
			b.t.Errorf("%s, %s: %s", view, scheme, found)
		}
	}
}

// clean fails if the page met something that it must not meet.
func (b tab) clean() {
	b.t.Helper()
	if met := b.script(`return refused.join("\n")`); met != "" {
		b.t.Errorf("the page met %s", met)
	}
}

// TestConsole: a real browser shows real sandboxes as they sleep and wake. Looking wakes
// none of them. What a button says happens.
func TestConsole(t *testing.T) {
	t.Parallel()
	b := browse(t)
	b.watch()
	p, c := start(t, "--pause-after", "1s", "--save-after", "200ms", "--disk-after", "1s", "--swap", "off", "--egress", "open")
	web := named("web", 512)
	web.Metadata.Labels = map[string]string{"team": "site"}
	web.Spec.Network = &doze.Network{AllowedDomains: []string{"a.test"}}
	_, agent := create(t, c, web)
	create(t, c, named("quiet", 512))

	b.open(p.Address + "/")
	b.until("it asks for a key", `document.activeElement?.id === "key"`)
	b.usable("the login")
	b.enter("#key", "nonsense")
	b.until("a wrong key is refused", `document.querySelector("[role=alert]") !== null`)
	b.script(`document.querySelector("#key").select()`)
	b.enter("#key", p.Key)

	t.Run("overview", func(*testing.T) {
		b.until("both sleep on disk", `document.querySelector("[data-tier=disk]")?.textContent === "2"`)
		b.until("the host is shown", `document.querySelector("meter") !== null`)
		b.until("the headline says so", `document.querySelector("h1").textContent === "2 of 2 sandboxes asleep"`)
		b.usable("the overview")
		b.clean()
	})
	t.Run("a wake is seen", func(t *testing.T) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = agent.Start(t.Context(), client.Command{Command: refusedCommand + "; echo from inside; sleep 4", Wait: true})
		}()
		b.until("one is awake", `document.querySelector("[data-tier=awake]").textContent === "1"`)
		<-done
		b.until("it sleeps again", `document.querySelector("[data-tier=disk]").textContent === "2"`)
		b.until("a plot has the wake", `[...document.querySelectorAll(".legend li")].some((e) => e.textContent.startsWith("On disk p50") && !e.textContent.endsWith("–"))`)
		b.usable("the overview with plots")
		b.clean()
	})
	t.Run("table", func(*testing.T) {
		b.press("nav a", "Sandboxes")
		b.until("both are listed", `document.querySelectorAll("tr[data-name]").length === 2`)
		b.usable("the table")
		b.press("tr a", "quiet")
		b.until("one is shown", `document.querySelector("h1").textContent === "quiet" && document.querySelector("[data-tier=disk]") !== null`)
		b.usable("a sandbox")
	})
	t.Run("looking wakes none", func(t *testing.T) {
		stays(t, p, "quiet", "disk", 5*time.Second)
		b.until("it still sleeps", `document.querySelector(".state[data-tier=disk]") !== null`)
	})
	t.Run("actions", func(t *testing.T) {
		b.press(".actions button", "Wake")
		b.until("it woke, and its stages are shown", `document.querySelector(".state[data-tier=awake]") !== null && document.querySelectorAll(".stages tbody tr").length > 3 && document.querySelector(".wakes p").textContent.startsWith("Woke from disk")`)
		b.press(".actions button", "Sleep on disk")
		b.until("it sleeps", `document.querySelector(".state[data-tier=disk]") !== null`)
		b.press(".actions button", "Take a snapshot")
		b.until("a dialog asks", `document.querySelector("dialog[open]") !== null`)
		b.usable("a dialog")
		b.enter("#asked", "before")
		b.until("the snapshot is there", `document.querySelector(".snapshots b")?.textContent === "before"`)
		b.press(".actions button", "Fork")
		b.enter("#asked", "copy")
		b.until("the fork is shown", `document.querySelector("h1").textContent === "copy" && document.querySelector(".state") !== null`)
		b.press(".actions button", "Delete")
		b.enter("#asked", "cop")
		b.until("another name deletes nothing", `document.querySelector("dialog .danger").disabled`)
		b.enter("#asked", "y")
		b.until("the list is shown, without the fork", `location.hash === "#/sandboxes" && document.querySelector("tr[data-name=web]") !== null && document.querySelector("tr[data-name=copy]") === null`)
		if sb, err := c.Sandbox(t.Context(), "copy"); err == nil && sb.Status != "DELETING" && sb.Status != "TERMINATED" {
			t.Errorf("the fork is %s", sb.Status)
		}
		b.clean()
	})
	t.Run("what it did", func(t *testing.T) {
		b.script(`location.hash = "#/sandboxes/web"`)
		b.until("its output is shown", `[...document.querySelectorAll(".lines code")].some((e) => e.textContent === "from inside")`)
		b.until("a refusal is shown with its rule", `[...document.querySelectorAll(".refusals li")].some((e) => e.textContent.startsWith("192.0.2.1:80 by tcp, rule no-name"))`)
		b.until("so is what was allowed", `[...document.querySelectorAll(".reached li")].some((e) => e.textContent.startsWith("a.test:80 by tcp, rule allowedDomains[0], 1 time"))`)
		seen, err := c.Egress(t.Context(), "web")
		reached := func(verdict, host, rule string) bool {
			return slices.ContainsFunc(seen.Destinations, func(d doze.EgressDestination) bool {
				return d.Verdict == verdict && d.Host == host && d.Rule == rule && d.Count > 0 && (d.Reason != "") == (verdict == doze.EgressDenied)
			})
		}
		if err != nil || seen.Since.IsZero() || !reached(doze.EgressAllowed, "a.test", "allowedDomains[0]") || !reached(doze.EgressDenied, "b.test", "allowedDomains") ||
			!reached(doze.EgressDenied, "192.0.2.1", "no-name") {
			t.Errorf("it connected to %+v, %v", seen, err)
		}
		b.until("its API is shown", `document.querySelector(".addresses code").textContent.endsWith("/run/main/sandboxes/web")`)
		b.usable("a sandbox that did something")
		b.press(".refusals button", "Allow b.test:8080")
		b.until("it is allowed", `document.querySelector(".refusals .good") !== null && document.querySelector(".refusals button") === null`)
		if sb, err := c.Sandbox(t.Context(), "web"); err != nil || !slices.Equal(sb.Spec.Network.AllowedDomains, []string{"a.test", "b.test:8080"}) ||
			sb.Metadata.Labels["team"] != "site" || sb.Spec.Runtime.Memory != 512 || sb.Events[len(sb.Events)-1].Revision != "1" {
			t.Errorf("after that it is %+v, %v", sb, err)
		}
		awaitTier(t, p, "web", "disk") // none of it is asked of the sandbox
		do(b, chromedp.Click("[data-action=terminal]"))
		var terminal target.ID
		until(t, "a terminal is open in another tab", func() bool {
			all, err := chromedp.Targets(b.ctx)
			i := slices.IndexFunc(all, func(one *target.Info) bool { return strings.Contains(one.URL, "/sandboxes/web/terminal") })
			if err != nil || i < 0 {
				return false
			}
			terminal = all[i].TargetID
			return true
		})
		awaitTier(t, p, "web", "running") // the engine says it so
		b.front()
		b.until("it woke", `document.querySelector(".state[data-tier=awake]") !== null`)
		other, _ := chromedp.NewContext(b.ctx, chromedp.WithTargetID(terminal))
		if title := do(tab{t, other}, chromedp.Title()); title == "" {
			t.Error("the terminal has no title")
		}
		if err := chromedp.Cancel(other); err != nil {
			t.Error(err)
		}
		b.clean()
	})
	t.Run("read-only", func(*testing.T) {
		b.script(`location.hash = "#/sandboxes/quiet"`)
		b.until("there are actions", `document.querySelector(".actions") !== null`)
		b.press(".who", "A")
		b.press(".sheet button", "Read-only")
		b.until("there are none", `document.querySelector(".actions") === null`)
		b.usable("the menu")
		b.press(".sheet button", "Read-only")
		b.until("they are back", `document.querySelector(".actions") !== null`)
		choose := `const e = [...document.querySelectorAll(".sheet select")].at(-1); e.value = "%s"; e.dispatchEvent(new Event("change"))`
		b.script(fmt.Sprintf(choose, "light"))
		b.until("the colours are light, whatever the system prefers", `document.documentElement.dataset.theme === "light"`)
		b.script(fmt.Sprintf(choose, "auto"))
		b.until("they are those of the system", `document.documentElement.dataset.theme === "dark"`)
		do(b, chromedp.KeyEvent(kb.Escape))
		b.until("a key closes the menu", `document.querySelector(".sheet") === null && document.activeElement.className === "who"`)
	})
	t.Run("a cut", func(t *testing.T) {
		if err := p.Stop(); err != nil {
			t.Fatal(err)
		}
		b.until("the page says so", `document.querySelector(".signal.cut") !== null`)
		b.press(".signal button", "Try now") // it finds nothing
		b.until("the page still says so", `document.querySelector(".signal.cut") !== null`)
		if err := p.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		b.script(`document.querySelector(".signal button")?.click()`) // unless the page went on already
		b.until("it goes on by itself", `document.querySelector(".signal.live") !== null && document.querySelector(".fault") === null`)
		do(b, chromedp.Reload())
		b.until("the tab has its session when it is loaded again", `document.querySelector(".signal.live") !== null && location.hash === "#/sandboxes/quiet"`)
	})
	t.Run("few rights", func(t *testing.T) {
		few, err := c.CreateKey(t.Context(), "looks", "1h", []string{"sandboxes:list", "sandboxes:get"})
		if err != nil {
			t.Fatal(err)
		}
		b.press(".who", "A")
		b.press(".sheet button", "Log out")
		b.until("nothing is kept", `document.querySelector("#key") !== null && sessionStorage.length === 0`)
		b.enter("#key", few.Key)
		b.until("it shows, and offers nothing", `document.querySelector(".facts-grid") !== null && document.querySelector(".actions") === null`)
		b.script(`location.hash = "#/"`)
		b.until("there is no host", `document.querySelector(".note") !== null && document.querySelector("meter") === null`)
		if err := c.DeleteKey(t.Context(), few.ID); err != nil {
			t.Fatal(err)
		}
		b.until("without the key it asks for another", `document.querySelector("#key") !== null && document.querySelector("[role=alert]") !== null`)
	})
	t.Run("password", func(t *testing.T) {
		agrees(t, p, b)
		b.until("it is in", `document.querySelector(".who") !== null`)
		b.press(".who", "A")
		b.press(".sheet button", "Log out")
		b.until("it is out", `document.querySelector("#key") !== null`)
		b.clean()
	})
}

// agrees logs in with a password: the page shows a code, which a user confirms on the page
// of the platform.
func agrees(t *testing.T, p *testkit.Platform, b tab) {
	t.Helper()
	const password = "correct horse battery"
	call{method: http.MethodPut, url: p.Address + "/v0/password", body: encode(t, map[string]string{"password": password})}.want(t, p, http.StatusOK)
	b.press("button", "Log in with a password")
	b.until("a code is shown", `document.querySelector(".code") !== null`)
	b.usable("the code")
	form := url.Values{"user_code": {b.script(`return document.querySelector(".code").textContent`)}, "name": {"admin"}, "password": {password}, "decision": {"allow"}}
	address := p.Address + b.script(`return document.querySelector("a.primary").getAttribute("href")`)
	call{
		method: http.MethodPost, url: address[:strings.Index(address, "?")], body: form.Encode(), key: none,
		header: map[string]string{"Content-Type": "application/x-www-form-urlencoded", "Origin": p.Address},
	}.want(t, p, http.StatusOK)
}

// pictures has TestPictures make the pictures of the documentation anew.
var pictures = flag.Bool("pictures", false, "make the pictures of docs/page.md")

// TestPictures makes docs/images of a platform with real sandboxes that sleep and wake. It
// runs with -pictures only: no two pictures are equal.
func TestPictures(t *testing.T) {
	if !*pictures {
		t.Skip("SKIPPED: the pictures are made with -pictures")
	}
	const dir, width, height = "../../docs/images", 1280, 860
	b := browse(t)
	p, c := start(t, "--pause-after", "5s", "--save-after", "8s", "--disk-after", "35s", "--swap", "off", "--egress", "open")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	agents := map[string]*client.Agent{}
	names := []string{"web", "api", "notebook", "docs", "crawler", "search", "mail", "etl", "scratch", "demo", "train", "lint"}
	for i := range 36 {
		sb := named(names[i%len(names)]+[]string{"", "-2", "-3"}[i/len(names)], 256)
		sb.Metadata.Labels = map[string]string{"team": []string{"data", "site", "agents"}[i%3]}
		_, agents[sb.Metadata.Name] = create(t, c, sb)
	}
	do(b, chromedp.EmulateViewport(width, height))
	b.prefer("dark", "no-preference")
	b.open(p.Address + "/")
	b.enter("#key", p.Key)
	all := slices.Sorted(maps.Keys(agents))
	for i := range 96 { // a third sleeps on
		sh(t, agents[all[i%(2*len(all)/3)]], "true")
		time.Sleep(500 * time.Millisecond)
	}
	for name, to := range map[string]struct{ hash, shown string }{
		"overview": {"#/", `document.querySelectorAll(".plot .canvas").length > 2`},
		"sandbox":  {"#/sandboxes/" + all[0], `document.querySelector(".stages") !== null`},
	} {
		b.script(`location.hash = "` + to.hash + `"`)
		b.until(name+" is shown", to.shown)
		time.Sleep(2 * time.Second) // dots come to rest
		if err := os.WriteFile(filepath.Join(dir, name+".png"), do(b, chromedp.CaptureScreenshot()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
