package edge

import (
	"cmp"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/dozehq/doze"
)

const (
	hostPrefix    = "sbx-"      // of the label that names a sandbox
	localTLD      = "localhost" // works without any DNS, next to the platform domain
	pathPrefix    = "/run/"     // of addresses without a host of their own
	previewPrefix = "/preview/" // of addresses of previews without a host
	previewHost   = ".preview." // between region and domain
	portPrefix    = "/port/"    // before the number of a port, in the path of a sandbox
	tcpPrefix     = "/tcp/"     // the same, for connections instead of requests
	streamScheme  = "tls://"    // of the address of a port that speaks no HTTP
)

// Addresses knows where sandboxes are found: under a host of their own,
// sbx-<sandbox>-<workspace>.<region>.<domain>, or under a path of the
// listener, /run/<workspace>/sandboxes/<sandbox>.
type Addresses struct {
	scheme string   // of every address: that of the public base URL
	port   string   // ":8443", or empty if the scheme implies it
	base   string   // the public base URL without a slash at its end
	own    string   // the host of that: the listener's own name, whatever it looks like
	region string   // of the addresses that we give, lower case
	domain string   // lower case; empty without a platform domain
	hosts  []string // suffixes of host addresses, each with its dot in front

	previewHosts []string // suffixes of hosts of previews, likewise

	previews string // the base URL of previews by path; empty: there are none
	raw      bool   // the listener speaks TLS, so that ports are reached without HTTP
}

// NewAddresses returns the addresses of a listener that the world reaches at
// the URL public. Without a domain, host addresses work under localhost only. The
// addresses have the first region. Those with another one lead to the same place.
func NewAddresses(regions []string, domain, public string) (Addresses, error) {
	u, err := url.Parse(public)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return Addresses{}, doze.Errorf(doze.Invalid, "the public URL %q must look like https://host[:port]", public)
	}
	if len(regions) == 0 || slices.Contains(regions, "") {
		return Addresses{}, doze.Errorf(doze.Invalid, "a region is required")
	}
	a := Addresses{
		scheme: u.Scheme,
		base:   u.Scheme + "://" + u.Host + strings.TrimRight(u.EscapedPath(), "/"),
		own:    hostOf(u.Host),
		region: strings.ToLower(regions[0]),
		domain: strings.ToLower(strings.Trim(domain, ".")),
	}
	if p := u.Port(); p != "" {
		a.port = ":" + p
	}
	for _, region := range regions {
		for _, d := range []string{a.domain, localTLD} {
			if region := strings.ToLower(region); d != "" {
				a.hosts = append(a.hosts, "."+region+"."+d)
				a.previewHosts = append(a.previewHosts, "."+region+previewHost+d)
			}
		}
	}
	return a, nil
}

// WithPreviews returns a with previews by path, at a listener of their own that
// the world reaches at the URL public. It must be another origin than ours.
func (a Addresses) WithPreviews(public string) (Addresses, error) {
	u, err := url.Parse(public)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || strings.Trim(u.Path, "/") != "" {
		return a, doze.Errorf(doze.Invalid, "the URL of previews %q must look like https://host[:port]", public)
	}
	if ours, _ := url.Parse(a.base); sameOrigin(u, ours) { // it was parsed before
		return a, doze.Errorf(doze.Invalid, "the preview URL %s has the origin of the API: choose another port or host, so that pages of sandboxes cannot act as the API", public)
	}
	a.previews = u.Scheme + "://" + u.Host
	return a, nil
}

// WithStreams returns a with or without addresses of ports that speak no HTTP. The
// listener has to speak TLS itself.
func (a Addresses) WithStreams(has bool) Addresses {
	a.raw = has
	return a
}

// sameOrigin reports whether a browser takes two addresses for one origin.
func sameOrigin(a, b *url.URL) bool {
	port := func(u *url.URL) string {
		return cmp.Or(u.Port(), map[string]string{"http": "80", "https": "443"}[u.Scheme])
	}
	return a.Scheme == b.Scheme && hostOf(a.Host) == hostOf(b.Host) && port(a) == port(b)
}

// URL returns the public address of a sandbox, without a slash at its end. It
// is the path form where DNS has no room for the host form.
func (a Addresses) URL(workspace, name string) string {
	label := hostPrefix + name + "-" + workspace
	if a.domain == "" || len(label) > doze.LabelMax {
		return a.base + pathPrefix + workspace + "/sandboxes/" + name
	}
	return a.scheme + "://" + label + "." + a.region + "." + a.domain + a.port
}

// PreviewURL returns the public address of the preview of a label, without a
// slash at its end. Without a platform domain it is the path form, if there is
// one. On a custom domain, the label is the whole host.
func (a Addresses) PreviewURL(label string) string {
	if strings.Contains(label, ".") { // a host of a custom domain
		return a.scheme + "://" + label + a.port
	}
	if a.domain == "" && a.previews != "" {
		return a.previews + previewPrefix + label
	}
	return a.scheme + "://" + label + "." + a.region + previewHost + cmp.Or(a.domain, localTLD) + a.port
}

// StreamURL returns the public address of the preview of a label whose port speaks no
// HTTP, tls://host:port. It is empty if this listener serves none.
func (a Addresses) StreamURL(label string) string {
	if !a.raw {
		return ""
	}
	host := label // of a custom domain
	if !strings.Contains(label, ".") {
		host += "." + a.region + previewHost + cmp.Or(a.domain, localTLD)
	}
	return streamScheme + host + cmp.Or(a.port, ":443")
}

// Target is the host that custom domains lead to.
func (a Addresses) Target() string {
	if a.domain != "" {
		return a.region + previewHost + a.domain
	}
	u, _ := url.Parse(a.base) // it was parsed before
	return u.Hostname()
}

// Matches reports whether r is for a sandbox, by its host or by its path. So
// is what only looks like it: see [Addresses.foreign].
func (a Addresses) Matches(r *http.Request) bool {
	if _, ok := a.label(r.Host); ok || a.foreign(r.Host) {
		return true
	}
	if _, ok := a.previewHost(r); ok {
		return true
	}
	path, _ := target(r)
	return strings.HasPrefix(path, pathPrefix) || a.pathPreview(r)
}

// pathPreview reports whether r is for a preview by path. At our own origin,
// there are none.
func (a Addresses) pathPreview(r *http.Request) bool {
	path, _ := target(r)
	_, ok := a.label(r.Host)
	return !ok && (path+"/" == previewPrefix || strings.HasPrefix(path, previewPrefix))
}

// foreign reports whether a host looks like that of a sandbox and is none that
// we serve: of another region or domain, say. It must not reach the control
// API, where a client would take the answer for that of its sandbox.
func (a Addresses) foreign(host string) bool {
	name := hostOf(host)
	if !strings.HasPrefix(name, hostPrefix) || name == a.own {
		return false
	}
	if _, ok := a.previewOf(name); ok { // a prefix that somebody chose
		return false
	}
	_, ok := a.label(host)
	return !ok
}

// previewPlace is the preview that an address names, and what is asked of it.
type previewPlace struct {
	label  string
	prefix string // of the path; empty for a host address
	path   string // escaped, as it came; begins with a slash

	missed string // the label that was asked for, if this is the fallback of a domain
	domain string // which one; empty otherwise
}

// previewLabel reads the address of a preview: a host of its own,
// <label>.<region>.preview.<domain>, or the path /preview/<label>.
func (a Addresses) previewLabel(r *http.Request) (previewPlace, bool) {
	if at, ok := a.previewHost(r); ok {
		return at, true
	}
	return a.previewPath(r)
}

// previewHost reads an address with a host of its own.
func (a Addresses) previewHost(r *http.Request) (previewPlace, bool) {
	path, _ := target(r)
	label, ok := a.previewOf(hostOf(r.Host))
	return previewPlace{label: label, path: path}, ok
}

// previewPath reads an address by path.
func (a Addresses) previewPath(r *http.Request) (previewPlace, bool) {
	path, _ := target(r)
	if _, ok := a.label(r.Host); ok || a.foreign(r.Host) {
		return previewPlace{}, false
	}
	rest, ok := strings.CutPrefix(path, previewPrefix)
	label, _, _ := strings.Cut(rest, "/")
	if !ok || label == "" {
		return previewPlace{}, false
	}
	rest = rest[len(label):]
	if rest == "" {
		rest = "/"
	}
	return previewPlace{label: label, prefix: previewPrefix + label, path: rest}, true
}

// previewOf returns the label in the host of a preview. The listener's own name
// is that of none, whatever it looks like.
func (a Addresses) previewOf(name string) (label string, ok bool) {
	if name == a.own {
		return "", false
	}
	for _, suffix := range a.previewHosts {
		label, ok := strings.CutSuffix(name, suffix)
		if ok && label != "" && !strings.Contains(label, ".") {
			return label, true
		}
	}
	return "", false
}

// hostOf is a host in lower case, without its port and without a dot at its
// end.
func hostOf(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// label returns <sandbox>-<workspace> of a host address.
func (a Addresses) label(host string) (string, bool) {
	host = hostOf(host)
	for _, suffix := range a.hosts {
		label, ok := strings.CutSuffix(host, suffix)
		if !ok {
			continue
		}
		label, ok = strings.CutPrefix(label, hostPrefix)
		if ok && label != "" && !strings.Contains(label, ".") {
			return label, true
		}
	}
	return "", false
}

// place is the sandbox that an address names, and what is asked of it.
type place struct {
	sandbox string
	path    string // escaped, as it came; begins with a slash
}

// locate reads the address of r for a caller of one workspace. It is false
// when the address cannot name a sandbox there.
//
// Names and workspaces both contain hyphens, so a host address may be read in
// several ways. At most one of them ends in the only workspace that the
// caller may enter.
func (a Addresses) locate(r *http.Request, workspace string) (place, bool) {
	path, _ := target(r)
	if label, ok := a.label(r.Host); ok {
		name, ok := strings.CutSuffix(label, "-"+workspace)
		return place{sandbox: name, path: path}, ok && name != "" && workspace != ""
	}
	ws, name, rest, ok := splitRun(path)
	return place{sandbox: name, path: rest}, ok && ws == workspace && workspace != ""
}

// splitRun takes an escaped path address apart. The rest keeps its bytes, and
// is / if there is none.
func splitRun(path string) (workspace, sandbox, rest string, ok bool) {
	path, ok = strings.CutPrefix(path, pathPrefix)
	if !ok {
		return "", "", "", false
	}
	workspace, path, _ = strings.Cut(path, "/")
	kind, path, _ := strings.Cut(path, "/")
	sandbox, _, _ = strings.Cut(path, "/")
	rest = path[len(sandbox):]
	if rest == "" {
		rest = "/"
	}
	return workspace, sandbox, rest, kind == "sandboxes" && workspace != "" && sandbox != ""
}

// splitPort takes <prefix><n>/<rest> apart. It is false for any other path.
func splitPort(path, prefix string) (port uint16, rest string, ok bool, err error) {
	path, ok = strings.CutPrefix(path, prefix)
	if !ok {
		return 0, "", false, nil
	}
	digits, _, _ := strings.Cut(path, "/")
	rest = path[len(digits):]
	if rest == "" {
		rest = "/"
	}
	n, err := strconv.ParseUint(digits, 10, 16)
	if err != nil || n == 0 || digits[0] == '0' {
		return 0, "", true, fmt.Errorf("%q is not a port", clip(digits))
	}
	return uint16(n), rest, true, nil
}

// rest returns the escaped path that a sandbox gets of r, or false if r has no
// address of a sandbox.
func (a Addresses) rest(r *http.Request) (string, bool) {
	path, _ := target(r)
	if _, ok := a.label(r.Host); ok {
		return path, true
	}
	_, _, rest, ok := splitRun(path)
	return rest, ok
}

// target returns the escaped path and the query of r exactly as they came. A
// query begins with its question mark. Only the request line has them: url.URL
// may spell the same path in another way.
func target(r *http.Request) (path, query string) {
	path = r.RequestURI
	if !strings.HasPrefix(path, "/") { // the absolute form, or a request that no server read
		path = r.URL.RequestURI()
	}
	if i := strings.IndexByte(path, '?'); i >= 0 {
		return path[:i], path[i:]
	}
	return path, ""
}

// clip bounds what a message or a log line repeats of a caller's input.
func clip(s string) string {
	const most = 256
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}
