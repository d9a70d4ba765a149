package tune

import (
	_ "unsafe" // go:linkname

	"gvisor.dev/gvisor/pkg/cpuid"
)

//go:linkname xsaveSize gvisor.dev/gvisor/pkg/cpuid.xsaveSize
var xsaveSize uint32

//go:linkname tileSize gvisor.dev/gvisor/pkg/cpuid.amxTileDataSize
var tileSize uint32

// leaveTiles keeps gVisor from allocating room for the matrix registers of AMX
// in the floating-point state of each thread. gVisor neither saves nor restores
// them: it leaves them out of each thread's state, which ends before them, and only
// its driver for ptrace needs the room behind. But a checkpoint has every byte of it
// as an object of its own. On a processor with AMX those are 8,192 of the 11,012
// bytes, for each thread of a guest. What a guest is told of its processor stays.
func leaveTiles() {
	tiles := cpuid.FeatureSet{Function: &cpuid.Native{}}.AMXExtendedStateSize()
	if tiles == 0 || uint(tileSize) != tiles || uint(xsaveSize) <= tiles {
		return
	}
	xsaveSize, tileSize = xsaveSize-tileSize, 0
}
