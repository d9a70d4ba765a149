package fleet

import "github.com/dozehq/doze"

// DriveMount is a part of a drive in a sandbox.
type DriveMount struct {
	doze.DriveMount

	ID      string  `json:"id"`      // of the mount; never reused, safe as a file name
	DriveID string  `json:"driveId"` // where it is in the bucket
	UID     *uint32 `json:"uid"`     // whom its files belong to inside; nil: the user of the image
	GID     *uint32 `json:"gid"`
}
