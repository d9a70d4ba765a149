package doze

import (
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
