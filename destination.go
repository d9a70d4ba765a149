package doze

import (
	"errors"
	"net/url"
	"slices"
	"strings"
)

// DestinationPathMax is the longest path of a destination, in bytes.
const DestinationPathMax = 1024

// Ports of a destination that names none.
const (
	portHTTP  = 80
	portHTTPS = 443
)

// Destination is an entry of the destinations of a routing rule: a
// [DomainPattern], with the requests to its hosts that the rule is for. It has the
// form [!][METHOD,…:][scheme://]domain[:port][/path].
type Destination struct {
	DomainPattern
	except  bool
	methods []string // none is all
	scheme  string   // empty is either
	path    []string // segments that a path begins with; anySegment is any one
}

// anySegment stands for one segment of a path.
const anySegment = "*"

// methods are those that a destination may name. METHOD stands for nothing: some
// write METHOD:GET:example.com.
var methods = []string{"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"}

const methodWord = "METHOD"

var destinationPathForm = formOf(`^(/([A-Za-z0-9._~!$&'+,=:@-]+|\*))*/?$`)

var (
	errDestination = errors.New("must be a domain such as example.com, *.example.com for all below it, or *, in ASCII (xn--…), and no address; " +
		"methods, a scheme, a port and a path may be around it, as in GET,HEAD:https://example.com:8443/v1")
	errDestinationScheme = errors.New("must begin with http:// or https://, or have no scheme")
	errDestinationPath   = errors.New("has a path with escapes, a query, dot segments or empty ones, or of more than 1024 bytes: write /v1/items, with * for any one segment")
)

// ParseDestination reads an entry of the destinations of a routing rule.
func ParseDestination(s string) (d Destination, err error) {
	s, d.except = strings.CutPrefix(s, "!")
	s = d.cutMethods(s)
	if scheme, rest, has := strings.Cut(s, "://"); has {
		if d.scheme = strings.ToLower(scheme); d.scheme != "http" && d.scheme != "https" {
			return Destination{}, errDestinationScheme
		}
		s = rest
	}
	domain, path, _ := strings.Cut(s, "/")
	if path != "" {
		if path = "/" + path; len(path) > DestinationPathMax || !destinationPathForm.MatchString(path) {
			return Destination{}, errDestinationPath
		}
		d.path = strings.Split(strings.Trim(path, "/"), "/")
	}
	if slices.ContainsFunc(d.path, isDots) {
		return Destination{}, errDestinationPath
	}
	if d.DomainPattern, err = ParseDomainPattern(domain); err != nil {
		return Destination{}, errDestination
	}
	return d, nil
}

// cutMethods returns s without the methods in front of it.
func (d *Destination) cutMethods(s string) string {
	for {
		word, rest, has := strings.Cut(s, ":")
		all := strings.Split(word, ",")
		for _, m := range all {
			if m != methodWord && !slices.Contains(methods, m) {
				return s
			}
		}
		if !has || rest == "" || rest[0] >= '0' && rest[0] <= '9' && !strings.ContainsAny(rest, ".:/") {
			return s // a domain of one label with a port
		}
		s = rest
		for _, m := range all {
			if m != methodWord && !slices.Contains(d.methods, m) {
				d.methods = append(d.methods, m)
			}
		}
	}
}

// String returns d in the form that [ParseDestination] reads.
func (d Destination) String() string {
	var b strings.Builder
	if d.except {
		b.WriteByte('!')
	}
	if len(d.methods) > 0 {
		b.WriteString(strings.Join(d.methods, ",") + ":")
	}
	if d.scheme != "" {
		b.WriteString(d.scheme + "://")
	}
	b.WriteString(d.DomainPattern.String())
	if len(d.path) > 0 {
		b.WriteString("/" + strings.Join(d.path, "/"))
	}
	return b.String()
}

// Address is a host, as [ParseHost] has it, with how it is reached.
type Address struct {
	Host  string
	Port  uint16
	Plain bool // by HTTP in clear, and not by HTTPS
}

// leads reports whether d is about requests to an address. An exception without a
// port is about all ports. Any other entry without a port is about that of its
// scheme. What has secrets is about requests in clear only if it names http.
func (d *Destination) leads(to Address, secrets bool) bool {
	switch {
	case !d.Covers(to.Host), d.scheme == "http" && !to.Plain, d.scheme == "https" && to.Plain:
		return false
	case d.except:
		return d.port == 0 || d.port == to.Port
	case to.Plain && secrets && d.scheme != "http":
		return false
	case d.port != 0:
		return d.port == to.Port
	case to.Plain:
		return to.Port == portHTTP
	default:
		return to.Port == portHTTPS
	}
}

// whole reports whether d is about all requests to its hosts.
func (d *Destination) whole() bool { return len(d.methods) == 0 && len(d.path) == 0 }

// Destinations are all those of one routing rule.
type Destinations struct {
	all     []Destination
	secrets bool
}

// ParseDestinations reads the destinations of t.
func (t *ProxyTarget) ParseDestinations() (all Destinations, err error) {
	all.secrets = len(t.Sealed) > 0 || len(t.Secrets.Reveal()) > 0
	for _, s := range t.Destinations {
		d, err := ParseDestination(s)
		if err != nil {
			return Destinations{}, err
		}
		all.all = append(all.all, d)
	}
	return all, nil
}

// Reach reports whether some request to an address is one of them.
func (all *Destinations) Reach(to Address) (reached bool) {
	for i := range all.all {
		d := &all.all[i]
		if !d.leads(to, all.secrets) {
			continue
		}
		if d.except && d.whole() {
			return false
		}
		reached = reached || !d.except
	}
	return reached
}

// Cover reports whether a request to an address is one of them: an entry covers it,
// and no exception does. The path is escaped, as it is sent.
func (all *Destinations) Cover(to Address, method, path string) (covered bool) {
	var at requestPath
	if slices.ContainsFunc(all.all, func(d Destination) bool { return len(d.path) > 0 }) {
		at = readPath(path)
	}
	for i := range all.all {
		d := &all.all[i]
		if !d.leads(to, all.secrets) || len(d.methods) > 0 && !slices.Contains(d.methods, method) {
			continue
		}
		if d.except {
			if at.mayBegin(d.path) {
				return false
			}
			continue
		}
		covered = covered || at.begins(d.path)
	}
	return covered
}

// requestPath is a path in the two ways that servers read it. What they disagree
// about never widens a rule.
type requestPath struct {
	strict []string // as RFC 3986 has it
	loose  []string // every escape undone, \ for /, without ;parameters and empty segments
	dots   bool     // . or .. is in it: where it leads is up to the server
}

// unescapesMax is how often an escape is undone: more often than servers do it.
const unescapesMax = 3

func readPath(escaped string) (p requestPath) {
	for segment := range strings.SplitSeq(strings.TrimPrefix(escaped, "/"), "/") {
		plain, err := url.PathUnescape(segment)
		if err != nil {
			plain = segment
		}
		p.strict = append(p.strict, plain)
	}
	loose := escaped
	for range unescapesMax {
		plain, err := url.PathUnescape(loose)
		if err != nil {
			break
		}
		loose = plain
	}
	for segment := range strings.SplitSeq(strings.ReplaceAll(loose, `\`, "/"), "/") {
		if segment, _, _ = strings.Cut(segment, ";"); segment != "" {
			p.loose = append(p.loose, segment)
		}
	}
	p.dots = slices.ContainsFunc(p.strict, isDots) || slices.ContainsFunc(p.loose, isDots)
	return p
}

func isDots(segment string) bool { return segment == "." || segment == ".." }

// begins reports whether p begins with segments in either reading.
func (p *requestPath) begins(with []string) bool {
	same := func(a, b string) bool { return a == b }
	return len(with) == 0 || !p.dots && beginsWith(p.strict, with, same) && beginsWith(p.loose, with, same)
}

// mayBegin reports whether some server may take p to begin with segments. Case
// means nothing to some.
func (p *requestPath) mayBegin(with []string) bool {
	return len(with) == 0 || p.dots || beginsWith(p.strict, with, strings.EqualFold) || beginsWith(p.loose, with, strings.EqualFold)
}

func beginsWith(path, with []string, same func(a, b string) bool) bool {
	if len(path) < len(with) {
		return false
	}
	for i, segment := range with {
		if segment != anySegment && !same(path[i], segment) || path[i] == "" {
			return false
		}
	}
	return true
}
