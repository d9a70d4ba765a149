package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"math"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/httpx"
)

// bodyMax is far above any sandbox within its limits (256 KiB of variables).
const bodyMax = 1 << 20

// ReadBody reads the JSON object in the body of r. A body that is empty or
// null is an empty object.
func ReadBody(r *http.Request) (map[string]any, error) {
	if err := checkLength(r); err != nil {
		return nil, err
	}
	b, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, bodyMax))
	if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
		return nil, errBodyMax
	}
	if err != nil {
		return nil, errBody(err)
	}
	if len(bytes.TrimSpace(b)) == 0 {
		return map[string]any{}, nil
	}
	if err := httpx.CheckText(b); err != nil {
		return nil, err
	}
	var tree any
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if err := d.Decode(&tree); err != nil {
		return nil, doze.Wrap(err, doze.Invalid, "the body is not valid JSON")
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, doze.Errorf(doze.Invalid, "the body has something after its JSON object")
	}
	if twice := repeated(b); twice != "" {
		return nil, doze.Errorf(doze.Invalid, "the body has the member %.200s twice: send it once", twice)
	}
	switch t := tree.(type) {
	case nil:
		return map[string]any{}, nil
	case map[string]any:
		return t, nil
	}
	return nil, doze.Errorf(doze.Invalid, "the body must be a JSON object")
}

// repeated returns the path of a member that an object of valid JSON has twice, or empty.
// Decoders take the last one, and a program before us may have checked the first.
func repeated(b []byte) string {
	type level struct {
		names map[string]bool // nil in an array
		name  string          // of the member that is read
		value bool            // the next token is a value
	}
	var open []level
	d := json.NewDecoder(bytes.NewReader(b))
	for {
		token, err := d.Token()
		if err != nil {
			return ""
		}
		delim, _ := token.(json.Delim)
		if n := len(open); n > 0 && open[n-1].names != nil && delim != '}' {
			at := &open[n-1]
			if name, ok := token.(string); ok && !at.value {
				at.name = name
				if at.names[name] {
					var path []string
					for _, l := range open {
						if l.names != nil {
							path = append(path, l.name)
						}
					}
					return strings.Join(path, ".")
				}
				at.names[name] = true
			}
			at.value = !at.value
		}
		switch delim {
		case '{':
			open = append(open, level{names: map[string]bool{}})
		case '[':
			open = append(open, level{})
		case '}', ']':
			open = open[:len(open)-1]
		}
	}
}

var errBodyMax = doze.Errorf(doze.TooLarge, "the body is larger than %d bytes", bodyMax)

// checkLength refuses a body that says it is too large, before it comes.
func checkLength(r *http.Request) error {
	if r.ContentLength > bodyMax {
		return errBodyMax
	}
	return nil
}

// errBody is why a body could not be read: what is known of it, such as that it
// paused for too long.
func errBody(err error) error {
	if known, ok := errors.AsType[*doze.Error](err); ok {
		return known
	}
	return doze.Wrap(err, doze.Invalid, "the body ended early: send as much as its header says")
}

// Member is tree[name] if that is an object; otherwise an empty one. What is
// wrong with it is added to p.
func Member(tree map[string]any, name string, p *doze.Problems) map[string]any {
	switch t := tree[name].(type) {
	case nil:
	case map[string]any:
		return t
	default:
		p.Add(name, "must be an object")
	}
	return map[string]any{}
}

// Decode writes a JSON object onto the struct that dst points to, and adds
// each value of a wrong type to p under its path. Unlike encoding/json it
// reports all of them, and it takes names in their exact case. Members that
// are absent stay as they are, null makes them zero; what dst does not have is
// the business of [strangers]. Lists, maps and optional objects are replaced whole.
func Decode(dst any, tree map[string]any, path string, p *doze.Problems) {
	object(reflect.ValueOf(dst).Elem(), tree, path, p)
}

func object(dst reflect.Value, tree map[string]any, path string, p *doze.Problems) {
	for i := range dst.NumField() {
		name, _, _ := strings.Cut(dst.Type().Field(i).Tag.Get("json"), ",")
		if v, ok := tree[name]; ok && name != "" && name != "-" {
			value(dst.Field(i), v, strings.TrimPrefix(path+"."+name, "."), p)
		}
	}
}

// Knows adds each member of v that a value of type t does not have, at any depth.
// Where rules are, one that is misspelt and ignored would leave none in force.
func Knows(t reflect.Type, v any, path string, p *doze.Problems) {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch v := v.(type) {
	case []any:
		if t.Kind() == reflect.Slice {
			for i, e := range v {
				Knows(t.Elem(), e, path+"["+strconv.Itoa(i)+"]", p)
			}
		}
	case map[string]any:
		if t.Kind() != reflect.Struct || reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) {
			return
		}
		fields := map[string]reflect.Type{}
		for f := range t.Fields() {
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "-" {
				fields[name] = f.Type
			}
		}
		for name, e := range v {
			if of, ok := fields[name]; ok {
				Knows(of, e, path+"."+name, p)
			} else {
				p.Add(path+"."+Clip(name), "is not known here, only %s", strings.Join(slices.Sorted(maps.Keys(fields)), ", "))
			}
		}
	}
}

func value(dst reflect.Value, v any, path string, p *doze.Problems) {
	if v == nil {
		dst.SetZero()
		return
	}
	if u, ok := reflect.TypeAssert[json.Unmarshaler](dst.Addr()); ok {
		if b, err := json.Marshal(v); err != nil || u.UnmarshalJSON(b) != nil {
			p.Add(path, "has a value of a wrong type")
		}
		return
	}
	switch dst.Kind() {
	case reflect.Pointer:
		fresh := reflect.New(dst.Type().Elem())
		value(fresh.Elem(), v, path, p)
		dst.Set(fresh)
	case reflect.Struct:
		if t, ok := v.(map[string]any); ok {
			object(dst, t, path, p)
			return
		}
		p.Add(path, "must be an object")
	case reflect.Slice:
		list(dst, v, path, p)
	case reflect.Map:
		mapping(dst, v, path, p)
	default:
		scalar(dst, v, path, p)
	}
}

func list(dst reflect.Value, v any, path string, p *doze.Problems) {
	all, ok := v.([]any)
	if !ok {
		p.Add(path, "must be an array")
		return
	}
	fresh := reflect.MakeSlice(dst.Type(), len(all), len(all))
	for i, e := range all {
		value(fresh.Index(i), e, path+"["+strconv.Itoa(i)+"]", p)
	}
	dst.Set(fresh)
}

func mapping(dst reflect.Value, v any, path string, p *doze.Problems) {
	all, ok := v.(map[string]any)
	if !ok {
		p.Add(path, "must be an object")
		return
	}
	fresh := reflect.MakeMapWithSize(dst.Type(), len(all))
	for k, e := range all {
		if strings.ContainsRune(k, 0) {
			p.Add(path, "must not have a NUL byte in a name")
		}
		elem := reflect.New(dst.Type().Elem()).Elem()
		value(elem, e, path+"."+Clip(k), p)
		fresh.SetMapIndex(reflect.ValueOf(k), elem)
	}
	dst.Set(fresh)
}

func scalar(dst reflect.Value, v any, path string, p *doze.Problems) {
	switch dst.Kind() {
	case reflect.String:
		s, ok := v.(string)
		switch dst.SetString(s); {
		case !ok:
			p.Add(path, "must be a string")
		case strings.ContainsRune(s, 0): // no database has a place for it, nor a variable
			p.Add(path, "must not have a NUL byte")
		}
	case reflect.Bool:
		if b, ok := v.(bool); ok {
			dst.SetBool(b)
			return
		}
		p.Add(path, "must be true or false")
	case reflect.Int:
		if n, ok := whole(v); ok {
			dst.SetInt(n)
			return
		}
		p.Add(path, "must be a whole number")
	default:
		p.Add(path, "cannot be set") // a kind that the dictionary does not use yet
	}
}

// whole reads a whole number, also in the forms 4096.0 and 4.096e3, which some
// encoders write.
func whole(v any) (int64, bool) {
	num, ok := v.(json.Number)
	if !ok {
		return 0, false
	}
	if n, err := num.Int64(); err == nil {
		return n, true
	}
	f, err := num.Float64()
	if err != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53 {
		return 0, false
	}
	return int64(f), true
}

// Clip bounds what an error message repeats of a caller's input.
func Clip(s string) string {
	const most = 80
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}
