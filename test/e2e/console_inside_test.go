package e2e_test

import (
	"context"
	"crypto/md5"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	cdpbrowser "github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/dozehq/doze"
)

// minute has an idle minute of the page be as long as the test says.
const minute = `
	window.minute = 60000;
	const timeout = window.setTimeout;
	window.setTimeout = (f, ms, ...more) => timeout(f, ms === 60000 ? window.minute : ms, ...more);`

// shows is an expression that is true once a terminal shows a text.
func shows(text string) string {
	return `document.querySelector(".xterm-rows")?.textContent.includes("` + text + `")`
}

// keys has the browser press keys in what has the focus, each with its character, as a
// keyboard does. A page that takes a key keeps its character from coming, too.
func (b tab) keys(text string) {
	b.t.Helper()
	do(b, func(ctx context.Context, to *chromedp.Target) (none cdp.Empty, err error) {
		for _, r := range text {
			events := kb.Encode(r)
			down, up := *events[0], *events[len(events)-1]
			if down.Text = string(r); len(events) > 2 {
				down.Text = events[1].Text
			}
			for _, event := range []input.DispatchKeyEventParams{down, up} {
				if _, err = cdp.Call(ctx, to, input.DispatchKeyEvent, event); err != nil {
					return none, err
				}
			}
		}
		return none, nil
	})
}

// ready has a view of the sandbox open, which may sleep.
func (b tab) ready() {
	b.t.Helper()
	b.until("the view is there", `document.querySelector(".gate button, .inside") !== null`)
	b.script(`document.querySelector(".gate button")?.click()`)
	b.until("the view opens", `document.querySelector(".inside") !== null`)
}

// chooses has a user choose files, by name, in the field that a selector finds.
func (b tab) chooses(selector string, files map[string]string) {
	b.t.Helper()
	dir := b.t.TempDir()
	var names []string
	for name, content := range files {
		names = append(names, filepath.Join(dir, name))
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			b.t.Fatal(err)
		}
	}
	do(b, chromedp.SetUploadFiles(selector, names))
}

// TestConsoleInside: the page shows and does what is inside a sandbox. It wakes none
// that it was not told to wake, and lets an idle one sleep. What a sandbox sends is text.
func TestConsoleInside(t *testing.T) {
	t.Parallel()
	b := browse(t)
	b.watch()
	do(b, func(ctx context.Context, to *chromedp.Target) (page.AddScriptToEvaluateOnNewDocumentResult, error) {
		return cdp.Call(ctx, to, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: minute})
	})
	p, c := start(t, "--pause-after", "1s", "--save-after", "200ms", "--disk-after", "1s", "--swap", "off")
	web := named("web", 512)
	web.Spec.Runtime.Ports = []doze.Port{{Target: 3000}}
	web.Spec.Runtime.Envs = []doze.Env{{Name: "COLOUR", Value: new("<i>blue</i>")}, {Name: "TOKEN", Value: new("hunter2"), Secret: true}}
	_, agent := create(t, c, web)
	sh(t, agent, "true")
	awaitTier(t, p, "web", "disk")
	b.open(p.Address + "/#/sandboxes/web/terminal")
	b.enter("#key", p.Key)

	t.Run("terminal", func(t *testing.T) {
		b.until("it asks before it wakes", `document.querySelector(".gate b")?.textContent === "web sleeps (on disk)."`)
		b.usable("a view of a sandbox that sleeps")
		if tier, err := p.TierOf(t.Context(), "web"); err != nil || tier != "disk" {
			t.Fatalf("it is %s, %v", tier, err)
		}
		b.press(".gate button", "Wake and open")
		b.until("it is open", `document.querySelector(".terminal-box[data-state=open]") !== null`)
		b.keys("printf '\\033[38;2;10;20;30mtrue colours\\033[0m %s\\n' $((6*7))\r")
		b.until("what is typed runs", shows("true colours 42"))
		b.keys("printf '<b>bold</b><img src=x onerror=alert(1)>\\033]8;;javascript:alert(1)\\007link\\033]8;;\\007'; stty size\r")
		b.until("markup is text", shows("<b>bold</b><img src=x onerror=alert(1)>link"))
		if n := b.script(`return document.querySelectorAll(".xterm b, .xterm img, .xterm a").length`); n != "0" {
			t.Errorf("the output made %s elements", n)
		}
		b.usable("a terminal")
		b.clean()
		b.script(`window.minute = 1000`)
		b.keys("kept=here\r")
		b.until("it lets go", `document.querySelector(".terminal-box[data-state=idle]") !== null`)
		awaitTier(t, p, "web", "disk")
		b.script(`window.minute = 60000`)
		b.press(".shells button", "Wake and go on")
		b.until("it goes on", `document.querySelector(".terminal-box[data-state=open]") !== null`)
		b.keys("echo still-$kept\r")
		b.until("the shell is the same", shows("still-here"))
		b.clean()
	})
	t.Run("files", func(t *testing.T) {
		sh(t, agent, `mkdir -p "/srv/d/<img src=x onerror=alert(1)>"; cd /srv/d; printf '<script>alert(1)</script>\n\033[31mred\342\200\256\n' > "$(printf 'a\342\200\256txt.<b>html')"; printf 'one\ntwo\n' > t.txt; chmod 640 t.txt; head -c 9000000 /dev/zero > zeros; ln -s /srv l`)
		b.script(`location.hash = "#/sandboxes/web/files?path=/srv/d"`)
		b.ready()
		b.until("the directory is listed", `document.querySelectorAll(".rows tbody tr").length === 5`)
		if n := b.script(`return document.querySelectorAll(".rows b, .rows img, .rows script").length`); n != "0" {
			t.Errorf("the names made %s elements", n)
		}
		if row := b.script(`return [...document.querySelectorAll(".rows tr")].find((r) => r.textContent.startsWith("t.txt")).innerText.replace(/\s+/g, " ")`); !strings.HasPrefix(row, "t.txt 8 B rw-r-----") {
			t.Errorf("a row is %q", row)
		}
		b.until("a character that turns text is written out", `document.querySelector(".rows").textContent.includes("a\\u{202e}txt.<b>html")`)
		b.usable("a directory")

		b.chooses("input[type=file]", map[string]string{"small.txt": "small", "large.bin": strings.Repeat("0123456789", 900_000)})
		b.until("both files arrived", `document.querySelectorAll(".rows tbody tr").length === 7`)
		if got := sh(t, agent, "cd /srv/d; cat small.txt; wc -c < large.bin; md5sum < large.bin"); got != fmt.Sprintf("small9000000\n%x  -", md5.Sum([]byte(strings.Repeat("0123456789", 900_000)))) {
			t.Errorf("the uploads are %q", got)
		}
		b.chooses("input[type=file]", map[string]string{"small.txt": "other"})
		b.press("dialog button", "Replace")
		until(t, "it is replaced", func() bool { return sh(t, agent, "cat /srv/d/small.txt") == "other" })

		dir := t.TempDir()
		do(b, func(ctx context.Context, to *chromedp.Target) (cdp.Empty, error) {
			return cdp.Call(ctx, to, cdpbrowser.SetDownloadBehavior, cdpbrowser.SetDownloadBehaviorParams{Behavior: cdpbrowser.SetDownloadBehaviorBehaviorAllow, DownloadPath: dir})
		})
		b.script(`document.querySelector("[aria-label^='Download large.bin']").click()`)
		until(t, "the download is whole", func() bool {
			info, err := os.Stat(filepath.Join(dir, "large.bin"))
			return err == nil && info.Size() == 9_000_000
		})

		b.press(".inside button", "New directory")
		b.enter("#asked", "made")
		b.until("the directory is made", `document.querySelector(".rows").textContent.includes("made/")`)
		b.script(`document.querySelector("[aria-label='Delete made']").click()`)
		b.press("dialog button", "Delete it")
		b.until("it is deleted", `!document.querySelector(".rows").textContent.includes("made/")`)

		b.press(".rows a", "a")
		b.ready()
		b.until("markup in a file is text", `document.querySelector(".editor")?.shadowRoot?.querySelector(".cm-content")?.textContent.startsWith("<script>alert(1)</script>")`)
		b.until("nothing in it turns the text", `!document.querySelector(".editor").shadowRoot.querySelector(".cm-content").textContent.includes("\u202e")`)
		b.script(`location.hash = "#/sandboxes/web/files?file=/srv/d/zeros"`)
		b.ready()
		b.until("a large file is refused", `document.querySelector(".fault")?.textContent.includes("more than 1.0 MB")`)
		b.clean()
	})
	t.Run("edit", func(t *testing.T) {
		b.script(`location.hash = "#/sandboxes/web/files?file=/srv/d/t.txt"`)
		b.ready()
		content := `document.querySelector(".editor:not([hidden])")?.shadowRoot?.querySelector(".cm-content")`
		lines := `[...(` + content + `?.querySelectorAll(".cm-line") ?? [])].map((l) => l.textContent).join("|")`
		b.until("the text is shown", lines+` === "one|two|"`)
		b.script(content + `.focus()`)
		b.keys("zero ")
		b.usable("the editor")
		b.press(".inside button", "Review the changes")
		b.until("the difference is shown", `document.querySelector(".editor").shadowRoot?.querySelector(".cm-deletedChunk")?.textContent.includes("one") && document.querySelector(".editor").shadowRoot.querySelector(".cm-changedLine")?.textContent === "zero one"`)
		b.usable("a comparison")
		sh(t, agent, "echo three >> /srv/d/t.txt")
		b.press(".inside button", "Save")
		b.until("it is not saved over another change", `document.querySelector(".fault")?.textContent.startsWith("The file changed since you opened it")`)
		if got := sh(t, agent, "cat /srv/d/t.txt"); got != "one\ntwo\nthree" {
			t.Errorf("after that the file is %q", got)
		}
		b.press(".fault button", "Open it again")
		b.until("the new text is shown", lines+` === "one|two|three|"`)
		b.script(content + `.focus()`)
		b.keys("zero ")
		b.press(".inside button", "Review the changes")
		b.press(".inside button", "Save")
		until(t, "it is saved", func() bool {
			return sh(t, agent, "cat /srv/d/t.txt; stat -c %a /srv/d/t.txt") == "zero one\ntwo\nthree\n640"
		})
		b.clean()
	})
	t.Run("processes", func(t *testing.T) {
		b.script(`location.hash = "#/sandboxes/web/processes"`)
		b.ready()
		b.press(".inside button", "Start a command")
		b.until("a dialog asks", `document.activeElement.id === "command"`)
		b.script(`document.querySelector("#as").focus()`)
		b.keys("ticks")
		b.enter("#command", `printf '<b>out</b>\033[31mred\033]0;x\007\n'; echo wrong >&2; i=0; while sleep 0.3; do i=$((i+1)); echo tick-$i; done`)
		b.until("its output comes as it is written", `[...document.querySelectorAll(".followed .lines li")].some((l) => l.textContent === "stdouttick-3")`)
		b.until("both streams are told apart, as text", `[...document.querySelectorAll(".followed .lines li")].map((l) => l.textContent).join("|").includes("stdout<b>out</b>red|") && document.querySelector(".followed .bad").textContent === "stderrwrong"`)
		b.until("it is in the list", `document.querySelector(".rows tbody tr th bdi").textContent === "ticks" && document.querySelector(".rows tbody td").textContent === "running"`)
		b.usable("processes")
		b.press(".followed button", "Pause")
		stopped := b.script(`return document.querySelectorAll(".followed li").length`)
		time.Sleep(700 * time.Millisecond)
		if n := b.script(`return document.querySelectorAll(".followed li").length`); n != stopped {
			t.Errorf("a pause has %s lines, then %s", stopped, n)
		}
		b.press(".followed button", "Follow")
		b.until("it goes on", `document.querySelectorAll(".followed li").length > `+stopped)
		b.script(`document.querySelector("[aria-label^='Stop ticks']").click()`)
		b.until("it stops", `document.querySelector(".followed [role=status]").textContent.startsWith("The process ended") && document.querySelector(".rows tbody td").textContent.startsWith("stopped")`)
		if got := sh(t, agent, "pgrep -c -f tick-; true"); got != "0" && got != "1" { // the shell that asks may be one
			t.Errorf("after that %s run", got)
		}
		b.clean()
	})
	t.Run("an open list lets it sleep", func(t *testing.T) {
		awaitTier(t, p, "web", "disk")
		stays(t, p, "web", "disk", 3*time.Second)
		b.until("the page says what wakes it", `[...document.querySelectorAll(".inside button")].some((e) => e.textContent === "Refresh (wakes it)")`)
		b.script(`window.minute = 1000`)
		b.press(".inside button", "Start a command")
		b.enter("#command", "sleep 2000")
		b.until("an idle stream lets go", `document.querySelector(".followed [role=status]")?.textContent.startsWith("It wrote nothing for a minute")`)
		awaitTier(t, p, "web", "disk")
		b.clean()
	})
	t.Run("what the platform answers wakes nothing", func(t *testing.T) {
		b.script(`location.hash = "#/sandboxes/web/log?search=TICK-2&process=ticks"`)
		b.until("a search finds a line", `[...document.querySelectorAll(".inside .lines code")].map((e) => e.textContent).join() === "tick-2"`)
		b.usable("the log")
		b.script(`location.hash = "#/sandboxes/web/environment"`)
		b.until("the variables are shown, but for secrets", `document.querySelector(".rows tbody").innerText.replace(/\s+/g, " ").trim() === "COLOUR <i>blue</i> TOKEN secret"`)
		b.until("nothing is mounted", `document.querySelector("[aria-labelledby=mounted] .empty") !== null`)
		b.usable("the environment")
		b.script(`location.hash = "#/sandboxes/web/ports"`)
		b.press(".inside button", "Preview")
		b.enter("#preview-name", "site")
		b.until("the preview is there", `document.querySelector("[aria-labelledby=previews] li")?.textContent.startsWith("site port 3000, private")`)
		b.usable("ports and previews")
		b.script(`document.querySelector("[aria-label='Delete the preview site']").click()`)
		b.press("dialog button", "Delete it")
		b.until("the preview is deleted", `document.querySelector("[aria-labelledby=previews] li") === null`)
		if tier, err := p.TierOf(t.Context(), "web"); err != nil || tier != "disk" {
			t.Errorf("after that it is %s, %v", tier, err)
		}
		b.clean()
	})
	t.Run("read-only", func(*testing.T) {
		b.press(".who", "A")
		b.press(".sheet button", "Read-only")
		for _, view := range []string{"terminal", "files", "processes", "ports"} {
			b.script(`location.hash = "#/sandboxes/web/` + view + `"`)
			b.until(view+" is shown", `document.querySelector(".tabs [aria-current]").getAttribute("href").endsWith("/`+view+`")`)
			b.until(view+" offers nothing", `document.querySelector(".gate p, .empty") !== null && document.querySelector("main .primary, main .danger") === null`)
		}
		b.clean()
	})
}
