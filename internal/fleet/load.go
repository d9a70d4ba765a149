package fleet

import "github.com/dozehq/doze"

// ImagesMax bounds the images in a [Load], and WorkspacesMax the workspaces.
const (
	ImagesMax     = 1000
	WorkspacesMax = 1000
)

// Load is what a node says of itself with each renewal of its lease: what placement needs.
type Load struct {
	Driver     string         // as machine.Traits names it
	Memory     doze.Megabytes // that all sandboxes can have together
	Reserved   doze.Megabytes // of it, that sandboxes which are awake may use
	Disk       doze.Megabytes // that is free for sandboxes
	Processors float64        // that the node has
	Busy       float64        // processors that were in use lately
	Sandboxes  int            // awake or asleep
	Awake      int
	Images     []string // references of some images that are there, at most ImagesMax
	// Workspaces says what is awake of each workspace that has something here, awake or asleep. A
	// node with more than WorkspacesMax of them leaves it nil: nobody knows, and the node is asked.
	Workspaces map[string]Awake
}
