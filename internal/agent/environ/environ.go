// Package environ has the environment variables that commands and terminals
// inherit.
package environ

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// defaultPath is for images without a PATH: they still get a usable shell.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// What the host says to the agent alone, in its environment.
const (
	ImageUser    = "DOZE_USER"        // of the image: a name or an id, with an optional :group
	ImageDir     = "DOZE_WORKDIR"     // of the image, where commands start
	Nameservers  = "DOZE_NAMESERVERS" // addresses with commas in between
	HiddenDevice = "DOZE_HIDDEN"      // a device that this sandbox is not to have
	Builder      = "DOZE_BUILDER"     // not empty: this is a machine of the platform that builds images
	Containers   = "DOZE_CONTAINERS"  // not empty: container engines run inside
)

var hostEnv = []string{ImageUser, ImageDir, Nameservers, HiddenDevice, Builder, Containers}

// List is a list of KEY=value, as the kernel takes it.
type List []string

// complete adds what every command needs and the image did not set. home is
// where its user is at home.
func (e List) complete(home string) List {
	defaults := map[string]string{}
	if e.Get("PATH") == "" {
		defaults["PATH"] = defaultPath
	}
	if e.Get("HOME") == "" {
		defaults["HOME"] = home
	}
	return e.With(defaults)
}

// Get returns the value of key, "" without one.
func (e List) Get(key string) string {
	for _, kv := range slices.Backward(e) {
		if k, v, ok := strings.Cut(kv, "="); ok && k == key {
			return v
		}
	}
	return ""
}

// Has reports whether key is set, if only to nothing.
func (e List) Has(key string) bool {
	return slices.ContainsFunc(e, func(kv string) bool { return strings.HasPrefix(kv, key+"=") })
}

// With returns e with the variables of over in place of its own.
func (e List) With(over map[string]string) List {
	out := make(List, 0, len(e)+len(over))
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

// Apart returns what with would change in e.
func (e List) Apart(over map[string]string) map[string]string {
	out := map[string]string{}
	for k, v := range over {
		if !e.Has(k) || e.Get(k) != v {
			out[k] = v
		}
	}
	return out
}

// without returns e without the variables of some names.
func (e List) without(names ...string) List {
	return slices.DeleteFunc(slices.Clone(e), func(kv string) bool {
		k, _, _ := strings.Cut(kv, "=")
		return slices.Contains(names, k)
	})
}

// Look returns the file that the command name stands for, "" without one.
func (e List) Look(name string) string {
	if strings.Contains(name, "/") {
		if executable(name) {
			return name
		}
		return ""
	}
	for _, dir := range filepath.SplitList(e.Get("PATH")) {
		if file := filepath.Join(dir, name); filepath.IsAbs(file) && executable(file) {
			return file
		}
	}
	return ""
}

// Shell returns the first of $SHELL and names that the image has.
func (e List) Shell(names ...string) string {
	if s := e.Get("SHELL"); s != "" {
		names = append([]string{s}, names...)
	}
	for _, name := range names {
		if file := e.Look(name); file != "" {
			return file
		}
	}
	return ""
}

func executable(file string) bool {
	info, err := os.Stat(file)
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}

// Inherited returns the variables of commands and terminals out of those that
// the host gave to the agent. home is where their user is at home.
func (e List) Inherited(home string) List {
	return e.without(hostEnv...).overflow().complete(home)
}
