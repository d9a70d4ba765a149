package main

import (
	"bytes"
	"errors"
	"flag"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dozehq/doze/internal/command"
	"github.com/dozehq/doze/internal/doctor"
	"github.com/dozehq/doze/internal/handover"
	"github.com/dozehq/doze/internal/instance"
	"github.com/dozehq/doze/internal/settings"
)

// TestMain is dozed itself, for the process that keeps an address.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == handover.Command {
		main()
		return
	}
	os.Exit(m.Run())
}

var update = flag.Bool("update", false, "rewrite the golden files")

func TestUsageIsCurrent(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	dozed.Usage(&out)
	s := settings.Defaults()
	for _, c := range []struct {
		name string
		bind func(*flag.FlagSet)
	}{{"all:", s.Bind}, {"doctor, besides:", new(doctor.Visit).Bind}, {"destroy, besides:", new(instance.Destruction).Bind}} {
		flags := dozed.Flags(c.name)
		c.bind(flags)
		out.WriteString("\ndozed " + c.name + "\n")
		command.PrintFlags(&out, flags)
	}

	const file = "testdata/usage.golden"
	if *update {
		if err := os.WriteFile(file, out.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if out.String() != string(want) {
		t.Errorf("%s is stale: run go test ./cmd/dozed -update", file)
	}
}

func TestEveryCommandHasHelp(t *testing.T) {
	t.Parallel()
	for _, c := range dozed.Commands {
		if err := c.Run(t.Context(), []string{"--help"}); !errors.Is(err, flag.ErrHelp) {
			t.Errorf("dozed %s --help: %v", c.Name, err)
		}
	}
	if err := dozed.Run(t.Context(), []string{"keep", "--help"}); err != nil { // as an older dozed starts it
		t.Errorf("dozed keep: %v", err)
	}
	for _, tt := range []struct{ args, want string }{
		{"image", "build, ls"}, {"image rm", "build, ls"}, {"config", "check, print"}, {"config --config /none print", "check, print"},
	} {
		if err := dozed.Run(t.Context(), strings.Fields(tt.args)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("dozed %s: %v, want to hear of %s", tt.args, err, tt.want)
		}
	}
}

func TestDoctorFlags(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]doctor.Visit{
		"": {}, "--apply": {Apply: true}, "-apply --data /tmp": {Apply: true}, "--apply=false": {}, "--apply --only swap": {Apply: true, Only: "swap"},
	} {
		var got doctor.Visit
		if _, rest, err := load("doctor", strings.Fields(args), got.Bind); err != nil || len(rest) > 0 || got != want {
			t.Errorf("%q: %+v, rest %q, %v", args, got, rest, err)
		}
	}
	if _, _, err := load("all", []string{"--apply"}); err == nil {
		t.Error("dozed all takes --apply")
	}
}

// TestAStartThatFailsLeavesNothing, whichever of the two addresses is taken.
func TestAStartThatFailsLeavesNothing(t *testing.T) {
	t.Parallel()
	taken, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, flags := range [][]string{
		{"--listen", taken.Addr().String()},
		{"--listen", "127.0.0.1:0", "--preview-listen", taken.Addr().String()},
	} {
		dir := t.TempDir()
		s, _, err := load("all", append(flags, "--data", filepath.Join(dir, "data"), "--run", filepath.Join(dir, "run")))
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := claim(t.Context(), s, func() (func(), error) { return instance.Lock(s.Data, s.Run) }); err == nil || !strings.Contains(err.Error(), flags[len(flags)-2]) {
			t.Errorf("two listeners: %v", err)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("left %v, %v", left, err)
		}
	}
}

// TestAStartThatFailsRefusesCallers: nobody waits for a dozed that is not there.
func TestAStartThatFailsRefusesCallers(t *testing.T) {
	t.Parallel()
	// Not t.TempDir: unix sockets in it would have too long a name.
	dir, err := os.MkdirTemp("", "doze") //nolint:usetesting // see above
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s, _, err := load("all", []string{"--data", dir, "--run", filepath.Join(dir, "run"), "--listen", "127.0.3.1:0", "--preview-listen", "127.0.3.2:0", "--preview-url", "http://127.0.3.2:1"})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "records"), []byte("postgres\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	in, release, err := claim(t.Context(), s, func() (func(), error) { return instance.Lock(s.Data, s.Run) })
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	address := in.Address()
	if _, err := open(t.Context(), s, in); err == nil || !strings.Contains(err.Error(), "PostgreSQL") {
		t.Fatalf("it starts without its records: %v", err)
	}
	release()
	if c, err := new(net.Dialer).DialContext(t.Context(), "tcp", address); err == nil {
		_ = c.Close()
		t.Error("somebody keeps the address")
	}
}
