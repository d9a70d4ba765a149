package command_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze/internal/agent/agenttest"
)

// shellOf puts a shell into dir that leaves a file there when it is used.
func shellOf(t *testing.T, dir, name string) (shell, used string) {
	t.Helper()
	shell, used = filepath.Join(dir, name), filepath.Join(dir, "used")
	script := "#!/bin/sh\n: >" + used + "\nexec /usr/bin/env " + name + ` "$@"` + "\n"
	program(t, shell, script, 0o755)
	return shell, used
}

// program writes a file that may be executed at once. A process that is started
// meanwhile has it open for a moment, and until then nobody may execute it.
func program(t *testing.T, file, text string, mode os.FileMode) {
	t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(file, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

// What needs no shell is the same without one: a variable that might steer a
// shell makes the agent leave the same command to one.
func TestDirect(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		command string
		shell   string // bash, if it is empty
		env     string // more of the agent
		direct  bool
	}{
		"a program":              {command: "true", direct: true},
		"that fails":             {command: "false", direct: true},
		"arguments":              {command: "ls -a\t/proc/self/task/.. a=b --x=y,z:1@2%3+4", direct: true},
		"variables":              {command: "env", direct: true},
		"variables of sh":        {command: "env", shell: "sh", direct: true},
		"nested shells":          {command: "env", env: "SHLVL=7", direct: true},
		"a path":                 {command: "/usr/bin/id -u", direct: true},
		"a relative path":        {command: "./script one two", direct: true},
		"below":                  {command: "sub/../script", direct: true},
		"blanks around":          {command: "  id   -u  ", direct: true},
		"killed":                 {command: "./killed", direct: true},
		"a script without a #!":  {command: "./bare one"},
		"not found":              {command: "no-such-program --x"},
		"not found there":        {command: "./no-such-program"},
		"no program":             {command: "./data"},
		"a directory":            {command: "./sub"},
		"a built-in":             {command: "ulimit -n"},
		"a keyword":              {command: "time -p"},
		"an assignment":          {command: "A=b env"},
		"a variable":             {command: "ls $HOME/data"},
		"the home":               {command: "ls ~"},
		"quotes":                 {command: "ls 'data'"},
		"a pattern":              {command: "ls dat?"},
		"braces":                 {command: "ls {data,bare}"},
		"a comment":              {command: "true # not"},
		"an operator":            {command: "true && true"},
		"two lines":              {command: "true\nfalse"},
		"letters of others":      {command: "ls ä"},
		"a relative PATH":        {command: "script", env: "PATH=:/usr/bin:/bin"},
		"a start file":           {command: "true", env: "BASH_ENV=/dev/null"},
		"options":                {command: "true", env: "SHELLOPTS=braceexpand"},
		"arguments of the shell": {command: "true", env: "SHELL_ARGS=-uc"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			kind := test.shell
			if kind == "" {
				kind = "bash"
			}
			shell, used := shellOf(t, dir, kind)
			s := agenttest.Start(t, append(strings.Fields(test.env), "SHELL="+shell, "LC_ALL=C")...)
			for file, mode := range map[string]os.FileMode{"script": 0o755, "bare": 0o755, "data": 0o644, "killed": 0o755} {
				text := map[string]string{
					"script": "#!/bin/sh\necho \"$PWD\" \"$@\"\n", "bare": "echo bare \"$@\"\n", "killed": "#!/bin/sh\nkill -9 $$\n",
				}[file]
				program(t, filepath.Join(s.Dir, file), text, mode)
			}
			if err := os.Mkdir(filepath.Join(s.Dir, "sub"), 0o755); err != nil {
				t.Fatal(err)
			}
			run := func(env map[string]string) [3]any {
				p := agenttest.Get[agenttest.Process](t, s, "POST", "/process", agenttest.Object(t, map[string]any{
					"command": test.command, "waitForCompletion": true, "workingDir": s.Dir, "env": env,
				}))
				out := strings.Split(strings.Replace(p.Stdout, "BASH_ENV=/dev/null\n", "", 1), "\n")
				slices.Sort(out) // shells have an order of their own for variables
				return [3]any{out, p.Stderr, p.ExitCode}
			}
			got := run(nil)
			if _, err := os.Stat(used); (err != nil) != test.direct {
				t.Errorf("a shell was used: %v", err == nil)
			}
			if !test.direct {
				return
			}
			if diff := cmp.Diff(run(map[string]string{"BASH_ENV": "/dev/null"}), got); diff != "" {
				t.Errorf("it is not what a shell does (-shell +agent):\n%s", diff)
			}
		})
	}
}
