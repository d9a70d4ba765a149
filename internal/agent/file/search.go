package file

import (
	"net/http"
	"path"

	"github.com/dozehq/doze/internal/agent/search"
)

// Find looks for files or directories by name.
func (c *Calls) Find(r *http.Request, arg string) (out search.Found, err error) {
	f, err := search.ParseFind(r.URL.Query())
	if err != nil {
		return out, err
	}
	at, err := c.places.Find(arg)
	if err != nil {
		return out, err
	}
	return f.In(r.Context(), at.Abs)
}

// FuzzyFind looks for paths that are like a query. Clients that send none name
// it as the last element of the path.
func (c *Calls) FuzzyFind(r *http.Request, arg string) (out search.Ranked, err error) {
	at, err := c.places.Find(arg)
	if err != nil {
		return out, err
	}
	q := r.URL.Query()
	if q.Get("query") == "" && at.Abs != c.places.WorkDir() && at.Abs != "/" {
		q.Set("query", path.Base(at.Abs))
		at.Abs = path.Dir(at.Abs)
	}
	f, err := search.ParseFuzzy(q)
	if err != nil {
		return out, err
	}
	return f.In(r.Context(), at.Abs)
}

// Grep looks for text in files.
func (c *Calls) Grep(r *http.Request, arg string) (out search.Hits, err error) {
	g, err := search.ParseGrep(r.URL.Query())
	if err != nil {
		return out, err
	}
	at, err := c.places.Find(arg)
	if err != nil {
		return out, err
	}
	return g.In(r.Context(), at.Abs)
}
