package api

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/httpx"
)

// A Flag is a parameter of a query that is true or false. All routes read it by
// [Flag.In]; a value that is neither reaches none of them.
type Flag uint8

const (
	CountResources Flag = iota
	CreateIfNotExist
	Follow
	Force
	OfPlatform
	ShowSecrets
	ShowTerminated
	SkipBuild
	Upload
	WithReason
)

// flags are their names in queries.
var flags = [...]string{
	CountResources:   "countResources",
	CreateIfNotExist: "createIfNotExist",
	Follow:           "follow",
	Force:            "force",
	OfPlatform:       "platform",
	ShowSecrets:      "show_secrets",
	ShowTerminated:   "showTerminated",
	SkipBuild:        "skip-build",
	Upload:           "upload",
	WithReason:       "withReason",
}

// Flags returns the names of all flags.
func Flags() []string { return slices.Clone(flags[:]) }

// String is its name in queries.
func (f Flag) String() string { return flags[f] }

// In reports whether a query has f as true.
func (f Flag) In(q url.Values) bool { return q.Get(flags[f]) == "true" }

type mistakesKey struct{}

// examine lets a request through to h, the handler of an endpoint, if nothing is
// wrong with its query by the table of parameters. One that gathers finds that
// in its context.
func examine(rt *Route, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var p doze.Problems
		q := r.URL.Query()
		addFlags(q, &p)
		addWords(q, rt.query, &p)
		if err := p.Err(); err != nil && !rt.gathers {
			httpx.WriteError(w, r, err)
			return
		}
		h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), mistakesKey{}, p)))
	})
}

// Mistakes are those in the query of a request.
func Mistakes(ctx context.Context) doze.Problems {
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
				p.Add(name, "is %q in the query; it must be true or false, or be left out", Clip(v))
			}
		}
	}
}
