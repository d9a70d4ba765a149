package doze

import (
	"context"
	"errors"
	"fmt"
)

// Kind says what the caller of a failed call can do about it.
type Kind uint8

// The zero Kind is Internal: an error that nobody classified is our fault.
const (
	Internal Kind = iota
	Invalid
	Unauthenticated
	Forbidden
	NotFound
	Conflict
	Exhausted
	Unavailable
	Timeout
	Unsupported
	Unprocessable // well formed, but it cannot be done to what is there
	TooLarge
)

// kinds is the only place where an error meets HTTP.
var kinds = [...]struct {
	name   string // the "error" field of the body
	status int    // the "code" field of the body and the HTTP status
}{
	Internal:        {"internal", 500},
	Invalid:         {"invalid", 400},
	Unauthenticated: {"unauthenticated", 401},
	Forbidden:       {"forbidden", 403},
	NotFound:        {"not_found", 404},
	Conflict:        {"conflict", 409},
	Exhausted:       {"exhausted", 429},
	Unavailable:     {"unavailable", 503},
	Timeout:         {"timeout", 504},
	Unsupported:     {"unsupported", 501},
	Unprocessable:   {"unprocessable", 422},
	TooLarge:        {"too_large", 413},
}

func (k Kind) String() string { return kinds[k].name }

// Status returns the HTTP status that reports k.
func (k Kind) Status() int { return kinds[k].status }

// ParseKind is the inverse of [Kind.String]. An unknown name is Internal.
func ParseKind(name string) Kind {
	for k, row := range kinds {
		if row.name == name {
			return Kind(k)
		}
	}
	return Internal
}

// KindOfStatus returns the kind that reports an HTTP status. A status of no
// kind is Internal.
func KindOfStatus(status int) Kind {
	for k, row := range kinds {
		if row.status == status {
			return Kind(k)
		}
	}
	return Internal
}

// Error is an error whose Message may be shown to the caller. Err, the cause,
// is for our log and is never shown.
type Error struct {
	Kind    Kind
	Message string
	Err     error

	// Name, if set, replaces the kind's name in the "error" field of the body,
	// where clients look for a finer one such as [NameSandboxExists].
	Name string
	// Fields are further public members of the body.
	Fields map[string]any
}

func (e *Error) Error() string {
	if e.Err == nil {
		return e.Message
	}
	return e.Message + ": " + e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

// Errorf returns an [Error] with no cause.
func Errorf(k Kind, format string, args ...any) error {
	return &Error{Kind: k, Message: fmt.Sprintf(format, args...)}
}

// Wrap hides err behind a message that may be shown to the caller.
func Wrap(err error, k Kind, format string, args ...any) error {
	return &Error{Kind: k, Message: fmt.Sprintf(format, args...), Err: err}
}

// Names of errors that are finer than their kinds: docs/api/errors.md has each of them.
const (
	NameArchived       = "WORKLOAD_ARCHIVED"    // of a sandbox that must be unarchived first
	NameUnavailable    = "WORKLOAD_UNAVAILABLE" // with [NotFound]: the sandbox is disabled
	NameInvalidImage   = "INVALID_IMAGE"        // it cannot be run
	NameVersion        = "invalid_api_version"
	NameSandboxExists  = "SANDBOX_ALREADY_EXISTS"
	NameVolumeExists   = "VOLUME_ALREADY_EXISTS"
	NameVolumeAttached = "VOLUME_ATTACHED"
	NameTemplateExists = "VOLUME_TEMPLATE_ALREADY_EXISTS"
	NameDriveExists    = "DRIVE_ALREADY_EXISTS"
	NameDriveMounted   = "DRIVE_MOUNTED"
	NameQuotaExceeded  = "QUOTA_EXCEEDED" // of the workspace; Fields name it: quota, used, limit
	NameRateLimited    = "RATE_LIMITED"   // of a caller; Retry-After says for how long
)

// Public returns the part of err that may leave the process.
func Public(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return &Error{Kind: e.Kind, Message: e.Message, Name: e.Name, Fields: e.Fields}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return &Error{Kind: Timeout, Message: "the operation took too long"}
	}
	return &Error{Kind: Internal, Message: "internal error"}
}
