package edge

import (
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/dozehq/doze"
)

// fate is what becomes of a field of a tenant's answer.
type fate int

const (
	dropped  fate = iota
	alone         // passes only on an origin that nobody else has
	confined      // its value is narrowed to the address of the tenant
	passes        // it is about the one answer
)

// A rule says what becomes of one field, and why.
type rule struct {
	fate fate
	why  string
}

// rules has a row for each field that a browser stores beyond the answer, or obeys for
// other addresses than that of the answer. Fields without a row pass. A new field of
// the web platform that outlives an answer needs a row here.
var rules = map[string]rule{
	"Alt-Svc":                     {dropped, "sends later requests of the origin to another server"},
	"Clear-Site-Data":             {dropped, "clears the cookies of the registrable domain, with those of its other hosts"},
	"Expect-Ct":                   {dropped, "holds for the host, on each of its ports"},
	"Nel":                         {dropped, "has the browser report about all subdomains, for as long as it says"},
	"Public-Key-Pins":             {dropped, "locks visitors out of the host and its subdomains"},
	"Public-Key-Pins-Report-Only": {dropped, "has the browser report about the host and its subdomains"},
	"Report-To":                   {dropped, "names receivers of reports for the origin and its subdomains, for as long as it says"},
	"Sec-Session-Registration":    {dropped, "the former name of Secure-Session-Registration"},
	"Secure-Session-Challenge":    {dropped, "belongs to Secure-Session-Registration"},
	"Secure-Session-Registration": {dropped, "may bind the cookies of the whole site to a session of the tenant"},
	"Service-Worker-Allowed":      {dropped, "gives a service worker the pages outside of its own path"},
	"Set-Cookie2":                 {dropped, "sets cookies that nobody confines"},
	"Strict-Transport-Security":   {dropped, "holds for every port of the host, and for its subdomains"},

	"Accept-Ch":            {alone, "is kept for the origin"},
	"Critical-Ch":          {alone, "is kept for the origin"},
	"Origin-Agent-Cluster": {alone, "decides for the other pages of the origin"},
	"Set-Login":            {alone, "is kept for the origin"},
	"Use-As-Dictionary":    {alone, "may match other paths of the origin"},

	"Set-Cookie":       {confined, "reaches the paths, hosts and ports that it names"},
	"Www-Authenticate": {confined, "has the browser send a password to all who name the same realm on the origin"},

	"Content-Security-Policy":      {passes, "restricts the one page; ours holds beside it"},
	"Cross-Origin-Opener-Policy":   {passes, "is about the one page"},
	"Cross-Origin-Resource-Policy": {passes, "is about the one answer"},
	"Link":                         {passes, "loads what a page could load"},
	"Location":                     {passes, "leads where a link could lead"},
	"Permissions-Policy":           {passes, "restricts the one page"},
	"Refresh":                      {passes, "leads where a link could lead"},
	"Reporting-Endpoints":          {passes, "is forgotten with the page, unlike Report-To"},
}

const (
	// inert is the policy of what a sandbox answers to a credential. Our own
	// pages have the same origin: nothing of a tenant may run or load there.
	inert = "sandbox; default-src 'none'; frame-ancestors 'none'"
	// apart is the policy of previews by path. They share an origin: each page
	// gets one of its own, which has no cookies, storage or service workers.
	apart = "sandbox allow-scripts allow-forms allow-modals allow-popups allow-popups-to-escape-sandbox allow-downloads"
)

// origin is where a browser believes an answer to be from.
type origin struct {
	host   string // without the port, which cookies ignore
	prefix string // of the path, that belongs to the tenant; empty: all of them
	shared bool   // others have it too: other tenants, or we
	policy string // Content-Security-Policy, besides the tenant's own
}

// originOf is the origin of the answer to r, on its way by v.
func originOf(r *http.Request, v *visit) origin {
	o := origin{host: hostOf(r.Host)}
	if v.preview != nil {
		if o.prefix = v.at.prefix; o.prefix != "" {
			o.shared, o.policy = true, apart
		}
		return o
	}
	path, _ := target(r)
	o.prefix, o.shared, o.policy = strings.TrimSuffix(path, v.path), true, inert
	return o
}

// clean makes the header of a tenant's answer one that reaches nobody else, and
// drops what only the platform may say.
func (o origin) clean(h http.Header) {
	for name := range h {
		if strings.HasPrefix(name, "X-Blaxel-") || strings.HasPrefix(name, "X-Doze-") {
			delete(h, name)
			continue
		}
		switch r, known := rules[name]; {
		case !known || r.fate == passes:
		case r.fate == dropped, r.fate == alone && o.shared:
			delete(h, name)
		}
	}
	if cookies, ok := h["Set-Cookie"]; ok {
		delete(h, "Set-Cookie")
		for _, c := range cookies {
			if c, ok := o.cookie(c); ok {
				h["Set-Cookie"] = append(h["Set-Cookie"], c)
			}
		}
	}
	if challenges, ok := h["Www-Authenticate"]; ok && o.policy == apart {
		h["Www-Authenticate"] = o.challenges(challenges)
	}
}

// finish makes the header of a whole answer safe to show in a browser.
func (o origin) finish(h http.Header) {
	o.clean(h)
	if o.policy == "" {
		return
	}
	h.Add("Content-Security-Policy", o.policy) // all policies of an answer hold
	if o.policy == inert {
		h.Set("X-Content-Type-Options", "nosniff")
	}
}

// cookie confines a cookie to the host and the prefix of o. It is false if the
// cookie is not the tenant's to set: one of ours, or one for more hosts. All
// other bytes stay.
func (o origin) cookie(line string) (string, bool) {
	if isOurCookie(line) {
		return "", false
	}
	parts := strings.Split(line, ";")
	attributes, path := parts[:1], ""
	for _, part := range parts[1:] {
		name, value, _ := strings.Cut(part, "=")
		value = strings.TrimSpace(value)
		switch strings.ToLower(strings.TrimSpace(name)) {
		case "domain":
			// Browsers take the last one: none may name more.
			if value != "" && hostOf(strings.TrimPrefix(value, ".")) != o.host {
				return "", false
			}
		case "path":
			path = value
			if o.prefix != "" {
				continue
			}
		}
		attributes = append(attributes, part)
	}
	line = strings.Join(attributes, ";")
	if o.prefix == "" {
		return line, true
	}
	// Without a path, a browser would take the directory of the address.
	if !strings.HasPrefix(path, o.prefix+"/") {
		path = o.prefix + "/" + strings.TrimPrefix(path, "/")
	}
	return line + "; Path=" + path, true
}

// challenges asks for a password in a realm of this address only, since a
// browser sends one to all that name its realm. Other schemes of passwords have
// no realm, or one that is signed.
func (o origin) challenges(lines []string) (rest []string) {
	for _, line := range lines {
		lower := strings.ToLower(line)
		switch {
		case strings.Contains(lower, "basic"):
			return []string{`Basic realm="` + o.prefix + `", charset="UTF-8"`}
		case strings.HasPrefix(strings.TrimSpace(lower), "bearer") && !strings.Contains(lower, "digest") && !strings.Contains(lower, "ntlm") && !strings.Contains(lower, "negotiate"):
			rest = append(rest, line)
		}
	}
	return rest
}

// trailed is the body of an answer whose trailers are a tenant's, too.
type trailed struct {
	io.ReadCloser
	resp   *http.Response
	origin origin
}

// trail has the trailers of an answer cleaned: those that were announced now, and
// the others as soon as they are there.
func (o origin) trail(resp *http.Response) {
	o.clean(resp.Trailer)
	resp.Body = trailed{resp.Body, resp, o}
}

// Close is called before the trailers are read, and when all of them are there.
func (t trailed) Close() error {
	err := t.ReadCloser.Close()
	t.origin.clean(t.resp.Trailer)
	return err
}

// errWorker and errShown are for browsers that would show or run what a tenant
// answers on an origin that is not its own.
var (
	errWorker = &doze.Error{Kind: doze.Forbidden, Name: forbidden, Message: "service workers are not allowed at this address, because several sandboxes share its origin: use the host of a preview"}
	errShown  = &doze.Error{Kind: doze.Forbidden, Name: forbidden, Message: "browsers cannot show pages at this address: create a preview of the port"}
)

// readers are the destinations (Sec-Fetch-Dest) of what a page or a program only
// reads. What has another one would be shown or run.
var readers = []string{"", "empty", "websocket"}

// shows is why a browser gets no answer on an origin that is shared, or nil. A
// program that is no browser says nothing of what it checks.
func (o origin) shows(r *http.Request) error {
	switch dest := strings.ToLower(r.Header.Get("Sec-Fetch-Dest")); {
	case !o.shared:
		return nil
	case strings.EqualFold(r.Header.Get("Service-Worker"), "script") || dest == "serviceworker":
		return errWorker
	case o.policy == inert && !slices.Contains(readers, dest):
		return errShown
	}
	return nil
}
