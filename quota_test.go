package doze_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
)

func TestQuotas(t *testing.T) {
	t.Parallel()
	var seen []string
	for _, q := range doze.Quotas {
		if q.Unit == "" || q.About == "" || q.Checked == "" || q.Default < q.Least || q.Default > doze.QuotaLimitMax {
			t.Errorf("the row of %q is not complete: %+v", q.Name, q)
		}
		if slices.Contains(seen, q.Name) {
			t.Errorf("%s has two rows", q.Name)
		}
		seen = append(seen, q.Name)
		e := doze.Public(doze.QuotaExceeded(q.Name, 7, 5))
		want := map[string]any{"quota": q.Name, "used": int64(7), "limit": int64(5)}
		if e.Kind != doze.Exhausted || !cmp.Equal(e.Fields, want) || e.Definitive() == q.Passes || !strings.Contains(e.Message, q.Unit) {
			t.Errorf("%+v", e)
		}
	}
}

func TestLimitsOf(t *testing.T) {
	t.Parallel()
	defaults := doze.Limits{"volumes": 7}
	for name, c := range map[string]struct {
		own  doze.Limits
		want int64
	}{
		"own":         {doze.Limits{"volumes": 0}, 0},
		"the default": {nil, 7},
	} {
		if got := c.own.Of("volumes", defaults); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
	if got := doze.Limits(nil).Of("volumes", nil); got != doze.VolumesMax {
		t.Errorf("the default of the table: %d", got)
	}
}

func TestParseLimits(t *testing.T) {
	t.Parallel()
	for text, c := range map[string]struct {
		want  doze.Limits
		wrong []string
	}{
		"":                                {doze.Limits{}, nil},
		"sandboxes=5, volumes=0":          {doze.Limits{"sandboxes": 5, "volumes": 0}, nil},
		"sandboxes=-1,keys=9223372036854": {nil, []string{"sandboxes is -1", "keys is 9223372036854"}},
		"sandboxes,x=1":                   {nil, []string{`"sandboxes" must be`, "x is no quota", "requestsPerSecond"}},
		"requestsPerSecond=0":             {nil, []string{"must be 1 to"}},
		"sandboxes=1e3":                   {nil, []string{"such as"}},
	} {
		got, err := doze.ParseLimits(text)
		if len(c.wrong) == 0 {
			if err != nil || !cmp.Equal(got, c.want) {
				t.Errorf("%q: %v, %v", text, got, err)
			}
			continue
		}
		for _, part := range c.wrong {
			if doze.Public(err).Kind != doze.Invalid || !strings.Contains(err.Error(), part) {
				t.Errorf("%q: %v, which lacks %q", text, err, part)
			}
		}
	}
}
