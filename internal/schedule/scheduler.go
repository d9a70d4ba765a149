package schedule

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/api"
	"github.com/dozehq/doze/internal/bell"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/store"
)

const (
	// startsMax is how many schedules may wait at the same time for their
	// sandboxes to wake and take their processes.
	startsMax = 64
	// startTimeout bounds the start of one: a wake from a slow disk is the
	// longest part.
	startTimeout = 2 * time.Minute
	// startAnswerMax bounds what a sandbox says about a process that it started.
	startAnswerMax = 1 << 20
)

// run starts what is due until ctx ends. One timer serves all
// schedules: the next that is due is an index lookup away.
func (s *Server) run(ctx context.Context) {
	var starts sync.WaitGroup
	defer starts.Wait()
	room := make(chan struct{}, startsMax)
	for {
		wait := clockCheck
		next, err := s.startDue(ctx, &starts, room)
		switch {
		case err != nil:
			wait = retryAfter
			if ctx.Err() == nil {
				slog.ErrorContext(ctx, "schedules are late", "err", err)
			}
		case len(room) == cap(room), s.nodeStops.Load(): // the bell rings when one is over; and we stop next
		case !next.IsZero():
			wait = min(wait, time.Until(next))
		}
		if !s.due.Wait(ctx, wait) {
			return
		}
	}
}

// startDue starts what is due now, as far as there is room, and returns when
// the next is due.
func (s *Server) startDue(ctx context.Context, starts *sync.WaitGroup, room chan struct{}) (next time.Time, err error) {
	if s.setBack.Swap(false) {
		if err := s.Store.RescheduleCron(ctx, time.Now()); err != nil {
			s.setBack.Store(true)
			return next, err
		}
	}
	for len(room) < cap(room) && !s.nodeStops.Load() {
		claims, err := s.Store.ClaimSchedules(ctx, time.Now(), cap(room)-len(room))
		if err != nil {
			return next, err
		}
		if len(claims) == 0 {
			break
		}
		for _, c := range claims {
			room <- struct{}{} // nobody else adds
			starts.Go(func() {
				s.startOne(ctx, c)
				<-room
				s.due.Ring()
			})
		}
	}
	return s.Store.NextSchedule(ctx)
}

// startOne submits a process and records how that went. If we stop meanwhile,
// the next start records that.
func (s *Server) startOne(ctx context.Context, c store.Claim) {
	e := c.Execution
	e.ExecutedAt = doze.Time{Time: time.Now()}
	var err error
	e.StatusCode, e.ProcessName, err = s.submit(ctx, c.Schedule)
	if errors.Is(err, fleet.ErrStopping) { // nothing was started: the next of us does
		s.nodeStops.Store(true)
		if s.Store.ReturnClaim(ctx, c) == nil {
			return
		}
	}
	if ctx.Err() != nil {
		return
	}
	e.Status = doze.ExecutionSucceeded
	if err != nil {
		e.Status, e.Error = doze.ExecutionFailed, "sandbox "+e.Sandbox+": "+doze.Public(err).Message
	}
	outcome := doze.AuditDone
	if err != nil {
		outcome = doze.AuditFailed
	}
	s.Audit.Acted(c.Schedule.Workspace, "schedules.run", "sandboxes/schedules", e.Sandbox+"/"+c.Schedule.ID, outcome, e.Error)
	s.settle(ctx, e)
}

// settle records how an execution went. It is tried again for as long as we
// run; after that it is known as one that was cut short.
func (s *Server) settle(ctx context.Context, e store.Execution) {
	for again := bell.New(); ; {
		err := s.Store.SettleExecution(ctx, e)
		if err == nil || ctx.Err() != nil {
			return
		}
		slog.ErrorContext(ctx, "an execution is not recorded yet", "sandbox", e.Key, "err", err)
		if !again.Wait(ctx, retryAfter) {
			return
		}
	}
}

// submit starts a process in the sandbox of a schedule, which it wakes, and
// returns the status of its answer, 0 if there was none, and the name of the
// process.
func (s *Server) submit(ctx context.Context, of store.Schedule) (status int, name string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, doze.Errorf(doze.Timeout, "it did not start the process within %s", startTimeout))
	defer cancel()
	// One that gets a fresh machine just now is waited for.
	if err := s.Settled(ctx, of.UID); err != nil {
		return 0, "", err
	}
	sb, err := s.Store.Sandbox(ctx, of.UID)
	if err != nil {
		return 0, "", err
	}
	if !sb.Admits() {
		return 0, "", doze.Errorf(doze.Conflict, "it is disabled")
	}
	body, err := json.Marshal(of.Input)
	if err != nil {
		return 0, "", err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://sandbox/process", bytes.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := s.Gate.Transport(sb.Machine, doze.AgentPort).RoundTrip(r)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return 0, "", err
	}
	defer func() { err = cmp.Or(err, resp.Body.Close()) }()
	var said struct {
		Name  string `json:"name"`
		Error string `json:"error"`
	}
	err = json.NewDecoder(io.LimitReader(resp.Body, startAnswerMax)).Decode(&said)
	switch {
	case resp.StatusCode >= http.StatusBadRequest:
		return resp.StatusCode, "", doze.Errorf(doze.Unavailable, "it refused the process: %s", api.Clip(cmp.Or(said.Error, resp.Status)))
	case err != nil:
		return resp.StatusCode, "", doze.Wrap(err, doze.Unavailable, "its answer cannot be read; the process may run")
	}
	return resp.StatusCode, said.Name, nil
}

// Load records that executions were cut short when the platform
// stopped.
func (s *Server) Load(ctx context.Context) error {
	all, err := s.Store.PendingExecutions(ctx)
	for _, e := range all {
		e.Status, e.Error = doze.ExecutionFailed, "the platform stopped while the process was being started: it may have run"
		if err := s.Store.SettleExecution(ctx, e); err != nil {
			return err
		}
	}
	return err
}
