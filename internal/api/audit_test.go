package api

import (
	"encoding/json"
	"testing"
)

// FuzzNameOf: what names an object in a line is what the handler takes for it.
func FuzzNameOf(f *testing.F) {
	f.Add(`{"metadata":{"name":"a"}}`)
	f.Add(`{"Name":"x","name":"b","name":"c"}`)
	f.Add(`{"metadata":7,"email":"a@b.test"}`)
	f.Fuzz(func(t *testing.T, body string) {
		name := nameOf([]byte(body))
		var tree map[string]any
		if err := json.Unmarshal([]byte(body), &tree); err != nil && name != "" {
			t.Errorf("%q has the name %q", body, name)
		}
		if own, ok := tree["metadata"].(map[string]any); ok && own["name"] != nil {
			if s, ok := own["name"].(string); ok && s != "" && s != name {
				t.Errorf("%q has the name %q", body, name)
			}
		}
	})
}
