// Package fleettest has what the tests of both sides of [fleet] need: values with
// every field set, and the suite that each node passes.
package fleettest

import (
	"fmt"
	"net/netip"
	"reflect"
	"testing"
	"time"
)

// Full returns a value whose fields all have a value of their own, through pointers,
// slices and maps, so that a field that is lost on a way is seen. It fails the test
// for a field of a kind that it does not know.
func Full[T any](tb testing.TB) (v T) {
	tb.Helper()
	FillFull(tb, reflect.ValueOf(&v).Elem())
	return v
}

// FillFull is [Full] for a value of a type that the caller does not know.
func FillFull(tb testing.TB, v reflect.Value) {
	tb.Helper()
	n := 0
	fill(tb, v, &n)
}

// leaves are types that are one value, whatever they are made of.
var leaves = map[reflect.Type]func(n int) any{
	reflect.TypeFor[time.Time]():  func(n int) any { return time.Unix(int64(n), 0).UTC() },
	reflect.TypeFor[netip.Addr](): func(n int) any { return netip.AddrFrom4([4]byte{203, 0, 113, byte(n)}) },
}

// saved are types whose values never leave a process, so that they stay empty.
var saved = map[string]bool{"WriteOnly": true}

func fill(tb testing.TB, v reflect.Value, n *int) {
	tb.Helper()
	*n++
	if leaf, ok := leaves[v.Type()]; ok {
		v.Set(reflect.ValueOf(leaf(*n)))
		return
	}
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.String:
		v.SetString(fmt.Sprint("value", *n))
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(int64(*n))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(*n)) //nolint:gosec // G115: it counts fields
	case reflect.Float32, reflect.Float64:
		v.SetFloat(float64(*n))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(tb, v.Elem(), n)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(tb, v.Index(0), n)
	case reflect.Array:
		for i := range v.Len() {
			fill(tb, v.Index(i), n)
		}
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(tb, key, n)
		fill(tb, value, n)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Type().Field(i)
			if name, _, _ := cutGeneric(f.Type.Name()); saved[name] {
				continue
			}
			if !f.IsExported() && !f.Anonymous {
				tb.Fatalf("%s has the field %s, which nobody can send", v.Type(), f.Name)
			}
			fill(tb, v.Field(i), n)
		}
	default:
		tb.Fatalf("nobody knows how to fill a %s", v.Type())
	}
}

// cutGeneric returns the name of a type without its arguments.
func cutGeneric(name string) (base, arguments string, generic bool) {
	for i := range len(name) {
		if name[i] == '[' {
			return name[:i], name[i:], true
		}
	}
	return name, "", false
}
