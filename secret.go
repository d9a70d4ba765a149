package doze

import (
	"encoding/json"
	"log/slog"
)

// WriteOnly holds a value that callers send and never get back. It decodes
// from JSON like a T; it encodes as nothing under the omitzero option, and it
// logs as "[hidden]".
type WriteOnly[T any] struct{ v T }

// Hide wraps v.
func Hide[T any](v T) WriteOnly[T] { return WriteOnly[T]{v} }

// Reveal returns the value. Every call to it is worth a look in review.
func (w WriteOnly[T]) Reveal() T { return w.v }

// IsZero is always true: omitzero then leaves the field out of any encoding.
func (WriteOnly[T]) IsZero() bool { return true }

func (w *WriteOnly[T]) UnmarshalJSON(b []byte) error { return json.Unmarshal(b, &w.v) }

func (WriteOnly[T]) MarshalJSON() ([]byte, error) { return []byte("null"), nil }

func (WriteOnly[T]) LogValue() slog.Value { return slog.StringValue("[hidden]") }

func (WriteOnly[T]) String() string   { return "[hidden]" }
func (WriteOnly[T]) GoString() string { return "[hidden]" }
