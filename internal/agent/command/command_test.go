package command

import (
	"strings"
	"testing"

	"github.com/dozehq/doze/internal/agent/environ"
)

func FuzzCommand(f *testing.F) {
	for _, s := range []string{
		`{"command":"true"}`, `{"command":"x","timeout":-1,"keepAlive":true}`, `{"command":"x","timeout":9223372036854775807}`,
		`{"command":"x","env":{"A":"b"},"waitForPorts":[80],"maxRestarts":-1,"restartOnFailure":true,"workingDir":"~/x"}`, `[]`, `null`, ``,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := Parse(b, environ.List{"HOME=/h"})
		if err != nil {
			return
		}
		if strings.TrimSpace(c.Command) == "" || c.Name == "" || strings.ContainsRune(c.Command+c.Name+c.WorkingDir, 0) {
			t.Errorf("accepted %+v", c)
		}
		if p := c.Patience(); p < 0 || p > timeoutMax || c.Lifetime() < 0 || c.Lifetime() > timeoutMax {
			t.Errorf("waits %v, lives %v", p, c.Lifetime())
		}
		for _, kv := range (environ.List{"A=b"}).With(c.Env) {
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
		c, err := Parse([]byte(body), nil)
		if got := [2]float64{c.Patience().Seconds(), c.Lifetime().Seconds()}; err != nil || got != want {
			t.Errorf("%s: %v, %v", body, got, err)
		}
	}
}
