// Package mistake tells callers what is wrong with what they sent, within bounds.
package mistake

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/dozehq/doze"
)

// Max bounds how many wrong fields an answer names.
const Max = 32

// looksMax bounds how many values are read by themselves to find those.
const looksMax = 10_000

// Types names the values of a JSON object that are of another type than
// those of In: each once, in the order of their names. A decoder tells of the
// first alone, so that each is read by itself.
func Types[In any](b []byte) doze.Problems {
	f := finder{try: func(alone []byte) *json.UnmarshalTypeError {
		wrong, _ := errors.AsType[*json.UnmarshalTypeError](json.Unmarshal(alone, new(In)))
		return wrong
	}}
	f.members("", b, func(member []byte) []byte { return member })
	return f.found
}

// finder finds values of wrong types.
type finder struct {
	try   func(alone []byte) *json.UnmarshalTypeError // reads a body
	found doze.Problems
	looks int
}

// wrapping makes a body that has one value alone, where it was.
type wrapping func(value []byte) []byte

// value looks at one value, and at those in it.
func (f *finder) value(name string, value []byte, in wrapping) {
	f.looks++
	if f.looks > looksMax || len(f.found) == Max {
		return
	}
	wrong := f.try(in(value))
	switch {
	case wrong == nil:
	case value[0] == '{' && f.try(in([]byte("{}"))) == nil:
		f.members(name+".", value, in)
	case value[0] == '[' && f.try(in([]byte("[]"))) == nil:
		f.elements(name, value, in)
	default:
		f.found.Add(Clip(name), "must be %s, not %s", inWords(wrong.Type), wrong.Value)
	}
}

func (f *finder) members(before string, object []byte, in wrapping) {
	var members map[string]json.RawMessage
	_ = json.Unmarshal(object, &members) // it was read before
	for _, name := range slices.Sorted(maps.Keys(members)) {
		key, _ := json.Marshal(name) // a string always can be
		f.value(before+name, members[name], func(value []byte) []byte {
			return in(slices.Concat([]byte("{"), key, []byte(":"), value, []byte("}")))
		})
	}
}

func (f *finder) elements(name string, list []byte, in wrapping) {
	var elements []json.RawMessage
	_ = json.Unmarshal(list, &elements) // it was read before
	for i, element := range elements {
		f.value(fmt.Sprintf("%s[%d]", name, i), element, func(value []byte) []byte {
			return in(slices.Concat([]byte("["), value, []byte("]")))
		})
	}
}

// inWords says what a caller has to send for a type.
func inWords(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a string"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "a whole number"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.Slice, reflect.Array:
		return "a list"
	default:
		return "an object"
	}
}
