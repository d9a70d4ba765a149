package roster

import (
	"net/http"
	"time"

	"github.com/dozehq/doze/internal/api"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/httpx"
)

// OnceAdopted lets calls wait until the nodes have joined for the first time. Until then
// the records may show operations as under way that a crash cut off. Reads wait only soon
// after the start, and are served without a node. So is a token for the first node.
func (r *Roster) OnceAdopted(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		reads, most := q.Method == http.MethodGet || q.Method == http.MethodHead, joinWait+time.Second
		if reads {
			most = time.Until(r.Began.Add(joinWait))
		}
		wait := time.NewTimer(most)
		defer wait.Stop()
		if q.URL.Path == api.Prefix+tokens {
			h.ServeHTTP(w, q)
			return
		}
		select {
		case <-r.adopted:
		case <-wait.C:
			if !reads {
				httpx.WriteError(w, q, fleet.ErrNoNode)
				return
			}
		case <-q.Context().Done():
			return
		}
		h.ServeHTTP(w, q)
	})
}
