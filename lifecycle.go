package doze

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Limits and defaults of lifecycles (spec 2.5).
const (
	RetentionDefault = 5 * time.Minute
	RetentionMax     = 30 * 24 * time.Hour
	DurationMax      = 10 * 365 * 24 * time.Hour
	PoliciesMax      = 16
	retentionMaxText = "30d" // RetentionMax
)

// Time is a moment as the API writes it: RFC 3339 in UTC. The zero Time is
// left out of bodies.
type Time struct{ time.Time }

// MarshalJSON writes milliseconds, always.
func (t Time) MarshalJSON() ([]byte, error) {
	return []byte(`"` + t.UTC().Format("2006-01-02T15:04:05.000Z07:00") + `"`), nil
}

// UnmarshalJSON takes RFC 3339; an empty string is the zero Time.
func (t *Time) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf("a time must be a string: %w", err)
	}
	if s == "" {
		*t = Time{}
		return nil
	}
	parsed, err := ParseTime(s)
	*t = Time{parsed}
	return err
}

// timeLayouts are the forms of ISO 8601 that people and libraries write. Without
// a zone it is UTC; a fraction of a second may follow in each that has seconds.
var timeLayouts = []string{
	time.RFC3339, "2006-01-02T15:04:05", "2006-01-02T15:04Z07:00", "2006-01-02T15:04", time.DateOnly,
	"2006-01-02T15:04:05Z0700", "20060102T150405Z07:00", "20060102T150405Z0700", "20060102T150405", "20060102",
}

// ParseTime reads an ISO 8601 moment: RFC 3339, its short and its basic form, or
// a date alone (its midnight in UTC).
func ParseTime(s string) (time.Time, error) {
	for _, layout := range timeLayouts {
		if t, err := time.Parse(layout, s); err == nil {
			return t.UTC(), nil
		}
	}
	return time.Time{}, fmt.Errorf("%q is not a time like 2026-01-31T12:00:00Z", clip(s))
}

var units = map[byte]time.Duration{
	's': time.Second, 'm': time.Minute, 'h': time.Hour, 'd': 24 * time.Hour, 'w': 7 * 24 * time.Hour,
}

// ParseDuration reads a whole number and a unit: s, m, h, d or w (spec
// section 8). It is positive and at most [DurationMax].
func ParseDuration(s string) (time.Duration, error) {
	wrong := fmt.Errorf("%q is not a duration like 30s, 15m, 24h, 7d or 2w", clip(s))
	if len(s) < 2 || strings.ContainsAny(s, "+-_") {
		return 0, wrong
	}
	unit, ok := units[s[len(s)-1]]
	n, err := strconv.ParseInt(s[:len(s)-1], 10, 64)
	switch {
	case !ok || err != nil && !errors.Is(err, strconv.ErrRange):
		return 0, wrong
	case err != nil || n > int64(math.MaxInt64/unit) || time.Duration(n)*unit > DurationMax:
		return 0, fmt.Errorf("%q is longer than ten years", clip(s))
	case n == 0:
		return 0, fmt.Errorf("%q is not positive", clip(s))
	}
	return time.Duration(n) * unit, nil
}

// Lifecycle says when a sandbox ends by itself (spec 2.5).
type Lifecycle struct {
	ExpirationPolicies  []ExpirationPolicy `json:"expirationPolicies,omitempty"`
	TerminatedRetention string             `json:"terminatedRetention,omitempty"`
}

// Policy types (spec 2.5).
const (
	TTLIdle   = "ttl-idle"
	TTLMaxAge = "ttl-max-age"
	OnDate    = "date"
)

// ExpirationPolicy is one reason to end a sandbox.
type ExpirationPolicy struct {
	Action string `json:"action"`
	Type   string `json:"type"`
	Value  string `json:"value"`
}

func (l *Lifecycle) check(p *Problems) {
	if l == nil {
		return
	}
	if l.TerminatedRetention != "" {
		if _, err := ParseDuration(l.TerminatedRetention); err != nil {
			p.Add("spec.lifecycle.terminatedRetention", "%v", err)
		}
	}
	if len(l.ExpirationPolicies) > PoliciesMax {
		p.Add("spec.lifecycle.expirationPolicies", "has %d entries; at most %d are allowed", len(l.ExpirationPolicies), PoliciesMax)
	}
	unreadable := p.unreadable("spec.lifecycle.expirationPolicies")
	for i, e := range l.ExpirationPolicies {
		if unreadable && e == (ExpirationPolicy{}) {
			continue
		}
		field := fmt.Sprintf("spec.lifecycle.expirationPolicies[%d]", i)
		if e.Action != "delete" {
			p.Add(field+".action", "must be delete")
		}
		switch e.Type {
		case TTLIdle, TTLMaxAge:
			if _, err := ParseDuration(e.Value); err != nil {
				p.Add(field+".value", "%v", err)
			}
		case OnDate:
			if _, err := ParseTime(e.Value); err != nil {
				p.Add(field+".value", "%v", err)
			}
		default:
			p.Add(field+".type", "must be %s, %s or %s", TTLIdle, TTLMaxAge, OnDate)
		}
	}
}

// Retention is how long a record is kept after the end of its sandbox.
func (l *Lifecycle) Retention() time.Duration {
	if l != nil && l.TerminatedRetention != "" {
		if d, err := ParseDuration(l.TerminatedRetention); err == nil {
			return min(d, RetentionMax)
		}
	}
	return RetentionDefault
}

// capped is l with a retention that is not longer than it lasts.
func (l *Lifecycle) capped() *Lifecycle {
	if l == nil {
		return nil
	}
	if d, err := ParseDuration(l.TerminatedRetention); err != nil || d <= RetentionMax {
		return l
	}
	c := *l
	c.TerminatedRetention = retentionMaxText
	return &c
}

// Deadline returns when the sandbox of s must end, and why: the earliest of ttl,
// expires and the policies. lastUsed moves the idle policies. These do not count while
// the sandbox is in use, when idle is false. The zero time means never.
func (s *SandboxSpec) Deadline(created, lastUsed time.Time, idle bool) (at time.Time, why string) {
	s.EachDeadline(created, lastUsed, idle, func(t time.Time, reason string) {
		if at.IsZero() || t.Before(at) {
			at, why = t, reason
		}
	})
	return at, why
}

// EachDeadline calls each with all moments of which [SandboxSpec.Deadline] is the
// first.
func (s *SandboxSpec) EachDeadline(created, lastUsed time.Time, idle bool, each func(at time.Time, why string)) {
	if d, err := ParseDuration(s.Runtime.TTL); err == nil {
		each(created.Add(d), "its ttl of "+s.Runtime.TTL+" is over")
	}
	if t, err := ParseTime(s.Runtime.Expires); err == nil {
		each(t, "it expired at "+s.Runtime.Expires)
	}
	if s.Lifecycle == nil {
		return
	}
	for _, p := range s.Lifecycle.ExpirationPolicies {
		d, _ := ParseDuration(p.Value)
		switch p.Type {
		case TTLIdle:
			if idle && d > 0 {
				each(lastUsed.Add(d), "nobody used it for "+p.Value)
			}
		case TTLMaxAge:
			if d > 0 {
				each(created.Add(d), "its maximum age of "+p.Value+" is over")
			}
		case OnDate:
			if t, err := ParseTime(p.Value); err == nil {
				each(t, "its date "+p.Value+" has come")
			}
		}
	}
}
