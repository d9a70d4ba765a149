package main

import (
	"bytes"
	"context"
	_ "embed" // for what runs in the sandbox
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
	"github.com/dozehq/doze/internal/testkit"
)

const (
	megabyte   = 1_000_000
	bulkUsual  = 100 * megabyte
	bulkLarge  = 500 * megabyte
	bulkJSON   = 50 * megabyte // the agent takes 64 MiB
	bulkReads  = 100           // at once
	bulkRead   = 200_000       // bytes of each of these
	bulkRounds = 5
	bulkMemory = 4096 // MB of the sandbox: its files are in its memory
	bulkName   = "bulk"
	plainPort  = "9000"
	// bulkPoll is how often the plain server is asked whether it is there.
	bulkPoll = 50 * time.Millisecond
)

//go:embed plain.py
var plainScript []byte

// place is somewhere an agent can be reached.
type place struct {
	url, key string
	agent    *client.Agent
	dir      string // for files, with one of bulkUsual and one of bulkRead bytes
}

// load moves many bytes to or from an agent, or none.
type load struct {
	name  string
	bytes int64
	do    func(ctx context.Context, at place) error
	plain func(ctx context.Context, at place) error // the same with the plain server; nil if that cannot
}

// proxied and plainly name what a load is compared with.
func (l load) proxied() string { return l.name + ", the agent alone behind a plain proxy" }
func (l load) plainly() string { return l.name + ", a plain server in the sandbox" }

// rounds is how often a load is measured.
func (l load) rounds() int {
	if l.bytes == 0 {
		return times(agentRounds)
	}
	return times(bulkRounds)
}

// bulk measures an agent in a sandbox through the edge. It takes turns with the plain
// server in that sandbox, through the same edge, and with the agent in this process
// behind a plain reverse proxy.
var bulk = []load{
	{"upload 100 MB", bulkUsual, upload(bulkUsual), discard(bulkUsual)},
	{"upload 500 MB", bulkLarge, upload(bulkLarge), discard(bulkLarge)},
	{"upload 100 MB of unknown length", bulkUsual, func(ctx context.Context, at place) error {
		_, err := at.agent.WriteFile(ctx, at.dir+"/unknown", text(bulkUsual), "")
		return err
	}, discard(bulkUsual)},
	{"upload 100 MB in parts", bulkUsual, func(ctx context.Context, at place) error {
		_, err := at.agent.Upload(ctx, at.dir+"/parts", text(bulkUsual), "")
		return err
	}, discard(bulkUsual)},
	{"upload 50 MB as JSON", bulkJSON, uploadJSON, discard(bulkJSON)},
	{"download 100 MB", bulkUsual, func(ctx context.Context, at place) error {
		return download(ctx, at, "usual", bulkUsual)
	}, func(ctx context.Context, at place) error {
		return receive(ctx, fmt.Sprintf("%s/port/%s/%d", at.url, plainPort, bulkUsual), at.key, bulkUsual)
	}},
	{"stream 100 MB of output", bulkUsual, stream(cat), nil},
	{"stream 100 MB of output in small writes", bulkUsual, stream(yes), nil},
	{"stream 100 MB of a log", bulkUsual, followLog, nil},
	{"100 reads of 200 KB at once", bulkReads * bulkRead, func(ctx context.Context, at place) error {
		var all errgroup.Group
		for range bulkReads {
			all.Go(func() error { return download(ctx, at, "small", bulkRead) })
		}
		return all.Wait()
	}, nil},
	{"exec true in turns", 0, func(ctx context.Context, at place) error {
		_, err := at.agent.Start(ctx, client.Command{Command: "true", Wait: true})
		return err
	}, func(ctx context.Context, at place) error {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, at.url+"/port/"+plainPort+"/", http.NoBody)
		if err != nil {
			return err
		}
		return exchange(r, at.key, 0)
	}},
}

// agentLoads measures what only matches, the sides in turns.
func agentLoads(ctx context.Context, p *testkit.Platform, alone, dir string, only *regexp.Regexp) (all latencies, err error) {
	var loads []load
	for _, l := range bulk {
		if only.MatchString(l.name) {
			loads = append(loads, l)
		}
	}
	if len(loads) == 0 {
		return nil, nil
	}
	inside, err := bulkSandbox(ctx, p)
	if err != nil {
		return nil, err
	}
	outside, stop, err := behindProxy(alone, dir)
	if err != nil {
		return nil, err
	}
	defer stop()
	for _, at := range []place{inside, outside} {
		for name, size := range map[string]int64{"usual": bulkUsual, "small": bulkRead} {
			if _, err := at.agent.WriteFile(ctx, at.dir+"/"+name, text(size), ""); err != nil {
				return nil, err
			}
		}
	}
	for _, l := range loads {
		yardstick := &series{name: l.proxied(), bytes: l.bytes}
		plain := &series{name: l.plainly(), bytes: l.bytes, against: yardstick}
		s := &series{name: l.name, bytes: l.bytes, against: yardstick}
		if all = append(all, yardstick); l.plain != nil {
			all, s.against = append(all, plain), plain
		}
		all = append(all, s)
		for range l.rounds() {
			err := yardstick.took(func() error { return l.do(ctx, outside) })
			if err == nil && l.plain != nil {
				err = plain.cost(p, func() error { return l.plain(ctx, inside) })
			}
			if err == nil {
				err = s.cost(p, func() error { return l.do(ctx, inside) })
			}
			if err != nil {
				return all, fmt.Errorf("%s: %w", l.name, err)
			}
		}
	}
	return all, nil
}

// took adds how long do takes.
func (s *series) took(do func() error) error {
	began := time.Now()
	err := do()
	if err == nil {
		s.add(time.Since(began))
	}
	return err
}

// meter is what counts the time of processors.
type meter interface {
	Used() (time.Duration, error)
}

// cost is took, and adds the time of processors that was used until do returned.
func (s *series) cost(m meter, do func() error) error {
	before, err := m.Used()
	if err == nil {
		err = s.took(do)
	}
	if err != nil {
		return err
	}
	after, err := m.Used()
	s.costs = append(s.costs, after-before)
	return err
}

// bulkSandbox makes a sandbox with the plain server in it.
func bulkSandbox(ctx context.Context, p *testkit.Platform) (at place, err error) {
	c, err := p.Client()
	if err != nil {
		return at, err
	}
	sb, agent, err := testkit.Create(ctx, c, bulkName, bulkMemory)
	if err != nil {
		return at, err
	}
	at = place{sb.Metadata.URL, p.Key, agent, "/bulk"}
	if _, err := agent.WriteFile(ctx, "/plain.py", bytes.NewReader(plainScript), ""); err != nil {
		return at, err
	}
	if _, err := agent.Start(ctx, client.Command{Command: "exec python3 /plain.py " + plainPort}); err != nil {
		return at, err
	}
	for deadline := time.Now().Add(settle); ; time.Sleep(bulkPoll) {
		err := discard(1)(ctx, at)
		if err == nil || time.Now().After(deadline) {
			return at, err
		}
	}
}

// behindProxy puts the yardstick of all reverse proxies before an agent.
func behindProxy(agent, dir string) (at place, stop func(), err error) {
	to, err := url.Parse(agent)
	if err != nil {
		return at, nil, err
	}
	s := httptest.NewServer(httputil.NewSingleHostReverseProxy(to))
	c, err := client.New(client.Config{Address: s.URL, Key: "none"})
	if err == nil {
		at = place{url: s.URL, dir: dir + "/bulk"}
		at.agent, err = c.Agent(doze.Sandbox{Metadata: doze.Metadata{URL: s.URL}})
	}
	if err != nil {
		s.Close()
		return at, nil, err
	}
	return at, s.Close, nil
}

// sentence is what all texts consist of.
const sentence = "The quick brown fox jumps over the lazy dog, again and again: 1234567890 times.\n"

// page is what is copied of it at once.
var page = strings.Repeat(sentence, 1000)

// text returns so many bytes of text.
func text(n int64) io.Reader { return io.LimitReader(new(endless), n) }

// endless is page for ever. It holds where it is.
type endless int

func (e *endless) Read(b []byte) (n int, err error) {
	for n < len(b) {
		k := copy(b[n:], page[*e:])
		*e = (*e + endless(k)) % endless(len(page))
		n += k
	}
	return n, nil
}

// put sends a body of known length.
func put(ctx context.Context, url, key, kind string, body io.Reader, size int64) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPut, url, body)
	if err != nil {
		return err
	}
	r.ContentLength = size
	r.Header.Set("Content-Type", kind)
	return exchange(r, key, 0)
}

// exchange sends a request and reads the whole answer, of want bytes unless that
// is 0.
func exchange(r *http.Request, key string, want int64) error {
	if key != "" {
		r.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	n, err := io.Copy(io.Discard, resp.Body)
	if err == nil && (resp.StatusCode != http.StatusOK || want > 0 && n != want) {
		err = fmt.Errorf("%s with %d bytes", resp.Status, n)
	}
	return err
}

// discard sends so many bytes to the plain server.
func discard(n int64) func(context.Context, place) error {
	return func(ctx context.Context, at place) error {
		return put(ctx, at.url+"/port/"+plainPort+"/", at.key, "application/octet-stream", text(n), n)
	}
}

// upload sends a file of so many bytes as a form, as browsers and SDKs do.
func upload(n int64) func(context.Context, place) error {
	return func(ctx context.Context, at place) error {
		var head bytes.Buffer
		form := multipart.NewWriter(&head)
		if _, err := form.CreateFormFile("file", "upload"); err != nil {
			return err
		}
		tail := "\r\n--" + form.Boundary() + "--\r\n"
		size := int64(head.Len()) + n + int64(len(tail))
		body := io.MultiReader(&head, text(n), strings.NewReader(tail))
		return put(ctx, at.url+"/filesystem/"+url.PathEscape(at.dir+"/upload"), at.key, form.FormDataContentType(), body, size)
	}
}

func uploadJSON(ctx context.Context, at place) error {
	content, err := io.ReadAll(text(bulkJSON))
	if err != nil {
		return err
	}
	body, err := json.Marshal(map[string]string{"content": string(content)})
	if err != nil {
		return err
	}
	return put(ctx, at.url+"/filesystem/"+url.PathEscape(at.dir+"/json"), at.key, "application/json", bytes.NewReader(body), int64(len(body)))
}

func download(ctx context.Context, at place, name string, want int64) error {
	return receive(ctx, at.url+"/filesystem/"+url.PathEscape(at.dir+"/"+name)+"?download=true", at.key, want)
}

func receive(ctx context.Context, url, key string, want int64) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	return exchange(r, key, want)
}

// Commands that write bulkUsual bytes of text: as fast as they can, and with small
// writes.
func cat(at place) string { return "cat " + at.dir + "/usual" }

func yes(place) string {
	return fmt.Sprintf("yes '%s' | head -c %d", strings.TrimSuffix(sentence, "\n"), bulkUsual)
}

// stream runs a command and reads what it writes, as it comes.
func stream(command func(place) string) func(context.Context, place) error {
	return func(ctx context.Context, at place) error {
		var n int64
		_, err := at.agent.Run(ctx, client.Command{Command: command(at)}, func(_ client.Channel, data string) error {
			n += int64(len(data))
			return nil
		})
		if err == nil && n != bulkUsual {
			err = fmt.Errorf("%d bytes of %d", n, int64(bulkUsual))
		}
		return err
	}
}

// followLog starts a command and follows its log.
func followLog(ctx context.Context, at place) error {
	started, err := at.agent.Start(ctx, client.Command{Command: cat(at)})
	if err != nil {
		return err
	}
	var n int64
	err = at.agent.Follow(ctx, started.PID, func(_ client.Channel, data string) error {
		n += int64(len(data))
		return nil
	})
	// A late follower misses what is older than the log.
	if err == nil && n == 0 {
		err = errors.New("the log is empty")
	}
	return err
}
