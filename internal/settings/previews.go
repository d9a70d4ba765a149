package settings

import (
	"net"
	"net/url"
	"strconv"

	"github.com/dozehq/doze"
)

// ByPath reports whether previews are served by path, at an address of their own.
// With a domain, each preview has a host of its own.
func (s Settings) ByPath() bool { return s.Domain == "" }

// resolvePreviews fills in where previews by path are: at the next port, on the
// host of the public URL.
func (s *Settings) resolvePreviews() {
	if !s.ByPath() {
		return
	}
	if s.PreviewListen == "" {
		host, port, err := net.SplitHostPort(s.Listen)
		n, notANumber := strconv.ParseUint(port, 10, 16)
		if err != nil || notANumber != nil {
			return // listen is wrong, for a reason of its own
		}
		if n > 0 { // 0 is any port
			n++
		}
		s.PreviewListen = net.JoinHostPort(host, strconv.FormatUint(n, 10))
	}
	if s.PreviewURL == "" {
		public, err := url.Parse(s.PublicURL)
		_, port, wrong := net.SplitHostPort(s.PreviewListen)
		if err != nil || wrong != nil {
			return
		}
		s.PreviewURL = public.Scheme + "://" + net.JoinHostPort(public.Hostname(), port)
	}
}

// checkPreviews adds what is wrong with the settings around previews by path.
func (s Settings) checkPreviews(p *doze.Problems) {
	if !s.ByPath() {
		if s.PreviewListen != "" || s.PreviewURL != "" {
			p.Add("previewListen", "and previewUrl are for a platform without a domain: with one, each preview has a host of its own at listen")
		}
		return
	}
	host, port, err := net.SplitHostPort(s.PreviewListen)
	if n, wrong := strconv.ParseUint(port, 10, 16); err != nil || wrong != nil {
		p.Add("previewListen", "is %q: it must be host:port, with a port up to 65535; without it, it is the port after that of listen", s.PreviewListen)
	} else if ours, at, _ := net.SplitHostPort(s.Listen); n != 0 && port == at && host == ours {
		p.Add("previewListen", "must be another address than listen: pages of sandboxes may not have the origin of the API")
	}
}
