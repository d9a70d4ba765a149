package agent

import (
	"cmp"
	"path"
	"path/filepath"
	"strings"

	"github.com/dozehq/doze"
)

// pathMax is what the kernel takes (PATH_MAX), without its final NUL.
const pathMax = 4095

// place is a path of a request: where it is and how answers name it.
type place struct {
	abs   string // clean and absolute
	shown string // relative if the request was
}

// parsePath finds the place of p, which is relative to dir or, after a ~, to
// home. Only one that the kernel could never open is an error (Invalid).
func parsePath(p, dir, home string) (place, error) {
	switch {
	case strings.ContainsRune(p, 0):
		return place{}, doze.Errorf(doze.Invalid, "the path has a NUL byte; remove it")
	case p == "~" || strings.HasPrefix(p, "~/"):
		if home == "" {
			return place{}, doze.Errorf(doze.Invalid, "the path begins with ~ but HOME is not set; send an absolute path")
		}
		p = home + p[1:]
	case p == "" || p == "." || p == "./":
		return place{abs: path.Clean(dir), shown: dir}, nil
	}
	p = collapse(p)
	abs := path.Clean(p)
	if !path.IsAbs(p) {
		abs = path.Join(dir, p)
	}
	if len(abs) > pathMax || len(p) > pathMax {
		return place{}, doze.Errorf(doze.Invalid, "the path has %d bytes; at most %d are possible", max(len(abs), len(p)), pathMax)
	}
	return place{abs: abs, shown: p}, nil
}

// collapse makes one slash of every run of slashes.
func collapse(p string) string {
	for strings.Contains(p, "//") {
		p = strings.ReplaceAll(p, "//", "/")
	}
	return p
}

// find finds the place that a file route means.
func (f places) find(arg string) (place, error) {
	return parsePath(arg, f.workDir(), f.vars.list().get("HOME"))
}

// workDir is the directory of relative paths of files.
func (f places) workDir() string {
	return filepath.Join("/", cmp.Or(f.vars.given().get("WORKDIR"), f.cwd))
}

// places finds the places that requests mean.
type places struct {
	vars *variables
	cwd  string // of relative paths, unless a variable says
}

func newPlaces(vars *variables, cwd string) places { return places{vars, cwd} }
