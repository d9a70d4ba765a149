package edge

import (
	"net/netip"
	"strings"
	"time"

	"github.com/dozehq/doze"
)

// Host reports whether a host, in any case, is that of the listener, of a
// sandbox or of a preview that there is, and below which domain: these may
// have a certificate. Names that mean this machine are none.
func (e *Edge) Host(name string) (domain string, ok bool) {
	name = hostOf(name)
	_, err := netip.ParseAddr(name)
	if err == nil || name == localTLD || strings.HasSuffix(name, "."+localTLD) {
		return "", false
	}
	if label, ok := e.label(name); ok {
		return e.domain, e.directory.Has(label)
	}
	if s, ok := e.streamAt(name); ok && s.protocol == doze.ProtocolTLS {
		return "", false // the sandbox has its own
	}
	if label, ok := e.previewOf(name); ok {
		_, ok := e.previews.Find(label, time.Now())
		return e.domain, ok
	}
	if label, d, ok := e.custom(name); ok {
		_, found := e.previews.Find(name, time.Now())
		return d.Name, found || fallsBack(label, d)
	}
	return e.own, name == e.own
}
