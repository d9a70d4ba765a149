// Package filters holds the seccomp programs of gVisor's processes. They are compiled
// when Doze is built and not each time a sandbox starts. gVisor has a place for such
// programs, but its Go module ships it empty.
//
// The register functions must be called in the process that will install the
// filters, before gVisor's main.
package filters

//go:generate go run ./gen -out programs_amd64.go

import (
	_ "unsafe" // go:linkname

	"gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"
	bootfilter "gvisor.dev/gvisor/runsc/boot/filter"
	goferfilter "gvisor.dev/gvisor/runsc/fsgofer/filter"
)

//go:linkname bootPrograms gvisor.dev/gvisor/runsc/boot/filter.precompiledPrograms
var bootPrograms map[string]precompiledseccomp.Program

//go:linkname goferPrograms gvisor.dev/gvisor/runsc/fsgofer/filter.precompiledPrograms
var goferPrograms map[string]precompiledseccomp.Program

// RegisterBoot makes gVisor find the programs of a sandbox process.
func RegisterBoot() {
	bootfilter.ListPrecompiled() // makes the map, once
	registerBoot(bootPrograms)
}

// RegisterGofer makes gVisor find the programs of a gofer process.
func RegisterGofer() {
	goferfilter.ListPrecompiled() // makes the map, once
	registerGofer(goferPrograms)
}
