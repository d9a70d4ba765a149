package agent

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Images without these still get a usable shell.
const (
	defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// What the host says to the agent alone, in its environment.
const (
	userEnv        = "DOZE_USER"        // of the image: a name or an id, with an optional :group
	workDirEnv     = "DOZE_WORKDIR"     // of the image, where commands start
	nameserversEnv = "DOZE_NAMESERVERS" // addresses with commas in between
	hiddenEnv      = "DOZE_HIDDEN"      // a device that this sandbox is not to have
)

var hostEnv = []string{userEnv, workDirEnv, nameserversEnv, hiddenEnv}

// environ is a list of KEY=value, as the kernel takes it.
type environ []string

// complete adds what every command needs and the image did not set. home is
// where its user is at home.
func (e environ) complete(home string) environ {
	defaults := map[string]string{}
	if e.get("PATH") == "" {
		defaults["PATH"] = defaultPath
	}
	if e.get("HOME") == "" {
		defaults["HOME"] = home
	}
	return e.with(defaults)
}

// get returns the value of key, "" without one.
func (e environ) get(key string) string {
	for _, kv := range slices.Backward(e) {
		if k, v, ok := strings.Cut(kv, "="); ok && k == key {
			return v
		}
	}
	return ""
}

// has reports whether key is set, if only to nothing.
func (e environ) has(key string) bool {
	return slices.ContainsFunc(e, func(kv string) bool { return strings.HasPrefix(kv, key+"=") })
}

// with returns e with the variables of over in place of its own.
func (e environ) with(over map[string]string) environ {
	out := make(environ, 0, len(e)+len(over))
	for _, kv := range e {
		k, _, _ := strings.Cut(kv, "=")
		if _, replaced := over[k]; !replaced {
			out = append(out, kv)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(over)) {
		out = append(out, k+"="+over[k])
	}
	return out
}

// apart returns what with would change in e.
func (e environ) apart(over map[string]string) map[string]string {
	out := map[string]string{}
	for k, v := range over {
		if !e.has(k) || e.get(k) != v {
			out[k] = v
		}
	}
	return out
}

// without returns e without the variables of some names.
func (e environ) without(names ...string) environ {
	return slices.DeleteFunc(slices.Clone(e), func(kv string) bool {
		k, _, _ := strings.Cut(kv, "=")
		return slices.Contains(names, k)
	})
}

// look returns the file that the command name stands for, "" without one.
func (e environ) look(name string) string {
	if strings.Contains(name, "/") {
		if executable(name) {
			return name
		}
		return ""
	}
	for _, dir := range filepath.SplitList(e.get("PATH")) {
		if file := filepath.Join(dir, name); filepath.IsAbs(file) && executable(file) {
			return file
		}
	}
	return ""
}

// shell returns the first of $SHELL and names that the image has.
func (e environ) shell(names ...string) string {
	if s := e.get("SHELL"); s != "" {
		names = append([]string{s}, names...)
	}
	for _, name := range names {
		if file := e.look(name); file != "" {
			return file
		}
	}
	return ""
}

func executable(file string) bool {
	info, err := os.Stat(file)
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}

// inherited returns the variables of commands and terminals out of those that
// the host gave to the agent. home is where their user is at home.
func (e environ) inherited(home string) environ {
	return e.without(hostEnv...).overflow().complete(home)
}
