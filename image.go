package doze

import (
	"encoding/json"
	"strings"
)

// Limits of the images of a workspace.
const (
	ImagesMax      = 1000
	ImageTagsMax   = 100 // of an image
	ImageSharesMax = 100 // of an image
	tagMax         = 128 // what registries allow
	TagDefault     = "latest"
)

// Image is a name of a workspace for images of registries, one for each tag
// (section 11.4 of the public API).
type Image struct {
	Metadata ImageMetadata `json:"metadata"`
	Spec     ImageSpec     `json:"spec"`
}

// ImageMetadata says whose an image is.
type ImageMetadata struct {
	Name            string `json:"name"`
	DisplayName     string `json:"displayName,omitempty"`
	ResourceType    string `json:"resourceType"`
	Status          string `json:"status"` // BUILT, or that of its build: see [Build]
	Workspace       string `json:"workspace"`
	SourceWorkspace string `json:"sourceWorkspace,omitempty"` // the one that shares it
	CreatedAt       Time   `json:"createdAt,omitzero"`
	UpdatedAt       Time   `json:"updatedAt,omitzero"`
	LastDeployedAt  Time   `json:"lastDeployedAt,omitzero"`
}

// ImageSpec is what an image has.
type ImageSpec struct {
	Size int64      `json:"size"` // bytes of all tags
	Tags []ImageTag `json:"tags"`
}

// ImageTag is one version of an image.
type ImageTag struct {
	Name      string `json:"name"`
	Image     string `json:"image"` // in its registry or of its build, by its digest
	Size      int64  `json:"size"`  // bytes
	CreatedAt Time   `json:"createdAt,omitzero"`
	UpdatedAt Time   `json:"updatedAt,omitzero"`
	// Config is what the image says about its process. Lists are without.
	Config *ImageConfig `json:"config,omitempty"`
	// Build says that a build for a sandbox made the tag. The next such build deletes it,
	// unless a sandbox has it.
	Build bool `json:"build,omitempty"`
}

// Limits of what the record of an image has of what its versions say.
const (
	ImageConfigMax  = 4 << 10 // bytes of JSON of one tag
	ImageConfigsMax = 20      // tags, those that moved last
)

// Recorded is the configuration as the record of an image has it: one that is too long is
// without its labels, then without its variables. It is nil if there is nothing left.
func (c ImageConfig) Recorded() *ImageConfig {
	for _, shorten := range []func(){func() {}, func() { c.Labels = nil }, func() { c.Env = nil }} {
		shorten()
		raw, err := json.Marshal(c)
		if err == nil && len(raw) <= ImageConfigMax && string(raw) != "{}" {
			return &c
		}
	}
	return nil
}

// ImageBuilt is the status of an image that is there.
const ImageBuilt = "BUILT"

// ImageRequest makes a tag of an image.
type ImageRequest struct {
	Name         string `json:"name"` // with or without a tag
	ResourceType string `json:"resourceType"`
	Image        string `json:"image,omitempty"` // in a registry
}

// ImageResponse says what came of it.
type ImageResponse struct {
	Message      string `json:"message"`
	Name         string `json:"name"`
	ResourceType string `json:"resourceType"`
	Image        string `json:"image,omitempty"` // in its registry, by its digest; empty if it is to be built
}

// ImageShare is a workspace that an image is shared with.
type ImageShare struct {
	Workspace string `json:"workspace"`
	AccountID string `json:"accountId"`
	Status    string `json:"status"`
}

// BuiltPrefix begins the references of images that the platform built, or that were
// loaded from an archive. They are in records only: a caller names such an image by its
// name in the workspace.
const BuiltPrefix = "built/"

// WorkspaceImage reads a reference to an image of a workspace:
// [sandbox/]name[:tag]. ok is false for what has another form.
func WorkspaceImage(ref string) (name, tag string, ok bool) {
	name, tag, tagged := strings.Cut(strings.TrimPrefix(ref, KindSandbox+"/"), ":")
	if !tagged {
		tag = TagDefault
	}
	var p Problems
	CheckName(&p, "name", name)
	return name, tag, len(p) == 0 && CheckTag(tag)
}

// CheckTag reports whether a tag has the form that registries want.
func CheckTag(tag string) bool { return len(tag) <= tagMax && tagForm.MatchString(tag) }

var tagForm = formOf(`^[A-Za-z0-9_][A-Za-z0-9_.-]*$`)
