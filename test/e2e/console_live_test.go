package e2e_test

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/testkit"
)

// counted has a page count its calls for a sandbox.
const counted = `
	window.calls = 0;
	const asked = window.fetch;
	window.fetch = (...args) => { if (String(args[0]).includes("/v0/sandboxes/")) window.calls++; return asked(...args); };`

// stopMax is how long dozed may take to stop while feeds are open. It waits for other
// requests for 10 seconds.
const stopMax = 5 * time.Second

// TestConsoleLive: a page learns from the feed what changes, even a wake that is over at
// once. It asks for nothing while nothing changes, and goes on after a restart by itself.
func TestConsoleLive(t *testing.T) {
	t.Parallel()
	b := browse(t)
	b.watch()
	p, c := start(t, "--pause-after", "300ms", "--save-after", "100ms", "--disk-after", "300ms", "--swap", "off")
	_, agent := create(t, c, named("web", 256))
	b.open(p.Address + "/")
	b.enter("#key", p.Key)
	b.until("it sleeps on disk", `document.querySelector("[data-tier=disk]")?.textContent === "1"`)

	t.Run("a sandbox", func(t *testing.T) {
		b.script(`location.hash = "#/sandboxes/web"`)
		b.until("it is shown", `document.querySelector(".facts-grid") !== null`)
		time.Sleep(3 * time.Second) // events of its sleep
		b.script(counted)
		stays(t, p, "web", "disk", 4*time.Second)
		if n := b.script(`return calls`); n != "0" {
			t.Errorf("while nothing changes, the page asks %s times", n)
		}
		before := b.script(`return document.querySelectorAll(".wakes .history li").length`)
		sh(t, agent, "true")
		b.until("the wake is shown", `document.querySelectorAll(".wakes .history li").length > `+before)
		b.until("the page asked for it", `calls > 0`)
		b.until("it sleeps again", `document.querySelector(".state[data-tier=disk]") !== null`)
	})
	t.Run("a table", func(t *testing.T) {
		b.script(`location.hash = "#/sandboxes"`)
		b.until("it is listed", `document.querySelector("tr[data-name=web]") !== null`)
		_, _ = create(t, c, named("guest", 256))
		b.until("another one comes", `document.querySelector("tr[data-name=guest]") !== null`)
		if _, err := c.Delete(t.Context(), "guest"); err != nil {
			t.Fatal(err)
		}
		b.until("and goes", `document.querySelector("tr[data-name=guest]") === null`)
		b.usable("the table")
	})
	t.Run("a replacement", func(t *testing.T) {
		began := time.Now()
		if err := p.Replace(); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > stopMax {
			t.Errorf("with a feed open, dozed is replaced after %v", took)
		}
		if err := p.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		b.until("it goes on by itself", `document.querySelector(".signal.live") !== null && document.querySelector(".fault") === null`)
	})
	t.Run("a restart", func(t *testing.T) {
		began := time.Now()
		if err := p.Stop(); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > stopMax {
			t.Errorf("with a feed open, dozed stops after %v", took)
		}
		b.until("the page says so", `document.querySelector(".signal.cut") !== null`)
		if err := p.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		b.until("it goes on by itself", `document.querySelector(".signal.live") !== null && document.querySelector(".fault") === null`)
		b.clean()
	})
}

// feedOf opens a feed, and returns its messages until it ends.
func feedOf(t *testing.T, p *testkit.Platform, last string) <-chan [2]string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, p.Address+"/v0/feed?follow=true", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+p.Key)
	r.Header.Set("Last-Event-ID", last)
	answer, err := callers.Do(r)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("%v, %v", answer, err)
	}
	all := make(chan [2]string, 1000)
	go func() {
		defer cancel()
		defer close(all)
		defer answer.Body.Close()
		var event, id string
		lines := bufio.NewScanner(answer.Body)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			name, value, _ := strings.Cut(lines.Text(), ": ")
			switch name {
			case "event":
				event = value
			case "id":
				id = value
			case "data":
				all <- [2]string{id, event + " " + value}
			}
		}
	}()
	return all
}

// awaitFeed returns the id of the first message that says what is wanted.
func awaitFeed(t *testing.T, all <-chan [2]string, what string, is func(event string, m doze.FeedMessage) bool) (id string) {
	t.Helper()
	for end := time.After(patience); ; {
		select {
		case e, ok := <-all:
			if !ok {
				t.Fatalf("the feed ends before %s", what)
			}
			event, text, _ := strings.Cut(e[1], " ")
			var m doze.FeedMessage
			if err := json.Unmarshal([]byte(text), &m); err != nil {
				t.Fatal(err)
			}
			if is(event, m) {
				return e[0]
			}
		case <-end:
			t.Fatalf("the feed never has %s", what)
		}
	}
}

// TestFeedOfRoles: a feed goes from the node through control and edge, when they are three
// processes. It ends at once with any of the two that carry it, and a reader goes on.
func TestFeedOfRoles(t *testing.T) {
	t.Parallel()
	p, c := roles(t, "--pause-after", "500ms")
	complete := func(event string, m doze.FeedMessage) bool { return event == "complete" && *m.Total == 1 }
	woke := func(_ string, m doze.FeedMessage) bool {
		return len(m.Sandboxes) == 1 && m.Sandboxes[0].LastWake != nil
	}
	all := feedOf(t, p, "")
	awaitFeed(t, all, "all sandboxes", complete)
	time.Sleep(1500 * time.Millisecond) // it falls asleep
	c.sh("true")
	at := awaitFeed(t, all, "a wake", woke)
	for _, role := range []string{"edge", "control"} {
		began := time.Now()
		c.restart(role, 0)
		for range all { // to its end
		}
		t.Logf("%s was restarted within %v", role, time.Since(began))
		all = feedOf(t, p, at)
		if role == "control" { // another epoch
			at = awaitFeed(t, all, "all sandboxes", complete)
		}
		time.Sleep(1500 * time.Millisecond)
		c.sh("true")
		next := awaitFeed(t, all, "a wake after a restart of "+role, woke)
		if strings.Split(at, ".")[0] != strings.Split(next, ".")[0] {
			t.Errorf("after a restart of %s it goes on at %s, and was at %s", role, next, at)
		}
		at = next
	}
}
