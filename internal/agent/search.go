package agent

import (
	"net/http"
	"path"

	"github.com/dozehq/doze/internal/agent/search"
)

// find looks for files or directories by name.
func (c *fileCalls) find(r *http.Request, arg string) (out search.Found, err error) {
	f, err := search.ParseFind(r.URL.Query())
	if err != nil {
		return out, err
	}
	at, err := c.places.find(arg)
	if err != nil {
		return out, err
	}
	return f.In(r.Context(), at.abs)
}

// fuzzyFind looks for paths that are like a query. Clients that send none name
// it as the last element of the path.
func (c *fileCalls) fuzzyFind(r *http.Request, arg string) (out search.Ranked, err error) {
	at, err := c.places.find(arg)
	if err != nil {
		return out, err
	}
	q := r.URL.Query()
	if q.Get("query") == "" && at.abs != c.places.workDir() && at.abs != "/" {
		q.Set("query", path.Base(at.abs))
		at.abs = path.Dir(at.abs)
	}
	f, err := search.ParseFuzzy(q)
	if err != nil {
		return out, err
	}
	return f.In(r.Context(), at.abs)
}

// grep looks for text in files.
func (c *fileCalls) grep(r *http.Request, arg string) (out search.Hits, err error) {
	g, err := search.ParseGrep(r.URL.Query())
	if err != nil {
		return out, err
	}
	at, err := c.places.find(arg)
	if err != nil {
		return out, err
	}
	return g.In(r.Context(), at.abs)
}
