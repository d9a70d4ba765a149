package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
)

const (
	// leaveTime bounds the stop of a process that lets requests end.
	leaveTime = 2 * time.Minute
	// requestTime bounds a request of the load: what takes longer has failed. A stream may take as
	// long as it lasts besides.
	requestTime = 30 * time.Second
	// streaming is the kind of requests that are streams.
	streaming = "stream"
	// streamTime is how long a stream lasts, and lineEvery is the pause between its lines.
	streamTime, lineEvery = 12 * time.Second, 300 * time.Millisecond
	// writers is how many callers of the API create and delete something at a time.
	writers = 4
	// restEvery is the pause between requests to a sandbox that falls asleep between them.
	restEvery = 5 * time.Second
)

// A step is one that an operator takes.
type step struct {
	name string
	do   func(ctx context.Context) error
}

// upgraded is what came of an upgrade under load.
type upgraded struct {
	steps  int
	took   map[string]spread // of requests that ended well, by kind
	longer map[string]int    // requests that took longer than a second, by kind
	failed []string
}

func (u upgraded) String() string {
	n, lines := 0, []string{}
	for _, kind := range slices.Sorted(maps.Keys(u.took)) {
		n += len(u.took[kind])
		lines = append(lines, fmt.Sprintf("%-18s %s; %d took over a second", kind, u.took[kind], u.longer[kind]))
	}
	lines = append([]string{fmt.Sprintf("%d restarts; %d requests, %d failed", u.steps, n+len(u.failed), len(u.failed))}, lines...)
	return strings.Join(append(lines, u.failed[:min(len(u.failed), faultsMax)]...), "\n")
}

// load asks sandboxes and the API all the time.
type load struct {
	f     *fleet
	tasks sync.WaitGroup

	mu     sync.Mutex
	now    string // guarded by mu; what is restarted
	result upgraded
}

// every makes requests of a kind, one after the other, until ctx ends. Its end cuts none.
func (l *load) every(ctx context.Context, kind string, wait time.Duration, do func(ctx context.Context) error) {
	l.tasks.Go(func() {
		for pause(ctx, wait) {
			l.once(context.WithoutCancel(ctx), kind, do)
		}
	})
}

// once makes one request.
func (l *load) once(ctx context.Context, kind string, do func(ctx context.Context) error) {
	most := requestTime
	if kind == streaming {
		most += streamTime
	}
	bounded, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	began := time.Now()
	err := do(bounded)
	took := time.Since(began)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.result.failed = append(l.result.failed, fmt.Sprintf("%s: %s, after %s, while %s: %v",
			began.Format(clockForm), kind, took.Round(time.Millisecond), l.now, err))
		return
	}
	l.result.took[kind] = append(l.result.took[kind], took)
	if took > time.Second {
		l.result.longer[kind]++
	}
}

// during says what is restarted from now on.
func (l *load) during(what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now = what
}

// on has a sandbox asked in each way, until ctx ends.
func (l *load) on(ctx context.Context, w *witness, asleep bool) error {
	sb, err := l.f.client.Sandbox(ctx, w.name)
	if err != nil {
		return err
	}
	agent, err := l.f.client.Agent(sb)
	if err != nil {
		return err
	}
	visit := func(ctx context.Context) error {
		s, err := l.f.visit(ctx, w, false)
		if err == nil && s.Born != w.born {
			err = fmt.Errorf("%s began anew", w.name)
		}
		return err
	}
	if asleep {
		l.every(ctx, "wake", restEvery, visit)
		return nil
	}
	p, err := l.f.client.CreatePreview(ctx, w.name, doze.Preview{Metadata: doze.PreviewMetadata{Name: "web"}, Spec: doze.PreviewSpec{Port: witnessPort, Public: true}})
	if err != nil {
		return err
	}
	l.every(ctx, "visit", 50*time.Millisecond, visit)
	l.every(ctx, "exec", 400*time.Millisecond, func(ctx context.Context) error {
		var out strings.Builder
		done, err := agent.Run(ctx, client.Command{Command: "echo here"}, func(_ client.Channel, data string) error {
			out.WriteString(data)
			return nil
		})
		if err == nil && (done.ExitCode != 0 || out.String() != "here\n") {
			err = fmt.Errorf("it wrote %q, and ended with %d", out.String(), done.ExitCode)
		}
		return err
	})
	written := 0
	l.every(ctx, "write and read", 300*time.Millisecond, func(ctx context.Context) error {
		written++
		text := strings.Repeat(fmt.Sprintln(w.name, written), 1000)
		if _, err := agent.WriteFile(ctx, "/tmp/load", strings.NewReader(text), "0644"); err != nil {
			return err
		}
		in, err := agent.ReadFile(ctx, "/tmp/load")
		if err != nil {
			return err
		}
		raw, err := io.ReadAll(in)
		if err = errors.Join(err, in.Close()); err == nil && string(raw) != text {
			err = fmt.Errorf("the file has %d other bytes", len(raw))
		}
		return err
	})
	l.every(ctx, "preview", 200*time.Millisecond, func(ctx context.Context) error {
		return l.f.get(ctx, p.Spec.URL, func(body io.Reader) error {
			_, err := io.Copy(io.Discard, body)
			return err
		})
	})
	l.every(ctx, streaming, time.Second, func(ctx context.Context) error {
		return l.f.get(ctx, fmt.Sprintf("%s/lines?n=%d&every=%g", w.url, streamTime/lineEvery, lineEvery.Seconds()), func(body io.Reader) error {
			n := 0
			for lines := bufio.NewScanner(body); lines.Scan(); n++ {
				if lines.Text() != fmt.Sprint(n) {
					return fmt.Errorf("line %d is %q", n, lines.Text())
				}
			}
			if want := int(streamTime / lineEvery); n != want {
				return fmt.Errorf("it ended after %d of %d lines", n, want)
			}
			return nil
		})
	})
	return nil
}

// onAPI has control asked, until ctx ends.
func (l *load) onAPI(ctx context.Context, w *witness) {
	l.every(ctx, "API read", 200*time.Millisecond, func(ctx context.Context) error {
		_, err := l.f.client.Sandbox(ctx, w.name)
		return err
	})
	var made atomic.Int64
	create := func(ctx context.Context) error {
		name := fmt.Sprintf("load-%d", made.Add(1))
		spec := doze.PreviewSpec{Port: witnessPort, Public: true}
		if _, err := l.f.client.CreatePreview(ctx, w.name, doze.Preview{Metadata: doze.PreviewMetadata{Name: name}, Spec: spec}); err != nil {
			return fmt.Errorf("create: %w", err)
		}
		if err := l.f.client.DeletePreview(ctx, w.name, name); err != nil {
			return fmt.Errorf("delete: %w", err)
		}
		return nil
	}
	for range writers {
		l.every(ctx, "API create, delete", 50*time.Millisecond, create)
	}
	l.every(ctx, "create a sandbox", 10*time.Second, func(ctx context.Context) error {
		name := fmt.Sprintf("short-%d", made.Add(1))
		if _, err := l.f.client.Create(ctx, doze.Sandbox{Metadata: doze.Metadata{Name: name}, Spec: doze.SandboxSpec{Runtime: doze.Runtime{Memory: sandboxMB}}}, false); err != nil {
			return fmt.Errorf("create: %w", err)
		}
		if _, err := l.f.client.Delete(ctx, name); err != nil {
			return fmt.Errorf("delete: %w", err)
		}
		return nil
	})
}

// get asks a URL, and has the body of the answer read.
func (f *fleet) get(ctx context.Context, url string, read func(io.Reader) error) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer "+f.key)
	resp, err := f.http.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		raw, _ := io.ReadAll(io.LimitReader(resp.Body, lineMax)) // the status says enough
		return fmt.Errorf("%s: %s", resp.Status, raw)
	}
	return read(resp.Body)
}

// leave has a process end in order, and waits for that.
func (f *fleet) leave(name string, by syscall.Signal) error {
	p := f.all[name]
	if err := p.signal(by); err != nil {
		return err
	}
	select {
	case <-p.ended:
		return nil
	case <-time.After(leaveTime):
		return fmt.Errorf("%s did not end: %s", name, f.tail(name))
	}
}

// steps are those of a rolling upgrade, as the documentation tells them.
func (f *fleet) steps() (all []step) {
	for _, control := range []struct {
		what string
		find func() string
	}{{"restart the control that stands by", f.idle}, {"restart the control that is active", f.active}} {
		all = append(all, step{control.what, func(ctx context.Context) error {
			name := control.find()
			if err := errors.Join(f.leave(name, syscall.SIGTERM), f.begin(name)); err != nil {
				return err
			}
			return f.settle(ctx)
		}})
	}
	for _, name := range nodeNames() {
		all = append(all, step{"drain and restart " + name, func(ctx context.Context) error {
			id := f.ids[name]
			var got doze.Drained
			if err := f.ask(ctx, http.MethodPost, "/platform/nodes/"+id+"/drain", &got); err != nil {
				return err
			}
			if got.Stayed > 0 {
				return fmt.Errorf("%d sandboxes stayed on %s", got.Stayed, name)
			}
			began := time.Now()
			if err := errors.Join(f.leave(name, syscall.SIGTERM), f.begin(name)); err != nil {
				return err
			}
			err := until(ctx, readyTime, func() error {
				all, err := f.list(ctx)
				if n := all[name]; err == nil && (!n.Present || n.RenewedAt.Before(began)) {
					err = fmt.Errorf("%s is not back: %+v: %s", name, n, f.tail(name))
				}
				return err
			})
			if err != nil {
				return err
			}
			if err := f.ask(ctx, http.MethodPost, "/platform/nodes/"+id+"/uncordon", nil); err != nil {
				return err
			}
			return f.settle(ctx)
		}})
	}
	for _, name := range edgeNames() {
		all = append(all, step{"replace " + name, func(ctx context.Context) error {
			if err := errors.Join(f.leave(name, syscall.SIGUSR2), f.begin(name)); err != nil {
				return err
			}
			return f.open(ctx, name)
		}})
	}
	for _, name := range edgeNames() {
		all = append(all, step{"stop and start " + name, func(ctx context.Context) error {
			if err := f.leave(name, syscall.SIGTERM); err != nil {
				return err
			}
			pause(ctx, 2*time.Second) // the other one has all callers
			if err := f.begin(name); err != nil {
				return err
			}
			return f.open(ctx, name)
		}})
	}
	return all
}

// open waits until an edge lets callers in.
func (f *fleet) open(ctx context.Context, name string) error {
	return until(ctx, readyTime, func() error {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", f.at(name, edgePort))
		if err == nil {
			err = c.Close()
		}
		return err
	})
}

// upgrade restarts each process of a fleet, one after the other, while sandboxes and the API
// are asked all the time. Half of the sandboxes sleep between requests.
func upgrade(ctx context.Context, dir string, o options) (u upgraded, err error) {
	say := o.say
	f, err := start(ctx, dir, "--pause-after", pauseAfter, "--save-after", "0", "--disk-after", diskAfter, "--remote-after", copyAfter)
	if err != nil {
		return u, err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	r, stop, err := record(ctx, f, say)
	if err != nil {
		return u, err
	}
	defer stop()
	all, err := f.many(ctx, o.sandboxes)
	if err != nil {
		return u, err
	}
	// The first copy of all takes the files of the image, too, and longer than a request waits.
	if err := f.ripe(ctx, lossTime, all); err != nil {
		return u, err
	}
	asking, end := context.WithCancel(ctx)
	defer end()
	l := &load{f: f, now: "nothing is restarted", result: upgraded{took: map[string]spread{}, longer: map[string]int{}}}
	for i, w := range all {
		if err := l.on(asking, w, i%2 == 0); err != nil {
			return u, err
		}
	}
	l.onAPI(asking, all[0])
	pause(ctx, goodTime)
	for _, s := range slices.Repeat(f.steps(), o.times) {
		if !strings.Contains(s.name, o.only) {
			continue
		}
		began := time.Now()
		l.during(s.name)
		if err = s.do(ctx); err != nil {
			err = fmt.Errorf("%s: %w", s.name, err)
			break
		}
		say(fmt.Sprintf("%s took %s", s.name, time.Since(began).Round(time.Millisecond)))
		l.mu.Lock()
		l.result.steps++
		l.mu.Unlock()
		pause(ctx, 2*time.Second) // what it did shows a moment later
	}
	l.during("nothing is restarted")
	pause(ctx, 2*time.Second)
	end()
	l.tasks.Wait()
	if n := len(l.result.failed); n > 0 {
		err = errors.Join(err, fmt.Errorf("%d requests failed", n))
	}
	for _, w := range all {
		if s, none := f.visit(ctx, w, true); none != nil || s.Born != w.born || len(s.Bad) > 0 {
			err = errors.Join(err, none, fmt.Errorf("%s is another one, or has other bytes: %+v", w.name, s))
		}
		wrong, _, _ := r.settle(w.name, nil) // an upgrade loses nothing
		for _, text := range wrong {
			err = errors.Join(err, errors.New(text))
		}
	}
	return l.result, err
}
