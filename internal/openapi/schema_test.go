package openapi_test

import (
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze/internal/openapi"
)

type (
	part struct {
		Name string `json:"name"`
		Note string `json:"note,omitempty"`
	}
	Base struct {
		ID string `json:"id"`
	}
	hidden[T any] struct{ v T }
	thing         struct {
		Base
		Size   int64             `json:"size,omitzero"`
		On     *bool             `json:"on,omitempty"`
		Parts  []part            `json:"parts"`
		Labels map[string]string `json:"labels,omitempty"`
		Secret hidden[string]    `json:"secret,omitzero"`
		Any    any               `json:"any,omitempty"`
		Skip   string            `json:"-"`
		Either either            `json:"either"`
	}
	either      struct{}
	makeRequest struct {
		Name string `json:"name"`
	}
)

func (h hidden[T]) Reveal() T { return h.v }

func (either) Schema(of func(reflect.Type) *openapi.Schema) *openapi.Schema {
	return &openapi.Schema{OneOf: []*openapi.Schema{{Type: "boolean"}, of(reflect.TypeFor[part]())}}
}

func TestSchemas(t *testing.T) {
	t.Parallel()
	s := openapi.Schemas{
		Members: map[string]openapi.Schema{"Thing.size": {Description: "in bytes"}, "Thing.gone": {}},
		Needs:   map[string][]string{"Part": {"name"}, "MakeRequest": {"name"}},
		Unset:   []string{"id", "Thing.labels", "nowhere"},
	}
	text, ref := &openapi.Schema{Type: "string"}, func(name string) *openapi.Schema {
		return &openapi.Schema{Ref: "#/components/schemas/" + name}
	}
	size := &openapi.Schema{Type: "integer", Format: "int64", Description: "in bytes"}
	parts := &openapi.Schema{Type: "array", Items: ref("Part")}
	oneOf := &openapi.Schema{OneOf: []*openapi.Schema{{Type: "boolean"}, ref("Part")}}
	for _, tt := range []struct {
		typ  reflect.Type
		form openapi.Form
		want string
	}{
		{reflect.TypeFor[thing](), openapi.Request, "ThingRequest"},
		{reflect.TypeFor[thing](), openapi.Answer, "Thing"},
		{reflect.TypeFor[*part](), openapi.Request, "Part"}, // the same in both
		{reflect.TypeFor[makeRequest](), openapi.Request, "MakeRequest"},
	} {
		if diff := cmp.Diff(ref(tt.want), s.Of(tt.typ, tt.form)); diff != "" {
			t.Errorf("%v (-want +got):\n%s", tt.typ, diff)
		}
	}
	want := map[string]*openapi.Schema{
		"Part": {Type: "object", Properties: map[string]*openapi.Schema{"name": text, "note": text}, Required: []string{"name"}},
		"Thing": {
			Type: "object", Required: []string{"id", "parts", "either"},
			Properties: map[string]*openapi.Schema{
				"id": text, "size": size, "on": {Type: "boolean"}, "parts": parts, "any": {}, "either": oneOf,
				"labels": {Type: "object", Values: text},
			},
		},
		"ThingRequest": {Type: "object", Properties: map[string]*openapi.Schema{
			"size": size, "on": {Type: "boolean"}, "parts": parts, "secret": text, "any": {}, "either": oneOf,
		}},
		"MakeRequest": {Type: "object", Properties: map[string]*openapi.Schema{"name": text}, Required: []string{"name"}},
	}
	if diff := cmp.Diff(want, s.Named()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"Thing.gone", "nowhere"}, s.Stale()); diff != "" {
		t.Errorf("stale rows (-want +got):\n%s", diff)
	}
}
