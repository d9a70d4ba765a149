package launcher

import (
	"strings"
	"testing"
)

func TestMapped(t *testing.T) {
	t.Parallel()
	const other = "55d000000000-55d000001000 r-xp 00000000 08:01 77 /bin/x\n"
	for name, tc := range map[string]struct {
		maps string
		size uint64
		want uintptr
	}{
		"whole":        {other + "7f0000000000-7f0000100000 rw-s 00000000 00:01 1234 /memfd:m (deleted)\n", 1 << 20, 0x7f0000000000},
		"in pieces":    {"7f0000000000-7f0000001000 rw-s 00000000 00:01 1234 /m\n7f0000001000-7f0000003000 rw-s 00001000 00:01 1234 /m\n", 0x3000, 0x7f0000000000},
		"the larger":   {"7e0000000000-7e0000001000 rw-s 00000000 00:01 1234 /m\n7f0000000000-7f0000003000 rw-s 00000000 00:01 1234 /m\n", 0x3000, 0x7f0000000000},
		"a hole":       {"7f0000000000-7f0000001000 rw-s 00000000 00:01 1234 /m\n7f0000002000-7f0000003000 rw-s 00002000 00:01 1234 /m\n", 0x3000, 0},
		"too small":    {"7f0000000000-7f0000001000 rw-s 00000000 00:01 1234 /m\n", 0x3000, 0},
		"read only":    {"7f0000000000-7f0000003000 r--s 00000000 00:01 1234 /m\n", 0x3000, 0},
		"another file": {other, 0x1000, 0},
		"nothing":      {"", 0x1000, 0},
		"nonsense":     {"x rw-s 00000000 00:01 1234 /m\n", 0x1000, 0},
	} {
		got, err := mapped(strings.NewReader(tc.maps), 1234, tc.size)
		if got != tc.want || (err == nil) != (tc.want != 0) {
			t.Errorf("%s: %#x, %v; want %#x", name, got, err, tc.want)
		}
	}
}
