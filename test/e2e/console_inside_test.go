package e2e_test

import (
	"context"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
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
	_, agent := create(t, c, named("web", 512))
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
}
