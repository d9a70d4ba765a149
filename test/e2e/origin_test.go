package e2e_test

import (
	"context"
	_ "embed"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
)

//go:embed testdata/hostile.py
var hostile string

// tab is a page of a real browser, with a profile of its own.
type tab struct {
	t   *testing.T
	ctx context.Context //nolint:containedctx // chromedp keeps its tab there
}

// browse starts a browser. Names below doze.test lead to this machine, and are no
// secure context, unlike those below localhost.
func browse(t *testing.T) tab {
	t.Helper()
	program, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("SKIPPED: there is no chromium: make deps-test installs it")
	}
	dir, err := os.MkdirTemp("", "doze-browser-") //nolint:usetesting // the browser still writes as it ends
	if err != nil {
		t.Fatal(err)
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(program), chromedp.UserDataDir(dir), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-dev-shm-usage", true),
		chromedp.Flag("host-resolver-rules", "MAP *.doze.test 127.0.0.1"), chromedp.WSURLReadTimeout(patience),
	)
	allocator, release := chromedp.NewExecAllocator(t.Context(), options...)
	ctx, end := chromedp.NewContext(allocator)
	t.Cleanup(func() {
		_ = chromedp.Cancel(ctx) // it may have ended by itself
		end()
		release()
		if err := os.RemoveAll(dir); err != nil {
			t.Log(err)
		}
	})
	b := tab{t, ctx}
	if _, err := chromedp.Run(ctx, chromedp.Navigate("about:blank")); err != nil { // it lives as long as the context of the first call
		t.Fatal(err)
	}
	return b
}

// do has the browser do something, within a time.
func do[T any](b tab, action chromedp.Action[T]) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	v, err := chromedp.Run(ctx, action)
	if err != nil {
		b.t.Fatal(err)
	}
	return v
}

// open shows an address and returns the text of the page.
func (b tab) open(address string) string {
	b.t.Helper()
	do(b, chromedp.Navigate(address))
	return do(b, chromedp.TextContent("html"))
}

// script runs a script in the page, as the page itself could, and returns what it
// says, or the name of the error that it ends with.
func (b tab) script(source string) string {
	b.t.Helper()
	source = "(async () => { try { return String(await (async () => { " + source + " })()) } catch (e) { return e.name } })()"
	return do(b, chromedp.Evaluate[string](source, chromedp.EvalAwaitPromise))
}

// send has the browser send a credential with everything, or none.
func (b tab) send(credential string) {
	b.t.Helper()
	headers := network.Headers{}
	if credential != "" {
		headers["Authorization"] = credential
	}
	do(b, func(ctx context.Context, t *chromedp.Target) (cdp.Empty, error) {
		return cdp.Call(ctx, t, network.SetExtraHTTPHeaders, network.SetExtraHTTPHeadersParams{Headers: headers})
	})
}

// published makes a preview of the hostile server and returns its address.
func published(t *testing.T, c *client.Client, name string, public bool) string {
	t.Helper()
	p, err := c.CreatePreview(t.Context(), name, doze.Preview{
		Metadata: doze.PreviewMetadata{Name: "attack"}, Spec: doze.PreviewSpec{Port: 3000, Public: public},
	})
	if err != nil {
		t.Fatal(err)
	}
	return p.Spec.URL
}

// TestNobodyHasTheOriginOfTheAPI: a real browser that visits a hostile sandbox, by
// each address that there is, keeps the origin of the API to the API.
func TestNobodyHasTheOriginOfTheAPI(t *testing.T) {
	t.Parallel()
	b := browse(t)
	p, c := start(t)
	_, agent := create(t, c, named("hostile", 512))
	if _, err := agent.WriteFile(t.Context(), "/hostile.py", strings.NewReader(hostile), "0644"); err != nil {
		t.Fatal(err)
	}
	if _, err := agent.Start(t.Context(), client.Command{Command: "exec python3 /hostile.py"}); err != nil {
		t.Fatal(err)
	}
	until(t, "the server listens", func() bool {
		return sh(t, agent, "python3 -c 'import urllib.request as u; print(u.urlopen(\"http://127.0.0.1:3000\").status)' 2>/dev/null || true") == "200"
	})
	byPath := published(t, c, "hostile", true)
	if !strings.HasPrefix(byPath, p.Previews+"/preview/") {
		t.Fatalf("the preview is at %s, and not below %s", byPath, p.Previews)
	}
	label := byPath[strings.LastIndex(byPath, "/")+1:]
	port := p.Address[strings.LastIndex(p.Address, ":"):]
	api := "http://localhost" + port // cookies of names below it can be for it, too
	byHost := "http://" + label + ".local.preview.localhost" + port

	// What the origins of the API have, and must keep.
	for _, origin := range []string{p.Address, api} {
		b.open(origin + "/health")
		b.script(`localStorage.setItem("ours", "kept"); document.cookie = "ours=kept"`)
	}
	untouched := func(t *testing.T) {
		t.Helper()
		for _, origin := range []string{p.Address, api} {
			if text := b.open(origin + "/health"); !strings.Contains(text, `"status":"ok"`) {
				t.Errorf("%s is answered by somebody else: %.80s", origin, text)
			}
			if got := b.script(`return [localStorage.getItem("ours"), document.cookie, (await navigator.serviceWorker.getRegistrations()).length]`); got != "kept,ours=kept,0" {
				t.Errorf("%s has %s", origin, got)
			}
		}
	}
	untouched(t)

	const register = `await navigator.serviceWorker.register("worker.js", {scope: "/"}); await navigator.serviceWorker.ready; return "registered"`
	reads := func(address string) string {
		return `const r = await fetch("` + address + `", {credentials: "include"}); return r.status + await r.text()`
	}
	t.Run("host", func(t *testing.T) {
		// The attack works where it harms nobody else: this test can fail.
		b.open(byHost + "/")
		if got := b.script("return document.title"); got != "ran at "+byHost {
			t.Errorf("the page is %s", got)
		}
		for _, address := range []string{p.Address + "/health", api + "/v0/sandboxes", p.Previews + "/"} {
			if got := b.script(reads(address)); got != "TypeError" && !strings.HasPrefix(got, "404") {
				t.Errorf("it reads %s: %s", address, got)
			}
		}
		if got := b.script(register); got != "registered" {
			t.Errorf("its own worker: %s", got)
		}
		if got := b.open(byHost + "/again"); got != "owned" {
			t.Errorf("its worker answers %.80s", got)
		}
		untouched(t)
	})
	t.Run("path", func(t *testing.T) {
		b.open(byPath + "/")
		if got := b.script("return document.title"); got != "ran at null" {
			t.Errorf("the page %s", got)
		}
		for what, source := range map[string]string{
			"a worker": register, "storage": `return localStorage.length`, "a cookie": `document.cookie = "x=1"; return "set"`,
			"the API": reads(p.Address + "/health"), "another preview": reads(byPath + "/"),
		} {
			if got := b.script(source); got != "SecurityError" && got != "TypeError" && got != "InvalidStateError" && got != "NotSupportedError" {
				t.Errorf("it has %s: %s", what, got)
			}
		}
		untouched(t)
	})
	t.Run("path at the API", func(t *testing.T) {
		for _, origin := range []string{p.Address, api} {
			if text := b.open(origin + "/preview/" + label + "/"); !strings.Contains(text, "ROUTE_NOT_FOUND") {
				t.Errorf("there is %.80s", text)
			}
			if got := b.script(register); got != "TypeError" {
				t.Errorf("a worker from there: %s", got)
			}
		}
		untouched(t)
	})
	t.Run("terminal", func(t *testing.T) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.Address+"/v0/sandboxes/hostile/tickets", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+p.Key)
		resp, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		var made struct{ Ticket, URL string }
		if err := json.NewDecoder(resp.Body).Decode(&made); err != nil || made.Ticket == "" {
			t.Fatalf("%d, %v", resp.StatusCode, err)
		}
		do(b, chromedp.Navigate(made.URL))
		until(t, "the terminal has a prompt", func() bool {
			return strings.Contains(b.script(`return document.querySelector(".xterm-rows").textContent`), "#")
		})
		if got := b.script(`return location.href + document.referrer`); strings.Contains(got, "token") || strings.Contains(got, made.Ticket) {
			t.Errorf("the address is still %s", got)
		}
		if text := b.open(made.URL); !strings.Contains(text, "AUTHENTICATION_FAILED") {
			t.Errorf("a second time there is %.80s", text)
		}
		if strings.Contains(p.Printed(), made.Ticket) {
			t.Error("the log has the ticket")
		}
		untouched(t)
	})
	t.Run("sandbox", func(t *testing.T) {
		own := "/run/main/sandboxes/hostile/port/3000/"
		b.send("Bearer " + p.Key)
		if text := b.open(p.Address + own); !strings.Contains(text, "FORBIDDEN") {
			t.Errorf("with a key, a browser shows %.80s", text)
		}
		if got := b.script(register); got != "TypeError" {
			t.Errorf("a worker from there: %s", got)
		}
		// Here the browser says nothing of what it is about to show.
		text := b.open("http://api.doze.test" + port + own)
		title := do(b, chromedp.Title())
		if !strings.Contains(text, "page of the tenant") || title != "quiet" {
			t.Errorf("without Sec-Fetch-Dest it is %q: %.80s", title, text)
		}
		b.send("")
		untouched(t)
	})
}
