package agent

import "path"

// launcher starts commands.
type launcher struct {
	children *reaper
	vars     *variables
	who      workload
	cwd      string // where commands start that do not say, absolute
}

// dir returns where a command starts. It is no cleaner than what was asked for:
// links before a .. count.
func (l launcher) dir(asked string) string {
	switch {
	case asked == "":
		return l.cwd
	case path.IsAbs(asked):
		return asked
	}
	return l.cwd + "/" + asked
}
