package agent

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"syscall"
	"testing"

	"github.com/dozehq/doze"
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

func FuzzTunnel(f *testing.F) {
	f.Add([]byte(`{"local_ip":"10.0.0.2/32","peer_endpoint":"h:1","peer_public_key":"","private_key":"","mtu":1420}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := parseTunnel(base64.StdEncoding.EncodeToString(b))
		if err != nil {
			if p := doze.Public(err); p.Kind != doze.Unprocessable || !strings.HasPrefix(p.Message, "invalid tunnel config") {
				t.Errorf("got %v", err)
			}
			return
		}
		if len(got.PeerKey) != 44 || got.MTU != nil && *got.MTU < mtuMin {
			t.Errorf("accepted %+v", got)
		}
	})
}

func FuzzMetadata(f *testing.F) {
	for _, s := range []string{`{"generation":1,"environment":{"A":"b"}}`, `{"environment":{"":"","=":"x","A\u0000":"b"}}`, `null`, `[]`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		doc, err := parse[metadata](b)
		if err != nil {
			return
		}
		v := newVariables(environ{"A=base"})
		over, skipped := doc.variables()
		if len(over)+len(skipped) > len(doc.Environment) {
			t.Errorf("%d variables are %v, without %v", len(doc.Environment), over, skipped)
		}
		if applied, removed := v.overlay(over); applied != len(over) || removed != 0 {
			t.Errorf("%d applied, %d removed", applied, removed)
		}
		for _, kv := range v.list() {
			if k, _, ok := strings.Cut(kv, "="); !ok || k == "" || strings.ContainsRune(kv, 0) {
				t.Errorf("the variable %q", kv)
			}
		}
	})
}
