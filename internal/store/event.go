package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dozehq/doze"
)

const (
	// eventsMax keeps the newest events of a sandbox: a history for people, not
	// a log.
	eventsMax = 100
	// messageMax bounds what a node may write into an event.
	messageMax = 1 << 10
)

// usual says what an event of a status means when nobody said more.
var usual = map[string]string{
	"UPLOADING":    "the files of the image are awaited",
	"BUILDING":     "the image is being built",
	"DEPLOYING":    "the sandbox is being started",
	"DEPLOYED":     "the sandbox is ready",
	"DEACTIVATING": "the sandbox is being disabled",
	"DEACTIVATED":  "the sandbox is disabled",
	"ARCHIVING":    "the sandbox is being archived",
	"ARCHIVED":     "the sandbox is archived",
	"UNARCHIVING":  "the sandbox is being unarchived",
	"DELETING":     "the sandbox is being deleted",
	"TERMINATED":   "the sandbox has ended",
	"FAILED":       "the sandbox failed",
}

// entry is an event as it is kept.
type entry struct {
	doze.Event
	Shape string `json:"shape,omitempty"` // of a notice: its message without the numbers in it
	Times int    `json:"times,omitempty"` // how many notices of its shape it stands for; 0 is one
}

var number = regexp.MustCompile(`[0-9]+`)

// appendEvent adds an event to the history of a sandbox. A notice that says
// what the last event said, but for numbers, takes its place and counts: a
// sandbox that runs out of memory again and again must not push out the rest.
func appendEvent(ctx context.Context, tx *sql.Tx, sb *Sandbox, kind string, p doze.Phase, message string, at time.Time) error {
	if message == "" {
		message = usual[p.Status()]
	}
	uid, e := sb.UID, newEntry(kind, p, message, at, sb.revision())
	if kind == doze.EventNotice {
		e.Shape = number.ReplaceAllString(e.Message, "#")
		last, err := collect(ctx, tx, scanEntry, `SELECT body FROM sandbox_events WHERE uid = $1 ORDER BY n DESC LIMIT 1`, uid)
		if err != nil {
			return err
		}
		if len(last) > 0 && last[0].Shape == e.Shape {
			e.Times = max(last[0].Times, 1) + 1
			count := fmt.Sprintf(" (the last of %d)", e.Times)
			e.Message = clip(message, messageMax-len(count)) + count
			_, err := tx.ExecContext(ctx, `DELETE FROM sandbox_events WHERE uid = $1
				AND n = (SELECT MAX(n) FROM sandbox_events WHERE uid = $1)`, uid)
			if err != nil {
				return err
			}
		}
	}
	return insertEvents(ctx, tx, []string{uid}, []entry{e})
}

func newEntry(kind string, p doze.Phase, message string, at time.Time, revision int) entry {
	return entry{Event: doze.Event{
		Type: kind, Status: p.Status(), Message: clip(message, messageMax), Time: doze.Time{Time: at},
	}.Revised(revision)}
}

// revision is that of the events of a sandbox: each machine is another one.
func (sb *Sandbox) revision() int { return doze.FirstRevision + sb.Redeploys }

// insertEvents adds one event each to the histories of up to [listMax] sandboxes,
// and forgets the oldest of those that are too long.
func insertEvents(ctx context.Context, tx *sql.Tx, uids []string, all []entry) error {
	marks, args := listOf(uids)
	rows, own := make([]string, len(all)), args
	for i, e := range all {
		body, err := json.Marshal(e)
		if err != nil {
			return err
		}
		args = append(args, string(body))
		rows[i] = fmt.Sprintf("($%d, $%d)", i+1, len(args))
	}
	_, err := tx.ExecContext(ctx, fmt.Sprintf(`INSERT INTO sandbox_events (uid, n, body)
		SELECT v.column1, COALESCE((SELECT MAX(n) FROM sandbox_events AS e WHERE e.uid = v.column1), 0) + 1, v.column2
		FROM (VALUES %s) AS v`, strings.Join(rows, ", ")), args...)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, fmt.Sprintf(`DELETE FROM sandbox_events WHERE uid IN (%s)
		AND n <= (SELECT MAX(n) FROM sandbox_events AS e WHERE e.uid = sandbox_events.uid) - %d`, marks, eventsMax), own...)
	return err
}

// events returns the history of a sandbox, oldest first.
func events(ctx context.Context, q querier, uid string) ([]doze.Event, error) {
	entries, err := collect(ctx, q, scanEntry, `SELECT body FROM sandbox_events WHERE uid = $1 ORDER BY n`, uid)
	all := make([]doze.Event, len(entries))
	for i, e := range entries {
		all[i] = e.Event
	}
	return all, err
}

func scanEntry(r row) (e entry, err error) {
	var body string
	if err := r.Scan(&body); err != nil {
		return e, err
	}
	return e, json.Unmarshal([]byte(body), &e)
}

// clip cuts s to at most limit bytes of valid text.
func clip(s string, limit int) string {
	s = strings.ToValidUTF8(s, "\ufffd")
	if len(s) <= limit {
		return s
	}
	for !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit]
}
