package front

import "testing"

func TestFindsLocalNames(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		nsswitch, resolvConf string
		want                 bool
	}{
		"debian":           {"passwd: files\nhosts:          files dns\n", "nameserver 192.0.2.1\n", false},
		"nothing":          {"", "", false},
		"a module":         {"hosts: files myhostname dns # as it is\n", "", true},
		"systemd-resolved": {"hosts: files resolve [!UNAVAIL=return] dns\n", "", true},
		"its stub":         {"hosts: files dns\n", "nameserver 127.0.0.53\noptions edns0\n", true},
		"of other things":  {"passwd: myhostname\nhosts: dns\n", "", false},
	} {
		if got := findsLocalNames(c.nsswitch, c.resolvConf); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
