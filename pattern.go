package doze

import (
	"errors"
	"strconv"
	"strings"
)

// HostMax is the longest name of the DNS, in bytes.
const HostMax = 253

// DomainPattern is an entry of a list of domains: a name such as example.com,
// all names below one as in *.example.com, which is not example.com itself, or
// * for every name. A port may follow, as in example.com:8443.
type DomainPattern struct {
	name  string // empty with below: every name
	below bool
	port  uint16
}

var (
	patternForm = formOf(`^([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z]([a-z0-9-]{0,61}[a-z0-9])?$`)
	hostForm    = formOf(`^([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\.)+[a-z]([a-z0-9-]{0,61}[a-z0-9])?$`)
)

var errPattern = errors.New("must be a domain such as example.com, *.example.com for all below it, or *; " +
	"in ASCII (xn--…), without a scheme, a path or a method, and no address; a port may follow, as in example.com:8443")

// ParseDomainPattern reads an entry of a list of domains. Upper case and a dot
// at the end do not matter.
func ParseDomainPattern(s string) (p DomainPattern, err error) {
	name, port, has := strings.Cut(strings.ToLower(s), ":")
	if has {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 || strconv.FormatUint(n, 10) != port {
			return p, errPattern
		}
		p.port = uint16(n)
	}
	if name == "*" {
		p.below = true
		return p, nil
	}
	name, p.below = strings.CutPrefix(name, "*.")
	p.name = strings.TrimSuffix(name, ".")
	if len(p.name) > HostMax || !patternForm.MatchString(p.name) {
		return DomainPattern{}, errPattern
	}
	return p, nil
}

// Covers reports whether a host, as [ParseHost] returns it, is one of those that
// p stands for.
func (p DomainPattern) Covers(host string) bool {
	if !p.below {
		return host == p.name
	}
	return p.name == "" || strings.HasSuffix(host, "."+p.name)
}

// Port returns the port of p, or 0 if it names none.
func (p DomainPattern) Port() uint16 { return p.port }

// String returns p in the form that [ParseDomainPattern] reads.
func (p DomainPattern) String() string {
	s := p.name
	switch {
	case p.below && s == "":
		s = "*"
	case p.below:
		s = "*." + s
	}
	if p.port != 0 {
		s += ":" + strconv.Itoa(int(p.port))
	}
	return s
}

// ParseHost returns the name of a host of the public DNS in its one form: lower
// case, no dot at the end. It is false for whatever a resolver might take for an
// address, in any spelling, and for names of one label.
func ParseHost(s string) (string, bool) {
	s = strings.ToLower(strings.TrimSuffix(s, "."))
	return s, len(s) <= HostMax && hostForm.MatchString(s)
}
