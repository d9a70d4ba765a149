package console_test

import (
	"context"
	"encoding/json"
	"fmt"
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
	"github.com/chromedp/cdproto/heapprofiler"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
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

// listed is a page of a list of so many sandboxes; the cursor is the number of the first one.
func listed[T any](w http.ResponseWriter, r *http.Request, many int, one func(i int) T) {
	from, _ := strconv.Atoi(r.URL.Query().Get("cursor")) // none is the first page
	size, err := strconv.Atoi(r.URL.Query().Get("limit"))
	if err != nil || r.Header.Get("Blaxel-Version") == "" {
		answers(w, http.StatusBadRequest, map[string]string{"message": "this is no question for a page"})
		return
	}
	data, meta := []T{}, map[string]any{"total": many}
	for i := from; i < min(many, from+size); i++ {
		data = append(data, one(i))
	}
	if from+size < many {
		meta["hasMore"], meta["nextCursor"] = true, strconv.Itoa(from+size)
	}
	answers(w, http.StatusOK, map[string]any{"data": data, "meta": meta})
}

// nameOf is the name of a sandbox by its number.
func nameOf(i int) string { return fmt.Sprintf("sandbox-%05d", i) }

// platform serves the page over an API with so many sandboxes, which exist in this test
// alone. It takes the key k. Each sandbox moves to the next tier with each look at it.
func platform(t *testing.T, many int) (address string, looks *atomic.Int64) {
	t.Helper()
	tiers := []string{"awake", "paused", "saved", "swapped", "disk"}
	looks = &atomic.Int64{}
	began := time.Now().Add(-3 * time.Hour)
	api := http.NewServeMux()
	api.Handle("/", console.New())
	api.HandleFunc("GET /v0/whoami", func(w http.ResponseWriter, _ *http.Request) {
		answers(w, http.StatusOK, doze.Caller{Sub: "ada", Type: doze.SubUser, Workspace: "main", Role: doze.RoleMember, Scopes: []string{"admin"}})
	})
	api.HandleFunc("GET /v0/usage/sandboxes", func(w http.ResponseWriter, r *http.Request) {
		turn := 0
		if n := int(looks.Add(1)); many < 1000 { // the large one stands still, so that its figures are known
			turn = n
		}
		listed(w, r, many, func(i int) doze.SandboxUsage {
			u := doze.SandboxUsage{Name: nameOf(i), Status: "DEPLOYED", State: "STANDBY"}
			u.MeasuredAt, u.CountedSince, u.Tier = doze.Time{Time: time.Now()}, doze.Time{Time: began}, tiers[(i+turn)%len(tiers)]
			u.Memory.ResidentBytes, u.Memory.LimitBytes, u.Processor.Limit = int64(i)<<10, 512<<20, 0.25
			u.Wakes = doze.WakeUsage{Count: int64(i % 97), P99Us: int64(i)}
			return u
		})
	})
	api.HandleFunc("GET /v0/sandboxes", func(w http.ResponseWriter, r *http.Request) {
		listed(w, r, many, func(i int) doze.Sandbox {
			var s doze.Sandbox
			s.Metadata.Name, s.Metadata.CreatedAt, s.LastUsedAt = nameOf(i), doze.Time{Time: began}, doze.Time{Time: began}
			s.Metadata.Labels = map[string]string{"team": "t" + strconv.Itoa(i%10)}
			return s
		})
	})
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
	t.Cleanup(s.Close)
	return s.URL, looks
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
	address, _ := platform(t, many)
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

// hurried has the clocks of the page run a hundred times as fast.
const hurried = `
	const timeout = window.setTimeout, interval = window.setInterval;
	window.setTimeout = (f, ms, ...more) => timeout(f, (ms ?? 0) / 100, ...more);
	window.setInterval = (f, ms, ...more) => interval(f, (ms ?? 0) / 100, ...more);`

// TestOpenForLong: the memory of a page that is open for hundreds of looks does
// not grow with them, while every sandbox moves with every look.
func TestOpenForLong(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("SKIPPED: it starts a browser, in short mode")
	}
	const warm, long = 50, 200 // looks
	b := browse(t)
	do(b, func(ctx context.Context, to *chromedp.Target) (page.AddScriptToEvaluateOnNewDocumentResult, error) {
		return cdp.Call(ctx, to, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: hurried})
	})
	address, looks := platform(t, 100)
	do(b, chromedp.Navigate(address))
	do(b, chromedp.SendKeys("#key", "k\r"))
	views := []string{"#/", "#/sandboxes"}
	after := func(n int64) float64 {
		end := time.Now().Add(3 * patience)
		for i := 0; looks.Load() < n; i++ {
			if time.Now().After(end) {
				t.Fatalf("%d looks only", looks.Load())
			}
			b.script(`location.hash = "` + views[i%len(views)] + `"`)
			time.Sleep(500 * time.Millisecond)
		}
		b.script(`location.hash = "#/"`)
		return do(b, func(ctx context.Context, to *chromedp.Target) (float64, error) {
			if _, err := cdp.Call(ctx, to, heapprofiler.CollectGarbage, cdp.Empty{}); err != nil {
				return 0, err
			}
			used, err := cdp.Call(ctx, to, runtime.GetHeapUsage, cdp.Empty{})
			return used.UsedSize, err
		})
	}
	first := after(warm)
	last := after(long)
	t.Logf("%.1f MB after %d looks, %.1f MB after %d", first/(1<<20), warm, last/(1<<20), looks.Load())
	if last > first*1.3+1<<20 {
		t.Errorf("the page grew from %.0f to %.0f bytes", first, last)
	}
	if n := b.script(`return document.querySelectorAll("*").length`); len(n) > 3 {
		t.Errorf("the page has %s elements", n)
	}
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
	rest, _ := platform(t, 1)
	to, err := url.Parse(rest)
	if err != nil {
		t.Fatal(err)
	}
	api.Handle("/", httputil.NewSingleHostReverseProxy(to))
	s := httptest.NewServer(api)
	t.Cleanup(s.Close)
	return s.URL, led
}
