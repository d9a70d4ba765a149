package doze_test

import (
	"strings"
	"testing"

	"github.com/dozehq/doze"
)

// TestBrief: however long a message, a command or a line is, the text is within its bound.
func TestBrief(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("é", 1000)
	for name, c := range map[string]struct {
		failure doze.BuildFailure
		want    string
	}{
		"all":            {doze.BuildFailure{Message: "m", Output: []string{"one", "two"}}, "m\none\ntwo"},
		"the last lines": {doze.BuildFailure{Message: "m", Output: []string{long, "two"}}, "m\ntwo"},
		"no lines":       {doze.BuildFailure{Message: "m", Output: []string{"one", long}}, "m"},
		"a long message": {doze.BuildFailure{Message: long, Output: []string{"one"}}, strings.Repeat("é", 450)},
		"a long command": {doze.BuildFailure{Message: "m", Line: 3, Command: long}, "m (Dockerfile line 3: " + strings.Repeat("é", 439)},
	} {
		if got := c.failure.Brief(901); got != c.want {
			t.Errorf("%s: %d bytes: %q", name, len(got), got)
		}
	}
}
