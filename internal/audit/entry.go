package audit

import (
	"context"
	"strings"
	"unicode/utf8"

	"github.com/dozehq/doze"
)

// Entry is the line of one request while it is served. One goroutine has it at
// a time.
type Entry struct {
	doze.AuditLine
	Begun bool // it is written, and waits for its outcome
}

// Bounds of what callers write into a line, in bytes: enough to know it by.
const (
	nameMax = 256
	wordMax = 128
)

// bound cuts what a caller could make long. A line has at most some 2 KB.
func bound(l *doze.AuditLine) {
	for text, most := range map[*string]int{
		&l.Workspace: wordMax, &l.Actor.Sub: wordMax, &l.Actor.Key: wordMax, &l.Source: wordMax, &l.Action: wordMax, &l.Method: wordMax,
		&l.Route: nameMax, &l.Object.Kind: wordMax, &l.Object.Name: nameMax, &l.Error: wordMax, &l.RequestID: wordMax,
		&l.ClientRequestID: wordMax, &l.Detail: nameMax,
	} {
		*text = clip(*text, most)
	}
}

// clip cuts s to at most limit bytes of valid text without a NUL, which no
// database takes.
func clip(s string, limit int) string {
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "\ufffd"), "\x00", "\ufffd")
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit]
}

type entryKey struct{}

// With returns a context in which [Of] finds e.
func With(ctx context.Context, e *Entry) context.Context {
	return context.WithValue(ctx, entryKey{}, e)
}

// Of is the entry of a request, or one that nobody reads.
func Of(ctx context.Context) *Entry {
	if e, ok := ctx.Value(entryKey{}).(*Entry); ok {
		return e
	}
	return new(Entry)
}

// By says who sends a request that came without a credential, and where they are.
func By(ctx context.Context, sub, kind, workspace string) {
	e := Of(ctx)
	e.Actor, e.Workspace = doze.AuditActor{Sub: sub, Type: kind}, workspace
}

// About says what a request is about, where the path does not.
func About(ctx context.Context, kind, name string) {
	Of(ctx).Object = doze.AuditObject{Kind: kind, Name: name}
}

// Refused says by which name an error is answered.
func Refused(ctx context.Context, name string) { Of(ctx).Error = name }
