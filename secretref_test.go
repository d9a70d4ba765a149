package doze_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
)

func TestParseTemplate(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		in   string
		want doze.Template // nil: it is refused
	}{
		"text":                     {"Bearer x", doze.Template{{Text: "Bearer x"}}},
		"a secret":                 {"Bearer {{SECRET:api.key-1_a}}", doze.Template{{Text: "Bearer "}, {Secret: "api.key-1_a"}}},
		"a function":               {"{{FUNC:uuidv7}}", doze.Template{{Function: "uuidv7"}}},
		"side by side":             {"{{SECRET:a}}{{SECRET:b}}:{{FUNC:time}}!", doze.Template{{Secret: "a"}, {Secret: "b"}, {Text: ":"}, {Function: "time"}, {Text: "!"}}},
		"braces of JSON":           {`{"a":{"b":1}}`, doze.Template{{Text: `{"a":{"b":1}}`}}},
		"braces that close":        {"}}{", doze.Template{{Text: "}}{"}}},
		"never closed":             {in: "Bearer {{SECRET:a"},
		"closed by half":           {in: "{{SECRET:a}"},
		"no name":                  {in: "{{SECRET:}}"},
		"a space":                  {in: "{{ SECRET:a }}"},
		"another case":             {in: "{{secret:a}}"},
		"of another kind":          {in: "{{ENV:HOME}}"},
		"nothing":                  {in: "{{}}"},
		"one in another":           {in: "{{SECRET:{{SECRET:a}}}}"},
		"a function that is not":   {in: "{{FUNC:exec}}"},
		"a function with argument": {in: "{{FUNC:uuid:4}}"},
		"a name that is too long":  {in: "{{SECRET:" + strings.Repeat("a", 129) + "}}"},
		"too many functions":       {in: strings.Repeat("{{FUNC:uuid}}", doze.FunctionsMax+1)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := doze.ParseTemplate(tt.in)
			if (err == nil) != (tt.want != nil) {
				t.Errorf("%v, %v", got, err)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

// FuzzParseTemplate: what is read is what was written, and no reference is left
// in the text.
func FuzzParseTemplate(f *testing.F) {
	f.Add("Bearer {{SECRET:key}}")
	f.Add("{{FUNC:uuid}}{{{{SECRET:}}}}")
	f.Fuzz(func(t *testing.T, s string) {
		got, err := doze.ParseTemplate(s)
		if err != nil {
			return
		}
		if got.String() != s {
			t.Errorf("%q is read as %q", s, got)
		}
		for _, part := range got {
			if strings.Contains(part.Text, "{{") {
				t.Errorf("%q leaves a reference in the text %q", s, part.Text)
			}
		}
	})
}
