package control

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/api"
)

// logResources are the types of a resource that may have a log, in the forms
// that clients write. Others have none: nothing of them runs or is built here.
var logResources = []string{"", "sandbox", "sandboxes"}

// logs answers what the platform knows of workloads, by name: their events. For
// a name that is not there, that is nothing.
func (s *Server) logs(ctx context.Context, r *http.Request) (map[string]doze.Log, error) {
	q, all := r.URL.Query(), map[string]doze.Log{}
	var p doze.Problems
	from, to := api.MomentOf(q, "start", &p), api.MomentOf(q, "end", &p)
	names := strings.FieldsFunc(q.Get("workloadIds"), func(r rune) bool { return r == ',' || r == ' ' })
	if len(names) == 0 || len(names) > doze.LogWorkloadsMax {
		p.Add("workloadIds", "has %d names; it must have 1 to %d, separated by commas", len(names), doze.LogWorkloadsMax)
	}
	if err := p.Err(); err != nil {
		return nil, err
	}
	for _, name := range names {
		log := doze.Log{Lines: []doze.LogLine{}}
		if slices.Contains(logResources, q.Get("resourceType")) {
			sb, err := s.Store.SandboxByName(ctx, api.Caller(ctx).Workspace, name)
			if err != nil && doze.Public(err).Kind != doze.NotFound {
				return nil, err
			}
			log.Lines = logOf(sb.Events, from, to)
		}
		log.Total = len(log.Lines)
		all[name] = log
	}
	return all, nil
}

// logOf are events as lines of a log, the newest first, from a moment on and
// before another; zero is any.
func logOf(events []doze.Event, from, to time.Time) []doze.LogLine {
	lines := []doze.LogLine{}
	for _, e := range slices.Backward(events) {
		if e.Time.Before(from) || !to.IsZero() && !e.Time.Before(to) {
			continue
		}
		lines = append(lines, doze.LogLine{Timestamp: e.Time, Message: e.Message, Severity: severity(e)})
	}
	return lines
}

func severity(e doze.Event) string {
	switch {
	case e.Status == doze.Failed.Status():
		return doze.LogError
	case e.Type == doze.EventNotice:
		return doze.LogWarning
	}
	return doze.LogInfo
}
