package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/handover"
)

// previewsFile, in the run directory, is the socket of the keeper of the address
// of previews.
const previewsFile = "previews.sock"

// byPath reports whether previews are served by path, at an address of their
// own. With a domain, each has a host of its own.
func (c config) byPath() bool { return c.Domain == "" }

// resolvePreviews fills in where previews are by path: at the next port, on the
// host by which the world knows us.
func (c *config) resolvePreviews() {
	if !c.byPath() {
		return
	}
	if c.PreviewListen == "" {
		host, port, err := net.SplitHostPort(c.Listen)
		n, notANumber := strconv.ParseUint(port, 10, 16)
		if err != nil || notANumber != nil {
			return // listen is wrong, for a reason of its own
		}
		if n > 0 { // 0 is any port
			n++
		}
		c.PreviewListen = net.JoinHostPort(host, strconv.FormatUint(n, 10))
	}
	if c.PreviewURL == "" {
		public, err := url.Parse(c.PublicURL)
		_, port, wrong := net.SplitHostPort(c.PreviewListen)
		if err != nil || wrong != nil {
			return
		}
		c.PreviewURL = public.Scheme + "://" + net.JoinHostPort(public.Hostname(), port)
	}
}

// checkPreviews adds what is wrong with the settings around previews by path.
func (c config) checkPreviews(p *doze.Problems) {
	if !c.byPath() {
		if c.PreviewListen != "" || c.PreviewURL != "" {
			p.Add("previewListen", "and previewUrl are for a platform without a domain: with one, each preview has a host of its own at listen")
		}
		return
	}
	host, port, err := net.SplitHostPort(c.PreviewListen)
	if n, wrong := strconv.ParseUint(port, 10, 16); err != nil || wrong != nil {
		p.Add("previewListen", "is %q: it must be host:port, with a port up to 65535; without it, it is the port after that of listen", c.PreviewListen)
	} else if ours, at, _ := net.SplitHostPort(c.Listen); n != 0 && port == at && host == ours {
		p.Add("previewListen", "must be another address than listen: pages of sandboxes may not have the origin of the API")
	}
}

// openPreviews takes the address of previews for this process alone. It is nil
// where previews have hosts of their own.
func openPreviews(ctx context.Context, c config) (*handover.Listener, error) {
	if !c.byPath() {
		return nil, nil //nolint:nilnil // there is none
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	d, err := handover.Open(ctx, handover.Options{Address: c.PreviewListen, Path: filepath.Join(c.Run, previewsFile), Command: []string{self, keepCommand}})
	if err != nil {
		return nil, fmt.Errorf("choose another address for previews with --preview-listen: %w", err)
	}
	return d, nil
}

// openPreviewServer returns the server of previews by path. It speaks TLS like
// that of the API, and its requests count as those do.
func (p *platform) openPreviewServer(api *http.Server) *http.Server {
	server := &http.Server{ //nolint:gosec // G112: Configure bounds the time for a header
		Handler: p.flights.over(p.edge.Previews()), TLSConfig: api.TLSConfig.Clone(), Protocols: api.Protocols,
		ErrorLog: slog.NewLogLogger(slog.Default().Handler(), slog.LevelDebug),
	}
	p.ingress.Configure(server)
	return server
}

// servePreviews answers requests by path until ctx ends, like serve.
func (p *platform) servePreviews(ctx context.Context) error {
	return serveOver(ctx, p.previewServer, p.ingress.Listen(p.previews, p.previewServer.TLSConfig))
}

// serveOver answers what comes through a listener, TLS included, until ctx ends,
// and then waits for the requests that are under way.
func serveOver(ctx context.Context, server *http.Server, through net.Listener) error {
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(through) }() // ends with the server
	select {
	case err := <-ended:
		if !errors.Is(err, net.ErrClosed) {
			return err
		}
		<-ctx.Done() // the door is closed first
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
	defer cancel()
	if err := server.Shutdown(drain); err != nil {
		return errors.Join(err, server.Close())
	}
	return nil
}

// attendPreviews keeps the door of previews open until ctx ends, like attend.
func (p *platform) attendPreviews(ctx context.Context, replaced func() bool) error {
	return attendTo(ctx, p.previews, p.previewServer, replaced)
}

// attendTo keeps a door open until ctx ends. Then nobody is let in any more:
// callers are refused, or wait for whoever replaces us.
func attendTo(ctx context.Context, d *handover.Listener, server *http.Server, replaced func() bool) error {
	err := d.Run(ctx)
	if !replaced() {
		err = errors.Join(err, d.Shut())
	}
	server.SetKeepAlivesEnabled(false)
	return errors.Join(err, d.Close())
}

// entrances are the doors by which callers come in.
type entrances struct{ api, previews *handover.Listener } // the second may be nil

// each calls do for each of them, until an error of the first that has one.
func (e entrances) each(do func(*handover.Listener) error) error {
	err := do(e.api)
	if err == nil && e.previews != nil {
		err = do(e.previews)
	}
	return err
}

// all calls do for each of them, whatever comes of it.
func (e entrances) all(do func(*handover.Listener) error) error {
	err := do(e.api)
	if e.previews != nil {
		err = errors.Join(err, do(e.previews))
	}
	return err
}

func (e entrances) hold(ctx context.Context) error {
	return e.each(func(d *handover.Listener) error { return d.Hold(ctx) })
}

// pause lets callers wait, and lets them all in again if one door cannot.
func (e entrances) pause() error {
	err := e.each((*handover.Listener).Pause)
	if err != nil {
		err = errors.Join(err, e.resume())
	}
	return err
}

func (e entrances) resume() error { return e.all((*handover.Listener).Resume) }
func (e entrances) shut() error   { return e.all((*handover.Listener).Shut) }
func (e entrances) close() error  { return e.all((*handover.Listener).Close) }

// keepAlives lets connections stay open behind requests, or not.
func (p *platform) keepAlives(on bool) {
	p.server.SetKeepAlivesEnabled(on)
	if p.previewServer != nil {
		p.previewServer.SetKeepAlivesEnabled(on)
	}
}
