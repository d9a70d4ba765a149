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
	defaultHome = "/root"
)

// environ is a list of KEY=value, as the kernel takes it.
type environ []string

// complete adds what every command needs and the image did not set.
func (e environ) complete() environ {
	defaults := map[string]string{}
	if e.get("PATH") == "" {
		defaults["PATH"] = defaultPath
	}
	if e.get("HOME") == "" {
		defaults["HOME"] = defaultHome
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
