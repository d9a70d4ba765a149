package failpoint_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dozehq/doze/internal/failpoint"
)

// call is where a machine reaches a step.
var call = regexp.MustCompile(`failpoint\.(?:Reach|Pass)\(failpoint\.(\w+), `)

// TestReached compares the table with the code: every step is reached somewhere,
// in one place, and has a name.
func TestReached(t *testing.T) {
	t.Parallel()
	places := map[string][]string{}
	err := filepath.WalkDir("..", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return err
		}
		raw, err := os.ReadFile(name)
		for _, m := range call.FindAllStringSubmatch(string(raw), -1) {
			places[strings.ToLower(m[1])] = append(places[strings.ToLower(m[1])], name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range failpoint.All() {
		if slices.Contains(names, s.String()) || s.String() == "" {
			t.Errorf("step %d is called %q", s, s)
		}
		names = append(names, s.String())
		if at := places[s.String()]; len(at) != 1 {
			t.Errorf("the step %q is reached in %v, want one place", s, at)
		}
		delete(places, s.String())
	}
	for name, at := range places {
		t.Errorf("%v reaches a step %q that is not in the table", at, name)
	}
}
