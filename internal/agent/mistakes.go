package agent

import (
	"encoding/json"
	"errors"
	"maps"
	"reflect"
	"slices"

	"doze"
)

// mistakesMax bounds how many wrong fields an answer names.
const mistakesMax = 32

// wrongTypes names the fields of a JSON object that are of another type than
// those of In: each once, in the order of their names. A decoder tells of the
// first alone, so that each member is read by itself.
func wrongTypes[In any](b []byte) (p doze.Problems) {
	var members map[string]json.RawMessage
	if json.Unmarshal(b, &members) != nil {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(members)) {
		alone, err := json.Marshal(map[string]json.RawMessage{name: members[name]})
		if err != nil {
			continue // it was read from JSON
		}
		wrong, ok := errors.AsType[*json.UnmarshalTypeError](json.Unmarshal(alone, new(In)))
		if !ok || wrong.Field == "" {
			continue
		}
		p.Add(clip(wrong.Field), "must be %s, not %s", inWords(wrong.Type), wrong.Value)
		if len(p) == mistakesMax {
			break
		}
	}
	return p
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
