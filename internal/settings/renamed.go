package settings

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// A rename is a setting whose name was another one in the version before. In this
// version the old names of the flag, of the environment variable and of the key in a
// file work, with a notice. The next version removes them from the table.
type rename struct {
	oldFlag, flag string
	oldKey, key   string
}

var renames = []rename{
	{"spares", "warm-pool", "spares", "warmPool"},
	{"spares-max", "warm-pool-max", "sparesMax", "warmPoolMax"},
	{"image-keep", "image-retention", "imageKeep", "imageRetention"},
	{"audit-keep", "audit-retention", "auditKeep", "auditRetention"},
	{"region", "regions", "region", "regions"},
}

// currentFlags replaces old names of flags in the arguments of a command, and
// writes a notice for each.
func currentFlags(args []string, notices io.Writer) []string {
	args = slices.Clone(args)
	for i, arg := range args {
		if arg == "--" {
			break
		}
		name := strings.TrimPrefix(strings.TrimPrefix(arg, "-"), "-")
		if name == arg {
			continue // no flag
		}
		name, value, assigned := strings.Cut(name, "=")
		for _, r := range renames {
			if name != r.oldFlag {
				continue
			}
			notice(notices, "--"+name, "--"+r.flag)
			if args[i] = "--" + r.flag; assigned {
				args[i] += "=" + value
			}
		}
	}
	return args
}

// oldFlags returns the old name of each flag that has one.
func oldFlags() map[string]string {
	old := map[string]string{}
	for _, r := range renames {
		old[r.flag] = r.oldFlag
	}
	return old
}

// oldKeys returns the present name of each old key of a file.
func oldKeys() map[string]string {
	now := map[string]string{}
	for _, r := range renames {
		now[r.oldKey] = r.key
	}
	return now
}

// notice tells the operator that a name was replaced.
func notice(w io.Writer, old, now string) {
	fmt.Fprintf(w, "dozed: %s is called %s now; the old name will not work in the next version\n", old, now)
}
