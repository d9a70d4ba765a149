package disk

import (
	"strings"

	"github.com/dozehq/doze/internal/catalogue"
)

// Platform reports whether this host makes the image of a name, or has imported it. No
// registry is asked for such a name. A name with a digest is none: that
// of an image that was built has one, and belongs to a workspace.
func (l *Library) Platform(ref string) bool {
	r, err := parse(ref)
	if err != nil || r.remote != nil || strings.Contains(ref, "@") {
		return false
	}
	_, imported := l.find(r.key)
	return r.ours() || imported
}

// CheckPlatform returns why a name that can only mean an image of the platform means none. It is
// nil for all other names.
func (l *Library) CheckPlatform(ref string) error {
	if !catalogue.Claims(ref) || l.Platform(ref) {
		return nil
	}
	if _, err := parse(ref); err != nil {
		return err
	}
	return invalid(ref, "the platform has no image %q: see doze image catalog. There are %s", ref, strings.Join(catalogue.Supported(), ", "))
}
