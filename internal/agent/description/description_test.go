package description_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/dozehq/doze/internal/agent/description"
)

// asked are the names that handlers look for in a query.
var asked = regexp.MustCompile(`(?:\bq\.(?:Get|Has)\(|Query\(\)\.Get\(|number\()"(\w+)"`)

// private are the parameters of calls that only the node makes.
var private = map[string]bool{"after": true}

// TestParametersAreDescribed is made from the source of the handlers.
func TestParametersAreDescribed(t *testing.T) {
	t.Parallel()
	described := map[string]bool{}
	for _, operations := range description.Describe().Paths {
		for _, o := range operations {
			for _, p := range o.Parameters {
				described[p.Name] = true
			}
		}
	}
	files, err := filepath.Glob("../*/*.go")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		for _, name := range asked.FindAllSubmatch(source, -1) {
			found++
			if !described[string(name[1])] && !private[string(name[1])] {
				t.Errorf("%s asks for the parameter %s, which no route is described with", file, name[1])
			}
		}
	}
	if found < 10 {
		t.Errorf("found %d parameters in the source: the pattern is out of date", found)
	}
}

// Each operation has a name of its own, and says what it does.
func TestOperations(t *testing.T) {
	t.Parallel()
	ids := map[string]string{}
	for path, operations := range description.Describe().Paths {
		for method, o := range operations {
			where := method + " " + path
			if other := ids[o.ID]; other != "" || o.ID == "" {
				t.Errorf("%s and %s are both %q", where, other, o.ID)
			}
			ids[o.ID] = where
			if o.Summary == "" || len(o.Security) == 0 {
				t.Errorf("%s has no summary, or says that everybody may call", where)
			}
		}
	}
}
