package doze

import (
	"path"
	"strconv"
	"strings"
)

// Limits and defaults of volumes. The least is what a file system needs for
// itself, and the most what its tools can check in minutes.
const (
	VolumeDefault Megabytes = 1024
	VolumeMin     Megabytes = 16
	VolumeMax     Megabytes = 4 << 20

	VolumesMax           = 1000 // of a workspace
	VolumeEventsMax      = 32   // of a volume: they are in its record, which lists read
	VolumeTemplatesMax   = 100  // of a workspace
	TemplateVersionsMax  = 100  // of a template: each takes its files on the disk
	AttachmentsMax       = 8    // of a sandbox: each is a mount on the host
	VolumeDescriptionMax = 1024
	mountPathMax         = 1024
	versionMax           = 49 // as a name may have
)

// VolumeDeployed is the status of every volume that there is.
const VolumeDeployed = "DEPLOYED"

// VolumeTemplateLatest stands for the version of a template that was uploaded
// last.
const VolumeTemplateLatest = "latest"

// Volume is a disk that outlives the sandboxes that it is attached to, one at a
// time.
type Volume struct {
	Metadata Metadata    `json:"metadata"`
	Spec     VolumeSpec  `json:"spec"`
	State    VolumeState `json:"state"`
	Status   string      `json:"status,omitempty"` // read-only
	Events   []Event     `json:"events,omitempty"` // read-only; the newest [VolumeEventsMax], oldest first
}

// VolumeSpec is what a caller wants.
type VolumeSpec struct {
	Size     Megabytes `json:"size,omitempty"` // it can only grow
	Region   string    `json:"region,omitempty"`
	Template string    `json:"template,omitempty"` // name[:version]
}

// VolumeState names the sandbox that has a volume.
type VolumeState struct {
	AttachedTo string `json:"attachedTo"` // "sandbox:<name>"; empty when it is free
}

// Check adds every mistake of v. It expects defaults to be filled in.
func (v *Volume) Check(p *Problems) {
	v.Metadata.Check(p)
	checkVolumeSize(p, "spec.size", v.Spec.Size)
	if v.Spec.Template != "" {
		name, version := v.Spec.From()
		CheckName(p, "spec.template", name)
		if !isVersion(version) {
			p.Add("spec.template", "has the version %q; write it as name:version", clip(version))
		}
	}
}

// From is the template of a volume and the version of it.
func (s *VolumeSpec) From() (name, version string) {
	name, version, named := strings.Cut(s.Template, ":")
	if !named {
		version = VolumeTemplateLatest
	}
	return name, version
}

func checkVolumeSize(p *Problems, field string, size Megabytes) {
	if size < VolumeMin || size > VolumeMax {
		p.first(field, "is %d; it must be %d to %d megabytes", size, VolumeMin, VolumeMax)
	}
}

// versionForm is what versions of a template are called.
var versionForm = formOf(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

func isVersion(name string) bool { return len(name) <= versionMax && versionForm.MatchString(name) }

// VolumeTemplate is what new volumes can begin with (spec 2.13).
type VolumeTemplate struct {
	Metadata Metadata                `json:"metadata"`
	Spec     VolumeTemplateSpec      `json:"spec"`
	State    VolumeTemplateState     `json:"state"`
	Versions []VolumeTemplateVersion `json:"versions"`
}

// VolumeTemplateSpec is what a caller wants.
type VolumeTemplateSpec struct {
	DefaultSize Megabytes `json:"defaultSize,omitempty"` // of volumes that are made from it
	Description string    `json:"description"`
}

// VolumeTemplateState is what the platform knows of a template.
type VolumeTemplateState struct {
	LastVersionUploadedAt Time   `json:"lastVersionUploadedAt,omitzero"`
	LatestVersion         string `json:"latestVersion,omitempty"`
	Status                string `json:"status"` // "created" or "ready"
	VersionCount          int    `json:"versionCount"`
}

// VersionStatus says whether a version of a template has its files.
type VersionStatus string

// The statuses of a version. One that failed can be uploaded again.
const (
	VersionCreated VersionStatus = "CREATED"
	VersionReady   VersionStatus = "READY"
	VersionFailed  VersionStatus = "FAILED"
)

// VolumeTemplateVersion is one upload of the files of a template.
type VolumeTemplateVersion struct {
	Name         string        `json:"name"`
	TemplateName string        `json:"templateName"`
	VersionID    string        `json:"versionId"`
	Workspace    string        `json:"workspace"`
	Region       string        `json:"region"`
	Bucket       string        `json:"bucket"`      // where the files are: always with the platform
	ContentSize  int64         `json:"contentSize"` // bytes of the files
	Status       VersionStatus `json:"status"`
}

// Check adds every mistake of t. It expects defaults to be filled in.
func (t *VolumeTemplate) Check(p *Problems) {
	t.Metadata.Check(p)
	checkVolumeSize(p, "spec.defaultSize", t.Spec.DefaultSize)
	if n := len(t.Spec.Description); n > VolumeDescriptionMax {
		p.Add("spec.description", "is %d bytes long; at most %d are allowed", n, VolumeDescriptionMax)
	}
}

// CheckVersion adds what is wrong with the name of a version.
func CheckVersion(p *Problems, field, name string) {
	if !isVersion(name) || name == VolumeTemplateLatest {
		p.Add(field, "is %q; it must be 1 to %d letters, digits, dots, dashes and _, and not %s", clip(name), versionMax, VolumeTemplateLatest)
	}
}

// Volume types (spec 2.7).
const (
	VolumePersistent = "persistent"
	VolumeEphemeral  = "ephemeral"
)

// VolumeAttachment puts a volume into a sandbox (spec 2.7).
type VolumeAttachment struct {
	MountPath string    `json:"mountPath"`
	Name      string    `json:"name"`
	ReadOnly  bool      `json:"readOnly"`
	SizeMB    Megabytes `json:"sizeMb,omitempty"`
	Type      string    `json:"type,omitempty"`
}

// takenPaths are what the platform has in every sandbox: no volume may be in one
// of them, nor hide it.
var takenPaths = []string{"/proc", "/sys", "/dev", "/.doze", "/var/log/doze"}

// checkAttachments adds what is wrong with the volumes of a sandbox.
func checkAttachments(p *Problems, all []VolumeAttachment) {
	if len(all) > AttachmentsMax {
		p.Add("spec.volumes", "has %d entries; at most %d are allowed", len(all), AttachmentsMax)
	}
	for i, v := range all {
		field := "spec.volumes[" + strconv.Itoa(i) + "]"
		v.check(p, field)
		for _, other := range all[:i] {
			if v.Name == other.Name {
				p.Add(field+".name", "is %q, which an earlier one has", clip(v.Name))
			}
			if within(v.MountPath, other.MountPath) || within(other.MountPath, v.MountPath) {
				p.Add(field+".mountPath", "is in the way of %q: put them beside each other", clip(other.MountPath))
			}
		}
	}
}

// within reports whether a clean path is another one or below it.
func within(name, dir string) bool { return name == dir || strings.HasPrefix(name, dir+"/") }

func (v *VolumeAttachment) check(p *Problems, field string) {
	CheckName(p, field+".name", v.Name)
	switch {
	case !path.IsAbs(v.MountPath) || path.Clean(v.MountPath) != v.MountPath || v.MountPath == "/":
		p.Add(field+".mountPath", "must be a clean absolute path other than /")
	case len(v.MountPath) > mountPathMax || strings.ContainsRune(v.MountPath, 0):
		p.Add(field+".mountPath", "must have at most %d bytes, and no NUL", mountPathMax)
	default:
		for _, taken := range takenPaths {
			if within(v.MountPath, taken) || within(taken, v.MountPath) {
				p.Add(field+".mountPath", "is %q; %s belongs to the platform", clip(v.MountPath), taken)
			}
		}
	}
	if v.Type != VolumePersistent && v.Type != VolumeEphemeral {
		p.Add(field+".type", "must be %s or %s", VolumePersistent, VolumeEphemeral)
	}
	switch {
	case v.SizeMB != 0:
		checkVolumeSize(p, field+".sizeMb", v.SizeMB)
	case v.Type == VolumeEphemeral:
		p.Add(field+".sizeMb", "is required for an ephemeral volume")
	}
}
