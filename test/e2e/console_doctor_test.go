package e2e_test

import (
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// noted has the page note whether a sandbox was shown as awake, and whether the picture
// has a dot in the layer of those that are.
const noted = `
	window.awake = window.rose = false;
	const number = document.querySelector("[data-tier=awake]"), canvas = document.querySelector(".scene canvas");
	const look = () => {
		awake ||= number.textContent !== "0";
		const band = canvas.getContext("2d").getImageData(0, 0, canvas.width, Math.floor(canvas.height / 5)).data;
		for (let i = 3; i < band.length && !rose; i += 4) rose = band[i] > 0;
		if (!window.enough) requestAnimationFrame(look);
	};
	window.enough = false;
	look();`

// TestConsoleDoctor: an operator sees what is amiss with the host, and others do not. The
// plots have what a create did, and a wake that is over at once is seen.
func TestConsoleDoctor(t *testing.T) {
	t.Parallel()
	b := browse(t)
	b.watch()
	p, c := start(t, "--pause-after", "50ms", "--swap", "off")
	_, agent := create(t, c, named("web", 256))
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
		for _, line := range []string{"Memory free", "Disk free"} {
			b.until(line+" has a value", `[...document.querySelectorAll(".legend li")].some((e) => e.textContent.startsWith("`+line+`") && /[1-9]/.test(e.querySelector("b").textContent))`)
		}
		_, _ = create(t, c, named("second", 256)) // of the first one, the history may know nothing
		b.until("the create is shown", `document.querySelector("[aria-label^='What creates took'] li b")?.textContent >= "1"`)
		b.until("no wake failed", `[...document.querySelectorAll(".plot")].some((e) => e.textContent.includes("No wake failed"))`)
		b.usable("the overview with warnings")
	})
	t.Run("a short wake", func(t *testing.T) {
		b.prefer("dark", "no-preference")
		for range 10 {
			b.until("all sleep", `document.querySelector("[data-tier=awake]").textContent === "0"`)
			time.Sleep(1500 * time.Millisecond) // dots come to rest
			b.script(noted)
			sh(t, agent, "true")
			b.until("the wake is seen", `window.awake || window.rose`)
			time.Sleep(300 * time.Millisecond) // number and picture change one after the other
			b.script("window.enough = true")
			if b.script("return awake") == "true" {
				continue // a look met it
			}
			return
		}
		t.Error("each look met a sandbox that was awake")
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
		b.until("the sandboxes are shown", `document.querySelector("h1")?.textContent.includes("of 2 sandboxes")`)
		b.until("the history is refused", `document.querySelector(".note") !== null`)
		time.Sleep(time.Second)
		b.until("there are no warnings", `document.querySelector(".warnings, .amiss, .fault") === null`)
		b.clean()
	})
}
