package desk

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/fleet"
)

const (
	// markWait is how long an answer waits until the edge knows what it says. A feed
	// that is so late is broken; the answer is right all the same.
	markWait = 2 * time.Second
	// tellEvery is how often an edge tells what it has seen.
	tellEvery = time.Second
	// tellTimeout bounds one such call.
	tellTimeout = 10 * time.Second
	// denialsMax bounds the refusals that wait to be told. More are counted and
	// dropped.
	denialsMax = 4096
	// metricsMax bounds the metrics of control, in bytes.
	metricsMax = 16 << 20
)

// Options are what a [Client] needs.
type Options struct {
	URL       string // base of control
	Transport http.RoundTripper
	Edge      string // names this process
	// Follower hears what changes.
	Follower *fleet.Follower
	// Seen returns the keys that were used after a moment, and the requests that are
	// open.
	Seen func(after time.Time) (keys map[string]time.Time, open map[string]int64)
	// Metrics adds what this process counts to the metrics of the others.
	Metrics func(others []byte) ([]byte, error)
}

// A Client is control for an edge. It is safe for concurrent use.
type Client struct {
	o    Options
	base *url.URL
	call *fleet.Client

	mu      sync.Mutex
	denials []denial // guarded by mu
	dropped int      // guarded by mu
}

var (
	_ Tickets = (*Client)(nil)
	_ Files   = (*Client)(nil)
)

// NewClient returns a client of control. Its Run tells what it has seen.
func NewClient(o Options) (*Client, error) {
	base, err := url.Parse(o.URL)
	if err != nil {
		return nil, err
	}
	return &Client{o: o, base: base, call: fleet.NewControlCaller(o.URL, o.Transport)}, nil
}

// API passes calls of the control API on.
func (c *Client) API() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { c.pass(w, r, passAPI, nil) })
}

// Metrics passes the question for metrics on, and adds those of this process.
func (c *Client) Metrics() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r = r.Clone(r.Context())
		r.Header.Del("Accept-Encoding") // they are to be read
		r.Header.Set("Accept", "text/plain")
		c.pass(w, r, passMetrics, nil)
	})
}

// Mounts passes a request about the drives of a sandbox on.
func (c *Client) Mounts(w http.ResponseWriter, r *http.Request, upstream fleet.Upstream, path string) {
	raw, err := json.Marshal(upstream)
	if err != nil {
		unreachable(r.Context(), w, r, err)
		return
	}
	c.pass(w, r, passMounts, map[string]string{upstreamHeader: string(raw), pathHeader: path})
}

// forwarded are the headers that a proxy before us set, which control gets as they
// came.
var forwarded = []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"}

// pass sends a request to control as it came.
func (c *Client) pass(w http.ResponseWriter, r *http.Request, pass string, more map[string]string) {
	proxy := httputil.ReverseProxy{
		Transport: c.o.Transport, FlushInterval: -1,
		Rewrite: func(pr *httputil.ProxyRequest) {
			pr.Out.URL.Scheme, pr.Out.URL.Host = c.base.Scheme, c.base.Host
			pr.Out.URL.RawQuery = pr.In.URL.RawQuery // what cannot be read is for control to say
			pr.Out.Host = pr.In.Host
			for _, name := range forwarded {
				if values, sent := pr.In.Header[name]; sent {
					pr.Out.Header[name] = values
				}
			}
			for _, name := range []string{upstreamHeader, pathHeader} {
				pr.Out.Header.Del(name)
			}
			pr.Out.Header.Set(passHeader, pass)
			pr.Out.Header.Set(remoteHeader, pr.In.RemoteAddr)
			for name, value := range more {
				pr.Out.Header.Set(name, value)
			}
		},
		ModifyResponse: func(resp *http.Response) error {
			c.await(r.Context(), resp)
			if pass == passMetrics && resp.StatusCode == http.StatusOK {
				return c.addMetrics(resp)
			}
			return nil
		},
		ErrorLog:     slog.NewLogLogger(slog.Default().Handler(), slog.LevelDebug),
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) { unreachable(r.Context(), w, r, err) },
	}
	proxy.ServeHTTP(w, r)
}

// await waits until this edge knows what an answer is about: who created something
// finds it with the next request.
func (c *Client) await(ctx context.Context, resp *http.Response) {
	mark, err := fleet.ParseMark(resp.Header.Get(markHeader))
	resp.Header.Del(markHeader)
	if err != nil {
		return // of a version without marks
	}
	ctx, cancel := context.WithTimeout(ctx, markWait)
	defer cancel()
	if err := c.o.Follower.Wait(ctx, mark); err != nil {
		slog.WarnContext(ctx, "the feed of control is late", "mark", mark.String(), "at", c.o.Follower.Mark().String())
	}
}

// addMetrics adds what this process counts.
func (c *Client) addMetrics(resp *http.Response) error {
	raw, err := io.ReadAll(io.LimitReader(resp.Body, metricsMax))
	if err == nil {
		raw, err = c.o.Metrics(raw)
	}
	_ = resp.Body.Close()
	if err != nil {
		return err
	}
	resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(raw)), int64(len(raw))
	resp.Header.Set("Content-Length", strconv.Itoa(len(raw)))
	return nil
}

// Denied takes note of a request that was refused. It does not wait.
func (c *Client) Denied(r *http.Request, id string, caller access.Caller, upstream fleet.Upstream, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.denials) >= denialsMax {
		c.dropped++
		return
	}
	c.denials = append(c.denials, denialOf(r, id, caller, upstream, err))
}

// Run tells control what this edge has seen, until the context ends.
func (c *Client) Run(ctx context.Context) error {
	var told time.Time
	tell := time.NewTicker(tellEvery)
	defer tell.Stop()
	for {
		select {
		case <-tell.C:
			told = c.tell(ctx, told)
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), tellTimeout)
			defer cancel()
			c.tell(last, told)
			return nil
		}
	}
}

// tell tells what was seen since a moment, and returns the next one. What control
// did not hear is told again.
func (c *Client) tell(ctx context.Context, since time.Time) time.Time {
	ctx, cancel := context.WithTimeout(ctx, tellTimeout)
	defer cancel()
	c.tellDenials(ctx)
	now := time.Now()
	keys, open := c.o.Seen(since)
	if err := c.call.Post(ctx, callSeen, Seen{c.o.Edge, keys, open}, nil); err != nil {
		slog.DebugContext(ctx, "what was seen is told later", "err", err)
		return since
	}
	return now.Add(-access.UsedStep) // a use that is a moment older may come yet
}

func (c *Client) tellDenials(ctx context.Context) {
	c.mu.Lock()
	all, dropped := c.denials, c.dropped
	c.denials, c.dropped = nil, 0
	c.mu.Unlock()
	if dropped > 0 {
		slog.WarnContext(ctx, "refused requests are not in the audit log: there were too many", "dropped", dropped)
	}
	if len(all) == 0 {
		return
	}
	if err := c.call.Post(ctx, callDenied, all, nil); err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.denials = append(all, c.denials...)
		if more := len(c.denials) - denialsMax; more > 0 {
			c.denials, c.dropped = c.denials[:denialsMax], c.dropped+more
		}
	}
}

func (c *Client) ticket(ctx context.Context, in ticketCall) (out ticketAnswer, err error) {
	err = c.call.Post(ctx, callTickets, in, &out)
	return out, err
}

// Issue implements [Tickets]. Control counts the time.
func (c *Client) Issue(ctx context.Context, p access.Pass, _ time.Time) (string, time.Time, error) {
	out, err := c.ticket(ctx, ticketCall{Method: "Issue", Pass: p})
	return out.Text, out.Until, err
}

// Lease implements [Tickets].
func (c *Client) Lease(ctx context.Context, p access.Pass, _ time.Time) (string, error) {
	out, err := c.ticket(ctx, ticketCall{Method: "Lease", Pass: p})
	return out.Text, err
}

// Redeem implements [Tickets].
func (c *Client) Redeem(ctx context.Context, text string, _ time.Time) (access.Pass, error) {
	out, err := c.ticket(ctx, ticketCall{Method: "Redeem", Text: text})
	return out.Pass, err
}

// Renew implements [Tickets].
func (c *Client) Renew(ctx context.Context, text string, _ time.Time) (access.Pass, error) {
	out, err := c.ticket(ctx, ticketCall{Method: "Renew", Text: text})
	return out.Pass, err
}

func (c *Client) file(ctx context.Context, in fileCall) (out fileAnswer, err error) {
	err = c.call.Post(ctx, callFiles, in, &out)
	return out, err
}

// PutCertificateFile implements [Files].
func (c *Client) PutCertificateFile(ctx context.Context, key string, value []byte, now time.Time) error {
	_, err := c.file(ctx, fileCall{Method: "Write", Path: key, Value: value, Now: now})
	return err
}

// CertificateFile implements [Files].
func (c *Client) CertificateFile(ctx context.Context, key string) ([]byte, error) {
	out, err := c.file(ctx, fileCall{Method: "Read", Path: key})
	return out.Value, err
}

// EachCertificateFile implements [Files].
func (c *Client) EachCertificateFile(ctx context.Context, path string, tell func(key string, size int64, modified time.Time)) error {
	out, err := c.file(ctx, fileCall{Method: "List", Path: path})
	for _, f := range out.Files {
		tell(f.Key, f.Size, f.Modified)
	}
	return err
}

// DeleteCertificateFiles implements [Files].
func (c *Client) DeleteCertificateFiles(ctx context.Context, path string) error {
	_, err := c.file(ctx, fileCall{Method: "Remove", Path: path})
	return err
}
