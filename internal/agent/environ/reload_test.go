package environ_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze/internal/agent/agenttest"
)

func TestReload(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "metadata")
	s := agenttest.Start(t, "BL_METADATA_PATH="+file, "BASE=old", "KEPT=kept")
	type reloaded struct {
		Generation, Applied, Removed int
		Skipped                      []string
	}
	s.Fails(t, 404, "there is no "+file, "POST", "/environment/reload", "")
	for _, step := range []struct {
		doc  string
		want reloaded
		env  string
	}{
		{`{"generation":7,"environment":{"A":"1","BASE":"new","X=":"","N":"\u0000","":"x","T":5,"U":null},"unknown":1}`, reloaded{7, 2, 0, []string{"", "N", "T", "U", "X="}}, "A=1 BASE=new KEPT=kept"},
		{`{"generation":8,"environment":{"A":"2"}}`, reloaded{8, 1, 1, nil}, "A=2 BASE=old KEPT=kept"},
		{`{"generation":9}`, reloaded{9, 0, 1, nil}, "A= BASE=old KEPT=kept"},
	} {
		if err := os.WriteFile(file, []byte(step.doc), 0o600); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(step.want, agenttest.Get[reloaded](t, s, "POST", "/environment/reload", "")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.doc, diff)
		}
		if p := s.Exec(t, "echo A=$A BASE=$BASE KEPT=$KEPT"); strings.TrimSpace(p.Stdout) != step.env {
			t.Errorf("%s: %s", step.doc, p.Stdout)
		}
	}
	for _, bad := range []string{`{`, `[]`, `{"environment":[],"generation":"x"}`, strings.Repeat(" ", 4<<20) + "{}"} {
		if err := os.WriteFile(file, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		s.Fails(t, 500, file, "POST", "/environment/reload", "")
	}
	if err := os.WriteFile(file, []byte(`{"environment":[],"generation":"x"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Fails(t, 500, "environment must be an object, not array; generation must be a whole number, not string", "POST", "/environment/reload", "")
}

func TestOverflow(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "variables")
	if err := os.WriteFile(file, []byte("A\x00one\ntwo\x00BAD=\x00x\x00SET\x00no\x00EMPTY\x00no\x00B\x00last\x00C"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := agenttest.Start(t, "BL_ENV_VAR_PATH="+file, "SET=yes", "EMPTY=")
	if p := s.Exec(t, `echo "$A|$SET|$EMPTY|$B|$C"`); p.Stdout != "one\ntwo|yes||last|\n" {
		t.Errorf("got %q", p.Stdout)
	}
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	agenttest.Start(t, "BL_ENV_VAR_PATH="+pipe).Exec(t, "true") // it does not wait for a writer
}
