package node

import "testing"

// FuzzSnapshot: the record of a copy that another node made is of the sandbox that is asked for, or an
// error.
func FuzzSnapshot(f *testing.F) {
	f.Add([]byte(`{"id":"a","driver":"fake","image":{"path":"/x"},"agent":"/y","memory":1,"cpus":1,"at":"2026-11-29T00:00:00Z"}`), "a")
	f.Add([]byte(`{"id":"b","archive":true}`), "a")
	f.Add([]byte(`{"id":"a","at":"never"}`), "a")
	f.Fuzz(func(t *testing.T, raw []byte, id string) {
		if s, err := parseSnapshot(raw, id); err == nil && s.ID != id {
			t.Errorf("%q is of %q", raw, s.ID)
		}
	})
}
