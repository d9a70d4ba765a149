package doze

import (
	"cmp"
	"path"
	"strconv"
	"strings"
)

// Limits of drives.
const (
	DrivesMax           = 1000 // of a workspace
	DrivePermissionsMax = 3    // of a drive
	DriveMountsMax      = 8    // of a sandbox: each is a file system that its agent serves
	drivePathMax        = 512  // of a path in a drive that a rule or a mount names
)

// DriveDeployed is the status of every drive that there is.
const DriveDeployed = "DEPLOYED"

// driveRoot is all of a drive.
const driveRoot = "/"

// DriveMode says what a permission allows.
type DriveMode string

// The modes of a permission.
const (
	DriveRead      DriveMode = "read"
	DriveReadWrite DriveMode = "read-write"
)

// Drive is a directory in the bucket of the platform, which any number of
// sandboxes mount while they run.
type Drive struct {
	Metadata Metadata   `json:"metadata"`
	Spec     DriveSpec  `json:"spec"`
	State    DriveState `json:"state"`            // read-only
	Status   string     `json:"status,omitempty"` // read-only
	Events   []Event    `json:"events,omitempty"` // read-only; not in lists
}

// DriveSpec is what a caller wants.
type DriveSpec struct {
	Region string `json:"region,omitempty"`
	// Permissions say which sandboxes may mount it; without any, all of the
	// workspace may.
	Permissions []DrivePermission `json:"permissions,omitempty"`
}

// DrivePermission lets the sandboxes mount a drive that have all its labels.
type DrivePermission struct {
	Labels map[string]string `json:"labels,omitempty"`
	Mode   DriveMode         `json:"mode,omitempty"` // read-write unless it says otherwise
	Path   string            `json:"path,omitempty"` // the part of the drive that they get; / is all of it
}

// DriveState says where a drive is.
type DriveState struct {
	S3URL string `json:"s3Url,omitempty"` // <endpoint>/<bucket>
}

// DriveToken proves to others, by the keys at /drives/jwks.json, which drive its
// bearer may use.
type DriveToken struct {
	AccessToken string `json:"access_token"`
	ExpiresIn   int    `json:"expires_in"` // seconds
	TokenType   string `json:"token_type"`
}

// Default fills in what a caller may leave out.
func (d *Drive) Default() {
	for i := range d.Spec.Permissions {
		p := &d.Spec.Permissions[i]
		if p.Mode == "" {
			p.Mode = DriveReadWrite
		}
		if p.Path == "" {
			p.Path = driveRoot
		}
	}
}

// Check adds every mistake of d. It expects defaults to be filled in.
func (d *Drive) Check(p *Problems) {
	d.Metadata.Check(p)
	if n := len(d.Spec.Permissions); n > DrivePermissionsMax {
		p.Add("spec.permissions", "has %d entries; at most %d are allowed", n, DrivePermissionsMax)
	}
	for i, rule := range d.Spec.Permissions {
		field := "spec.permissions[" + strconv.Itoa(i) + "]"
		if rule.Mode != DriveRead && rule.Mode != DriveReadWrite {
			p.Add(field+".mode", "is %q; it must be %s or %s", clip(string(rule.Mode)), DriveRead, DriveReadWrite)
		}
		CheckDrivePath(p, field+".path", rule.Path)
		checkLabels(p, field+".labels", rule.Labels)
	}
}

// Allows reports how a sandbox with these labels may mount a part of d, a clean
// path: not at all, or with or without writing.
func (d *Drive) Allows(labels map[string]string, part string) (reads, writes bool) {
	if len(d.Spec.Permissions) == 0 {
		return true, true
	}
	for _, rule := range d.Spec.Permissions {
		if !rule.matches(labels) || !inDrive(part, rule.Path) {
			continue
		}
		reads = true
		writes = writes || rule.Mode == DriveReadWrite
	}
	return reads, writes
}

func (r *DrivePermission) matches(labels map[string]string) bool {
	for k, v := range r.Labels {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// inDrive reports whether a clean path of a drive is another one or below it.
func inDrive(name, dir string) bool {
	return within(name, strings.TrimSuffix(path.Clean(dir), "/"))
}

// CheckDrivePath adds what is wrong with the path of a part of a drive.
func CheckDrivePath(p *Problems, field, name string) {
	switch {
	case !path.IsAbs(name):
		p.Add(field, "must begin with /")
	case len(name) > drivePathMax:
		p.Add(field, "is %d bytes long; at most %d are allowed", len(name), drivePathMax)
	case strings.ContainsRune(name, 0) || hasDots(name):
		p.Add(field, "must have no NUL, and no part that is . or ..")
	}
}

// hasDots reports whether a part of a path means another place than its name.
func hasDots(name string) bool {
	for part := range strings.SplitSeq(name, "/") {
		if part == "." || part == ".." {
			return true
		}
	}
	return false
}

// DriveMount is a drive in a sandbox, and what a caller asks for to get it
// there.
type DriveMount struct {
	Drive     string `json:"driveName"`
	MountPath string `json:"mountPath"`
	DrivePath string `json:"drivePath"` // the part of the drive; / is all of it
	ReadOnly  bool   `json:"readOnly"`
	// UIDMap and GIDMap are the ids inside that all files belong to, as numbers;
	// empty is the user of the image.
	UIDMap string `json:"uidMap"`
	GIDMap string `json:"gidMap"`
}

const (
	driveNameMax  = 128
	driveMountMax = 512
)

var driveNameForm = formOf(`^[A-Za-z0-9][A-Za-z0-9_-]*$`)

// Default fills in what a caller may leave out, and writes paths in one way.
func (m *DriveMount) Default() {
	m.DrivePath = path.Clean(cmp.Or(m.DrivePath, driveRoot))
	m.MountPath = CleanMountPath(m.MountPath)
}

// CleanMountPath is where a path in a sandbox leads, written in one way. One
// with .. is left alone, to be refused.
func CleanMountPath(name string) string {
	if name == "" || hasDots(name) {
		return name
	}
	return path.Clean("/" + name)
}

// Check adds every mistake of m. It comes before Default.
func (m *DriveMount) Check(p *Problems) {
	switch {
	case m.Drive == "":
		p.Missing("driveName")
	case len(m.Drive) > driveNameMax || !driveNameForm.MatchString(m.Drive):
		p.Add("driveName", "must be at most %d letters, digits, dashes and _, and begin with a letter or digit", driveNameMax)
	}
	CheckMountPath(p, "mountPath", m.MountPath)
	if m.DrivePath != "" {
		CheckDrivePath(p, "drivePath", m.DrivePath)
	}
	for _, id := range []struct{ field, text string }{{"uidMap", m.UIDMap}, {"gidMap", m.GIDMap}} {
		if _, err := strconv.ParseUint(id.text, 10, 32); id.text != "" && err != nil {
			p.Add(id.field, "is %q; it must be a number of at most 32 bits", clip(id.text))
		}
	}
}

// CheckMountPath adds what is wrong with the path in a sandbox of a mount.
func CheckMountPath(p *Problems, field, name string) {
	switch {
	case name == "":
		p.Missing(field)
	case len(name) > driveMountMax:
		p.Add(field, "is %d bytes long; at most %d are allowed", len(name), driveMountMax)
	case strings.ContainsRune(name, 0) || hasDots(name) || strings.Contains(name, ".."):
		p.Add(field, "must have no NUL, no .. anywhere, and no part that is .")
	case CleanMountPath(name) == "/":
		p.Add(field, "must be another directory than /")
	}
}

// CheckPath is a Conflict if a mount would hide what the platform has in every
// sandbox, or be in it. It comes after Default.
func (m *DriveMount) CheckPath() error {
	for _, taken := range takenPaths {
		if within(m.MountPath, taken) || within(taken, m.MountPath) {
			return Errorf(Conflict, "mountPath is %q, but %s is reserved by the platform: choose another path", clip(m.MountPath), taken)
		}
	}
	return nil
}

// Overlaps reports whether a mount would be in the way of another one.
func (m *DriveMount) Overlaps(other string) bool {
	return within(m.MountPath, other) || within(other, m.MountPath)
}
