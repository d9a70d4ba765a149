package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"strings"
	"time"
	"unicode/utf8"

	"doze"
)

const (
	// eventsMax keeps the newest events of a sandbox: a history for people, not
	// a log.
	eventsMax = 100
	// messageMax bounds what a node may write into an event.
	messageMax = 1 << 10
)

// Event types: a change of the status, and something that happened in it.
const (
	deployment = "deployment"
	notice     = "notice"
)

// usual says what an event of a status means when nobody said more.
var usual = map[string]string{
	"DEPLOYING":    "the sandbox is being started",
	"DEPLOYED":     "the sandbox is ready",
	"DEACTIVATING": "the sandbox is being disabled",
	"DEACTIVATED":  "the sandbox is disabled",
	"DELETING":     "the sandbox is being deleted",
	"TERMINATED":   "the sandbox has ended",
	"FAILED":       "the sandbox failed",
}

// appendEvent adds an event to the history of a sandbox. A notice that says
// what the last event said takes its place: a client that tries the impossible
// again and again must not push out the rest.
func appendEvent(ctx context.Context, tx *sql.Tx, uid, kind string, p doze.Phase, message string, at time.Time) error {
	if message == "" {
		message = usual[p.Status()]
	}
	body, err := json.Marshal(doze.Event{
		Type: kind, Status: p.Status(), Message: clip(message), Time: doze.Time{Time: at},
	})
	if err != nil {
		return err
	}
	if kind == notice {
		_, err := tx.ExecContext(ctx, `DELETE FROM sandbox_events WHERE uid = $1 AND n = (SELECT MAX(n) FROM sandbox_events WHERE uid = $1)
			AND body->>'type' = $2 AND body->>'message' = $3`, uid, notice, clip(message))
		if err != nil {
			return err
		}
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO sandbox_events (uid, n, body)
		SELECT $1, COALESCE(MAX(n), 0) + 1, $2 FROM sandbox_events WHERE uid = $1`, uid, string(body))
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `DELETE FROM sandbox_events WHERE uid = $1
		AND n <= (SELECT MAX(n) FROM sandbox_events WHERE uid = $1) - $2`, uid, eventsMax)
	return err
}

// events returns the history of a sandbox, oldest first.
func events(ctx context.Context, q querier, uid string) ([]doze.Event, error) {
	return collect(ctx, q, func(r row) (e doze.Event, err error) {
		var body string
		if err := r.Scan(&body); err != nil {
			return e, err
		}
		return e, json.Unmarshal([]byte(body), &e)
	}, `SELECT body FROM sandbox_events WHERE uid = $1 ORDER BY n`, uid)
}

// clip cuts s to at most messageMax bytes of valid text.
func clip(s string) string {
	s = strings.ToValidUTF8(s, "�")
	if len(s) <= messageMax {
		return s
	}
	cut := messageMax
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut]
}
