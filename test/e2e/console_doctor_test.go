package e2e_test

import (
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// TestConsoleDoctor: an operator sees what is amiss with the host, and others do not. The
// plots have what a create did.
func TestConsoleDoctor(t *testing.T) {
	t.Parallel()
	b := browse(t)
	b.watch()
	p, c := start(t, "--pause-after", "300ms", "--save-after", "100ms", "--disk-after", "300ms", "--swap", "off", "--warm-pool", "1")
	create(t, c, named("web", 256))
	b.open(p.Address + "/")
	b.enter("#key", p.Key)

	t.Run("warnings", func(t *testing.T) {
		b.until("the swap is warned of", `[...document.querySelectorAll(".warnings li.warning")].some((e) => e.textContent.startsWith("Swap") && e.textContent.includes("--swap auto"))`)
		b.until("the navigation counts them", `document.querySelector("nav .amiss").lastChild.textContent === String(document.querySelectorAll(".warnings li").length)`)
		first, err := c.Checkup(t.Context())
		if err != nil || first.Host == "" || !first.Sandboxes {
			t.Fatalf("%+v, %v", first, err)
		}
		if second, err := c.Checkup(t.Context()); err != nil || second.CheckedAt != first.CheckedAt {
			t.Errorf("a second call within a minute looks again: %+v, %v", second, err)
		}
	})
	t.Run("plots", func(*testing.T) {
		for _, line := range []string{"Ready", "Memory free", "Disk free"} {
			b.until(line+" has a value", `[...document.querySelectorAll(".legend li")].some((e) => e.textContent.startsWith("`+line+`") && /[1-9]/.test(e.querySelector("b").textContent))`)
		}
		create(t, c, named("second", 256)) // of the first one, the history may know nothing
		b.until("the create is shown", `document.querySelector("[aria-label^='What creates took'] li b")?.textContent >= "1"`)
		b.until("no wake failed", `[...document.querySelectorAll(".plot")].some((e) => e.textContent.includes("No wake failed"))`)
		b.usable("the overview with warnings")
	})
	t.Run("others", func(t *testing.T) {
		few, err := c.CreateKey(t.Context(), "looks", "1h", []string{"sandboxes:list", "sandboxes:get"})
		if err != nil {
			t.Fatal(err)
		}
		call{url: p.Address + "/v0/platform/doctor", key: few.Key}.want(t, p, 403)
		b.script(`sessionStorage.clear()`)
		do(b, chromedp.Reload())
		b.enter("#key", few.Key)
		b.until("the sandboxes are shown", `document.querySelector("[data-tier=disk]")?.textContent === "2"`)
		b.until("the history is refused", `document.querySelector(".note") !== null`)
		time.Sleep(time.Second)
		b.until("there are no warnings", `document.querySelector(".warnings, .amiss, .fault") === null`)
		b.clean()
	})
}
