package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
)

func TestParseQuotas(t *testing.T) {
	t.Parallel()
	got, err := parseQuotas([]string{"sandboxes=5", "keys=default", "volumes=0"})
	want := map[string]*int64{"sandboxes": new(int64(5)), "keys": nil, "volumes": new(int64(0))}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Error(err, diff)
	}
	for _, arg := range []string{"sandboxes", "=5", "sandboxes=", "sandboxes=many", "sandboxes=1.5", ""} {
		if _, err := parseQuotas([]string{arg}); doze.Public(err).Kind != doze.Invalid {
			t.Errorf("%q: %v", arg, err)
		}
	}
}
