package fleet_test

import (
	"strings"
	"testing"

	"github.com/dozehq/doze/internal/fleet"
)

// FuzzNeedsOf: whatever a copy says that it needs, each object is that of a file, and no other.
func FuzzNeedsOf(f *testing.F) {
	sum := strings.Repeat("a", 64)
	file := `{"name":"a.erofs","sum":"` + sum + `","mark":"0123456789abcdef"}`
	f.Add([]byte(`{"root":` + file + `,"agent":` + file + `,"volumes":[{"id":"v","epoch":3,"seq":5}]}`))
	f.Add([]byte(`{"root":` + file + `,"record":{"digest":"x"}}`))
	f.Add([]byte(`{"root":{"name":"..","sum":"` + sum + `"}}`))
	f.Add([]byte(`{"root":` + file + `,"kernel":` + file + `}`))
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		all, err := fleet.NeedsOf(raw)
		if err != nil {
			return
		}
		if len(all) < 1 || len(all) > 2 {
			t.Errorf("%q needs %d files", raw, len(all))
		}
		for _, n := range all {
			if !fleet.FileForm.MatchString(n.Label()) || !fleet.FileForm.MatchString(n.Object([]byte("key"))) || strings.ContainsAny(n.Name+n.Mark, "/\x00") {
				t.Errorf("%q needs %+v", raw, n)
			}
		}
	})
}

// TestNeedsOf: what a newer release may need besides is no secret, and nothing that is skipped.
func TestNeedsOf(t *testing.T) {
	t.Parallel()
	sum := strings.Repeat("a", 64)
	root := fleet.FileNeed{Name: "r.erofs", Sum: sum, Mark: "0123456789abcdef"}
	for raw, want := range map[string]int{
		`{"root":{"name":"r.erofs","sum":"` + sum + `","mark":"0123456789abcdef"},"agent":{"name":"a","sum":"` + sum + `"},"volumes":[]}`: 2,
		`{"root":{"name":"r.erofs","sum":"` + sum + `","mark":"0123456789abcdef"},"record":{"x":1}}`:                                      1,
		`{"root":{"name":"r.erofs","sum":"` + sum + `"},"kernel":{"name":"k","sum":"` + sum + `"}}`:                                       0,
		`{"root":{"name":"r.erofs","sum":"` + sum + `","mark":"../x"}}`:                                                                   0,
		`{"volumes":[]}`: 0,
		`{`:              0,
	} {
		all, err := fleet.NeedsOf([]byte(raw))
		if len(all) != want || (err == nil) != (want > 0) || want > 0 && all[0] != root {
			t.Errorf("%s needs %v, %v", raw, all, err)
		}
	}
	if bare := fleet.FileObject([]byte("key"), ""); root.Object([]byte("key")) == bare || bare == fleet.FileObject([]byte("other"), "") {
		t.Error("two uploads have one name")
	}
}
