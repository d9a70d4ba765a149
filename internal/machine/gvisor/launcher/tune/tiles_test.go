package tune

import (
	"testing"

	"gvisor.dev/gvisor/pkg/cpuid"
	"gvisor.dev/gvisor/pkg/sentry/arch/fpu"
)

// The state of a thread is as long as before, without room behind it.
func TestLeaveTiles(t *testing.T) { //nolint:paralleltest // the sizes belong to the process
	cpuid.Initialize()
	size, tiles := xsaveSize, tileSize
	defer func() { xsaveSize, tileSize = size, tiles }()
	told := cpuid.HostFeatureSet().Function.Query(cpuid.In{Eax: 0xd})
	before := fpu.NewState()
	leaveTiles()
	leaveTiles() // a second time changes nothing
	after := fpu.NewState()
	if len(after) != len(before) {
		t.Errorf("the state of a thread has %d bytes, and had %d", len(after), len(before))
	}
	if most := max(4096, len(before)); cap(after) > most+64 { // gVisor allocates at least 4096, and aligns to 64
		t.Errorf("the state of a thread has room for %d bytes, want at most %d", cap(after), most)
	}
	if now := cpuid.HostFeatureSet().Function.Query(cpuid.In{Eax: 0xd}); now != told {
		t.Errorf("guests are told %v, and were told %v", now, told)
	}
	if left := cpuid.HostFeatureSet().AMXExtendedStateSize(); left != 0 {
		t.Errorf("%d bytes are for AMX still", left)
	}
}
