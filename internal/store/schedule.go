package store

import (
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/listing"
)

// Schedule is the record of a schedule.
type Schedule struct {
	doze.Schedule
	Key       string // never reused; its ID is, by callers
	UID       string // of its sandbox
	Workspace string
	Due       time.Time
}

// Execution is the record of an execution.
type Execution struct {
	doze.Execution
	Key      string
	Retained int // executions that its schedule wants kept
}

// Claim is a schedule that is due, with the execution to make of it.
type Claim struct {
	Schedule  Schedule
	Execution Execution
}

const (
	schedulePlace    = "schedule/" // of what is sealed in a record
	scheduleColumns  = `id, uid, workspace, next_at, sealed, body`
	executionColumns = `id, body`
	errNoSchedule    = "the sandbox has no schedule %.80q"
)

// InsertSchedule adds a schedule. A name that another one of the sandbox has is
// a Conflict; more than [doze.SchedulesMax] are Exhausted; a sandbox that has
// ended is NotFound.
func (s *Store) InsertSchedule(ctx context.Context, e Schedule) error {
	err := s.update(ctx, func(tx *sql.Tx) error {
		if _, err := one(ctx, tx, scanText, "the sandbox was deleted meanwhile", `SELECT uid FROM sandboxes WHERE uid = $1 AND `+alive, e.UID); err != nil {
			return err
		}
		others, err := one(ctx, tx, scanNumber, "", `SELECT COUNT(*) FROM schedules WHERE uid = $1`, e.UID)
		if err != nil {
			return err
		}
		if others >= doze.SchedulesMax {
			return doze.Errorf(doze.Exhausted, "the sandbox has %d schedules, which is the limit: delete one first", others)
		}
		return s.insertSchedule(ctx, tx, e)
	})
	if duplicate(err) {
		return doze.Errorf(doze.Conflict, "the sandbox has a schedule %s already", e.ID)
	}
	return wrap(err, "insert schedule")
}

func (s *Store) insertSchedule(ctx context.Context, tx *sql.Tx, e Schedule) error {
	sealed, body, err := s.encodeSchedule(e)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO schedules (id, uid, workspace, sandbox, name, search, phase, next_at, created_at, sealed, body)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`,
		e.Key, e.UID, e.Workspace, e.Sandbox, e.ID, strings.ToLower(e.ID+between+e.Sandbox), e.Type, millis(e.Due), millis(e.CreatedAt.Time), sealed, body)
	return err
}

// ChangeSchedule hands a schedule to fn and writes what fn makes of it, but for
// its name, in one transaction.
func (s *Store) ChangeSchedule(ctx context.Context, uid, id string, fn func(*Schedule) error) (e Schedule, err error) {
	err = s.update(ctx, func(tx *sql.Tx) error {
		if e, err = s.scheduleOf(ctx, tx, uid, id); err != nil {
			return err
		}
		if err := fn(&e); err != nil {
			return err
		}
		sealed, body, err := s.encodeSchedule(e)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `UPDATE schedules SET phase = $1, next_at = $2, sealed = $3, body = $4 WHERE id = $5`, e.Type, millis(e.Due), sealed, body, e.Key)
		return err
	})
	return e, wrap(err, "change schedule")
}

// Schedule returns one of a sandbox by what callers know it by, or NotFound.
func (s *Store) Schedule(ctx context.Context, uid, id string) (Schedule, error) {
	return s.scheduleOf(ctx, s.read, uid, id)
}

func (s *Store) scheduleOf(ctx context.Context, q querier, uid, id string) (Schedule, error) {
	return one(ctx, q, s.scanSchedule, fmt.Sprintf(errNoSchedule, id),
		`SELECT `+scheduleColumns+` FROM schedules WHERE uid = $1 AND name = $2`, uid, id)
}

// ScheduleNames returns what the schedules of a sandbox are known by.
func (s *Store) ScheduleNames(ctx context.Context, uid string) ([]string, error) {
	all, err := collect(ctx, s.read, scanText, `SELECT name FROM schedules WHERE uid = $1`, uid)
	return all, wrap(err, "read the names of schedules")
}

// DeleteSchedule removes a schedule and returns it, or NotFound. Its executions
// stay.
func (s *Store) DeleteSchedule(ctx context.Context, uid, id string) (Schedule, error) {
	return one(ctx, s.write, s.scanSchedule, fmt.Sprintf(errNoSchedule, id),
		`DELETE FROM schedules WHERE uid = $1 AND name = $2 RETURNING `+scheduleColumns, uid, id)
}

// ListSchedules returns a page of schedules, in the manner of [Store.List].
// Query.Phases are types.
func (s *Store) ListSchedules(ctx context.Context, q listing.Query, now time.Time) (p listing.Page[Schedule], err error) {
	q.ExternalID, q.Terminated = "", false // of sandboxes only
	total, err := one(ctx, s.read, scanNumber, "", `SELECT COUNT(*) FROM schedules WHERE workspace = $1 AND ($2 = '' OR uid = $2)`, q.Workspace, q.Only["uid"])
	if err != nil {
		return p, wrap(err, "count schedules")
	}
	p, err = pageOf(ctx, s.read, listed[Schedule]{
		table: "schedules", columns: scheduleColumns, key: "id", scan: s.scanSchedule,
		where: func(e Schedule) listing.Cursor {
			return listing.Cursor{UID: e.Key, Name: e.ID, Time: millis(e.CreatedAt.Time)}
		},
	}, q, now)
	p.Total = total
	return p, wrap(err, "list schedules")
}

// ListExecutions returns a page of executions that are over, in the manner of
// [Store.List].
func (s *Store) ListExecutions(ctx context.Context, q listing.Query, now time.Time) (p listing.Page[Execution], err error) {
	q.ExternalID, q.Terminated = "", false // of sandboxes only
	total, err := one(ctx, s.read, scanNumber, "", `SELECT COUNT(*) FROM executions WHERE workspace = $1 AND ($2 = '' OR uid = $2) AND phase <> $3`,
		q.Workspace, q.Only["uid"], string(doze.ExecutionPending))
	if err != nil {
		return p, wrap(err, "count executions")
	}
	p, err = pageOf(ctx, s.read, listed[Execution]{
		table: "executions", columns: executionColumns, key: "id", ended: string(doze.ExecutionPending), scan: scanExecution,
		where: func(e Execution) listing.Cursor {
			return listing.Cursor{UID: e.Key, Name: e.ScheduleID, Time: millis(e.CreatedAt.Time)}
		},
	}, q, now)
	p.Total = total
	return p, wrap(err, "list executions")
}

// CountExecutions counts those of a workspace that were made from since,
// inclusive, to until, exclusive, and its schedules.
func (s *Store) CountExecutions(ctx context.Context, workspace string, since, until time.Time) (byStatus map[doze.ExecutionStatus]int, schedules int, err error) {
	byStatus = map[doze.ExecutionStatus]int{doze.ExecutionSucceeded: 0, doze.ExecutionFailed: 0}
	for status := range byStatus {
		if byStatus[status], err = one(ctx, s.read, scanNumber, "", `SELECT COUNT(*) FROM executions
			WHERE workspace = $1 AND created_at >= $2 AND created_at < $3 AND phase = $4`, workspace, millis(since), millis(until), string(status)); err != nil {
			return nil, 0, wrap(err, "count executions")
		}
	}
	schedules, err = one(ctx, s.read, scanNumber, "", `SELECT COUNT(*) FROM schedules WHERE workspace = $1`, workspace)
	return byStatus, schedules, wrap(err, "count schedules")
}

// NextSchedule returns when the next schedule is due, or the zero time.
func (s *Store) NextSchedule(ctx context.Context) (time.Time, error) {
	return s.earliest(ctx, `SELECT MIN(next_at) FROM schedules`)
}

// ClaimSchedules returns up to limit schedules that are due, the earliest first,
// each with the record of an execution that is pending. They are not due any
// more: those of the type at are gone, however often one of the type cron was
// due meanwhile it is once.
func (s *Store) ClaimSchedules(ctx context.Context, now time.Time, limit int) (claims []Claim, err error) {
	err = s.update(ctx, func(tx *sql.Tx) error {
		due, err := collect(ctx, tx, s.scanSchedule, `SELECT `+scheduleColumns+` FROM schedules WHERE next_at <= $1 ORDER BY next_at, id LIMIT $2`, millis(now), limit)
		if err != nil {
			return err
		}
		for _, e := range due {
			next := e.Next(now)
			if next.IsZero() {
				_, err = tx.ExecContext(ctx, `DELETE FROM schedules WHERE id = $1`, e.Key)
			} else {
				_, err = tx.ExecContext(ctx, `UPDATE schedules SET next_at = $1 WHERE id = $2`, millis(next), e.Key)
			}
			if err != nil {
				return err
			}
			execution, err := insertExecution(ctx, tx, e, now)
			if err != nil {
				return err
			}
			claims = append(claims, Claim{e, execution})
		}
		return nil
	})
	return claims, wrap(err, "claim schedules")
}

// ReturnClaim makes a schedule due again of which nothing was started. One that
// was deleted meanwhile stays so; one of the type at comes back.
func (s *Store) ReturnClaim(ctx context.Context, c Claim) error {
	e := c.Schedule
	err := s.update(ctx, func(tx *sql.Tx) error {
		there, err := collect(ctx, tx, scanText, `DELETE FROM executions WHERE id = $1 RETURNING id`, c.Execution.Key)
		if err != nil || len(there) == 0 { // its sandbox has ended
			return err
		}
		if e.Type == doze.ScheduleCron {
			_, err := tx.ExecContext(ctx, `UPDATE schedules SET next_at = $1 WHERE id = $2`, millis(e.Due), e.Key)
			return err
		}
		return s.insertSchedule(ctx, tx, e)
	})
	return wrap(err, "return a claim")
}

// insertExecution adds the pending execution of a schedule.
func insertExecution(ctx context.Context, tx *sql.Tx, of Schedule, now time.Time) (e Execution, err error) {
	n, err := one(ctx, tx, scanNumber, "", `SELECT COALESCE(MAX(n), 0) + 1 FROM executions WHERE uid = $1`, of.UID)
	if err != nil {
		return e, err
	}
	e.ID = fmt.Sprintf("%012d", n) // in the order of its digits
	e.Key, e.Retained = of.UID+"/"+e.ID, of.MaxExecutions
	e.ScheduleID, e.Sandbox, e.Timeout = of.ID, of.Sandbox, *of.Input.Timeout
	e.Status, e.CreatedAt = doze.ExecutionPending, doze.Time{Time: now}
	body, err := json.Marshal(executionContent{e.Execution, e.Retained})
	if err != nil {
		return e, err
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO executions (id, uid, n, workspace, sandbox, name, search, phase, created_at, body)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`,
		e.Key, of.UID, n, of.Workspace, of.Sandbox, of.ID, strings.ToLower(of.ID+between+of.Sandbox), string(e.Status), millis(now), string(body))
	return e, err
}

// SettleExecution records how a pending execution went, and drops the oldest ones that
// are too many. A schedule whose sandbox has ended is forgotten already.
func (s *Store) SettleExecution(ctx context.Context, e Execution) error {
	body, err := json.Marshal(executionContent{e.Execution, e.Retained})
	if err != nil {
		return wrap(err, "encode execution")
	}
	uid, _, _ := strings.Cut(e.Key, "/")
	err = s.update(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `UPDATE executions SET phase = $1, body = $2 WHERE id = $3`, string(e.Status), string(body), e.Key); err != nil {
			return err
		}
		const oldest = `DELETE FROM executions WHERE uid = $1 AND phase <> 'pending' AND (name = $2 OR $2 = '') AND n <= (
			SELECT n FROM executions WHERE uid = $1 AND (name = $2 OR $2 = '') ORDER BY n DESC LIMIT 1 OFFSET $3)`
		if _, err := tx.ExecContext(ctx, oldest, uid, e.ScheduleID, e.Retained); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, oldest, uid, "", doze.ExecutionsPerSandbox)
		return err
	})
	return wrap(err, "settle an execution")
}

// PendingExecutions returns those that were being submitted.
func (s *Store) PendingExecutions(ctx context.Context) ([]Execution, error) {
	all, err := collect(ctx, s.read, scanExecution, `SELECT `+executionColumns+` FROM executions WHERE phase = 'pending'`)
	return all, wrap(err, "read pending executions")
}

// RescheduleCron makes those of the type cron due at the next of their minutes
// from now on, if they would be later: somebody set the clock back.
func (s *Store) RescheduleCron(ctx context.Context, now time.Time) error {
	err := s.update(ctx, func(tx *sql.Tx) error {
		all, err := collect(ctx, tx, s.scanSchedule, `SELECT `+scheduleColumns+` FROM schedules WHERE phase = $1 AND next_at > $2`, doze.ScheduleCron, millis(now))
		if err != nil {
			return err
		}
		for _, e := range all {
			if next := e.Next(now); next.Before(e.Due) {
				if _, err := tx.ExecContext(ctx, `UPDATE schedules SET next_at = $1 WHERE id = $2`, millis(next), e.Key); err != nil {
					return err
				}
			}
		}
		return nil
	})
	return wrap(err, "reschedule")
}

// forgetSchedules removes the schedules and executions of sandboxes that end.
func forgetSchedules(ctx context.Context, tx *sql.Tx, uids []string) error {
	marks, args := listOf(uids)
	if _, err := tx.ExecContext(ctx, `DELETE FROM schedules WHERE uid IN (`+marks+`)`, args...); err != nil { //nolint:gosec // G202: what is added are the names of parameters
		return err
	}
	_, err := tx.ExecContext(ctx, `DELETE FROM executions WHERE uid IN (`+marks+`)`, args...) //nolint:gosec // G202: what is added are the names of parameters
	return err
}

// encodeSchedule returns the columns of a record that are not searched.
func (s *Store) encodeSchedule(e Schedule) (sealed, body string, err error) {
	plain, err := json.Marshal(e.Input.Env)
	if err != nil {
		return "", "", err
	}
	e.Input.Env = nil
	b, err := json.Marshal(e.Schedule)
	return hex.EncodeToString(s.cipher.Seal(plain, schedulePlace+e.Key)), string(b), err
}

func (s *Store) scanSchedule(r row) (e Schedule, err error) {
	var text, body string
	var due int64
	if err := r.Scan(&e.Key, &e.UID, &e.Workspace, &due, &text, &body); err != nil {
		return e, err
	}
	if err := json.Unmarshal([]byte(body), &e.Schedule); err != nil {
		return e, fmt.Errorf("the body of schedule %s is damaged: %w", e.Key, err)
	}
	e.Due = moment(due)
	sealed, err := hex.DecodeString(text)
	if err != nil {
		return e, err
	}
	plain, err := s.cipher.Unseal(sealed, schedulePlace+e.Key)
	if err != nil {
		return e, err
	}
	return e, json.Unmarshal(plain, &e.Input.Env)
}

// executionContent is the body of a record. The name of the member of each is
// part of the file format.
type executionContent struct {
	Execution doze.Execution `json:"execution"`
	Retained  int            `json:"kept"`
}

func scanExecution(r row) (e Execution, err error) {
	var body string
	if err := r.Scan(&e.Key, &body); err != nil {
		return e, err
	}
	var c executionContent
	if err := json.Unmarshal([]byte(body), &c); err != nil {
		return e, fmt.Errorf("the body of execution %s is damaged: %w", e.Key, err)
	}
	e.Execution, e.Retained = c.Execution, c.Retained
	return e, nil
}
