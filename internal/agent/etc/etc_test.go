package etc

import (
	"os"
	"strings"
	"testing"

	"github.com/dozehq/doze/internal/agent/environ"
)

func TestPrepareRoot(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write := func(name, content string) {
		if err := os.MkdirAll(root+name[:strings.LastIndex(name, "/")], 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(root+name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("/etc/hosts", "1.2.3.4 mine") // is kept
	write("/etc/resolv.conf", "")       // is filled
	write("/proc/net/route", "Iface\tDestination\tGateway\nlo\t0000007F\t00000000\neth0\t00000000\t0100A8C0\n")
	prepareRoot(root, "box", nameservers(root, nil))
	if got := nameservers(root, []string{"A=b", "DOZE_NAMESERVERS=9.9.9.9,1.1.1.1"}); got != "nameserver 9.9.9.9\nnameserver 1.1.1.1\n" {
		t.Errorf("named by the host: %q", got)
	}
	for name, want := range map[string]string{
		"/etc/hostname":    "box\n",
		"/etc/hosts":       "1.2.3.4 mine\n127.0.1.1\tbox\n",
		"/etc/resolv.conf": "nameserver 192.168.0.1\n",
	} {
		if got, err := os.ReadFile(root + name); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}

	n := &Names{root: root, host: "box", resolv: nameservers(root, nil)}
	write("/etc/hostname", "chosen\n") // by the user: it is kept
	n.Change("copy", environ.List{"DOZE_NAMESERVERS=9.9.9.9"})
	for name, want := range map[string]string{
		"/etc/hostname":    "chosen\n",
		"/etc/hosts":       "1.2.3.4 mine\n127.0.1.1\tcopy\n",
		"/etc/resolv.conf": "nameserver 9.9.9.9\n",
	} {
		if got, err := os.ReadFile(root + name); err != nil || string(got) != want {
			t.Errorf("in a copy, %s: %q, %v", name, got, err)
		}
	}
	for name, want := range map[string]os.FileMode{
		"/tmp": os.ModeDir | os.ModeSticky | 0o777, "/run": os.ModeDir | 0o755, "/var/log": os.ModeDir | 0o755,
	} {
		if info, err := os.Stat(root + name); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
}
