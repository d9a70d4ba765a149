package schedule

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/api"
	"github.com/dozehq/doze/internal/listing"
	"github.com/dozehq/doze/internal/store"
)

const (
	// schedulePage and schedulePageMax are the sizes of a page of schedules and
	// of executions.
	schedulePage    = 20
	schedulePageMax = 100
	// metricsDefault is the window that metrics are about, and metricsBack how
	// far back they go.
	metricsDefault = 24 * time.Hour
	metricsBack    = 7 * 24 * time.Hour
)

// scheduleLists and executionLists are what callers may ask of the lists of a
// workspace, and those of a sandbox the same without some filters.
var (
	scheduleLists = api.Listing{Limit: schedulePage, Most: schedulePageMax, ByTime: true, More: func(v url.Values, q *listing.Query, _ *doze.Problems) {
		if t := v.Get("type"); t == doze.ScheduleCron || t == doze.ScheduleAt {
			q.Phases = []string{t}
		}
		q.Restrict("sandbox", v.Get("sandbox"))
	}}
	executionLists = api.Listing{
		Limit: schedulePage, Most: schedulePageMax, ByTime: true,
		Phases: map[string][]string{"SUCCEEDED": {string(doze.ExecutionSucceeded)}, "FAILED": {string(doze.ExecutionFailed)}},
		More: func(v url.Values, q *listing.Query, p *doze.Problems) {
			q.Restrict("sandbox", v.Get("sandbox"))
			q.Restrict("name", v.Get("schedule"))
			q.Since, q.Until = api.MomentOf(v, "since", p), api.MomentOf(v, "until", p)
		},
	}
)

// within is list of one sandbox alone.
func within[T any](uid string, list func(context.Context, listing.Query, time.Time) (listing.Page[T], error)) func(context.Context, listing.Query, time.Time) (listing.Page[T], error) {
	return func(ctx context.Context, q listing.Query, now time.Time) (listing.Page[T], error) {
		q.Restrict("uid", uid)
		return list(ctx, q, now)
	}
}

func (s *Server) listSchedules(ctx context.Context, r *http.Request) (api.List[doze.Schedule], error) {
	return s.answerSchedules(ctx, r, s.Store.ListSchedules)
}

func (s *Server) schedulesOf(ctx context.Context, r *http.Request) (api.List[doze.Schedule], error) {
	sb, err := s.Store.Living(ctx, api.Caller(ctx).Workspace, r.PathValue("name"))
	if err != nil {
		return api.List[doze.Schedule]{}, err
	}
	return s.answerSchedules(ctx, r, within(sb.UID, s.Store.ListSchedules))
}

func (s *Server) answerSchedules(ctx context.Context, r *http.Request, list func(context.Context, listing.Query, time.Time) (listing.Page[store.Schedule], error)) (api.List[doze.Schedule], error) {
	reveal, err := api.Reveals(ctx, r)
	if err != nil {
		return api.List[doze.Schedule]{}, err
	}
	return api.AnswerListing(ctx, r, scheduleLists, list, func(e store.Schedule) doze.Schedule { return scheduleView(e, reveal) })
}

func (s *Server) listExecutions(ctx context.Context, r *http.Request) (api.List[doze.Execution], error) {
	return api.AnswerListing(ctx, r, executionLists, s.Store.ListExecutions, executionView)
}

func (s *Server) executionsOf(ctx context.Context, r *http.Request) (api.List[doze.Execution], error) {
	sb, err := s.Store.Living(ctx, api.Caller(ctx).Workspace, r.PathValue("name"))
	if err != nil {
		return api.List[doze.Execution]{}, err
	}
	return api.AnswerListing(ctx, r, executionLists, within(sb.UID, s.Store.ListExecutions), executionView)
}

func executionView(e store.Execution) doze.Execution { return e.Execution }

// scheduleView is a schedule as callers see it; reveal shows the values of its
// variables.
func scheduleView(e store.Schedule, reveal bool) doze.Schedule {
	if !reveal {
		e.Input.Env = maps.Clone(e.Input.Env)
		for k := range e.Input.Env {
			e.Input.Env[k] = doze.MaskedValue
		}
	}
	return e.Schedule
}

func (s *Server) schedule(ctx context.Context, r *http.Request) (doze.Schedule, error) {
	reveal, err := api.Reveals(ctx, r)
	if err != nil {
		return doze.Schedule{}, err
	}
	sb, err := s.Store.Living(ctx, api.Caller(ctx).Workspace, r.PathValue("name"))
	if err != nil {
		return doze.Schedule{}, err
	}
	e, err := s.Store.Schedule(ctx, sb.UID, r.PathValue("schedule"))
	return scheduleView(e, reveal), err
}

func (s *Server) createSchedule(ctx context.Context, r *http.Request, body map[string]any) (doze.Schedule, error) {
	sb, err := s.Store.Living(ctx, api.Caller(ctx).Workspace, r.PathValue("name"))
	if err != nil {
		return doze.Schedule{}, err
	}
	now := time.Now()
	e := store.Schedule{Key: store.NewID(), UID: sb.UID, Workspace: sb.Metadata.Workspace}
	var wrong doze.Problems
	api.Decode(&e.Schedule, body, "", &wrong)
	e.Sandbox, e.CreatedAt = sb.Metadata.Name, doze.Time{Time: now}
	if e.ID == "" {
		if e.ID, err = s.newScheduleID(ctx, sb.UID); err != nil {
			return doze.Schedule{}, err
		}
	}
	if err := s.plan(&e, &wrong, now); err != nil {
		return doze.Schedule{}, err
	}
	if err := s.Store.InsertSchedule(ctx, e); err != nil {
		return doze.Schedule{}, err
	}
	s.due.Ring()
	return scheduleView(e, false), nil
}

// newScheduleID is the first of schedule-0, schedule-1… that is free.
func (s *Server) newScheduleID(ctx context.Context, uid string) (string, error) {
	taken, err := s.Store.ScheduleNames(ctx, uid)
	for n := 0; ; n++ {
		if id := fmt.Sprintf("schedule-%d", n); !slices.Contains(taken, id) {
			return id, err
		}
	}
}

// plan completes a schedule that a caller wrote and finds out when it is due.
func (s *Server) plan(e *store.Schedule, wrong *doze.Problems, now time.Time) error {
	e.Check(wrong, now)
	for k, v := range e.Input.Env {
		if v == doze.MaskedValue {
			wrong.Add("input.env", "has the masked value of %q, of which no value is stored", api.Clip(k))
		}
	}
	e.Default()
	e.Resolve(now)
	e.Due = e.Next(now)
	return wrong.Err()
}

// updateSchedule changes a schedule; when it is due changes with its type and
// value only. A variable that comes back masked keeps its value.
func (s *Server) updateSchedule(ctx context.Context, r *http.Request, body map[string]any) (doze.Schedule, error) {
	sb, err := s.Store.Living(ctx, api.Caller(ctx).Workspace, r.PathValue("name"))
	if err != nil {
		return doze.Schedule{}, err
	}
	now := time.Now()
	e, err := s.Store.ChangeSchedule(ctx, sb.UID, r.PathValue("schedule"), func(e *store.Schedule) error {
		was := *e
		var wrong doze.Problems
		api.Decode(&e.Schedule, body, "", &wrong)
		if e.ID != was.ID && e.ID != "" {
			wrong.Add("id", "cannot be changed: create another schedule")
		}
		e.ID, e.Sandbox, e.CreatedAt = was.ID, was.Sandbox, was.CreatedAt
		for k, v := range e.Input.Env {
			if old, there := was.Input.Env[k]; there && v == doze.MaskedValue {
				e.Input.Env[k] = old
			}
		}
		if e.Type != was.Type || e.Value != was.Value {
			return s.plan(e, &wrong, now)
		}
		err := s.plan(e, &wrong, was.Due.Add(-1)) // it may be due by now
		e.Due = was.Due
		return err
	})
	if err != nil {
		return doze.Schedule{}, err
	}
	s.due.Ring()
	return scheduleView(e, false), nil
}

func (s *Server) deleteSchedule(ctx context.Context, r *http.Request) (doze.Schedule, error) {
	sb, err := s.Store.Living(ctx, api.Caller(ctx).Workspace, r.PathValue("name"))
	if err != nil {
		return doze.Schedule{}, err
	}
	e, err := s.Store.DeleteSchedule(ctx, sb.UID, r.PathValue("schedule"))
	return scheduleView(e, false), err
}

// scheduleMetrics counts executions in a window of whole minutes.
func (s *Server) scheduleMetrics(ctx context.Context, r *http.Request) (m doze.ScheduleMetrics, err error) {
	now := time.Now().UTC().Truncate(time.Minute)
	var p doze.Problems
	v := r.URL.Query()
	since, until := api.MomentOf(v, "since", &p).Truncate(time.Minute), api.MomentOf(v, "until", &p).Truncate(time.Minute)
	if until.IsZero() {
		until = now
	}
	if since.IsZero() {
		since = until.Add(-metricsDefault)
	}
	readable := len(p) == 0
	if since.Before(now.Add(-metricsBack)) {
		p.Add("since", "is more than 7 days ago")
	}
	if readable && !since.Before(until) {
		p.Add("since", "must be before until")
	}
	if err := p.Err(); err != nil {
		return m, err
	}
	m.Since, m.Until = doze.Time{Time: since}, doze.Time{Time: until}
	workspace := api.Caller(ctx).Workspace
	if m.Sandboxes, err = s.Store.Count(ctx, workspace); err != nil {
		return m, err
	}
	m.ExecutionsByStatus, m.Schedules, err = s.Store.CountExecutions(ctx, workspace, since, until)
	for _, n := range m.ExecutionsByStatus {
		m.Executions += n
	}
	return m, err
}
