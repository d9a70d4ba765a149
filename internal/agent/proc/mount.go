package proc

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// pointField is behind the id, the parent, the device and the root.
const pointField = 4

// Mount is a file system where processes see it.
type Mount struct {
	Point string
	Type  string
}

// Mounts returns the mounts that this process sees, the oldest first.
func (d Dir) Mounts() ([]Mount, error) {
	raw, err := os.ReadFile(filepath.Join(string(d), "self/mountinfo"))
	if err != nil {
		return nil, fmt.Errorf("read what is mounted: %w", err)
	}
	return parseMounts(string(raw)), nil
}

// parseMounts reads a mountinfo, and leaves out what is no line of one.
func parseMounts(raw string) (all []Mount) {
	for line := range strings.Lines(raw) {
		where, what, _ := strings.Cut(line, " - ")
		kind, _, ok := strings.Cut(what, " ") // then the source, and options
		if of := strings.Split(where, " "); ok && len(of) > pointField {
			all = append(all, Mount{unescape(of[pointField]), kind})
		}
	}
	return all
}

// unescape puts bytes in the place of their octal numbers, as which the kernel
// writes those that would end a field.
func unescape(field string) string {
	const digits = 3
	var out strings.Builder
	for {
		plain, rest, found := strings.Cut(field, `\`)
		out.WriteString(plain)
		if !found {
			return out.String()
		}
		n, err := strconv.ParseUint(rest[:min(digits, len(rest))], 8, 8)
		if err != nil || len(rest) < digits {
			out.WriteByte('\\')
			field = rest
			continue
		}
		out.WriteByte(byte(n))
		field = rest[digits:]
	}
}
