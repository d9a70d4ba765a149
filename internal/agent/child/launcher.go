package child

import (
	"path"

	"github.com/dozehq/doze/internal/agent/account"
	"github.com/dozehq/doze/internal/agent/environ"
)

// Launcher starts commands.
type Launcher struct {
	Children *Reaper
	Vars     *environ.Variables
	User     account.User
	Dir      string // where commands start that do not say, absolute
}

// In returns where a command starts. It is no cleaner than what was asked for:
// links before a .. count.
func (l Launcher) In(asked string) string {
	switch {
	case asked == "":
		return l.Dir
	case path.IsAbs(asked):
		return asked
	}
	return l.Dir + "/" + asked
}
