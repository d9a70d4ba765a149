package doze

import (
	"errors"
	"slices"
	"strings"
)

// FunctionsMax bounds the functions that the rules of one request call.
const FunctionsMax = 10

// Functions are what {{FUNC:name}} may name in a value of a routing rule.
var Functions = []string{
	"date", "datetime", "iso8601", "nonce", "randhex", "randint", "randstr", "time", "timestamp", "timestamp_ms", "timestamp_ns",
	"uuid", "uuidv4", "uuidv7",
}

// Template is a value of a routing rule: text with references of the form
// {{SECRET:name}} and {{FUNC:name}}. What they stand for is text, too: it is not
// read again.
type Template []TemplatePart

// TemplatePart is one of the three; the others are empty.
type TemplatePart struct {
	Text, Secret, Function string
}

const (
	openReference  = "{{"
	closeReference = "}}"
	// SecretReference begins a reference to a secret.
	SecretReference = "{{SECRET:"
)

var secretNameForm = formOf(`^[A-Za-z0-9_.-]{1,128}$`)

var (
	errReference  = errors.New("has {{ that begins no reference: those are {{SECRET:name}} and {{FUNC:name}}")
	errSecretName = errors.New("refers to a secret by a name that none can have: it must be letters, digits, dots, dashes and _")
	errFunction   = errors.New("refers to a function that does not exist: there are " + strings.Join(Functions, ", "))
	errFunctions  = errors.New("calls more than 10 functions")
)

// ParseTemplate reads a value of a routing rule. Whatever begins like a reference
// must be one: what was meant to be replaced is never sent as it is.
func ParseTemplate(s string) (Template, error) {
	var t Template
	for s != "" {
		text, rest, found := strings.Cut(s, openReference)
		if text != "" {
			t = append(t, TemplatePart{Text: text})
		}
		if !found {
			break
		}
		reference, after, closed := strings.Cut(rest, closeReference)
		if !closed {
			return nil, errReference
		}
		part, err := parseReference(reference)
		if err != nil {
			return nil, err
		}
		t, s = append(t, part), after
	}
	if t.Calls() > FunctionsMax {
		return nil, errFunctions
	}
	return t, nil
}

func parseReference(s string) (TemplatePart, error) {
	kind, name, _ := strings.Cut(s, ":")
	switch {
	case kind == "SECRET" && secretNameForm.MatchString(name):
		return TemplatePart{Secret: name}, nil
	case kind == "SECRET":
		return TemplatePart{}, errSecretName
	case kind == "FUNC" && slices.Contains(Functions, name):
		return TemplatePart{Function: name}, nil
	case kind == "FUNC":
		return TemplatePart{}, errFunction
	}
	return TemplatePart{}, errReference
}

// Calls counts the functions of t.
func (t Template) Calls() (n int) {
	for _, part := range t {
		if part.Function != "" {
			n++
		}
	}
	return n
}

// Secrets are the names that t refers to.
func (t Template) Secrets() (names []string) {
	for _, part := range t {
		if part.Secret != "" {
			names = append(names, part.Secret)
		}
	}
	return names
}

// String returns t in the form that [ParseTemplate] reads.
func (t Template) String() string {
	var b strings.Builder
	for _, part := range t {
		switch {
		case part.Secret != "":
			b.WriteString(SecretReference + part.Secret + closeReference)
		case part.Function != "":
			b.WriteString("{{FUNC:" + part.Function + closeReference)
		default:
			b.WriteString(part.Text)
		}
	}
	return b.String()
}
