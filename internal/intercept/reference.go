package intercept

import (
	"encoding/json"
	"mime"
	"net/http"
	"net/url"
	"regexp"

	"github.com/dozehq/doze"
)

// references are secrets by name, of rules that resolve what a sandbox refers to.
// Whatever names none of them is sent as it is.
type references map[string]string

// In what a sandbox sends, a reference is written as in rules, or as URLs and forms
// escape it. A name has nothing to escape.
var (
	plainReference   = regexp.MustCompile(`\{\{SECRET:([A-Za-z0-9_.-]{1,128})\}\}`)
	escapedReference = regexp.MustCompile(`(?i:\{|%7b){2}SECRET(?i::|%3a)([A-Za-z0-9_.-]{1,128})(?i:\}|%7d){2}`)
)

// resolve puts values in the place of references, each as write has it. A value is
// not read again.
func (refs references) resolve(s string, form *regexp.Regexp, write func(reference, value string) string) string {
	if len(refs) == 0 {
		return s
	}
	return form.ReplaceAllStringFunc(s, func(reference string) string {
		value, ok := refs[form.FindStringSubmatch(reference)[1]]
		if !ok {
			return reference
		}
		return write(reference, value)
	})
}

// header resolves references in the values of headers. The error is Invalid for a
// value that no header can have.
func (refs references) header(h http.Header) error {
	for name, all := range h {
		for i, v := range all {
			all[i] = refs.resolve(v, plainReference, asItIs)
			if all[i] != v && !sendable(all[i]) {
				return doze.Errorf(doze.Invalid, "the header %.80q refers to a secret whose line breaks cannot be sent in a header: put it into the body", name)
			}
		}
	}
	return nil
}

// path resolves references in an escaped path.
func (refs references) path(escaped string) string {
	return refs.resolve(escaped, escapedReference, func(_, value string) string { return url.PathEscape(value) })
}

// query resolves references in an escaped query.
func (refs references) query(escaped string) string {
	return refs.resolve(escaped, escapedReference, inForm)
}

// body resolves references in a body. A value is escaped as the body needs it: in
// JSON, in a form, and where the reference is escaped itself.
func (refs references) body(b []byte, contentType string) []byte {
	if len(refs) == 0 {
		return b
	}
	plain := asItIs
	if json.Valid(b) {
		plain = inString
	} else if kind, _, err := mime.ParseMediaType(contentType); err == nil && kind == "application/x-www-form-urlencoded" {
		plain = inForm
	}
	return []byte(refs.resolve(string(b), escapedReference, func(reference, value string) string {
		if plainReference.MatchString(reference) {
			return plain(reference, value)
		}
		return inForm(reference, value)
	}))
}

func asItIs(_, value string) string { return value }

func inForm(_, value string) string { return url.QueryEscape(value) }

// inString is a value as it is written in a string of JSON.
func inString(_, value string) string {
	quoted, _ := json.Marshal(value) // which no string makes fail
	return string(quoted[1 : len(quoted)-1])
}
