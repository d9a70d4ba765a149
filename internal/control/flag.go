package control

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/httpx"
)

// A flag is a parameter of a query that is true or false. All routes read it by
// [flag.in]; a value that is neither reaches none of them.
type flag uint8

const (
	countResources flag = iota
	createIfNotExist
	force
	ofPlatform
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
	ofPlatform:       "platform",
	showSecrets:      "show_secrets",
	showTerminated:   "showTerminated",
	uploads:          "upload",
	withReason:       "withReason",
}

// in reports whether a query has f as true.
func (f flag) in(q url.Values) bool { return q.Get(flags[f]) == "true" }

type mistakesKey struct{}

// examine lets a request through to h, the handler of an endpoint, if nothing is
// wrong with its query by the table of parameters. One that gathers finds that
// in its context.
func examine(e endpoint, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var p doze.Problems
		q := r.URL.Query()
		addFlags(q, &p)
		addWords(q, e.query, &p)
		if err := p.Err(); err != nil && !e.gathers {
			httpx.WriteError(w, r, err)
			return
		}
		h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), mistakesKey{}, p)))
	})
}

// mistakesOf are those in the query of a request.
func mistakesOf(ctx context.Context) doze.Problems {
	p, _ := ctx.Value(mistakesKey{}).(doze.Problems)
	return slices.Clip(p)
}

// addWords adds each parameter, of those that are one of a few words, that is
// another. An empty one counts as left out.
func addWords(q url.Values, names []string, p *doze.Problems) {
	for _, name := range names {
		all := parameters[name].Schema
		if v := q.Get(name); v != "" && all != nil && len(all.Enum) > 0 && !slices.Contains(all.Enum, v) {
			last := len(all.Enum) - 1
			p.Add(name, "must be %s or %s", strings.Join(all.Enum[:last], ", "), all.Enum[last])
		}
	}
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
