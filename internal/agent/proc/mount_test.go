package proc

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseMounts(t *testing.T) {
	t.Parallel()
	for line, want := range map[string][]Mount{
		`36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`: {{"/mnt2", "ext3"}},
		`1 0 0:1 / / rw - overlay none rw`:                                               {{"/", "overlay"}},
		`1 0 0:1 / /a\040b\011c\012d\134040 rw - fuse drive rw`:                          {{"/a b\tc\nd\\040", "fuse"}},
		"1 0 0:1 / /a\u00a0b\u2028 rw - fuse drive rw":                                   {{"/a\u00a0b\u2028", "fuse"}},
		`1 0 0:1 / /odd\9\12\777\ rw - tmpfs none rw`:                                    {{`/odd\9\12\777\`, "tmpfs"}},
		`1 0 0:1 / /cut rw`:      nil,
		`1 0 0:1 - ext4 none rw`: nil,
		`1 0 0:1 / /x rw - ext4`: nil,
		``:                       nil,
	} {
		if diff := cmp.Diff(want, parseMounts(line+"\n")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", line, diff)
		}
	}
	all, err := Root.Mounts()
	if err != nil || len(all) == 0 {
		t.Errorf("here are %v, %v", all, err)
	}
	if _, err := Dir(t.TempDir()).Mounts(); err == nil {
		t.Error("no table is no error")
	}
}

// FuzzMounts writes what was read as the kernel would, and reads it again.
func FuzzMounts(f *testing.F) {
	f.Add("1 0 0:1 / /a\\040b rw - fuse drive rw\n")
	f.Add("1 0 0:1 / /\\ rw - x y\n1 0 0:1 / / rw - tmpfs none rw")
	escape := strings.NewReplacer(" ", `\040`, "\t", `\011`, "\n", `\012`, `\`, `\134`)
	f.Fuzz(func(t *testing.T, raw string) {
		all := parseMounts(raw)
		var again strings.Builder
		for _, m := range all {
			again.WriteString("1 0 0:1 / " + escape.Replace(m.Point) + " rw - " + m.Type + " x rw\n")
		}
		if diff := cmp.Diff(all, parseMounts(again.String())); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}
