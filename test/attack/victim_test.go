package attack_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dozehq/doze/internal/testkit"
)

const (
	patience = 2 * time.Minute // for what is not measured
	dialTime = 5 * time.Second
	// askEvery is how often the victim asks for each of its things. It is a
	// person's product that works, not a load.
	askEvery = 40 * time.Millisecond
	// victimWait is after how long the victim gives up. It counts as this long.
	victimWait = 10 * time.Second
	// slow is what a report that fails says of a single request.
	slow = time.Second
	// megabytes that the victim's sandbox keeps and checks.
	megabytes = 8
)

var isVictim = flag.Bool("victim", false, "be the victim, told by standard input what to do")

// TestMain makes the victim a process of its own, so that it does not wait for
// the attackers' goroutines.
func TestMain(m *testing.M) {
	flag.Parse()
	if !*isVictim {
		m.Run()
		return
	}
	if err := suffer(context.Background(), os.Stdin, os.Stdout); err != nil { //nolint:forbidigo // it is the main function of the victim
		fmt.Fprintln(os.Stderr, "the victim:", err)
	}
}

// place is what the victim is told at first.
type place struct {
	Address, Key string
	PID          int // of dozed
}

// victim is a user of the platform in its first workspace.
type victim struct {
	place
	canary *testkit.Canary
	url    string // of its sandbox
}

// suffer makes a sandbox, and then works from a true to a false on in, and tells
// on out what it saw.
func suffer(ctx context.Context, in io.Reader, out io.Writer) error {
	orders, answers := json.NewDecoder(in), json.NewEncoder(out)
	var v victim
	if err := orders.Decode(&v.place); err != nil {
		return err
	}
	p := &testkit.Platform{Address: v.Address, Key: v.Key}
	var err error
	if v.canary, err = p.Canary(ctx, "victim", "victim", megabytes, 0); err != nil {
		return err
	}
	defer v.canary.Close()
	c, err := p.Client()
	if err != nil {
		return err
	}
	defer c.Close()
	sb, err := c.Sandbox(ctx, "victim")
	if err != nil {
		return err
	}
	v.url = sb.Metadata.URL
	if err := answers.Encode(watched{}); err != nil {
		return err
	}
	for {
		var on bool
		if err := orders.Decode(&on); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		done := v.watch(ctx)
		err := answers.Encode(watched{})
		err = errors.Join(err, orders.Decode(&on))
		if err = errors.Join(err, answers.Encode(done())); err != nil {
			return err
		}
	}
}

// watched is what the victim saw, and what dozed took meanwhile.
type watched struct {
	Took   []time.Duration // of all its requests, sorted
	Errs   []string
	Wrong  []string      // that its sandbox lost
	Slow   []string      // requests of over [slow], and when they began
	Late   time.Duration // of its own clock, at most: what the host let it wait, and not dozed
	Memory int64         // the most
}

func (s *watched) quantile(q float64) time.Duration {
	if len(s.Took) == 0 {
		return 0
	}
	return s.Took[min(len(s.Took)-1, int(q*float64(len(s.Took))))].Round(100 * time.Microsecond)
}

// judge fails the test if a promise was broken.
func (s *watched) judge(t *testing.T) {
	t.Helper()
	s.sound(t)
	most := victimP99
	if !*all {
		most = busyP99
	}
	if p99 := s.quantile(0.99); p99 > most {
		t.Errorf("the victim's p99 is %v, want under %v", p99, most)
	}
	if len(s.Errs) > 0 {
		t.Errorf("%d of %d requests of the victim failed, such as: %v", len(s.Errs), len(s.Took), s.Errs[0])
	}
	if t.Failed() {
		t.Log(s.slowness())
	}
}

// slowness says which requests were slow, and what the host has to do with it.
func (s *watched) slowness() string {
	return fmt.Sprintf("the victim's own clock was %v late at most; its slow requests: %s", s.Late, strings.Join(s.Slow, "; "))
}

// sound fails the test if the victim lost something, or dozed took too much.
func (s *watched) sound(t *testing.T) {
	t.Helper()
	for _, what := range s.Wrong {
		t.Errorf("the victim's sandbox: %s", what)
	}
	if s.Memory > dozedMax {
		t.Errorf("dozed took %d MB, want under %d", s.Memory>>20, dozedMax>>20)
	}
}

// watch has the victim work until the function that it returns is called. A
// request that is under way then is still answered: nobody knows what one that is
// given up does later.
func (v *victim) watch(ctx context.Context) (done func() *watched) {
	end := make(chan struct{})
	var (
		wg sync.WaitGroup
		mu sync.Mutex
		s  watched
	)
	for name, ask := range map[string]func(context.Context) ([]string, error){
		"control": v.askControl, "the agent": v.askAgent, "its own server": v.askCanary,
	} {
		wg.Go(func() {
			tick := time.NewTicker(askEvery)
			defer tick.Stop()
			for {
				began := time.Now()
				wrong, err := ask(ctx)
				took := time.Since(began)
				mu.Lock()
				s.Took = append(s.Took, took)
				s.Wrong = append(s.Wrong, wrong...)
				if took > slow {
					s.Slow = append(s.Slow, fmt.Sprintf("%s, asked at %s, took %v", name, began.UTC().Format(time.StampMilli), took))
				}
				if err != nil {
					s.Errs = append(s.Errs, err.Error())
				}
				mu.Unlock()
				select {
				case <-tick.C:
				case <-end:
					return
				}
			}
		})
	}
	wg.Go(func() {
		for {
			if now, err := resident(v.PID); err == nil { // without a process, requests fail
				s.Memory = max(s.Memory, now)
			}
			began := time.Now()
			select {
			case <-time.After(poll):
				s.Late = max(s.Late, time.Since(began)-poll)
			case <-end:
				return
			}
		}
	})
	return func() *watched {
		close(end)
		wg.Wait()
		slices.Sort(s.Took)
		return &s
	}
}

func (v *victim) askControl(ctx context.Context) ([]string, error) {
	return nil, v.get(ctx, v.Address+"/v0/sandboxes/victim")
}

func (v *victim) askAgent(ctx context.Context) ([]string, error) {
	return nil, v.get(ctx, v.url+"/filesystem/var/tmp")
}

func (v *victim) askCanary(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, victimWait)
	defer cancel()
	got, err := v.canary.Step(ctx)
	return got.Wrong, err
}

// get asks for something as the victim.
func (v *victim) get(ctx context.Context, url string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, victimWait)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer "+v.Key)
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", url, resp.Status)
	}
	return nil
}
