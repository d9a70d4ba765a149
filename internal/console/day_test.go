package console_test

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/heapprofiler"
	"github.com/chromedp/cdproto/memory"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/dozehq/doze"
)

const (
	// day is how many seconds a day has. The feed has a change in each.
	day = 86_400
	// early is when the page is measured for the first time: all of its parts were used.
	early = day / 10
	// cutEvery is after how many changes the platform cuts the stream.
	cutEvery = day / 8
	// population is how many sandboxes there are.
	population = 100
)

// script is the feed of a day, as fast as the page reads it.
type script struct {
	t *testing.T

	mu      sync.Mutex
	sent    int           // guarded by mu; changes
	until   int           // guarded by mu; how far the day may go on
	resumed int           // guarded by mu
	more    chan struct{} // guarded by mu; closed when until grows
}

// run lets the day go on to a second.
func (s *script) run(until int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.until = until
	close(s.more)
	s.more = make(chan struct{})
}

// next returns the number of the next change, or what to wait for.
func (s *script) next() (n int, wait chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sent >= s.until {
		return 0, s.more
	}
	s.sent++
	return s.sent, nil
}

// change is what the feed says in a second: three sandboxes move. One lives for a while,
// under a name that nobody has before or after. After the last second of a part, the number
// of sandboxes says that the page has read it all.
func (s *script) change(n int) (m doze.FeedMessage) {
	for j := range 3 {
		m.Sandboxes = append(m.Sandboxes, sandboxAt((n*3+j)%population, n))
	}
	guest := sandboxAt(population+n/10, n)
	switch n % 10 {
	case 1:
		m.Sandboxes = append(m.Sandboxes, guest)
	case 9:
		m.Gone = append(m.Gone, guest.Name)
	}
	if n == early || n == day {
		last := sandboxAt(0, n)
		last.Name = "end-of-" + strconv.Itoa(n)
		m.Sandboxes = append(m.Sandboxes, last)
	}
	return m
}

func (s *script) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	last, known := strings.CutPrefix(r.Header.Get("Last-Event-ID"), epoch+".")
	sent := s.sent
	if known {
		s.resumed++
	}
	s.mu.Unlock()
	if known && last != strconv.Itoa(sent) || !known && sent > 0 {
		s.t.Errorf("the page goes on at %q, and %d were sent", last, sent)
	}
	w.Header().Set("Content-Type", "text/event-stream")
	if !known && !states(w, population, 0, func(i int) doze.FeedSandbox { return sandboxAt(i, 0) }) {
		return
	}
	for {
		n, wait := s.next()
		if wait != nil {
			if http.NewResponseController(w).Flush() != nil {
				return
			}
			select {
			case <-wait:
			case <-r.Context().Done():
				return
			}
			continue
		}
		if !told(w, "change", n, s.change(n)) || n%cutEvery == 0 {
			return
		}
	}
}

// burden is what a page takes when its garbage is collected.
type burden struct {
	heap, nodes, listeners float64
}

func weigh(b tab) burden {
	return do(b, func(ctx context.Context, to *chromedp.Target) (is burden, err error) {
		if _, err := cdp.Call(ctx, to, heapprofiler.CollectGarbage, cdp.Empty{}); err != nil {
			return is, err
		}
		used, err := cdp.Call(ctx, to, runtime.GetHeapUsage, cdp.Empty{})
		if err != nil {
			return is, err
		}
		dom, err := cdp.Call(ctx, to, memory.GetDOMCounters, cdp.Empty{})
		return burden{used.UsedSize, float64(dom.Nodes), float64(dom.JsEventListeners)}, err
	})
}

// TestOpenForADay: a page that is open for a day takes at its end what it took in the
// morning, while sandboxes move, come and go in each second, and the reader looks at all of
// its views. It goes on after each cut where it was.
func TestOpenForADay(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("SKIPPED: it starts a browser, in short mode")
	}
	b := browse(t)
	s := &script{t: t, more: make(chan struct{})}
	do(b, chromedp.Navigate(platform(t, s.serve)))
	do(b, chromedp.SendKeys("#key", "k\r"))
	began := time.Now()
	views := []string{"#/", "#/sandboxes", "#/sandboxes/" + nameOf(1)}
	at := func(second, sandboxes int) burden {
		s.run(second)
		for i := 0; ; i++ {
			s.mu.Lock()
			sent := s.sent
			s.mu.Unlock()
			if sent >= second && i >= len(views) {
				break
			}
			b.script(`location.hash = "` + views[i%len(views)] + `"`)
			time.Sleep(300 * time.Millisecond)
		}
		b.script(`location.hash = "#/"`)
		b.until("the page has read all", fmt.Sprintf(`document.querySelector("h1").textContent.includes(" of %d ")`, sandboxes))
		time.Sleep(time.Second) // what moves comes to rest
		return weigh(b)
	}
	first := at(early, population+1)
	last := at(day, population+2)
	t.Logf("%.1f MB, %.0f nodes after %d s; %.1f MB, %.0f nodes after %d s; %v", first.heap/(1<<20), first.nodes, early, last.heap/(1<<20), last.nodes, day, time.Since(began))
	if last.heap > first.heap*1.2+1<<20 || last.nodes > first.nodes*1.2+100 || last.listeners > first.listeners*1.2+20 {
		t.Errorf("the page grew from %+v to %+v", first, last)
	}
	if s.resumed < day/cutEvery-1 {
		t.Errorf("it resumed %d times", s.resumed)
	}
	if refused := b.script(`return refused.join("\n")`); refused != "" {
		t.Errorf("the page met %s", refused)
	}
}
