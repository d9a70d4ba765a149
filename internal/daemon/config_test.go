package daemon_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dozehq/doze/internal/daemon"
)

type settings struct {
	Name  string          `json:"name"`
	Pause daemon.Duration `json:"pause"`
}

func TestReadConfig(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		text string
		want settings
		err  string
	}{
		"all":           {`{"name":"a","pause":"15s"}`, settings{"a", daemon.Duration{Duration: 15 * time.Second}}, ""},
		"what is left":  {`{"name":"a"}`, settings{"a", daemon.Duration{Duration: time.Minute}}, ""},
		"unknown key":   {`{"nam":"a"}`, settings{}, `unknown field "nam"`},
		"a bare number": {`{"pause":15}`, settings{}, "must be a string"},
		"no duration":   {`{"pause":"15"}`, settings{}, "missing unit"},
		"two of them":   {`{"name":"a"}{"name":"b"}`, settings{}, "something behind"},
		"no JSON":       {`name: a`, settings{}, "invalid character"},
		"too large":     {`{"name":"` + strings.Repeat("a", 1<<20) + `"}`, settings{}, "larger than"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "config.json")
			if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			got := settings{Pause: daemon.Duration{Duration: time.Minute}}
			err := daemon.ReadConfig(file, &got, nil, nil)
			switch {
			case c.err == "" && (err != nil || got != c.want):
				t.Errorf("got %+v, %v", got, err)
			case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
				t.Errorf("got %v, want %q", err, c.err)
			}
		})
	}
}

func TestFlagsWinOverTheEnvironment(t *testing.T) {
	t.Setenv("TEST_PAUSE_AFTER", "30s")
	t.Setenv("TEST_NAME", "environment")
	pause := daemon.Duration{Duration: time.Second}
	flags := flag.NewFlagSet("test", flag.ContinueOnError)
	flags.Var(&pause, "pause-after", "")
	name := flags.String("name", "default", "")
	if err := flags.Parse([]string{"--name", "flag"}); err != nil {
		t.Fatal(err)
	}
	if err := daemon.ReadEnvironment("TEST", flags, nil, nil); err != nil {
		t.Fatal(err)
	}
	if *name != "flag" || pause.Duration != 30*time.Second {
		t.Errorf("name %q, pause %v", *name, pause)
	}

	t.Setenv("TEST_PAUSE_AFTER", "soon")
	flags = flag.NewFlagSet("test", flag.ContinueOnError)
	flags.Var(&pause, "pause-after", "")
	if err := daemon.ReadEnvironment("TEST", flags, nil, nil); err == nil || !strings.Contains(err.Error(), "TEST_PAUSE_AFTER") {
		t.Errorf("a wrong value: %v", err)
	}
}

func FuzzDuration(f *testing.F) {
	f.Add([]byte(`"15s"`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var d daemon.Duration
		if d.UnmarshalJSON(raw) != nil {
			return
		}
		again, err := d.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		var e daemon.Duration
		if err := e.UnmarshalJSON(again); err != nil || e != d {
			t.Errorf("%s became %s: %v", raw, again, err)
		}
	})
}
