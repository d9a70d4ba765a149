package settings

import (
	"net/url"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/disk"
	"github.com/dozehq/doze/internal/host"
	"github.com/dozehq/doze/internal/outproxy"
)

// readProxy fills in the URL that is in a file of its own.
func (s *Settings) readProxy() error {
	return readSecret(&s.UpstreamProxy, s.UpstreamFile, "upstreamProxy", "the URL of a proxy")
}

// checkProxy adds what is wrong with the proxy, and what cannot pass it.
func (s Settings) checkProxy(p *doze.Problems) {
	if s.UpstreamProxy == "" {
		if len(s.UpstreamExcept) > 0 || s.UpstreamNames {
			p.Add("upstreamProxy", "is missing: upstreamNoProxy and upstreamResolves are about it")
		}
		return
	}
	if err := outproxy.Check(s.UpstreamProxy); err != nil {
		p.Add("upstreamProxy", "%v", err)
	}
	if s.Egress == host.EgressDirect {
		p.Add("egress", "must not be %s with upstreamProxy: UDP and what goes straight out do not pass it; choose %s", host.EgressDirect, host.EgressOpen)
	}
	if len(s.EgressPool) > 0 {
		p.Add("egressPool", "cannot be with upstreamProxy: what passes it leaves from the address of the proxy")
	}
}

// Proxy is what the settings say of it. It is nil without one, and where Validate fails.
func (s Settings) Proxy() *outproxy.Proxy {
	p, _ := outproxy.New(outproxy.Options{URL: s.UpstreamProxy, Except: s.UpstreamExcept, Resolves: s.UpstreamNames})
	return p
}

// hideProxy takes the secrets of the proxy away.
func (s *Settings) hideProxy() {
	switch u, err := url.Parse(s.UpstreamProxy); {
	case s.UpstreamFile != "":
		s.UpstreamProxy = ""
	case err != nil:
		s.UpstreamProxy = "(not shown)"
	default:
		s.UpstreamProxy = u.Redacted()
	}
}

// Prepare validates the settings, and has this process and what it starts obey those that
// are about all of it: the proxy.
func (s Settings) Prepare() error {
	if err := s.Validate(); err != nil {
		return err
	}
	return s.Proxy().Export()
}

// OpenLibrary opens the images, for a command that makes some.
func (s Settings) OpenLibrary() (*disk.Library, error) {
	if err := s.Prepare(); err != nil {
		return nil, err
	}
	return disk.Open(s.ImagesDir, s.Library())
}
