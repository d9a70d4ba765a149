// Package place finds the file that a path of a request means.
package place

import (
	"cmp"
	"path"
	"path/filepath"
	"strings"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/environ"
)

// Max is what the kernel takes (PATH_MAX), without its final NUL.
const Max = 4095

// Place is a path of a request: where it is and how answers name it.
type Place struct {
	Abs   string // clean and absolute
	Shown string // relative if the request was
}

// Finder finds the places that requests mean.
type Finder struct {
	vars *environ.Variables
	cwd  string // of relative paths, unless a variable says
}

// New returns a finder of paths that are relative to cwd.
func New(vars *environ.Variables, cwd string) Finder { return Finder{vars, cwd} }

// Find finds the place that a file route means.
func (f Finder) Find(arg string) (Place, error) {
	return parse(arg, f.WorkDir(), f.vars.List().Get("HOME"))
}

// WorkDir is the directory of relative paths of files.
func (f Finder) WorkDir() string {
	return filepath.Join("/", cmp.Or(f.vars.Given().Get("WORKDIR"), f.cwd))
}

// parse finds the place of p, which is relative to dir or, after a ~, to
// home. Only one that the kernel could never open is an error (Invalid).
func parse(p, dir, home string) (Place, error) {
	switch {
	case strings.ContainsRune(p, 0):
		return Place{}, doze.Errorf(doze.Invalid, "the path has a NUL byte; remove it")
	case p == "~" || strings.HasPrefix(p, "~/"):
		if home == "" {
			return Place{}, doze.Errorf(doze.Invalid, "the path begins with ~ but HOME is not set; send an absolute path")
		}
		p = home + p[1:]
	case p == "" || p == "." || p == "./":
		return Place{Abs: path.Clean(dir), Shown: dir}, nil
	}
	p = Collapse(p)
	abs := path.Clean(p)
	if !path.IsAbs(p) {
		abs = path.Join(dir, p)
	}
	if len(abs) > Max || len(p) > Max {
		return Place{}, doze.Errorf(doze.Invalid, "the path has %d bytes; at most %d are possible", max(len(abs), len(p)), Max)
	}
	return Place{Abs: abs, Shown: p}, nil
}

// Collapse makes one slash of every run of slashes.
func Collapse(p string) string {
	for strings.Contains(p, "//") {
		p = strings.ReplaceAll(p, "//", "/")
	}
	return p
}
