package intercept

import (
	"maps"
	"net/http"
	"net/textproto"
	"slices"
	"strings"
	"time"

	"github.com/dozehq/doze"
)

const (
	// redactMin is the length from which on a secret is looked for in answers.
	// Shorter ones are there by chance.
	redactMin = 8
	// echoHeader begins the names of the headers that say to a sandbox what
	// functions returned for a header or a member of the body.
	echoHeader = "X-Blaxel-Func-"
)

// Rules are the routing rules of a sandbox, with their secrets. The zero value
// has none. They do not change, and print nothing of the secrets.
type Rules struct{ all []rule }

type rule struct {
	destinations  doze.Destinations
	headers, body []value
	references    references               // of the sandbox's own, which are resolved
	traces        doze.WriteOnly[[]*trace] // of the secrets that requests get
	masks         bool                     // their values in answers
}

// Defaults are the options of rules that do not say them: see [doze.ProxyTarget].
type Defaults struct {
	GuestReferences bool
	Unmasked        bool // the opposite of MaskResponses
}

// value is what a header, or a member of a body, becomes.
type value struct {
	target   string
	template doze.Template
	secrets  doze.WriteOnly[map[string]string] // of its rule
}

// Compile reads routing rules. A rule that refers to a secret which it has not,
// or would make a header of what cannot be in one, is Invalid.
func Compile(routing []doze.ProxyTarget, defaults Defaults) (Rules, error) {
	var rules Rules
	for i := range routing {
		r, err := compile(&routing[i], defaults)
		if err != nil {
			return Rules{}, doze.Wrap(err, doze.Invalid, "routing[%d] %v", i, err)
		}
		rules.all = append(rules.all, r)
	}
	return rules, nil
}

func compile(t *doze.ProxyTarget, defaults Defaults) (r rule, err error) {
	if r.destinations, err = t.ParseDestinations(); err != nil {
		return r, err
	}
	if r.headers, err = values(t, t.Headers); err != nil {
		return r, err
	}
	if r.body, err = values(t, t.Body); err != nil {
		return r, err
	}
	for i, v := range r.headers {
		r.headers[i].target = textproto.CanonicalMIMEHeaderKey(v.target)
		for _, name := range v.template.Secrets() {
			if !sendable(t.Secrets.Reveal()[name]) {
				return r, doze.Errorf(doze.Invalid, "puts the secret %q into a header, which cannot have its line breaks", name)
			}
		}
	}
	r.masks = chosen(t.MaskResponses, !defaults.Unmasked)
	used := secretsOf(slices.Concat(r.headers, r.body))
	if chosen(t.GuestReferences, defaults.GuestReferences) {
		r.references = t.Secrets.Reveal()
		used = slices.Sorted(maps.Keys(r.references))
	}
	r.traces = doze.Hide(traces(used, t.Secrets.Reveal()))
	return r, nil
}

// chosen is an option, or else its default.
func chosen(option *bool, or bool) bool {
	if option == nil {
		return or
	}
	return *option
}

// secretsOf are the names of the secrets that values use.
func secretsOf(all []value) (names []string) {
	for _, v := range all {
		names = append(names, v.template.Secrets()...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// values reads one of the two tables of a rule, in the order of its names.
func values(t *doze.ProxyTarget, table map[string]string) (all []value, err error) {
	for _, name := range slices.Sorted(maps.Keys(table)) {
		template, err := doze.ParseTemplate(table[name])
		if err != nil {
			return nil, err
		}
		for _, secret := range template.Secrets() {
			if _, ok := t.Secrets.Reveal()[secret]; !ok {
				return nil, doze.Errorf(doze.Invalid, "refers to the secret %q, which it has not", secret)
			}
		}
		all = append(all, value{target: name, template: template, secrets: t.Secrets})
	}
	return all, nil
}

// sendable reports whether s can be in a header.
func sendable(s string) bool { return !strings.ContainsAny(s, "\r\n\x00") }

// traces find the secrets of these names, should they come back.
func traces(names []string, secrets map[string]string) (all []*trace) {
	for _, name := range names {
		secret := secrets[name]
		if len(secret) >= redactMin && !slices.ContainsFunc(all, func(t *trace) bool { return t.secret == secret }) {
			all = append(all, newTraces(secret)...)
		}
	}
	return all
}

// For returns what rules inject into requests to an address; nil is nothing.
func (r Rules) For(to doze.Address) *Injection {
	in := Injection{to: to}
	for i := range r.all {
		rule := &r.all[i]
		if !rule.destinations.Reach(to) {
			continue
		}
		in.rules = append(in.rules, rule)
		in.traces = append(in.traces, rule.traces.Reveal()...)
		if rule.masks {
			in.masked = append(in.masked, rule.traces.Reveal()...)
		}
	}
	if len(in.rules) == 0 {
		return nil
	}
	return &in
}

// override adds values to those of earlier rules, in place of those with the same
// target.
func override(earlier, later []value) []value {
	rest := slices.DeleteFunc(slices.Clone(earlier), func(v value) bool {
		return slices.ContainsFunc(later, func(l value) bool { return l.target == v.target })
	})
	return append(rest, later...)
}

// Injection is what rules make of requests to one address. A secret of theirs is
// looked for in every answer of that address, also to requests that got nothing. The
// destination may know it from another one.
type Injection struct {
	to             doze.Address
	rules          []*rule  // that are about some request to it
	traces, masked []*trace // of all secrets, and of those that are masked
}

// String names the secrets, and has none of their values.
func (in *Injection) String() string {
	return "[injection of " + strings.Join(in.Secrets(), ", ") + "]"
}

// Secrets are the names of the secrets that requests get.
func (in *Injection) Secrets() (names []string) {
	for _, r := range in.rules {
		names = append(names, secretsOf(slices.Concat(r.headers, r.body))...)
		names = append(names, slices.Collect(maps.Keys(r.references))...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// changes are those of one request.
type changes struct {
	headers, body []value
	references    references
}

// at returns what is injected into a request. Of several rules with the same header,
// member or secret, the last one counts.
func (in *Injection) at(method, path string) (c changes) {
	for _, r := range in.rules {
		if !r.destinations.Cover(in.to, method, path) {
			continue
		}
		c.headers = override(c.headers, r.headers)
		c.body = override(c.body, r.body)
		if len(r.references) > 0 {
			c.references = maps.Clone(c.references)
			if c.references == nil {
				c.references = references{}
			}
			maps.Copy(c.references, r.references)
		}
	}
	return c
}

// filling is an injection for one request: its values, and what functions
// returned for headers and for members of the body, by their names.
type filling struct {
	headers, body       map[string]string
	ofHeaders, ofBodies map[string]string
}

// echo is what the answer says that functions returned: for what was sent.
func (f *filling) echo(members []string) map[string]string {
	echo := map[string]string{}
	for name, v := range f.ofHeaders {
		echo[http.CanonicalHeaderKey(echoHeader+name)] = v
	}
	for _, name := range members {
		if v, ok := f.ofBodies[name]; ok {
			echo[http.CanonicalHeaderKey(echoHeader+name)] = v
		}
	}
	return echo
}

// fill resolves every reference.
func (in *changes) fill(now time.Time) (f filling, err error) {
	calls := 0
	for _, v := range slices.Concat(in.headers, in.body) {
		calls += v.template.Calls()
	}
	if calls > doze.FunctionsMax {
		return f, doze.Errorf(doze.Invalid, "the routing rules of this destination call %d functions for a request; at most %d are allowed", calls, doze.FunctionsMax)
	}
	f.headers, f.ofHeaders = resolve(in.headers, now)
	f.body, f.ofBodies = resolve(in.body, now)
	return f, nil
}

// resolve returns the values, and what functions returned for those that call some.
func resolve(all []value, now time.Time) (out, called map[string]string) {
	out, called = make(map[string]string, len(all)), map[string]string{}
	for _, v := range all {
		var text strings.Builder
		var returned []string
		for _, part := range v.template {
			switch {
			case part.Secret != "":
				text.WriteString(v.secrets.Reveal()[part.Secret])
			case part.Function != "":
				s := functions[part.Function](now)
				returned = append(returned, s)
				text.WriteString(s)
			default:
				text.WriteString(part.Text)
			}
		}
		out[v.target] = text.String()
		if len(returned) > 0 {
			called[v.target] = strings.Join(returned, ", ")
		}
	}
	return out, called
}
