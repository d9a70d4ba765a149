package e2e_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/dozehq/doze"
)

// confirm types what a dialog asks for, and sends its form.
func (b tab) confirm(text string) {
	b.t.Helper()
	b.fill("confirm", text)
	b.until("it is confirmed", `!document.querySelector("dialog [type=submit]").disabled`)
	b.submit()
}

// node finds what a selector names in the snapshot of a name.
func node(snapshot, selector string) string {
	return `document.querySelector('[data-snapshot="` + snapshot + `"]` + selector + `')`
}

// TestConsoleTree: a real browser archives a sandbox and brings it back, restores and forks a
// snapshot, and changes when a sandbox ends.
func TestConsoleTree(t *testing.T) {
	t.Parallel()
	b := browse(t)
	b.watch()
	p, c := start(t, "--pause-after", "1s", "--save-after", "200ms", "--disk-after", "1s", "--swap", "off")
	web := named("web", 256)
	web.Metadata.Labels = map[string]string{"team": "site"}
	web.Spec.Runtime.Envs = []doze.Env{{Name: "KEPT", Value: new("kept")}, {Name: "TOKEN", Value: new("hunter2"), Secret: true}}
	_, agent := create(t, c, web)
	put(t, agent, "/root/state", "first")
	b.open(p.Address + "/")
	b.enter("#key", p.Key)
	b.until("it is in", `document.querySelector(".who") !== null`)
	began := time.Now()
	lap := func(what string) { t.Logf("%s after %v", what, time.Since(began).Round(time.Millisecond)) }

	t.Run("a snapshot is restored", func(t *testing.T) {
		if _, err := c.CreateSnapshot(t.Context(), "web", "before"); err != nil {
			t.Fatal(err)
		}
		put(t, agent, "/root/state", "second")
		awaitTier(t, p, "web", "disk")
		b.script(`location.hash = "#/sandboxes/web"`)
		b.press(`[data-snapshot=before] button`, "Restore")
		b.until("it says what is lost", `document.querySelector("dialog").innerText.includes("Lost is what web did since")`)
		b.usable("the question")
		b.fill("confirm", "other")
		b.until("another name restores nothing", `document.querySelector("dialog [type=submit]").disabled`)
		b.confirm("web")
		b.until("it says what came of it", `[...document.querySelectorAll(".notice")].some((e) => e.innerText.includes("web is as it was in before"))`)
		if got := sh(t, agent, "cat /root/state"); got != "first" {
			t.Errorf("restored, it has %q", got)
		}
		lap("restored")
	})
	t.Run("a fork in the tree", func(t *testing.T) {
		b.press(`[data-snapshot=before] button`, "Fork")
		b.fill("target", "copy")
		b.submit()
		b.until("the fork is shown, and where it comes from", `document.querySelector("h1").textContent === "copy" && document.querySelector(".origin a")?.textContent === "web" && document.querySelector(".origin").textContent.includes("before")`)
		b.usable("a fork")
		sb, err := c.Sandbox(t.Context(), "copy")
		if err != nil || sb.Origin == nil || sb.Origin.SandboxName != "web" || sb.Origin.SnapshotName != "before" {
			t.Fatalf("its origin is %+v, %v", sb.Origin, err)
		}
		if _, err := c.CreateSnapshot(t.Context(), "web", "later"); err != nil {
			t.Fatal(err)
		}
		b.script(`document.querySelector(".origin a").click()`)
		b.until("it is below its snapshot", node("before", ` [data-fork=copy] a`)+` !== null && `+node("later", ` [data-fork]`)+` === null`)
		b.until("the newest is on top", `[...document.querySelectorAll("[data-snapshot]")].map((e) => e.dataset.snapshot).join() === "later,before"`)
		b.until("the heading counts", `document.querySelector("#snapshots").textContent === "2 snapshots, 1 fork"`)
		b.until("sizes are shown", `/\d [KMG]B/.test(`+node("before", "")+`.innerText)`)
		b.usable("a tree")
		b.press(`[data-snapshot=before] button`, "Delete")
		b.confirm("before")
		b.until("the fork stays, below what is gone", node("before", "")+` === null && document.querySelector("[data-fork=copy]") !== null`)
		b.script(`document.querySelector("[data-fork=copy] a").click()`)
		b.until("the fork says so", `document.querySelector(".origin")?.textContent.includes("The snapshot is deleted.")`)
		b.clean()
		lap("forked")
	})
	t.Run("another end", func(t *testing.T) {
		b.script(`location.hash = "#/sandboxes/web"`)
		b.press(".actions button", "Change its end")
		b.until("it does not end", `document.querySelector("dialog").innerText.includes("web does not end by itself.")`)
		b.usable("a form of deadlines")
		b.fill("ttl", "48h")
		b.submit()
		b.until("it says when it ends", `[...document.querySelectorAll(".notice")].some((e) => e.innerText.includes("web ends by itself in 1 d"))`)
		b.until("its facts have it", `[...document.querySelectorAll(".facts-grid dt")].some((e) => e.textContent === "Ends by itself")`)
		sb, err := c.Sandbox(t.Context(), "web")
		if err != nil || sb.Spec.Runtime.TTL != "48h" || sb.ExpiresIn == nil || *sb.ExpiresIn < 47*3600 {
			t.Errorf("it ends in %v, %q, %v", sb.ExpiresIn, sb.Spec.Runtime.TTL, err)
		}
		if e := sb.Spec.Runtime.Envs; len(e) != 2 || sb.Metadata.Labels["team"] != "site" || sb.Spec.Runtime.Memory != 256 || sh(t, agent, "echo $TOKEN; cat /root/state") != "hunter2\nfirst" {
			t.Errorf("something else changed: %+v", sb)
		}
		b.press(".actions button", "Change its end")
		b.fill("ttl", "")
		b.fill("expires", "yesterday")
		b.script(`document.querySelector("dialog form").requestSubmit()`)
		b.until("what is wrong is said", `document.querySelector("dialog [role=alert]")?.innerText.includes("expires")`)
		b.press("dialog button", "Cancel")
		lap("extended")
	})
	t.Run("an archive and back", func(t *testing.T) {
		b.press(".actions button", "Archive")
		b.until("it says what is lost", `document.querySelector("dialog").innerText.includes("Lost are memory")`)
		b.submit()
		b.until("a notice says so", `[...document.querySelectorAll(".notice")].some((e) => e.innerText.includes("web is archived."))`) // not for long
		b.until("it is archived", `document.querySelector(".archived")?.innerText.startsWith("It is archived")`)
		b.until("what needs a machine is not offered", `document.querySelector("[data-action=archive]") === null && document.querySelector("[data-action=fork]") === null && `+node("later", "")+`.innerText.includes("Delete") && !`+node("later", "")+`.innerText.includes("Restore")`)
		b.usable("an archived sandbox")
		if sb, err := c.Sandbox(t.Context(), "web"); err != nil || sb.Status != "ARCHIVED" {
			t.Fatalf("it is %s, %v", sb.Status, err)
		}
		few, err := c.CreateKey(t.Context(), "looks", "1h", []string{"sandboxes:list", "sandboxes:get"})
		if err != nil {
			t.Fatal(err)
		}
		b.script(`sessionStorage.setItem("doze.session", ` + strconv.Quote(`{"token":"`+few.Key+`"}`) + `)`)
		do(b, chromedp.Reload())
		b.until("few rights see it, and may do nothing", `document.querySelector(".archived") !== null && document.querySelector(".archived button, .snapshots button, .actions") === null`)
		b.script(`sessionStorage.setItem("doze.session", ` + strconv.Quote(`{"token":"`+p.Key+`"}`) + `)`)
		do(b, chromedp.Reload())
		b.press("button", "Bring it back")
		b.until("it is back", `document.querySelector(".archived") === null && document.querySelector("[data-action=archive]") !== null && [...document.querySelectorAll(".notice")].some((e) => e.innerText.includes("web is back."))`)
		if got := sh(t, agent, "cat /root/state"); got != "first" {
			t.Errorf("brought back, it has %q", got)
		}
		b.clean()
		lap("archived and back")
	})
}
