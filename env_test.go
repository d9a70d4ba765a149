package doze_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/dozehq/doze"
)

func TestValueSources(t *testing.T) {
	t.Parallel()
	sb := &doze.Sandbox{
		Metadata: doze.Metadata{Name: "a", Workspace: "w", Labels: map[string]string{"team.io/x": "blue"}},
		Spec:     doze.SandboxSpec{Region: "r", Runtime: doze.Runtime{Memory: 3072, Image: "i:1"}},
	}
	for raw, want := range map[string]string{
		`{"fieldRef":{"fieldPath":"metadata.name"}}`:                                        "a",
		`{"fieldRef":{"fieldPath":"metadata.namespace","apiVersion":"v1"}}`:                 "w",
		`{"fieldRef":{"fieldPath":"metadata.labels['team.io/x']"}}`:                         "blue",
		`{"fieldRef":{"fieldPath":"metadata.labels['none']"}}`:                              "",
		`{"fieldRef":{"fieldPath":"spec.region"},"secretKeyRef":null}`:                      "r",
		`{"fieldRef":{"fieldPath":"spec.runtime.image"}}`:                                   "i:1",
		`{"resourceFieldRef":{"resource":"limits.cpu"}}`:                                    "2",
		`{"resourceFieldRef":{"resource":"limits.cpu","divisor":"1m"}}`:                     "1500",
		`{"resourceFieldRef":{"resource":"requests.memory","divisor":"0"}}`:                 "3221225472",
		`{"resourceFieldRef":{"resource":"limits.memory","divisor":1}}`:                     "3221225472",
		`{"resourceFieldRef":{"resource":"limits.memory","divisor":"1Mi"}}`:                 "3072",
		`{"resourceFieldRef":{"resource":"limits.memory","divisor":"1Gi"}}`:                 "3",
		`{"resourceFieldRef":{"resource":"limits.memory","divisor":"1G"}}`:                  "4",
		`{"resourceFieldRef":{"resource":"limits.memory","containerName":"","divisor":""}}`: "3221225472",
	} {
		v, err := doze.ParseValueSource([]byte(raw))
		if err != nil {
			t.Errorf("%s: %v", raw, err)
			continue
		}
		var got string
		if v.Field != nil {
			got = v.Field.Value(sb)
		} else {
			got = v.Resource.Value(sb)
		}
		if got != want {
			t.Errorf("%s is %q, want %q", raw, got, want)
		}
	}
}

func TestValueSourceMistakes(t *testing.T) {
	t.Parallel()
	for raw, says := range map[string]string{
		`7`:  "object",
		`{}`: "exactly one",
		`{"fieldRef":{"fieldPath":"metadata.name"},"secretKeyRef":{"name":"a","key":"b"}}`: "exactly one",
		`{"configMapKeyRef":{"name":"a","key":"b"}}`:                                       "configMapKeyRef",
		`{"fieldRef":7}`: "wrong type",
		`{"fieldRef":{"fieldPath":"status.podIP"}}`:                             "status.podIP",
		`{"resourceFieldRef":{"resource":"limits.disk"}}`:                       "limits.disk",
		`{"resourceFieldRef":{"resource":"memory"}}`:                            "memory",
		`{"resourceFieldRef":{"resource":"limits.cpu","divisor":"1Mi"}}`:        "divisor",
		`{"resourceFieldRef":{"resource":"limits.memory","divisor":{"a":"b"}}}`: "divisor",
		`{"secretKeyRef":{"name":"a"}}`:                                         "key",
	} {
		if _, err := doze.ParseValueSource([]byte(raw)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", raw, err)
		}
	}
}

// FuzzValueSource reads any valueFrom: what is taken has exactly one source,
// and has a value.
func FuzzValueSource(f *testing.F) {
	f.Add([]byte(`{"resourceFieldRef":{"resource":"limits.memory","divisor":1e3}}`))
	f.Add([]byte(`{"secretKeyRef":{"name":"a","key":"b","optional":true}}`))
	f.Add([]byte(`{"FieldRef":{"fieldPath":"metadata.labels['a']"}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		v, err := doze.ParseValueSource(raw)
		if err != nil {
			return
		}
		set := 0
		for _, is := range []bool{v.Field != nil, v.Resource != nil, v.Secret != nil} {
			if is {
				set++
			}
		}
		if set != 1 || !json.Valid(raw) {
			t.Errorf("%s has %d sources", raw, set)
		}
		if v.Resource != nil && v.Resource.Value(&doze.Sandbox{}) == "" {
			t.Errorf("%s has no value", raw)
		}
	})
}
