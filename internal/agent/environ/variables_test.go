package environ

import (
	"strings"
	"testing"

	"github.com/dozehq/doze/internal/agent/body"
)

func FuzzMetadata(f *testing.F) {
	for _, s := range []string{`{"generation":1,"environment":{"A":"b"}}`, `{"environment":{"":"","=":"x","A\u0000":"b"}}`, `null`, `[]`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		doc, err := body.Parse[metadata](b)
		if err != nil {
			return
		}
		v := New(List{"A=base"})
		over, skipped := doc.variables()
		if len(over)+len(skipped) > len(doc.Environment) {
			t.Errorf("%d variables are %v, without %v", len(doc.Environment), over, skipped)
		}
		if applied, removed := v.overlay(over); applied != len(over) || removed != 0 {
			t.Errorf("%d applied, %d removed", applied, removed)
		}
		for _, kv := range v.List() {
			if k, _, ok := strings.Cut(kv, "="); !ok || k == "" || strings.ContainsRune(kv, 0) {
				t.Errorf("the variable %q", kv)
			}
		}
	})
}
