package builder

import (
	"strconv"

	"github.com/dozehq/doze"
)

// Program is the path of the program in the root file system of builders.
const Program = "/doze-builder"

// command starts the program with so much of its memory for files.
func command(disk doze.Megabytes) []string {
	return []string{Program, "-disk-mb=" + strconv.Itoa(int(disk))}
}
