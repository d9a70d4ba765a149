package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCompletion(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	for name, tt := range map[string]struct {
		args []string
		want string // the lines of cobra: completions, and a directive
	}{
		"a name":              {[]string{"sandbox", "exec", "w"}, "web\n:4\n"},
		"another beginning":   {[]string{"sandbox", "exec", "x"}, ":4\n"},
		"not twice":           {[]string{"sandbox", "rm", "web", "w"}, ":4\n"},
		"a port":              {[]string{"sandbox", "port", "web", ""}, ":0\n"},
		"a place":             {[]string{"sandbox", "cp", "w"}, "web:\n:2\n"},
		"a place, the second": {[]string{"sandbox", "cp", "./f", "web"}, "web:\n:2\n"},
		"a file":              {[]string{"sandbox", "cp", "./w"}, ":0\n"},
		"of another noun":     {[]string{"drive", "mount", "w"}, "web\n:4\n"},
		"a VPC":               {[]string{"vpc", "rm", "l"}, "lab\n:4\n"},
		"a gateway":           {[]string{"ip", "create", ""}, "office\n:4\n"},
		"an egress IP":        {[]string{"ip", "rm", "office-1", "o"}, "office-2\n:4\n"},
		"a new name":          {[]string{"vpc", "create", ""}, ":0\n"},
		"a flag":              {[]string{"network", "set", "web", "--gateway", "o"}, "office\n:4\n"},
		"a short form":        {[]string{"exec", "w"}, "web\n:4\n"},
		"many sandboxes":      {[]string{"sleep", "w"}, "web\n:4\n"},
		"a format":            {[]string{"ls", "-o", ""}, "table\nwide\njson\nyaml\nname\n:4\n"},
		"a signal":            {[]string{"kill", "web", "--signal", ""}, "KILL\nTERM\n:4\n"},
		"the commands":        {[]string{"sandbox", "po"}, "port\tForward a local port to a port of a sandbox\n:4\n"},
	} {
		code, out, _ := s.command(t.Context(), t, "", append([]string{"__complete"}, tt.args...)...)
		if diff := cmp.Diff(tt.want, out); code != 0 || diff != "" {
			t.Errorf("%s: exit code %d (-want +got):\n%s", name, code, diff)
		}
	}
}
