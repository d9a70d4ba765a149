package e2e_test

import (
	"strings"
	"sync"
	"testing"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
)

// TestWakesObeyTheQuota: eight requests come at once for eight sandboxes that
// sleep, where one more may be awake. One wakes. The others are told why not, and
// sleep on, until there is room.
func TestWakesObeyTheQuota(t *testing.T) {
	t.Parallel()
	const many, limit = 8, 2
	p, c := start(t, "--pause-after", "1s")
	_, busy := create(t, c, named("busy", 128))
	forever := 0
	spawn(t, busy, client.Command{Name: "kept", Command: "sleep 3600", KeepAlive: true, Timeout: &forever})
	urls := make([]string, many)
	for i := range many {
		sb, _ := create(t, c, named("s"+string(rune('a'+i)), 128))
		urls[i] = sb.Metadata.URL
	}
	awake := func() int64 {
		all, err := c.Quotas(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		for _, q := range all {
			if q.Name == doze.QuotaSandboxesAwake {
				return q.Used
			}
		}
		t.Fatal("there is no such quota")
		return 0
	}
	until(t, "all but the busy one sleep", func() bool { return awake() == 1 })
	if _, err := c.SetQuotas(t.Context(), "main", map[string]*int64{doze.QuotaSandboxesAwake: new(int64(limit))}); err != nil {
		t.Fatal(err)
	}
	answers := make([]answer, many)
	var calls sync.WaitGroup
	for i, url := range urls {
		calls.Go(func() { answers[i] = call{url: url + "/process"}.do(t, p) })
	}
	calls.Wait()
	woke := 0
	for _, a := range answers {
		switch {
		case a.status == 200:
			woke++
		case a.status != 429 || !strings.Contains(a.body, `"code":"QUOTA_EXCEEDED"`) || !strings.Contains(a.body, `"quota":"sandboxesAwake"`) || a.header.Get("X-Blaxel-Source") != "platform":
			t.Errorf("%d %s", a.status, a.body)
		}
	}
	// One may fall asleep, and another wake, before the last of them asks.
	if n := awake(); woke == 0 || woke == many || n > limit {
		t.Errorf("%d of %d woke, and %d are awake", woke, many, n)
	}
	until(t, "there is room again", func() bool { return call{url: urls[0] + "/process"}.do(t, p).status == 200 })
	text := call{url: p.Address + "/metrics"}.want(t, p, 200).body
	if !strings.Contains(text, `doze_quota_refusals_total{quota="sandboxesAwake"}`) || strings.Contains(text, `workspace="`) {
		t.Error("refusals are not counted by quota, or by tenant")
	}
}
