package agent

import (
	"encoding/json"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestOutcome(t *testing.T) {
	t.Parallel()
	exit := func(code int) syscall.WaitStatus { return syscall.WaitStatus(code << 8) }
	tests := map[string]struct {
		exit  syscall.WaitStatus
		asked status
		want  status
		code  int
	}{
		"success":            {exit(0), "", completed, 0},
		"success after stop": {exit(0), stopped, completed, 0},
		"failure":            {exit(3), "", failed, 3},
		"failure after stop": {exit(3), stopped, stopped, 3},
		"signal":             {syscall.WaitStatus(syscall.SIGSEGV), "", failed, -1},
		"signal after stop":  {syscall.WaitStatus(syscall.SIGTERM), stopped, stopped, -1},
		"signal after kill":  {syscall.WaitStatus(syscall.SIGKILL), killed, killed, -1},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got, code := outcome(test.exit, test.asked); got != test.want || code != test.code {
				t.Errorf("%s, %d", got, code)
			}
		})
	}
}

func TestParseStat(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]statLine{
		"7 (sh) S 1 7 7 0 -1":           {task: task{7, 1, 7, 7}},
		"7 (a) (b) R 9) Z 2 3 4 0":      {task: task{7, 2, 3, 4}, zombie: true},
		"7 (sh) S 1 7":                  {},
		"7 sh S 1 7 7":                  {},
		"7 (sh) S x 7 7":                {},
		"":                              {},
		"7 (new\nline) T 10 20 30 more": {task: task{7, 10, 20, 30}},
	} {
		got, ok := parseStat(7, []byte(line))
		if ok != (want != statLine{}) || ok && got != want {
			t.Errorf("%q: %+v, %v", line, got, ok)
		}
	}
}

func TestFamily(t *testing.T) {
	t.Parallel()
	all := []task{
		{1, 0, 1, 1}, {10, 1, 10, 10}, {11, 10, 10, 10}, {12, 11, 12, 12}, // a chain
		{13, 1, 10, 10},                   // an orphan of the group
		{14, 13, 14, 14}, {20, 1, 20, 20}, // its child, a stranger
	}
	if diff := cmp.Diff(map[int]bool{10: true, 11: true, 12: true, 13: true, 14: true}, familyOf(10, true, all)); diff != "" {
		t.Error(diff)
	}
	if got := familyOf(10, false, all); len(got) != 0 {
		t.Errorf("a stranger with the pid of the leader has the family %v", got)
	}
	if got := familyOf(10, false, all[2:]); len(got) != 4 {
		t.Errorf("after the leader: %v", got)
	}
}

func TestParseSockets(t *testing.T) {
	t.Parallel()
	row := func(local, state, inode string) string {
		return "  0: " + local + " 00000000:0000 " + state + " 00000000:00000000 00:00000000 00000000 0 0 " + inode + " 1 0 100 0\n"
	}
	table := "  sl  local_address rem_address   st\n" +
		row("00000000:1F90", "0A", "1") + // 0.0.0.0:8080
		row("0100007F:1F91", "0A", "2") + // 127.0.0.1:8081
		row("0A00000A:1F92", "01", "3") + // established
		row("00000000000000000000000000000000:1F93", "0A", "4") +
		row("00000000000000000000000001000000:1F94", "0A", "5") + // ::1
		row("0000000000000000FFFF00000100007F:1F95", "0A", "6") + // ::ffff:127.0.0.1
		row("0A00000A:1F90", "0A", "7") + "rubbish\n"
	got := map[int][]string{}
	parseSockets([]byte(table), tcpListen, got)
	if diff := cmp.Diff(map[int][]string{8080: {"1", "7"}, 8083: {"4"}}, got); diff != "" {
		t.Error(diff)
	}
}

func FuzzCommand(f *testing.F) {
	for _, s := range []string{
		`{"command":"true"}`, `{"command":"x","timeout":-1,"keepAlive":true}`, `{"command":"x","timeout":9223372036854775807}`,
		`{"command":"x","env":{"A":"b"},"waitForPorts":[80],"maxRestarts":-1,"restartOnFailure":true,"workingDir":"~/x"}`, `[]`, `null`, ``,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := parseCommand(b, environ{"HOME=/h"})
		if err != nil {
			return
		}
		if strings.TrimSpace(c.Command) == "" || c.Name == "" || strings.ContainsRune(c.Command+c.Name+c.WorkingDir, 0) {
			t.Errorf("accepted %+v", c)
		}
		if p := c.patience(); p < 0 || p > timeoutMax || c.lifetime() < 0 || c.lifetime() > timeoutMax {
			t.Errorf("waits %v, lives %v", p, c.lifetime())
		}
		for _, kv := range (environ{"A=b"}).with(c.Env) {
			if k, _, ok := strings.Cut(kv, "="); !ok || k == "" || strings.ContainsRune(kv, 0) {
				t.Errorf("the variable %q", kv)
			}
		}
	})
}

func TestTimeouts(t *testing.T) {
	t.Parallel()
	for body, want := range map[string][2]float64{ // seconds of patience and lifetime
		`{"command":"x"}`:                                            {0, 0},
		`{"command":"x","timeout":5}`:                                {5, 0},
		`{"command":"x","timeout":-5}`:                               {0, 0},
		`{"command":"x","keepAlive":true}`:                           {0, 600},
		`{"command":"x","keepAlive":true,"timeout":-1}`:              {0, 600},
		`{"command":"x","keepAlive":true,"timeout":0}`:               {0, 0},
		`{"command":"x","keepAlive":true,"timeout":7}`:               {7, 7},
		`{"command":"x","keepAlive":true,"timeout":999999999999999}`: {timeoutMax.Seconds(), timeoutMax.Seconds()},
	} {
		c, err := parseCommand([]byte(body), nil)
		if got := [2]float64{c.patience().Seconds(), c.lifetime().Seconds()}; err != nil || got != want {
			t.Errorf("%s: %v, %v", body, got, err)
		}
	}
}

func FuzzFrame(f *testing.F) {
	for _, s := range []string{`{"type":"input","data":"ls\n"}`, `{"type":"resize","cols":80,"rows":24}`, `{"type":"resize","cols":70000}`, `{}`, `x`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		in, ok := parseFrame(b)
		if !ok {
			return
		}
		switch {
		case in.Type == "input" && in.Data != "":
		case in.Type == "resize" && in.Cols > 0 && in.Rows > 0:
		default:
			t.Errorf("accepted %+v", in)
		}
		out, err := json.Marshal(in)
		if again, ok := parseFrame(out); err != nil || !ok || again != in {
			t.Errorf("%+v comes back as %+v", in, again)
		}
	})
}
