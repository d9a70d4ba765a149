package command

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/environ"
	"github.com/dozehq/doze/internal/agent/mistake"
)

// Invocation is a way to run a command.
type Invocation struct {
	File string
	Argv []string
	Env  environ.List
}

// Invocations returns the ways to run c in dir with the given variables and its
// own, the quickest first. The last one is a shell, unless the image has none and
// c needs none. The error is Unprocessable and says that there is none.
func (c *Spec) Invocations(dir string, given environ.List) ([]Invocation, error) {
	env := given.With(c.Env)
	if c.Image != nil {
		only, err := Program(c.Image.Argv, dir, env)
		return []Invocation{only}, err
	}
	shell := given.Shell("bash", "sh")
	if shell == "" {
		if only, ok := direct(c.Command, dir, "sh", env); ok {
			return []Invocation{only}, nil
		}
		return nil, doze.Errorf(doze.Unprocessable, "could not execute command '%s' because the image has no shell: neither $SHELL nor bash nor sh is in PATH", c.Command)
	}
	args := strings.Fields(given.Get("SHELL_ARGS"))
	if len(args) == 0 {
		args = []string{"-c"}
	}
	last := Invocation{shell, append(append([]string{shell}, args...), c.Command), env}
	if len(args) != 1 || args[0] != "-c" {
		return []Invocation{last}, nil
	}
	if first, ok := direct(c.Command, dir, shell, env); ok {
		return []Invocation{first, last}, nil
	}
	return []Invocation{last}, nil
}

// Program returns how a program runs in dir with its arguments, without a shell. The
// error is Unprocessable and says that the image has no such program.
func Program(argv []string, dir string, env environ.List) (Invocation, error) {
	name := argv[0]
	if strings.Contains(name, "/") && !filepath.IsAbs(name) {
		name = dir + "/" + name
	}
	file := env.Look(name)
	if file == "" {
		return Invocation{}, doze.Errorf(doze.Unprocessable, "could not execute command '%s' because there is no program '%s' in the sandbox", mistake.Clip(Quote(argv)), mistake.Clip(argv[0]))
	}
	return Invocation{file, argv, env}, nil
}

const (
	// plain are the characters that mean themselves to every shell, wherever
	// in a word they are.
	plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./,:@%+"
	// blanks are between words.
	blanks = " \t"
)

var (
	// reserved are the words that a shell, not a program, gives a meaning to.
	// Those that a program does as well as the shell, such as true, are not.
	reserved = strings.Fields(`. : alias bg bind break builtin caller case cd command compgen complete compopt
		continue coproc declare dirs disown do done echo elif else enable esac eval exec exit export fc fg fi for
		function getopts hash help history if in jobs kill let local logout mapfile popd printf pushd pwd read readarray
		readonly return select set shift shopt source suspend test then time times trap type typeset ulimit umask
		unalias unset until wait while`)
	// obedient are the shells that do nothing of their own before a command,
	// unless a variable in startup says so.
	obedient = []string{"bash", "sh", "dash", "ash"}
	startup  = []string{"BASH_ENV", "SHELLOPTS", "BASHOPTS"}
)

// direct returns what a shell would do with a command that only starts one
// program: then it is quicker to start that. The start of a shell is most of the
// time that a short command takes. Whatever a shell might see in the command is
// left to it, and so is a program that cannot be found: it says that best.
func direct(command, dir, shell string, env environ.List) (_ Invocation, ok bool) {
	name := filepath.Base(shell)
	words := strings.FieldsFunc(command, func(c rune) bool { return strings.ContainsRune(blanks, c) })
	if len(words) == 0 || slices.Contains(reserved, words[0]) || !slices.Contains(obedient, name) || steersShell(env) {
		return Invocation{}, false
	}
	for i, word := range words {
		if i > 0 {
			word = strings.ReplaceAll(word, "=", "") // in front it would be an assignment
		}
		if strings.Trim(word, plain) != "" {
			return Invocation{}, false
		}
	}
	file := words[0]
	switch {
	case filepath.IsAbs(file):
	case strings.Contains(file, "/"):
		file = dir + "/" + file
	case slices.ContainsFunc(filepath.SplitList(env.Get("PATH")), func(dir string) bool { return !filepath.IsAbs(dir) }):
		return Invocation{}, false
	}
	file = env.Look(file)
	here, err := filepath.EvalSymlinks(dir)
	if err != nil || file == "" {
		return Invocation{}, false
	}
	// What the shell would have told it.
	told := map[string]string{"PWD": here}
	if name == "bash" {
		told["_"] = file
		if !env.Has("SHLVL") {
			told["SHLVL"] = "0"
		}
	}
	return Invocation{file, words, env.With(told)}, true
}

// steersShell reports whether a variable tells a shell to do more than the
// command.
func steersShell(e environ.List) bool {
	return slices.ContainsFunc(e, func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return slices.Contains(startup, name) || strings.HasPrefix(name, "BASH_FUNC_")
	})
}
