package control

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/api"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/store"
)

const (
	// logBytes bounds the text of an answer about logs, in bytes, whatever number of
	// workloads it is about.
	logBytes = 4 << 20
	// endLogsTimeout bounds how long a purge waits for a node that takes the events of what
	// has ended.
	endLogsTimeout = 5 * time.Second
)

// logResources and imageResources are the types of a resource that may have a log, in the
// forms that clients write. Others have none: nothing of them runs or is built here.
var (
	logResources   = []string{"", "sandbox", "sandboxes"}
	imageResources = []string{"image", "images"}
)

// logTypes are the types of lines, and the words for all of them.
var logTypes = map[string]string{"": "", "all": "", doze.LogProcess: doze.LogProcess, doze.LogEvent: doze.LogEvent, doze.LogBuild: doze.LogBuild}

// logs answers what workloads wrote and what the platform says of them, by name. For
// a name that never was there, that is nothing.
func (s *Server) logs(ctx context.Context, r *http.Request) (map[string]doze.Log, error) {
	values := r.URL.Query()
	names, q, err := logQueryOf(values)
	if err != nil {
		return nil, err
	}
	w, err := s.Store.Workspace(ctx, api.Caller(ctx).Workspace)
	if err != nil {
		return nil, err
	}
	q.Workspace = w.Name
	if born := w.CreatedAt.Time; q.From.Before(born) { // what is older is of another workspace of the name
		q.From = born
	}
	all := map[string]doze.Log{}
	for _, name := range names {
		q.Name = name
		p := q.Page(nil, nil)
		switch kind := values.Get("resourceType"); {
		case slices.Contains(logResources, kind):
			p, err = logOf(ctx, s, q)
		case slices.Contains(imageResources, kind):
			if !api.Caller(ctx).May(access.Admin) {
				return nil, doze.Errorf(doze.Forbidden, "logs of images need the scope %s", access.Admin)
			}
			p, err = buildLog(ctx, s, q, p, false)
		}
		if err != nil {
			return nil, err
		}
		all[name] = logAnswer(&q, p)
	}
	return all, nil
}

// logQueryOf reads what a caller asks for, and the names of workloads.
func logQueryOf(v url.Values) (names []string, q fleet.LogQuery, err error) {
	var p doze.Problems
	q.From, q.To = api.MomentOf(v, "start", &p), api.MomentOf(v, "end", &p)
	names = strings.FieldsFunc(v.Get("workloadIds"), func(r rune) bool { return r == ',' || r == ' ' })
	if len(names) == 0 || len(names) > doze.LogWorkloadsMax {
		p.Add("workloadIds", "has %d names; it must have 1 to %d, separated by commas", len(names), doze.LogWorkloadsMax)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	kind, known := logTypes[v.Get("type")]
	if q.Type = kind; !known {
		p.Add("type", "must be all, %s, %s or %s", doze.LogProcess, doze.LogEvent, doze.LogBuild)
	}
	q.Severities = strings.FieldsFunc(strings.ToUpper(v.Get("severity")), func(r rune) bool { return r == ',' || r == ' ' })
	for _, word := range q.Severities {
		if !slices.Contains(logSeverities, word) {
			p.Add("severity", "%.80q is none of %s", word, strings.Join(logSeverities, ", "))
		}
	}
	if q.Text = v.Get("search"); len(q.Text) > doze.LogSearchMax {
		p.Add("search", "has %d bytes; at most %d are allowed", len(q.Text), doze.LogSearchMax)
	}
	q.Process = v.Get("process")
	q.OldestFirst = v.Get("order") == "asc"
	q.Limit = doze.LogLinesMax
	if text := v.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			p.Add("limit", "must be a whole number from 1 to %d; more counts as %d", doze.LogLinesMax, doze.LogLinesMax)
		}
		q.Limit = min(n, doze.LogLinesMax)
	}
	if text := v.Get("cursor"); text != "" {
		q.Past = logPosition(text, q.OldestFirst)
		if q.Past == nil || len(names) > 1 {
			p.Add("cursor", "must be the nextCursor of an answer about one workload, in the same order")
		}
	}
	q.Bytes = logBytes / max(1, len(names))
	return names, q, p.Err()
}

// logSeverities are those that a caller may ask for. Lines here have three of them.
var logSeverities = []string{"FATAL", doze.LogError, doze.LogWarning, doze.LogInfo, "DEBUG", "TRACE", "UNKNOWN"}

// logCursor is where an answer ended.
type logCursor struct {
	At     int64  `json:"t"`
	Origin string `json:"o"`
	Oldest bool   `json:"a"`
}

// logPosition reads a cursor, or returns nil. It needs no signature: a forged one shows
// another part of the same log.
func logPosition(text string, oldest bool) *fleet.LogPosition {
	var c logCursor
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || json.Unmarshal(raw, &c) != nil || c.Oldest != oldest {
		return nil
	}
	return &fleet.LogPosition{At: c.At, Origin: c.Origin}
}

// logAnswer is a page in the form of the API.
func logAnswer(q *fleet.LogQuery, p fleet.LogPage) doze.Log {
	log := doze.Log{Lines: []doze.LogLine{}, Total: len(p.Lines)}
	for _, l := range p.Lines {
		log.Lines = append(log.Lines, doze.LogLine{
			Timestamp: doze.Time{Time: time.Unix(0, l.At).UTC()}, Message: l.Text, Severity: l.Severity, Process: l.Process, Stream: l.Stream,
		})
	}
	if p.More || q.OldestFirst {
		raw, _ := json.Marshal(logCursor{p.Next.At, p.Next.Origin, q.OldestFirst}) // numbers and text always encode
		log.Next = base64.RawURLEncoding.EncodeToString(raw)
	}
	return log
}

// buildLog adds what the builds of a name said to a page, of those for sandboxes or of those
// for images alone.
func buildLog(ctx context.Context, s *Server, q fleet.LogQuery, p fleet.LogPage, sandboxes bool) (fleet.LogPage, error) {
	if q.Type != "" && q.Type != doze.LogBuild {
		return p, nil
	}
	lines, err := s.Builds.Lines(ctx, q.Workspace, &q, sandboxes)
	if err != nil || len(lines) == 0 {
		return p, err
	}
	return q.Join(p, lines), nil
}

// logOf is a page of what a node has of a name, of the events on record, and of what builds
// said.
func logOf(ctx context.Context, s *Server, q fleet.LogQuery) (p fleet.LogPage, err error) {
	if q.Type == doze.LogBuild {
		return buildLog(ctx, s, q, q.Page(nil, nil), true)
	}
	if p, err = s.Node.Logs(ctx, q); err != nil {
		return p, err
	}
	if p, err = buildLog(ctx, s, q, p, true); err != nil {
		return p, err
	}
	sb, err := s.Store.SandboxByName(ctx, q.Workspace, q.Name)
	if err != nil {
		if doze.Public(err).Kind == doze.NotFound {
			err = nil
		}
		return p, err
	}
	var events []fleet.LogLine
	for _, l := range eventLines(sb) {
		if q.Takes(l) {
			events = append(events, l)
		}
	}
	return q.Join(p, events), nil
}

// eventLines are the events of a sandbox as lines, each at a time of its own.
func eventLines(sb store.Sandbox) (lines []fleet.LogLine) {
	last := int64(0)
	for _, e := range sb.Events {
		last = max(last+1, e.Time.UnixNano())
		lines = append(lines, fleet.LogLine{
			LogPosition: fleet.LogPosition{At: last, Origin: fleet.EventOrigin(sb.Machine)}, Severity: severity(e), Text: e.Message,
		})
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

// endLogs hands the events of sandboxes that are about to be purged to the node. If it
// does not take them they are lost: records do not wait for it.
func endLogs(ctx context.Context, s *Server, now time.Time) error {
	ended, err := s.Store.Purgeable(ctx, now, purgeBatch)
	if err != nil || len(ended) == 0 {
		return err
	}
	var all []fleet.EndedLog
	for _, sb := range ended {
		all = append(all, fleet.EndedLog{Machine: sb.Machine, Workspace: sb.Metadata.Workspace, Name: sb.Metadata.Name, Events: eventLines(sb)})
	}
	bounded, cancel := context.WithTimeout(ctx, endLogsTimeout)
	defer cancel()
	if err := s.Node.EndLogs(bounded, all); err != nil {
		slog.WarnContext(ctx, "the logs of sandboxes that ended have no events", "err", err)
	}
	return nil
}
