package hostproc

import "testing"

func TestKinds(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		stat    string
		unified bool
		want    Kinds
	}{
		"v1":      {"cache 700\nrss 30\nrss_huge 0\nshmem 500\nmapped_file 1\nswap 9\n", false, Kinds{30, 500, 200}},
		"v2":      {"anon 30\nfile 700\nkernel 5\nshmem 500\nfile_mapped 1\n", true, Kinds{30, 500, 200}},
		"between": {"anon 30\nfile 400\nshmem 500\n", true, Kinds{30, 500, 0}}, // it changed while it was read
		"empty":   {"", true, Kinds{}},
		"odd":     {"anon x\n\nfile\n", true, Kinds{}},
	} {
		if got := kindsOf(tt.stat, tt.unified); got != tt.want {
			t.Errorf("%s: %+v, want %+v", name, got, tt.want)
		}
	}
}

func FuzzKinds(f *testing.F) {
	f.Add("cache 700\nrss 30\nshmem 500\n", true)
	f.Fuzz(func(t *testing.T, stat string, unified bool) {
		if k := kindsOf(stat, unified); k.Cache < 0 {
			t.Errorf("%+v", k)
		}
	})
}
