package e2e_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
	"github.com/dozehq/doze/internal/testkit"
)

// adminPages are the pages of the areas: what leads there, and the heading of each.
var adminPages = map[string]string{
	"#/images": "Images", "#/images/builds": "Builds",
	"#/workspace/members": "Members", "#/workspace/keys": "Keys", "#/workspace/accounts": "Service accounts", "#/workspace/secrets": "Secrets",
	"#/workspace/quotas": "Quotas", "#/workspace/audit": "Audit log", "#/workspace/schedules": "Schedules", "#/workspace/volumes": "Volumes",
	"#/workspace/templates": "Volume templates", "#/workspace/drives": "Drives", "#/workspace/domains": "Custom domains", "#/workspace/gateways": "Gateways",
	"#/workspace/policies": "Policies",
}

// fill puts a text into a field of the dialog.
func (b tab) fill(id, text string) {
	b.t.Helper()
	field := `document.querySelector("#ask-` + id + `")`
	b.until(id+" is asked", field+" !== null")
	b.script(`const e = ` + field + `; e.value = ` + strconv.Quote(text) + `; e.dispatchEvent(new Event("input", { bubbles: true }))`)
}

// submit sends the form of the dialog, and waits until it is closed.
func (b tab) submit() {
	b.t.Helper()
	b.script(`document.querySelector("dialog form").requestSubmit()`)
	b.until("the dialog is closed", `document.querySelector("dialog") === null`)
}

// once sends the form of the dialog, and returns what is shown this once.
func (b tab) once() string {
	b.t.Helper()
	b.script(`document.querySelector("dialog form").requestSubmit()`)
	b.until("something is shown this once", `document.querySelector("#once") !== null`)
	text := b.script(`return document.querySelector("#once").value`)
	b.press("dialog button", "I have it")
	b.until("it is shown no more", `document.querySelector("dialog") === null && !document.documentElement.outerHTML.includes("`+text+`")`)
	return text
}

// to shows a page.
func (b tab) to(hash, heading string) {
	b.t.Helper()
	b.script(`location.hash = "` + hash + `"`)
	b.until(hash+" is shown", `document.querySelector("h1")?.textContent === "`+heading+`" && document.querySelector(".records") !== null && !document.body.innerText.includes("Looking…")`)
}

// record is whether a record is shown.
func record(id string) string { return `document.querySelector('[data-id="` + id + `"]')` }

// small begins a Dockerfile: an image that is a shell and nothing else is built in a moment.
const small = "FROM scratch\nCOPY --chmod=755 busybox /bin/sh\nCOPY --chmod=755 busybox /bin/sleep\n"

// attach puts a file into the field of the dialog for an archive.
func (b tab) attach(name string, content []byte) {
	b.t.Helper()
	archive := filepath.Join(b.t.TempDir(), name)
	if err := os.WriteFile(archive, content, 0o600); err != nil {
		b.t.Fatal(err)
	}
	do(b, chromedp.SetUploadFiles("#ask-archive", []string{archive}))
}

// tarOf is an archive of one file.
func tarOf(t *testing.T, name, content string) []byte {
	t.Helper()
	var raw bytes.Buffer
	w := tar.NewWriter(&raw)
	err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content))})
	if err == nil {
		_, err = io.WriteString(w, content)
	}
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return raw.Bytes()
}

// build has the page build an image of an archive with a Dockerfile.
func (b tab) build(name, dockerfile string) {
	b.t.Helper()
	shell, err := os.ReadFile("/bin/busybox")
	if err != nil {
		b.t.Fatalf("%v: make deps-test installs it", err)
	}
	archive, err := io.ReadAll(buildFiles{"Dockerfile": dockerfile, "busybox": string(shell)}.zip(b.t))
	if err != nil {
		b.t.Fatal(err)
	}
	b.to("#/images/builds", "Builds")
	b.press("button", "Build from an archive")
	b.fill("name", name)
	b.attach("files.zip", archive)
	b.script(`document.querySelector("dialog form").requestSubmit()`)
	b.until("the build is shown", `document.querySelector("h1").textContent.startsWith("`+name+`:") && document.querySelector("[data-status]") !== null`)
}

// TestConsoleAdmin: a real browser builds images, and keeps a workspace in order.
func TestConsoleAdmin(t *testing.T) {
	t.Parallel()
	b := browse(t)
	b.watch()
	p, _ := start(t, append(slices.Clone(buildArgs), "--pause-after", "1s", "--save-after", "200ms", "--disk-after", "1s", "--private-registries")...)
	c := buildPlace(t, p, "place")
	key, err := c.CreateKey(t.Context(), "reader", "1h", nil)
	if err != nil {
		t.Fatal(err)
	}
	b.open(p.Address + "/")
	b.enter("#key", key.Key)
	b.until("it is in", `document.querySelector(".who") !== null`)
	began := time.Now()
	lap := func(what string) { t.Logf("%s after %v", what, time.Since(began).Round(time.Millisecond)) }

	t.Run("a build", func(t *testing.T) {
		b.build("app", small+"RUN for i in 1 2 3 4; do echo printed $i; sleep 0.5; done\nCMD [\"/bin/true\"]\n")
		wrote := func(text string) string {
			return `[...document.querySelectorAll(".steps pre")].some((e) => e.textContent.includes("` + text + `"))`
		}
		b.until("its output is shown as it runs", wrote("printed 1")+` && document.querySelector("[data-status=BUILDING]") !== null && !`+wrote("printed 4"))
		b.until("the step runs", `document.querySelector("[data-state=started] .how").textContent.startsWith("runs")`)
		b.until("it is built", `document.querySelector("[data-status=BUILT]") !== null && document.querySelectorAll("[data-state=done]").length > 0`)
		b.until("the log has all", wrote("printed 4"))
		b.usable("a build")
		lap("built")
	})
	t.Run("a build that fails", func(*testing.T) {
		b.build("broken", small+"RUN echo why && exit 7\n")
		b.until("it failed", `document.querySelector("[data-status=FAILED]") !== null`)
		b.until("its step is marked", `document.querySelector(".steps .failed code").textContent === "RUN echo why && exit 7"`)
		b.until("the reason is shown", `document.querySelector(".failure").innerText.includes("exit code 7") && document.querySelector(".failure pre").textContent.includes("why")`)
		b.usable("a build that failed")
		b.clean()
		lap("failed")
	})
	t.Run("a build that is cancelled", func(*testing.T) {
		b.build("slow", small+"RUN sleep 1000\n")
		b.until("its step runs", `document.querySelector(".steps [data-state=started] code")?.textContent === "RUN sleep 1000"`)
		b.press("button", "Cancel the build")
		b.until("it is cancelled", `document.querySelector("[data-status=CANCELLED]") !== null && document.querySelector("#main button.danger") === null`)
		b.press(".crumb a", "Builds")
		b.until("all builds are listed", `["built", "failed", "cancelled"].every((s) => [...document.querySelectorAll("tbody tr")].some((e) => e.cells[1].innerText === s))`)
		b.clean()
		lap("cancelled")
	})
	t.Run("images", func(t *testing.T) {
		sb := named("web", 256)
		sb.Spec.Runtime.Image = "app"
		create(t, c, sb)
		b.to("#/images", "Images")
		b.until("the image and its sandbox are shown", record("app")+`?.textContent.includes("web")`)
		b.until("the catalogue is shown", record("base-image")+` !== null`)
		b.press("tr a", "app")
		b.until("its tag is shown", record("latest")+` !== null && document.querySelector("h1").textContent === "app"`)
		b.script(`document.querySelector("details").open = true`)
		b.until("its configuration is shown", `document.querySelector(".config").innerText.includes("/bin/true")`)
		b.usable("an image")
		b.press(".does button", "Delete")
		b.until("what uses it is named", `document.querySelector("dialog").innerText.includes("web")`)
		b.script(`document.querySelector("dialog form").requestSubmit()`)
		b.until("the platform refuses", `document.querySelector("dialog [role=alert]") !== null`)
		b.press("dialog button", "Cancel")
		b.press("button", "Share")
		b.fill("workspace", "main")
		b.submit()
		b.until("the share is listed", record("main")+` !== null`)
		b.press(".does button", "End")
		b.submit()
		b.until("it ended", record("main")+` === null`)
		hub := httptest.NewServer(registry.New(registry.Logger(slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo))))
		t.Cleanup(hub.Close)
		ref := strings.TrimPrefix(hub.URL, "http://") + "/team/app:1"
		push(t, ref, shellLayer(t, nil), v1.Config{User: "1000"})
		b.to("#/images", "Images")
		b.press("button", "Import")
		b.fill("image", ref)
		b.fill("name", "theirs:1")
		b.submit()
		b.until("the image of the registry is shown", `document.querySelector("h1").textContent === "theirs" && `+record("1")+` !== null`)
		b.press(".does button", "Delete")
		b.submit()
		b.until("the image is gone with its last tag", `location.hash === "#/images" && `+record("app")+` !== null && `+record("theirs")+` === null`)
		b.clean()
		lap("images")
	})
	t.Run("keys", func(t *testing.T) {
		b.to("#/workspace/keys", "Keys")
		b.press("button", "Make a key")
		do(b, chromedp.SendKeys("#ask-name", "ci"))
		b.fill("rights", "some")
		b.until("rights are offered", `document.querySelectorAll(".several input").length > 40`)
		b.usable("a form")
		b.fill("rights", "looks")
		secret := b.once()
		b.until("it is listed", `document.querySelector("tbody").innerText.includes("ci")`)
		of, err := client.New(client.Config{Address: p.Address, Key: secret})
		if err != nil {
			t.Fatal(err)
		}
		if sb, err := of.Sandbox(t.Context(), "web"); err != nil || sb.Metadata.Name != "web" {
			t.Errorf("the key reads %v, %v", sb.Metadata.Name, err)
		}
		if _, err := of.Images(t.Context()); err == nil {
			t.Error("the key may more than was chosen")
		}
		b.script(`[...document.querySelectorAll("tbody tr")].find((e) => e.innerText.includes("ci")).querySelector("button").click()`)
		b.until("it asks", `document.querySelector("dialog") !== null`)
		b.submit()
		b.until("it is gone", `!document.querySelector("tbody").innerText.includes("ci")`)
		if _, err := of.Sandbox(t.Context(), "web"); err == nil {
			t.Error("the key works still")
		}
		b.press("button", "Make a key") // with each right that is offered
		b.fill("name", "each")
		b.fill("rights", "some")
		b.until("rights are offered", `document.querySelector(".several") !== null`)
		b.script(`document.querySelectorAll(".several input").forEach((e) => { e.checked = true; })`)
		b.once()
		type named struct {
			Name   string
			Scopes []string
		}
		var all []named
		call{url: p.Address + "/v0/api_keys?workspace=place"}.want(t, p, http.StatusOK).into(t, &all)
		if !slices.ContainsFunc(all, func(k named) bool { return k.Name == "each" && len(k.Scopes) > 40 }) {
			t.Errorf("there are %+v", all)
		}
		b.clean()
		lap("keys")
	})
	t.Run("accounts", func(t *testing.T) {
		b.to("#/workspace/accounts", "Service accounts")
		b.press("button", "Make an account")
		b.fill("name", "deploys")
		b.once()
		b.press("tr a", "deploys")
		b.until("its keys are shown", `location.hash.startsWith("#/workspace/accounts/") && document.querySelector(".records .empty") !== null`)
		b.press("button", "Make a key")
		b.fill("name", "first")
		if of, err := client.New(client.Config{Address: p.Address, Key: b.once()}); err != nil {
			t.Error(err)
		} else if _, err := of.Sandbox(t.Context(), "web"); err != nil {
			t.Errorf("its key: %v", err)
		}
		b.usable("an account")
		lap("accounts")
	})
	t.Run("secrets", func(t *testing.T) {
		const shown = `document.documentElement.outerHTML.includes("hunter2") || [...document.querySelectorAll("input, textarea")].some((e) => e.value.includes("hunter2"))`
		b.to("#/workspace/secrets", "Secrets")
		b.press("button", "Make a secret")
		b.fill("name", "registry")
		b.fill("key", "password")
		b.fill("value", "hunter2")
		b.submit()
		b.until("it is listed", record("registry")+` !== null`)
		b.press(".does button", "Set a key")
		b.fill("key", "user")
		b.fill("value", "ann")
		b.submit()
		b.until("both keys are listed, and no value", record("registry")+`.innerText.includes("user") && !(`+shown+`)`)
		reads := named("reads", 256)
		reads.Spec.Runtime.Image = "app"
		for _, key := range []string{"password", "user"} {
			reads.Spec.Runtime.Envs = append(reads.Spec.Runtime.Envs, doze.Env{Name: key, ValueFrom: json.RawMessage(`{"secretKeyRef": {"name": "registry", "key": "` + key + `"}}`)})
		}
		_, agent := create(t, c, reads)
		if got := sh(t, agent, "echo $password $user"); got != "hunter2 ann" {
			t.Errorf("a sandbox reads %q", got)
		}
		b.clean()
		lap("secrets")
	})
	t.Run("members", func(t *testing.T) {
		b.to("#/workspace/members", "Members")
		b.press("button", "Invite")
		b.fill("email", "ann@example.com")
		token := b.once()
		b.until("the invitation is listed", record("ann@example.com")+` !== null`)
		call{
			method: http.MethodPost, url: p.Address + "/v0/invitations/accept", key: none,
			body: encode(t, map[string]string{"token": token, "password": memberPassword, "given_name": "Ann"}),
		}.want(t, p, http.StatusOK)
		b.to("#/workspace/keys", "Keys")
		b.to("#/workspace/members", "Members")
		b.until("she is a member", `[...document.querySelectorAll("tbody tr")].some((e) => e.innerText.includes("ann@example.com") && e.innerText.includes("member"))`)
		change := func(role string) {
			b.script(`[...document.querySelectorAll("tbody tr")].find((e) => e.innerText.includes("ann@example.com")).querySelector("button").click()`)
			b.fill("role", role)
			b.submit()
			b.until("she is "+role, `[...document.querySelectorAll("tbody tr")].find((e) => e.innerText.includes("ann@example.com")).cells[2].innerText === "`+role+`"`)
		}
		change("admin")
		change("member")
		b.clean()
		lap("members")
	})
	t.Run("storage and times", func(t *testing.T) {
		b.to("#/workspace/volumes", "Volumes")
		b.press("button", "Make a volume")
		b.until("it asks", `document.activeElement.id === "ask-name"`)
		do(b, chromedp.KeyEvent(kb.Escape))
		b.until("a key closes the dialog, and the focus is back", `document.querySelector("dialog") === null && document.activeElement.textContent === "Make a volume"`)
		b.press("button", "Make a volume")
		b.fill("name", "data")
		b.fill("size", "32")
		b.submit()
		b.press(".does button", "Grow")
		b.fill("size", "48")
		b.submit()
		b.until("it is larger", record("data")+`.innerText.includes("48 MB")`)
		b.press(".does button", "Delete")
		b.fill("confirm", "data")
		b.submit()
		b.until("it is gone", record("data")+` === null && document.querySelector(".empty") !== null`)
		b.to("#/workspace/templates", "Volume templates")
		for _, button := range []string{"Make a template", "Add a version"} {
			b.press("button", button)
			if button == "Make a template" {
				b.fill("name", "seed")
			}
			b.attach("seed.tar", tarOf(t, "file", "to begin with"))
			b.submit()
		}
		b.press("tr a", "seed")
		b.until("both versions are ready", `["1", "2"].every((v) => document.querySelector("[data-id='" + v + "']")?.innerText.includes("ready"))`)
		b.to("#/workspace/templates", "Volume templates")
		b.press(".does button", "Delete")
		b.fill("confirm", "seed")
		b.submit()
		b.until("the template is gone", record("seed")+` === null && document.querySelector(".empty") !== null`)
		b.to("#/workspace/drives", "Drives")
		b.press("button", "Make a drive")
		b.fill("name", "shared")
		b.script(`document.querySelector("dialog form").requestSubmit()`)
		b.until("without a bucket, the dialog says why there is none", `document.querySelector("dialog [role=alert]")?.textContent.includes("--drives")`)
		b.press("dialog button", "Cancel")
		b.to("#/workspace/schedules", "Schedules")
		b.press("button", "Make a schedule")
		b.fill("sandbox", "web")
		b.fill("id", "soon")
		b.fill("type", "sleep")
		b.fill("value", "1s")
		b.fill("command", "true")
		b.submit()
		b.until("it is listed", record("web/soon")+` !== null`)
		b.until("its run is listed", `document.querySelectorAll(".records")[1].innerText.includes("succeeded")`)
		b.clean()
		lap("storage")
	})
	t.Run("domains and gateways", func(*testing.T) {
		b.to("#/workspace/domains", "Custom domains")
		b.press("button", "Add a domain")
		b.fill("name", "shop.example")
		b.submit()
		b.until("its records are shown", record("shop.example")+`?.innerText.includes("_doze-challenge.shop.example")`)
		b.press(".does button", "Verify")
		b.until("the page says what came of it", `document.querySelector(".notices").innerText.includes("Not yet")`)
		b.to("#/workspace/gateways", "Gateways")
		b.press(".does button", "Add a gateway")
		b.fill("name", "office")
		b.submit()
		b.until("it is listed", record("office")+` !== null`)
		b.press(".does button", "Add an address")
		b.fill("name", "office-1")
		b.submit()
		b.until("it has no address, and the page says why", record("office-1")+`?.innerText.includes("failed")`)
		b.clean()
		lap("gateways")
	})
	t.Run("audit", func(t *testing.T) {
		dir := t.TempDir()
		do(b, func(ctx context.Context, to *chromedp.Target) (cdp.Empty, error) {
			return cdp.Call(ctx, to, browser.SetDownloadBehavior, browser.SetDownloadBehaviorParams{Behavior: "allow", DownloadPath: dir})
		})
		b.to("#/workspace/audit", "Audit log")
		b.until("lines are listed", `document.querySelectorAll("tbody tr").length > 10`)
		find := func(name, text string) {
			b.script(`const e = document.querySelector(".finds [name=` + name + `]"); e.value = "` + text + `"; e.dispatchEvent(new Event("change", { bubbles: true }))`)
		}
		find("action", "api_keys.create")
		find("actor", "admin")
		find("since", time.Now().Add(-time.Hour).Format("2006-01-02T15:04:05"))
		b.until("the others are not", `document.querySelectorAll("tbody tr").length > 0 && [...document.querySelectorAll("tbody tr")].every((e) => e.cells[2].innerText.startsWith("api_keys.create"))`)
		b.press(".finds button", "Export")
		var lines []doze.AuditLine
		until(t, "the export is a file", func() bool {
			files, err := filepath.Glob(filepath.Join(dir, "audit-*.jsonl"))
			if err != nil || len(files) != 1 {
				return false
			}
			raw, err := os.ReadFile(files[0])
			if err != nil || len(raw) == 0 {
				return false
			}
			lines = nil
			for text := range strings.Lines(string(raw)) {
				var l doze.AuditLine
				if err := json.Unmarshal([]byte(text), &l); err != nil {
					t.Fatalf("%q: %v", text, err)
				}
				lines = append(lines, l)
			}
			return true
		})
		if len(lines) == 0 || slices.ContainsFunc(lines, func(l doze.AuditLine) bool { return l.Action != "api_keys.create" || l.Workspace != "place" }) {
			t.Errorf("the export has %+v", lines)
		}
		find("since", time.Now().Add(time.Hour).Format("2006-01-02T15:04:05"))
		b.until("none is of later", `document.querySelector(".records .empty") !== null`)
		b.clean()
		lap("audit")
	})
	t.Run("each page is reached, and can be used", func(t *testing.T) {
		b.to("#/images", "Images")
		found := map[string]bool{}
		for _, area := range []string{"Images", "Workspace"} {
			b.press(".top nav a", area)
			b.until("its pages are listed", `document.querySelector(".pages")?.ariaLabel === "Pages of `+area+`"`)
			for link := range strings.FieldsSeq(b.script(`return [...document.querySelectorAll(".pages a")].map((e) => e.getAttribute("href")).join(" ")`)) {
				found[link] = true
				heading, ok := adminPages[link]
				if !ok {
					t.Errorf("%s is not in the table", link)
					continue
				}
				b.script(`document.querySelector(".pages a[href='` + link + `']").click()`)
				b.until(link+" is shown", `document.querySelector("h1")?.textContent === "`+heading+`" && document.querySelector(".records") !== null && !document.body.innerText.includes("Looking…")`)
				if fault := b.script(`return document.querySelector("[role=alert]")?.textContent ?? ""`); fault != "" {
					t.Errorf("%s: %s", link, fault)
				}
				b.usable(link)
			}
		}
		if missing := slices.Sorted(func(yield func(string) bool) {
			for link := range maps.Keys(adminPages) {
				if !found[link] && !yield(link) {
					return
				}
			}
		}); len(missing) > 0 {
			t.Errorf("nothing leads to %q", missing)
		}
		b.clean()
		lap("pages")
	})
	t.Run("a phone", func(*testing.T) {
		do(b, chromedp.EmulateViewport(390, 800))
		for link, heading := range map[string]string{"#/images": "Images", "#/workspace/keys": "Keys", "#/workspace/audit": "Audit log"} {
			b.to(link, heading)
			b.until(link+" is no wider than the screen", `document.documentElement.scrollWidth <= 390`)
		}
		b.usable("a phone")
		do(b, chromedp.EmulateViewport(1280, 900))
		lap("phone")
	})
	t.Run("read-only", func(*testing.T) {
		b.to("#/workspace/keys", "Keys")
		b.press(".who", "A")
		b.press(".sheet button", "Read-only")
		for _, link := range slices.Sorted(maps.Keys(adminPages)) {
			b.to(link, adminPages[link])
			b.until(link+" offers nothing", `document.querySelector(".does button, .records .primary") === null`)
		}
		b.press(".sheet button", "Read-only")
		b.clean()
		lap("read-only")
	})
	t.Run("few rights", func(*testing.T) {
		b.press(".sheet button", "Log out")
		enters(b, p, "ann@example.com")
		b.until("she is in", `document.querySelector(".who") !== null`)
		b.to("#/workspace/members", "Members")
		b.until("no page for admins is offered", `![...document.querySelectorAll(".pages a")].some((e) => ["Secrets", "Audit log", "Gateways"].includes(e.textContent)) && document.querySelectorAll(".pages a").length > 4`)
		b.until("she may not invite", `document.querySelector(".does button, .records .primary") === null`)
		b.script(`location.hash = "#/workspace/secrets"`)
		b.until("a page that she may not see says so", `document.querySelector("#main").innerText.includes("You may not see this page")`)
		b.usable("a page that is closed")
		b.to("#/images", "Images")
		b.until("she sees the catalogue, and not the images", record("base-image")+` !== null && `+record("app")+` === null`)
		b.clean()
		lap("few rights")
	})
}

const memberPassword = "correct horse battery"

// enters logs in with the password of a member, on the page of the platform.
func enters(b tab, p *testkit.Platform, name string) {
	b.t.Helper()
	b.press("button", "Log in with a password")
	b.until("a code is shown", `document.querySelector(".code") !== null`)
	form := url.Values{"user_code": {b.script(`return document.querySelector(".code").textContent`)}, "name": {name}, "password": {memberPassword}, "decision": {"allow"}}
	address := p.Address + b.script(`return document.querySelector("a.primary").getAttribute("href")`)
	call{
		method: http.MethodPost, url: address[:strings.Index(address, "?")], body: form.Encode(), key: none,
		header: map[string]string{"Content-Type": "application/x-www-form-urlencoded", "Origin": p.Address},
	}.want(b.t, p, http.StatusOK)
}
