package api_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/api"
)

func read(body string) (map[string]any, error) {
	return api.ReadBody(httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body)))
}

// TestMembersComeOnce: no program on the way of a request can take another value than we do.
func TestMembersComeOnce(t *testing.T) {
	for body, path := range map[string]string{
		`{"name":"a","name":"b"}`:                         "name",
		`{"name":"a","n\u0061me":"b"}`:                    "name",
		`{"args":{"A":"1","B":"2","A":"1"}}`:              "args.A",
		`{"spec":[{"a":1},{"b":{"c":[],"c":[]}}]}`:        "spec.b.c",
		`{"a":{"b":1},"c":[{"b":1},{"b":2}],"a":null}`:    "a",
		`{"a":"a","b":"a","c":{"a":["a","a"]}}`:           "",
		`{"a":[{"x":1},{"x":1},["x","x"]],"x":{"x":"x"}}`: "",
		`{"name":"a","Name":"b"}`:                         "", // another member, which no type has
	} {
		_, err := read(body)
		if e := doze.Public(err); path == "" && err != nil || path != "" && (err == nil || e.Kind != doze.Invalid || e.Message != "the body has the member "+path+" twice: send it once") {
			t.Errorf("%s: %v", body, err)
		}
	}
}

// FuzzReadBody: what is taken says the same when it is written and read again.
func FuzzReadBody(f *testing.F) {
	for _, body := range []string{``, `null`, `{}`, `{"a":{"b":[1,{"c":null}]}}`, `{"a":1,"a":2}`, `{"":{"":1,"":2}}`, `[[{}]]`, `{"a":"\ud800"}`} {
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body string) {
		tree, err := read(body)
		if err != nil {
			return
		}
		raw, err := json.Marshal(tree)
		if err != nil {
			t.Fatal(err)
		}
		again, err := read(string(raw))
		if err != nil || !reflect.DeepEqual(tree, again) {
			t.Errorf("%q was read as %v, and then as %v, %v", body, tree, again, err)
		}
	})
}
