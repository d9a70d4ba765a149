package catalogue

import (
	"strings"
	"testing"

	"github.com/dozehq/doze"
)

// TestTable: each row is complete.
func TestTable(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, row := range rows {
		if seen[row.Name] {
			t.Errorf("%s is there twice", row.Name)
		}
		seen[row.Name] = true
		if row.Recipe != "" && row.Recipe != Slim && row.Recipe != Base {
			t.Errorf("%s: there is no recipe %s", row.Name, row.Recipe)
		}
		if (row.Recipe == "") != (row.Missing != "") {
			t.Errorf("%s has a recipe, or is missing", row.Name)
		}
		if row.Missing == "" && (row.Display == "" || row.About == "" || row.Memory < doze.MemoryMin) {
			t.Errorf("%s: the hub has nothing to show: %+v", row.Name, row)
		}
	}
}

// TestLookup: a name has a prefix, but for the names of recipes.
func TestLookup(t *testing.T) {
	t.Parallel()
	for ref, want := range map[string]string{
		"blaxel/nextjs": "nextjs", "doze/nextjs": "nextjs", "slim": "slim", "base": "base", "blaxel/base-image": "base-image",
		"nextjs": "", "blaxel/": "", "other/nextjs": "", "blaxel/blaxel/nextjs": "", "base-image": "",
	} {
		if row, ok := Lookup(ref); row.Name != want || ok != (want != "") {
			t.Errorf("%q is %q, %v", ref, row.Name, ok)
		}
	}
}

// TestHub: the default is offered, with what clients expect of an offer.
func TestHub(t *testing.T) {
	t.Parallel()
	found := false
	for _, o := range Hub() {
		name, tag, _ := strings.Cut(o.Image, ":")
		if row, ok := Lookup(name); !ok || row.Missing != "" || tag != doze.TagDefault || o.Ports == nil {
			t.Errorf("offer %+v", o)
		}
		found = found || o.Image == doze.ImageDefault
	}
	if !found {
		t.Errorf("%s is not on offer", doze.ImageDefault)
	}
}
