package disk

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/catalogue"
)

// A reference is what a caller wrote, understood. Exactly one of four things makes its
// image: a recipe, a Dockerfile of ours, a registry, or an import or a build that has
// happened.
type reference struct {
	key    string         // the one spelling under which the library keeps it
	recipe *recipe        // of an image of ours
	built  string         // of an image of ours that a Dockerfile makes: its name
	remote name.Reference // of an image in a registry
	login  *Login         // if somebody's credentials are needed for it
}

// Login are the credentials of an owner for a registry. What is pulled with
// them is found by that owner alone; the file behind it may be shared.
type Login struct {
	Owner              string
	Username, Password string
}

// made reports whether the image can be made, if it is not there.
func (r reference) made() bool { return r.ours() || r.remote != nil }

// ours reports whether the platform makes the image itself.
func (r reference) ours() bool { return r.recipe != nil || r.built != "" }

// retired reports whether the image is one of ours that another release made.
func (r reference) retired() bool { return revisionForm.MatchString(r.key) && !r.made() }

// as is r with credentials, which may be nil. They are for registries only.
func (r reference) as(login *Login) reference {
	if login != nil && r.remote != nil {
		r.login, r.key = login, r.key+ownerMark+login.Owner
	}
	return r
}

// ownerMark is between a reference and its owner in a key. No reference has it.
const ownerMark = " of "

// The grammar that registries share.
var (
	hostForm   = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?$`)
	pathForm   = regexp.MustCompile(`^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*$`)
	digestForm = regexp.MustCompile(`^sha256:[a-f0-9]{64}$`)
)

// parse understands [registry/]path[:tag][@digest]. The registry is optional
// only for images of ours and for imported ones: a bare name never means one
// particular registry of the world. It knows the references of images that were built
// too, which control lets no caller write.
func parse(s string) (reference, error) {
	if len(s) > doze.ImageMax {
		return reference{}, invalid(s, "an image reference has at most %d characters", doze.ImageMax)
	}
	if isBuilt(s) {
		return reference{key: s}, nil
	}
	if revisionForm.MatchString(s) {
		if o, ok := revised(s); ok {
			return o.reference(s), nil
		}
		return reference{key: s}, nil // of another release
	}
	rest, digest, pinned := strings.Cut(s, "@")
	if pinned && !digestForm.MatchString(digest) {
		return reference{}, invalid(s, "%q has a malformed digest: it must be sha256: and 64 lowercase hexadecimal digits", s)
	}
	host, path := "", rest
	if first, after, ok := strings.Cut(rest, "/"); ok && (strings.ContainsAny(first, ".:") || first == "localhost") {
		host, path = first, after
	}
	path, tag, tagged := strings.Cut(path, ":")
	if tagged && !doze.CheckTag(tag) {
		return reference{}, invalid(s, "%q has a malformed tag: letters, digits, dots, underscores and dashes are allowed", s)
	}
	if !pathForm.MatchString(path) || host != "" && !hostForm.MatchString(host) {
		return reference{}, invalid(s, "%q is not an image reference like blaxel/base-image:latest or registry.example.com/team/image:1.0", s)
	}
	if host != "" {
		remote, err := name.ParseReference(s, name.WithDefaultTag(doze.TagDefault))
		if err != nil {
			return reference{}, invalid(s, "%q is not an image reference: check the registry and the path", s)
		}
		return reference{key: remote.Name(), remote: remote}, nil
	}

	o, missing, ours := platform(path)
	switch {
	case missing != "":
		return reference{}, invalid(s, "%q is not available here: this installation does not ship %s", s, missing)
	case ours && pinned:
		return reference{}, invalid(s, "%q pins a digest, but images of the platform are made on this machine: leave it out", s)
	case ours && tagged && tag != doze.TagDefault:
		return reference{}, invalid(s, "%q has a tag that images of the platform do not have: write %s:%s, or leave the tag out", s, path, doze.TagDefault)
	case ours:
		return o.reference(o.key()), nil
	case pinned:
		return reference{}, invalid(s, "%q pins a digest and so needs a registry: write registry.example.com/%s", s, rest)
	}
	if !tagged {
		tag = doze.TagDefault
	}
	return reference{key: path + ":" + tag}, nil
}

// invalid says that no image will ever come of a reference.
func invalid(ref, format string, args ...any) error {
	return &doze.Error{
		Kind:    doze.Invalid,
		Name:    doze.NameInvalidImage,
		Message: fmt.Sprintf(format, args...),
		Fields: map[string]any{"details": map[string]any{
			"requested_image":  ref[:min(len(ref), doze.ImageMax)],
			"supported_images": catalogue.Supported(),
		}},
	}
}
