package doze

import (
	"net/url"
	"regexp"
	"sync"
)

// form is what a text must look like. Its pattern is compiled when it is first
// asked: every program has all of them, the agent of each sandbox too, which
// asks none.
type form func() *regexp.Regexp

func formOf(pattern string) form {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(pattern) })
}

// MatchString reports whether s has this form.
func (f form) MatchString(s string) bool { return f().MatchString(s) }

// CheckAddress adds what is wrong with the address of something that is asked by
// HTTP. It never repeats it: its bearer may be let in for that alone.
func CheckAddress(p *Problems, field, address string) {
	u, err := url.Parse(address)
	switch {
	case address == "":
		p.Missing(field)
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		p.Add(field, "must be an address that begins with http:// or https://")
	}
}
