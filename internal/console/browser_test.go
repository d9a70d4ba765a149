package console_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/console"
)

// many is how many sandboxes the large platform has.
const many = 10_000

// patience is how long a browser may take for anything.
const patience = time.Minute

// answers writes JSON, or fails as the API does.
func answers(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the browser went away
}

// nameOf is the name of a sandbox by its number.
func nameOf(i int) string { return fmt.Sprintf("sandbox-%05d", i) }

// sandboxAt is a sandbox as the feed has it, after so many moves.
func sandboxAt(i, moves int) doze.FeedSandbox {
	tiers := []string{"awake", "paused", "saved", "swapped", "disk"}
	u := doze.FeedSandbox{Name: nameOf(i), Status: "DEPLOYED", State: "STANDBY", Version: strconv.Itoa(moves), Tier: tiers[(i+moves)%len(tiers)]}
	u.CreatedAt, u.LastUsedAt, u.CountedSince = doze.Time{Time: began}, doze.Time{Time: began}, doze.Time{Time: began}
	u.Labels = map[string]string{"team": "t" + strconv.Itoa(i%10)}
	u.Memory.ResidentBytes, u.Memory.LimitBytes, u.Processor.Limit = int64(i)<<10, 512<<20, 0.25
	u.Wakes = doze.WakeUsage{Count: int64(i%97 + moves/len(tiers)), P99Us: int64(i)}
	return u
}

// began is when the sandboxes of these tests were made.
var began = time.Now().Add(-3 * time.Hour)

// told writes a message of a feed, and returns false if nobody reads it.
func told(w io.Writer, event string, seq int, m doze.FeedMessage) bool {
	m.At = doze.Time{Time: time.Now()}
	text, err := json.Marshal(m)
	if err == nil {
		_, err = fmt.Fprintf(w, "event: %s\nid: %s.%d\ndata: %s\n\n", event, epoch, seq, text)
	}
	return err == nil
}

// epoch is that of the feeds of these tests.
const epoch = "ABCDEFGHIJKL"

// states writes all of so many sandboxes.
func states(w http.ResponseWriter, many, seq int, one func(i int) doze.FeedSandbox) bool {
	w.Header().Set("Content-Type", "text/event-stream")
	for from := 0; from < many; from += 100 {
		var m doze.FeedMessage
		for i := from; i < min(many, from+100); i++ {
			m.Sandboxes = append(m.Sandboxes, one(i))
		}
		if !told(w, "state", 0, m) {
			return false
		}
	}
	return told(w, "complete", seq, doze.FeedMessage{Total: &many}) && http.NewResponseController(w).Flush() == nil
}

// platform serves the page over an API with a feed, which exists in this test alone. It
// takes the key k.
func platform(t *testing.T, feed http.HandlerFunc) (address string) {
	t.Helper()
	api := http.NewServeMux()
	api.Handle("/", console.New())
	api.HandleFunc("GET /v0/whoami", func(w http.ResponseWriter, _ *http.Request) {
		answers(w, http.StatusOK, doze.Caller{Sub: "ada", Type: doze.SubUser, Workspace: "main", Role: doze.RoleMember, Scopes: []string{"admin"}})
	})
	api.HandleFunc("GET /v0/feed", feed)
	api.HandleFunc("GET /v0/sandboxes/{name}", func(w http.ResponseWriter, r *http.Request) {
		var s doze.Sandbox
		s.Metadata.Name, s.Metadata.CreatedAt, s.LastUsedAt, s.Status = r.PathValue("name"), doze.Time{Time: began}, doze.Time{Time: began}, "DEPLOYED"
		answers(w, http.StatusOK, s)
	})
	api.HandleFunc("GET /v0/sandboxes/{name}/usage", func(w http.ResponseWriter, r *http.Request) {
		answers(w, http.StatusOK, doze.SandboxUsage{Name: r.PathValue("name"), Status: "DEPLOYED"})
	})
	for _, part := range []string{"traces", "snapshots", "previews"} {
		api.HandleFunc("GET /v0/sandboxes/{name}/"+part, func(w http.ResponseWriter, _ *http.Request) { answers(w, http.StatusOK, []string{}) })
	}
	api.HandleFunc("/v0/", func(w http.ResponseWriter, _ *http.Request) {
		answers(w, http.StatusForbidden, map[string]string{"message": "this call is for administrators of the workspace main"})
	})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/v0/") && r.Header.Get("Authorization") != "Bearer k" {
			answers(w, http.StatusUnauthorized, map[string]string{"message": "the API key is wrong or was deleted"})
			return
		}
		api.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		s.CloseClientConnections() // Close would wait for the feed
		s.Close()
	})
	return s.URL
}

// tab is a page of a real browser.
type tab struct {
	t   *testing.T
	ctx context.Context //nolint:containedctx // chromedp keeps its tab there
}

// watched has the page note what its policy refuses, and the errors of its scripts.
const watched = `
	window.refused = [];
	addEventListener("securitypolicyviolation", (e) => refused.push(e.violatedDirective + " " + e.blockedURI + " " + e.sourceFile));
	addEventListener("error", (e) => refused.push(e.message));
	addEventListener("unhandledrejection", (e) => refused.push(String(e.reason)));`

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
	allocator, release := chromedp.NewExecAllocator(t.Context(), append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(program), chromedp.UserDataDir(dir), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.WSURLReadTimeout(patience),
		chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-dev-shm-usage", true), chromedp.WindowSize(1400, 900),
	)...)
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
	do(b, func(ctx context.Context, to *chromedp.Target) (page.AddScriptToEvaluateOnNewDocumentResult, error) {
		return cdp.Call(ctx, to, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: watched})
	})
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

// script runs a script in the page, and returns what it says.
func (b tab) script(source string) string {
	b.t.Helper()
	source = "(async () => { try { return String(await (async () => { " + source + " })()) } catch (e) { return String(e) } })()"
	return do(b, chromedp.Evaluate[string](source, chromedp.EvalAwaitPromise))
}

// until waits until an expression in the page is true.
func (b tab) until(what, expression string) {
	b.t.Helper()
	for end := time.Now().Add(patience); b.script("return "+expression) != "true"; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			b.t.Fatalf("still not: %s; the page shows %.400s", what, b.script("return document.body.innerText"))
		}
	}
}

// sweep scrolls from the top, and says what frames took: one in the middle, and a slow one.
const sweep = `
	const box = document.querySelector(".table"), took = [];
	box.scrollTop = 0;
	let last = await new Promise(requestAnimationFrame);
	for (let i = 0; i < 240; i++) {
		box.scrollTop += 264;
		const now = await new Promise(requestAnimationFrame);
		took.push(now - last);
		last = now;
		if (!document.querySelector("tbody tr[data-name]")) return "an empty table";
	}
	took.sort((a, b) => a - b);
	return [took[120], took[220], box.scrollTop].map(Math.round)`

// TestTenThousand: a real browser shows 10,000 sandboxes, finds and sorts them, and scrolls
// through them without a stop. The policy of the page refuses nothing.
func TestTenThousand(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("SKIPPED: it starts a browser, in short mode")
	}
	b := browse(t)
	address := platform(t, func(w http.ResponseWriter, r *http.Request) {
		if states(w, many, 1, func(i int) doze.FeedSandbox { return sandboxAt(i, 0) }) {
			<-r.Context().Done()
		}
	})
	do(b, chromedp.Navigate(address))
	do(b, chromedp.SendKeys("#key", "wrong\r"))
	b.until("a wrong key is refused", `document.querySelector("[role=alert]")?.textContent.includes("The API key is wrong") ?? false`)
	do(b, chromedp.Evaluate[chromedp.Void](`document.querySelector("#key").select()`))
	do(b, chromedp.SendKeys("#key", "k\r"))
	b.until("all sandboxes are in the picture", `document.querySelector("[data-tier=disk]")?.textContent === "2,000"`)
	b.until("the page says that it has no history", `document.querySelector(".note") !== null`)
	b.script(`location.hash = "#/sandboxes"`)
	b.until("all are listed", `document.querySelector("[aria-rowcount='10001'] .label") !== null`)
	if n := b.script(`return document.querySelectorAll("tbody tr").length`); len(n) > 2 {
		t.Errorf("the table makes %s rows", n)
	}

	// The frames of four seconds in which the list moves by six rows a frame, while it is live.
	// How fast they are says as much about this machine as about the page: nothing fails.
	var median, slow, top int
	frames := b.script(sweep)
	if _, err := fmt.Sscanf(frames, "%d,%d,%d", &median, &slow, &top); err != nil || top < 60_000 {
		t.Fatalf("scrolled: %s", frames)
	}
	t.Logf("a frame takes %d ms, and one of twelve %d ms or more", median, slow)
	if first := b.script(`return document.querySelector("tbody tr[data-name]").getAttribute("aria-rowindex")`); len(first) < 4 {
		t.Errorf("after that the first row is %s", first)
	}

	b.script(`document.activeElement?.blur()`)
	do(b, chromedp.KeyEvent("/"))
	b.until("a key leads to the search", `document.activeElement.type === "search"`)
	b.script(`document.activeElement.select()`)
	do(b, chromedp.KeyEvent("777 team=t7"))
	b.until("a search finds by name and label", `document.querySelector(".bar [role=status]").textContent.startsWith("10 of")`)
	b.script(`document.querySelector(".c-memory button").click()`)
	b.until("the largest is on top", `document.querySelector("tbody tr[data-name]").dataset.name === "sandbox-09777" && document.querySelector(".c-memory").ariaSort === "descending"`)
	b.script(`location.hash = "#/sandboxes?tier=awake&sort=p99&order=up"`)
	b.until("an address says what is shown", `document.querySelector("[aria-rowcount='2001'] tbody tr").dataset.name === "sandbox-00000"`)
	if refused := b.script(`return refused.join("\n")`); refused != "" {
		t.Errorf("the page met %s", refused)
	}
}

// TestHostileSandbox: a program in a sandbox that answers in the place of the agent leads
// the page nowhere, and its answers make no markup.
func TestHostileSandbox(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("SKIPPED: it starts a browser, in short mode")
	}
	const image = `<img src=x onerror="document.title = 1">`
	node := map[string]any{"type": "img", "props": map[string]string{"src": "x"}, "constructor": nil}
	b := browse(t)
	address, led := hostile(t, map[string]http.HandlerFunc{
		"GET /run/main/sandboxes/web/process": func(w http.ResponseWriter, _ *http.Request) {
			answers(w, http.StatusOK, []any{map[string]any{"pid": "7", "name": image, "command": node, "status": "running", "startedAt": node, "exitCode": node}, nil, 3})
		},
		"DELETE /run/main/sandboxes/web/process/7/kill": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/v0/sandboxes/other", http.StatusTemporaryRedirect)
		},
		"GET /run/main/sandboxes/web/filesystem/": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/v0/sandboxes/other", http.StatusFound)
		},
		"GET /run/main/sandboxes/web/filesystem/large": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Disposition", "attachment")
			for block := make([]byte, 1<<20); ; {
				if _, err := w.Write(block); err != nil {
					return // the page reads no more
				}
			}
		},
	})
	do(b, chromedp.Navigate(address+"/#/sandboxes/web/processes"))
	do(b, chromedp.SendKeys("#key", "k\r"))
	b.until("the name of a process is text", `document.querySelector(".rows th bdi")?.textContent === '`+image+`'`)
	b.script(`document.querySelector("[aria-label^=Kill]").click()`)
	b.until("a kill fails", `document.querySelector(".notice.bad") !== null`)
	b.script(`location.hash = "#/sandboxes/web/files"`)
	b.until("a listing fails", `document.querySelector(".inside .fault") !== null`)
	b.script(`location.hash = "#/sandboxes/web/files?file=large"`)
	b.until("an endless file is not read", `document.querySelector(".inside .fault")?.textContent.includes("more than 1.0 MB") ?? false`)
	if n := led.Load(); n != 0 {
		t.Errorf("it led the page to the API %d times", n)
	}
	if n := b.script(`return document.querySelectorAll("main img").length`); n != "0" {
		t.Errorf("its answers made %s pictures", n)
	}
	if refused := b.script(`return refused.join("\n")`); refused != "" {
		t.Errorf("the page met %s", refused)
	}
}

// hostile is a platform with the sandbox web, which is awake and answers as it likes. It
// counts what comes for the sandbox other.
func hostile(t *testing.T, sandbox map[string]http.HandlerFunc) (address string, led *atomic.Int64) {
	t.Helper()
	api := http.NewServeMux()
	led = &atomic.Int64{}
	api.HandleFunc("/v0/sandboxes/other", func(w http.ResponseWriter, _ *http.Request) {
		led.Add(1)
		answers(w, http.StatusOK, map[string]any{"files": []any{}, "subdirectories": []any{}})
	})
	api.HandleFunc("GET /v0/sandboxes/web", func(w http.ResponseWriter, _ *http.Request) {
		s := doze.Sandbox{Metadata: doze.Metadata{Name: "web"}}
		s.Status = "DEPLOYED"
		answers(w, http.StatusOK, s)
	})
	api.HandleFunc("GET /v0/sandboxes/web/usage", func(w http.ResponseWriter, _ *http.Request) {
		var u doze.SandboxUsage
		u.Name, u.Tier, u.Status = "web", "awake", "DEPLOYED"
		answers(w, http.StatusOK, u)
	})
	for _, list := range []string{"traces", "snapshots", "previews"} {
		api.HandleFunc("GET /v0/sandboxes/web/"+list, func(w http.ResponseWriter, _ *http.Request) { answers(w, http.StatusOK, []any{}) })
	}
	for pattern, h := range sandbox {
		api.HandleFunc(pattern, h)
	}
	web := sandboxAt(0, 0)
	web.Name, web.Tier = "web", "awake"
	to, err := url.Parse(platform(t, func(w http.ResponseWriter, r *http.Request) {
		if states(w, 1, 1, func(int) doze.FeedSandbox { return web }) {
			<-r.Context().Done()
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	api.Handle("/", httputil.NewSingleHostReverseProxy(to))
	s := httptest.NewServer(api)
	t.Cleanup(func() {
		s.CloseClientConnections() // Close would wait for the feed
		s.Close()
	})
	return s.URL, led
}
