package control

import (
	"net/http"
	"net/url"

	"doze"
)

// A flag is a parameter of a query that is true or false. All routes read it by
// [flag.in]; a value that is neither reaches none of them.
type flag uint8

const (
	countResources flag = iota
	createIfNotExist
	force
	showSecrets
	showTerminated
	uploads
	withReason
)

// flags are their names in queries.
var flags = [...]string{
	countResources:   "countResources",
	createIfNotExist: "createIfNotExist",
	force:            "force",
	showSecrets:      "show_secrets",
	showTerminated:   "showTerminated",
	uploads:          "upload",
	withReason:       "withReason",
}

// in reports whether a query has f as true.
func (f flag) in(q url.Values) bool { return q.Get(flags[f]) == "true" }

// checkFlags is the error for the flags in the query of r.
func checkFlags(r *http.Request) error {
	var p doze.Problems
	addFlags(r.URL.Query(), &p)
	return p.Err()
}

// addFlags adds each flag of a query that is neither true nor false: to take
// "yes" for no would be the opposite of what its caller means.
func addFlags(q url.Values, p *doze.Problems) {
	for _, name := range flags {
		for _, v := range q[name] {
			if v != "true" && v != "false" {
				p.Add(name, "is %q in the query; it must be true or false, or be left out", clip(v))
			}
		}
	}
}
