package command

import (
	"os/exec"
	"strings"
	"syscall"
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
		c, err := Parse(b, environ.List{"HOME=/h"}, nil)
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
		c, err := Parse([]byte(body), nil, nil)
		if got := [2]float64{c.Patience().Seconds(), c.Lifetime().Seconds()}; err != nil || got != want {
			t.Errorf("%s: %v, %v", body, got, err)
		}
	}
}

// TestImage: the name of the process of the image, without a command, is that process.
func TestImage(t *testing.T) {
	t.Parallel()
	image := ForImage(Image{Argv: []string{"/bin/serve", "it's", "", "a b", "-x=1"}, StopSignal: syscall.SIGINT})
	if want := `/bin/serve 'it'\''s' '' 'a b' '-x=1'`; image.Command != want {
		t.Errorf("it is %s, want %s", image.Command, want)
	}
	for name, test := range map[string]struct {
		body     string
		image    *Spec
		argv     bool
		restarts int
		fails    bool
	}{
		"again":             {body: `{"name":"entrypoint"}`, image: &image, argv: true, restarts: restartsMax},
		"with another end":  {body: `{"name":"entrypoint","restartOnFailure":true,"maxRestarts":1}`, image: &image, argv: true, restarts: 1},
		"another command":   {body: `{"name":"entrypoint","command":"true"}`, image: &image},
		"another name":      {body: `{"name":"web"}`, image: &image, fails: true},
		"an image without":  {body: `{"name":"entrypoint"}`, fails: true},
		"a caller says how": {body: `{"command":"true","Image":{"Argv":["x"]},"image":{"argv":["x"]}}`, image: &image},
	} {
		c, err := Parse([]byte(test.body), nil, test.image)
		if (err != nil) != test.fails || (c.Image != nil) != test.argv || c.MaxRestarts != test.restarts {
			t.Errorf("%s: %+v, %v", name, c, err)
		}
		want := syscall.SIGTERM
		if test.argv {
			want = syscall.SIGINT
		}
		if got := c.StopSignal(); got != want {
			t.Errorf("%s: it ends by %v, want %v", name, got, want)
		}
	}
}

// FuzzQuote: a shell makes the same words of a line that it began as.
func FuzzQuote(f *testing.F) {
	for _, s := range []string{"", "a", "a b", "it's", "$HOME", "a\nb", "*", "\\", "=x", "#"} {
		f.Add(s, s)
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		line := Quote([]string{a, b})
		if strings.ContainsRune(line, 0) {
			return // no program can be given it
		}
		out, err := exec.CommandContext(t.Context(), "sh", "-c", "printf '%s\\0' "+line).Output()
		if err != nil || string(out) != a+"\x00"+b+"\x00" {
			t.Errorf("%q, %q became %q: %q, %v", a, b, line, out, err)
		}
	})
}
