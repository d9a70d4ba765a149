package e2e_test

import (
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
)

// seen is what the page of the APIs shows: the text of the viewer, which is in shadow trees.
const seen = `
	const all = (root) => [...root.querySelectorAll("*")].map((e) => e.shadowRoot ? all(e.shadowRoot) : "").join("") + root.textContent;
	return all(document.querySelector("rapi-doc").shadowRoot)`

// TestReferencePage: a real browser shows the calls of both APIs at /docs, asks no other
// origin for anything, and is refused nothing by the policy of the page.
func TestReferencePage(t *testing.T) {
	t.Parallel()
	b := browse(t)
	p, _ := start(t)
	var (
		mu       sync.Mutex
		asked    []string // guarded by mu: addresses
		refusals []string // guarded by mu
	)
	err := chromedp.Listen(b.ctx, func(ev any) {
		mu.Lock()
		defer mu.Unlock()
		switch ev := ev.(type) {
		case *network.EventRequestWillBeSent:
			asked = append(asked, ev.Request.URL)
		case *log.EventEntryAdded:
			if ev.Entry.Level == log.EntryLevelError {
				refusals = append(refusals, ev.Entry.Text)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	b.open(p.Address + "/docs")
	until(t, "both APIs are shown", func() bool {
		text := b.script(seen)
		return strings.Contains(text, "Restore a sandbox from its snapshot") && strings.Contains(text, "Run a command")
	})
	b.open(p.Address + "/docs#post-/run/-workspace-/sandboxes/-sandbox-/process")
	until(t, "a call is shown", func() bool { return strings.Contains(b.script(seen), "waitForCompletion") })

	mu.Lock()
	defer mu.Unlock()
	own, err := url.Parse(p.Address)
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range asked {
		u, err := url.Parse(address)
		if err != nil || u.Scheme != "data" && u.Host != own.Host && address != "about:blank" {
			t.Errorf("the page asks for %s", address)
		}
	}
	if len(asked) < 3 { // the page, the viewer, the description
		t.Errorf("saw the requests %q only", asked)
	}
	if len(refusals) > 0 {
		t.Errorf("the browser refused: %q", refusals)
	}
}
