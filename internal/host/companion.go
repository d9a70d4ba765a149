package host

import (
	"os"
	"path/filepath"
)

// places are the directories of the other programs, seen from the directory of dozed.
// The first one that has a program wins.
var places = []string{
	".",           // make build, and an installation in one directory
	"../lib/doze", // packages: /usr/bin/dozed and /usr/lib/doze
}

// Companion returns the path of another program of the release that dozed is of. If it
// is nowhere, the path is the one beside dozed. Dozed is a path.
func Companion(dozed, name string) string {
	for _, place := range places {
		path := filepath.Join(filepath.Dir(dozed), place, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path
		}
	}
	return filepath.Join(filepath.Dir(dozed), name)
}
