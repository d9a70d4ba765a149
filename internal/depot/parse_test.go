package depot

import (
	"strings"
	"testing"
)

// FuzzNeeds: whatever a copy says that it needs, no name leads elsewhere.
func FuzzNeeds(f *testing.F) {
	sum := strings.Repeat("a", 64)
	file := `{"name":"a.erofs","sum":"` + sum + `"}`
	f.Add([]byte(`{"root":` + file + `,"agent":` + file + `,"volumes":[{"id":"v","epoch":3,"seq":5}]}`))
	f.Add([]byte(`{"root":{"name":"../a","sum":"` + sum + `"},"agent":` + file + `}`))
	f.Add([]byte(`{"root":` + file + `,"agent":` + file + `,"volumes":[{"id":"../../v"}]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		n, err := parseNeeds(raw)
		if err != nil {
			return
		}
		for _, of := range []need{n.Root, n.Agent} {
			if strings.ContainsAny(of.Name+of.Sum+of.Mark, "/\x00") || strings.HasPrefix(of.Name, ".") || len(of.Label()) != len("file-")+64 {
				t.Errorf("%q needs %+v", raw, of)
			}
		}
		for _, h := range n.Volumes {
			if strings.ContainsAny(h.ID, "/.\x00") || len(n.Volumes) > volumesMost {
				t.Errorf("%q needs the volume %+v", raw, h)
			}
		}
	})
}

// FuzzBuilt: whatever the bucket says of an image, its file has a name of its own.
func FuzzBuilt(f *testing.F) {
	f.Add([]byte(`{"root":{"name":"a.erofs","sum":"` + strings.Repeat("a", 64) + `"},"record":{"digest":"x"}}`))
	f.Add([]byte(`{"root":{"name":"..","sum":""},"record":null}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		b, err := parseBuilt(raw)
		if err == nil && (strings.ContainsAny(b.Root.Name+b.Root.Sum, "/\x00") || strings.HasPrefix(b.Root.Name, ".")) {
			t.Errorf("%q is %+v", raw, b.Root)
		}
	})
}
