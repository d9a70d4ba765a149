package doze

import (
	"encoding/json"
	"log/slog"
	"strings"
)

// WriteOnly holds a value that callers send and never get back. It decodes
// from JSON like a T; it encodes as nothing under the omitzero option, and it
// logs as "[hidden]".
type WriteOnly[T any] struct {
	reveal func() T // of a function, package fmt prints an address at most: in a field that is not exported it asks no method
}

// Hide wraps v.
func Hide[T any](v T) WriteOnly[T] { return WriteOnly[T]{func() T { return v }} }

// Reveal returns the value. Every call to it is worth a look in review.
func (w WriteOnly[T]) Reveal() (v T) {
	if w.reveal != nil {
		v = w.reveal()
	}
	return v
}

// IsZero is always true: omitzero then leaves the field out of any encoding.
func (WriteOnly[T]) IsZero() bool { return true }

func (w *WriteOnly[T]) UnmarshalJSON(b []byte) error {
	var v T
	err := json.Unmarshal(b, &v)
	*w = Hide(v)
	return err
}

func (WriteOnly[T]) MarshalJSON() ([]byte, error) { return []byte("null"), nil }

func (WriteOnly[T]) LogValue() slog.Value { return slog.StringValue("[hidden]") }

func (WriteOnly[T]) String() string   { return "[hidden]" }
func (WriteOnly[T]) GoString() string { return "[hidden]" }

// Limits of the secrets of a workspace; those of one secret are those that
// variables have, for which they are.
const (
	SecretKeysMax    = 64
	SecretKeyMax     = 253
	SecretBytesMax   = EnvBytesMax
	SecretsMax       = 1000 // of a workspace
	secretKeyExample = "API_TOKEN"
)

var secretKeyForm = formOf(`^[A-Za-z0-9._-]+$`)

// Secret holds values that the variables of sandboxes refer to by the name of
// the secret and a key. In answers its values are masked.
type Secret struct {
	Metadata Metadata          `json:"metadata"`
	Data     map[string]string `json:"data"`
}

// Check adds every mistake of s.
func (s *Secret) Check(p *Problems) {
	s.Metadata.Check(p)
	if len(s.Data) > SecretKeysMax {
		p.Add("data", "has %d keys; at most %d are allowed", len(s.Data), SecretKeysMax)
	}
	bytes := 0
	for k, v := range s.Data {
		bytes += len(k) + len(v)
		if len(k) > SecretKeyMax || !secretKeyForm.MatchString(k) {
			p.Add("data", "has the key %q; it must be letters, digits, dots, dashes and _ such as %s", clip(k), secretKeyExample)
		}
		if k == PullSecretKey {
			if _, err := ParsePullSecret(v); err != nil {
				p.Add("data."+PullSecretKey, "%v", err)
			}
		}
		if strings.ContainsRune(v, 0) {
			p.Add("data", "has a NUL byte in the value of %s", clip(k))
		}
	}
	if bytes > SecretBytesMax {
		p.Add("data", "has %d bytes; at most %d are allowed", bytes, SecretBytesMax)
	}
}
