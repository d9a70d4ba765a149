// Package client calls the two public APIs: the control API, which knows
// sandboxes, and the API inside each sandbox, which knows files, processes and
// terminals. Errors of a server come back as [doze.Error] with the kind that
// the server gave them. It keeps no state but its configuration, and retries
// nothing.
package client

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/httpx"
)

// version of the control API that this client speaks; lists are pages since.
const version = "2026-04-28"

const (
	answerMax   = 64 << 20 // bytes of a JSON answer; far above any record or listing
	dialTimeout = 10 * time.Second
	errorMax    = 1 << 20 // bytes of an error body
)

// Config says where a server is and who calls it.
type Config struct {
	Address   string // https://host[:port], with or without the version segment /v0
	Key       string // an API key
	Workspace string // empty: the only one of the key
	// Transport carries the calls, such as one with certificate authorities of
	// its own. Nil is one like that of [http.DefaultTransport].
	Transport http.RoundTripper
}

// Client calls one server. It is safe for concurrent use.
type Client struct {
	base      string // of the control API, without a slash at its end
	key       string
	workspace string
	http      *http.Client
}

// New returns a client. It dials nothing.
func New(c Config) (*Client, error) {
	u, err := url.Parse(c.Address)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, doze.Errorf(doze.Invalid, "the address %q must look like https://host[:port]", c.Address)
	}
	if c.Key == "" {
		return nil, doze.Errorf(doze.Unauthenticated, "an API key is required")
	}
	if c.Transport == nil {
		c.Transport = transport()
	}
	path := strings.TrimRight(u.EscapedPath(), "/")
	return &Client{
		base: u.Scheme + "://" + u.Host + cmp.Or(path, "/v0"),
		key:  c.Key, workspace: c.Workspace,
		http: &http.Client{
			Transport: c.Transport,
			// An answer that leads elsewhere must not take the key there.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// transport has no limit on the length of an answer in time: executions and
// logs stream for as long as they last. The context of a call ends it.
func transport() *http.Transport {
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}
	return &http.Transport{
		Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true,
		IdleConnTimeout: 90 * time.Second, TLSHandshakeTimeout: dialTimeout,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			// Few resolvers know that every name below localhost is this host
			// (RFC 6761), and sandboxes have such names.
			if host, port, err := net.SplitHostPort(addr); err == nil && strings.HasSuffix(host, ".localhost") {
				addr = net.JoinHostPort("localhost", port)
			}
			return dialer.DialContext(ctx, network, addr)
		},
	}
}

// call is one request.
type call struct {
	method string
	url    string
	header http.Header
	body   io.Reader
}

// send returns the answer to a call if it is not an error. The caller closes
// its body.
func (c *Client) send(ctx context.Context, in call) (*http.Response, error) {
	resp, err := c.do(ctx, in)
	if err != nil {
		return nil, err
	}
	if err := readError(resp); err != nil {
		_ = resp.Body.Close()
		return nil, err
	}
	return resp, nil
}

// do returns the answer to a call, whatever it is. The caller closes its body.
func (c *Client) do(ctx context.Context, in call) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, in.method, in.url, in.body)
	if err != nil {
		return nil, doze.Wrap(err, doze.Invalid, "the address %q is not usable", in.url)
	}
	maps.Copy(r.Header, c.identity())
	maps.Copy(r.Header, in.header)
	resp, err := c.http.Do(r)
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, doze.Wrap(err, doze.Unavailable, "%s does not answer", r.URL.Host)
	}
	return resp, nil
}

// identity is what every request carries.
func (c *Client) identity() http.Header {
	h := http.Header{"Authorization": {"Bearer " + c.key}, "Blaxel-Version": {version}, "User-Agent": {"doze-client"}}
	if c.workspace != "" {
		h.Set("X-Blaxel-Workspace", c.workspace)
	}
	return h
}

// exchange sends in as JSON, unless it is nil, and decodes the answer.
func exchange[Out any](ctx context.Context, c *Client, method, address string, in any) (out Out, err error) {
	q, err := request(method, address, in)
	if err != nil {
		return out, err
	}
	resp, err := c.send(ctx, q)
	if err != nil {
		return out, err
	}
	defer func() { _ = resp.Body.Close() }()
	return decode[Out](ctx, resp)
}

// request is a call with in as JSON, unless it is nil.
func request(method, address string, in any) (call, error) {
	q := call{method: method, url: address, header: http.Header{"Accept": {"application/json"}}}
	if in == nil {
		return q, nil
	}
	b, err := json.Marshal(in)
	if err != nil {
		return q, doze.Wrap(err, doze.Invalid, "the request cannot be written as JSON")
	}
	q.body = bytes.NewReader(b)
	q.header.Set("Content-Type", "application/json")
	return q, nil
}

// decode reads an answer; out is zero for one that has no body.
func decode[Out any](ctx context.Context, resp *http.Response) (out Out, err error) {
	if resp.StatusCode == http.StatusNoContent {
		return out, nil
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, answerMax)).Decode(&out); err != nil {
		if ctx.Err() != nil {
			return out, context.Cause(ctx)
		}
		return out, doze.Wrap(err, doze.Unavailable, "the server sent an unexpected answer")
	}
	return out, nil
}

// readError returns the error that resp reports, in the form of either API or
// of the gateway between them.
func readError(resp *http.Response) error {
	if resp.StatusCode >= 300 && resp.StatusCode < 400 {
		return doze.Errorf(doze.Unavailable, "the server sends us to %q: use its final address", resp.Header.Get("Location"))
	}
	if resp.StatusCode < http.StatusBadRequest {
		return nil
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, errorMax))
	if err != nil {
		return doze.Wrap(err, doze.Unavailable, "the server broke off its answer")
	}
	var platform struct {
		Error struct{ Code, Message string }
	}
	if json.Unmarshal(b, &platform) == nil && platform.Error.Message != "" {
		return &doze.Error{Kind: doze.KindOfStatus(resp.StatusCode), Name: platform.Error.Code, Message: platform.Error.Message}
	}
	again := *resp
	again.Body = io.NopCloser(bytes.NewReader(b))
	err = httpx.ReadError(&again)
	if e, ok := errors.AsType[*doze.Error](err); ok && e.Name == e.Message {
		e.Name = "" // a sandbox reports its message where control has a name
	}
	return err
}
