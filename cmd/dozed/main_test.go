package main

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestUsageIsCurrent(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	usage(&out)
	c := defaults()
	flags := flag.NewFlagSet("dozed all", flag.ContinueOnError)
	flags.SetOutput(&out)
	c.bind(flags)
	out.WriteString("\ndozed all:\n")
	flags.PrintDefaults()
	flags = flag.NewFlagSet("dozed doctor", flag.ContinueOnError)
	flags.SetOutput(&out)
	doctorFlags(new(bool))(flags)
	out.WriteString("\ndozed doctor, besides:\n")
	flags.PrintDefaults()

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

func TestLoad(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(file, []byte(`{"region":"eu-1","pauseAfter":"1m","diskAfter":"1h"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	c, rest, err := load("all", []string{"--config", file, "--pause-after", "2m", "--listen", ":80", "rest"})
	if err != nil {
		t.Fatal(err)
	}
	if c.Region != "eu-1" || c.PauseAfter.Duration != 2*time.Minute || c.DiskAfter.Duration != time.Hour || c.SaveAfter.Duration != 5*time.Second {
		t.Errorf("got %+v", c)
	}
	if c.PublicURL != "http://127.0.0.1:80" || len(rest) != 1 {
		t.Errorf("public URL %q, rest %q", c.PublicURL, rest)
	}
	if err := c.validate(); err != nil {
		t.Error(err)
	}
}

func TestDoctorFlags(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]bool{"": false, "--apply": true, "-apply --data /tmp": true, "--apply=false": false} {
		var apply bool
		if _, rest, err := load("doctor", strings.Fields(args), doctorFlags(&apply)); err != nil || len(rest) > 0 || apply != want {
			t.Errorf("%q: apply %t, rest %q, %v", args, apply, rest, err)
		}
	}
	if _, _, err := load("all", []string{"--apply"}); err == nil {
		t.Error("dozed all takes --apply")
	}
}

func TestValidateReportsEverything(t *testing.T) {
	t.Parallel()
	c := defaults().resolve()
	if err := c.validate(); err != nil {
		t.Fatalf("the defaults: %v", err)
	}
	c.SaveAfter.Duration = 0
	if err := c.validate(); err != nil {
		t.Errorf("save at once: %v", err)
	}
	c.Workspace, c.Region, c.Listen, c.PauseAfter.Duration, c.SaveAfter.Duration, c.Egress, c.Log = "Main!", "", "nowhere", -1, -1, "ajar", "loud"
	err := c.validate()
	if err == nil {
		t.Fatal("all wrong, and no error")
	}
	for _, field := range []string{"workspace", "region", "listen", "pauseAfter", "saveAfter", "egress", "log"} {
		if !strings.Contains(err.Error(), field) {
			t.Errorf("%q does not mention %s", err, field)
		}
	}
}

func TestTwoDataDirectoriesShareNothing(t *testing.T) {
	t.Parallel()
	a, b := defaults(), defaults()
	a.Data, b.Data = "/srv/a", "/srv/b"
	a, b = a.resolve(), b.resolve()
	if a.Run == b.Run || a.Cgroup == b.Cgroup || a.ImagesDir == b.ImagesDir {
		t.Errorf("%+v and %+v", a, b)
	}
}

func TestLockKeepsASecondProcessOut(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	unlock, err := lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lock(dir); err == nil || !strings.Contains(err.Error(), "another dozed") {
		t.Errorf("the second lock: %v", err)
	}
	unlock()
	unlock, err = lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	unlock()
}
