package disk

import "strings"

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
