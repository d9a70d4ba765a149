package doze_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
)

func TestProgram(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		entrypoint, cmd, want []string
	}{
		"nothing":                    {},
		"a command":                  {cmd: []string{"python3"}, want: []string{"python3"}},
		"an entry point":             {entrypoint: []string{"/start"}, want: []string{"/start"}},
		"both":                       {entrypoint: []string{"/start"}, cmd: []string{"-v"}, want: []string{"/start", "-v"}},
		"the agent":                  {entrypoint: []string{"/usr/local/bin/sandbox-api"}},
		"the agent as a command":     {cmd: []string{"sandbox-api"}},
		"the agent with more":        {entrypoint: []string{"/sandbox-api"}, cmd: []string{"npm", "start"}, want: []string{"/sandbox-api", "npm", "start"}},
		"a script of a similar name": {entrypoint: []string{"/sandbox-api.sh"}, want: []string{"/sandbox-api.sh"}},
	} {
		c := doze.ImageConfig{Entrypoint: test.entrypoint, Cmd: test.cmd}
		if got := c.Program(); !slices.Equal(got, test.want) {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

func TestParseSignal(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]int{
		"SIGINT": 2, "int": 2, "2": 2, "sigquit": 3, "SIGTERM": 15, "15": 15, "SIGWINCH": 28, "64": 64,
		"SIGRTMIN": 34, "SIGRTMIN+3": 37, "RTMAX-1": 63, "SIGRTMAX": 64,
		"": 0, "0": 0, "65": 0, "-1": 0, "SIG": 0, "SIGNOTHING": 0, "SIGINT+1": 0, "SIGRTMIN-1": 0, "SIGRTMAX+1": 0, "SIGRTMIN+x": 0, "RTM+40": 0,
	} {
		got, ok := doze.ParseSignal(name)
		if ok != (want != 0) || ok && got != want {
			t.Errorf("%q is %d, %t, want %d", name, got, ok, want)
		}
	}
}

// TestRecorded: the record of an image has what fits, of which labels are the least.
func TestRecorded(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", doze.ImageConfigMax)
	for name, test := range map[string]struct{ in, want doze.ImageConfig }{
		"all":             {doze.ImageConfig{Cmd: []string{"a"}, Labels: map[string]string{"a": "b"}, Env: []string{"A=b"}}, doze.ImageConfig{Cmd: []string{"a"}, Labels: map[string]string{"a": "b"}, Env: []string{"A=b"}}},
		"long labels":     {doze.ImageConfig{Cmd: []string{"a"}, Labels: map[string]string{"a": long}, Env: []string{"A=b"}}, doze.ImageConfig{Cmd: []string{"a"}, Env: []string{"A=b"}}},
		"long variables":  {doze.ImageConfig{Cmd: []string{"a"}, Labels: map[string]string{"a": "b"}, Env: []string{"A=" + long}}, doze.ImageConfig{Cmd: []string{"a"}}},
		"a long command":  {in: doze.ImageConfig{Cmd: []string{long}, Labels: map[string]string{"a": "b"}}},
		"nothing":         {},
		"nothing is left": {in: doze.ImageConfig{Labels: map[string]string{"a": long}}},
	} {
		got := test.in.Recorded()
		if got == nil {
			got = &doze.ImageConfig{}
		}
		if diff := cmp.Diff(&test.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// FuzzParseSignal: whatever an image says, a signal is one of the kernel's.
func FuzzParseSignal(f *testing.F) {
	for _, s := range []string{"SIGINT", "9", "SIGRTMIN+3", "RTM+40", "-"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if n, ok := doze.ParseSignal(name); ok && (n < 1 || n > doze.SignalMax) {
			t.Errorf("%q is %d", name, n)
		}
	})
}
