package doctor_test

import (
	"bytes"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze/internal/doctor"
)

func TestEveryFindingIsExplained(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	found := doctor.Examine(doctor.Host{Data: filepath.Join(dir, "not", "there", "yet"), Binaries: []string{filepath.Join(dir, "doze-launcher")}})
	if len(found) < 10 {
		t.Fatalf("only %d checks ran", len(found))
	}
	for _, f := range found {
		if f.Check == "" || f.Text == "" {
			t.Errorf("%+v says nothing", f)
		}
		if (f.Remedy == "") != (f.Verdict == doctor.Fine) {
			t.Errorf("%s is %v, and the remedy is %q", f.Check, f.Verdict, f.Remedy)
		}
	}
	var out bytes.Buffer
	if doctor.Print(&out, found) {
		t.Error("a host without its binaries is said to be usable")
	}
	if !strings.Contains(out.String(), "MISSING  our binaries") || !strings.Contains(out.String(), "make build") {
		t.Errorf("printed:\n%s", out.String())
	}
}

func TestDataNoexec(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: a mount needs root")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOEXEC, "size=64k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	for _, f := range doctor.Examine(doctor.Host{Data: filepath.Join(dir, "data")}) {
		if f.Check == "disk" && (f.Verdict != doctor.Missing || !strings.Contains(f.Text, "noexec")) {
			t.Errorf("%+v", f)
		}
	}
}

func TestUsableWithAdvice(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range doctor.Examine(doctor.Host{Data: t.TempDir(), Binaries: []string{self}}) {
		if f.Check == "our binaries" && f.Verdict != doctor.Fine {
			t.Errorf("%+v", f)
		}
	}
	var out bytes.Buffer
	if !doctor.Print(&out, []doctor.Finding{{Check: "swap", Verdict: doctor.Advice, Text: "none", Remedy: "nothing"}}) {
		t.Error("advice makes a host unusable")
	}
}

func TestEgressPool(t *testing.T) {
	t.Parallel()
	const loopback = "lo" // which every host has, with 127.0.0.0/8
	for name, test := range map[string]struct {
		host doctor.Host
		want doctor.Verdict
		text string
	}{
		"none":               {doctor.Host{}, doctor.Fine, "none"},
		"no such interface":  {doctor.Host{Pool: pool("127.0.0.9/32"), Link: "none0"}, doctor.Advice, "none0"},
		"in its network":     {doctor.Host{Pool: pool("127.0.0.8/30"), Link: loopback}, doctor.Fine, loopback},
		"one is not":         {doctor.Host{Pool: pool("127.0.0.8/30", "203.0.113.0/30"), Link: loopback}, doctor.Advice, "203.0.113.0/30"},
		"larger than it has": {doctor.Host{Pool: pool("126.0.0.0/7"), Link: loopback}, doctor.Advice, "126.0.0.0/7"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, f := range doctor.Examine(test.host) {
				if f.Check == "egress pool" && (f.Verdict != test.want || !strings.Contains(f.Text, test.text)) {
					t.Errorf("%+v", f)
				}
			}
		})
	}
}

func pool(all ...string) (networks []netip.Prefix) {
	for _, s := range all {
		networks = append(networks, netip.MustParsePrefix(s))
	}
	return networks
}
