package patch

// processorAdded are the files about the processor that a guest asks. See the design note
// about speed inside a sandbox.
var processorAdded = map[string]string{
	"pkg/cpuid/asked.go": `// Package cpuid: see cpuid.go.
package cpuid

import "sync/atomic"

// Emulated says that programs of the guest may not ask the processor itself: they began on
// one with fewer features. The platform then answers with what they know.
var Emulated atomic.Bool
`,
	"pkg/cpuid/asked_arm64.go": `//go:build arm64

package cpuid

// LikeHost reports true: programs cannot ask this processor.
func (FeatureSet) LikeHost() bool { return true }
`,
	"pkg/cpuid/asked_amd64.go": `//go:build amd64

package cpuid

import "fmt"

// words is which words of an answer name instructions that programs may use.
type words struct{ eax, ebx, ecx, edx bool }

// of returns those words alone.
func (w words) of(o Out) (kept Out) {
	for _, word := range []struct {
		named    bool
		from, to *uint32
	}{{w.eax, &o.Eax, &kept.Eax}, {w.ebx, &o.Ebx, &kept.Ebx}, {w.ecx, &o.Ecx, &kept.Ecx}, {w.edx, &o.Edx, &kept.Edx}} {
		if word.named {
			*word.to = *word.from
		}
	}
	return kept
}

// vectors is the question for the version of AVX10. Its number grows with the instructions.
var vectors = In{Eax: 0x24}

const vectorsVersion = 0xff // the bits of the number, in ebx

// known are questions whose answers gVisor saves.
var known = map[In]words{
	{Eax: uint32(vendorID)}:            {ebx: true, ecx: true, edx: true},
	{Eax: uint32(featureInfo)}:         {ecx: true, edx: true},
	{Eax: uint32(extendedFeatureInfo)}: {ebx: true, ecx: true, edx: true},
	{Eax: uint32(xSaveInfo)}:           {eax: true, edx: true},
	{Eax: uint32(xSaveInfo), Ecx: 1}:   {eax: true},
	{Eax: uint32(extendedFeatures)}:    {ecx: true, edx: true},
	{Eax: uint32(addressSizes)}:        {ebx: true},
}

// unknown are those that gVisor answers with nothing when it emulates. A program that asks the
// processor itself sees them, so they are saved too.
var unknown = map[In]words{
	{Eax: uint32(extendedFeatureInfo), Ecx: 1}: {eax: true, ebx: true, ecx: true, edx: true},
	{Eax: uint32(extendedFeatureInfo), Ecx: 2}: {edx: true},
	vectors:           {ebx: true},
	{Eax: 0x80000021}: {eax: true}, // AMD's newer features
}

// ask asks the processor, if it knows the question. It would answer another one.
func ask(in In) Out {
	first := In{Eax: in.Eax & uint32(extendedStart)}
	if native(first).Eax < in.Eax {
		return Out{}
	}
	if in.Eax == uint32(extendedFeatureInfo) && native(In{Eax: in.Eax}).Eax < in.Ecx {
		return Out{}
	}
	return native(in)
}

// addUnknown saves what gVisor does not know.
func (fs FeatureSet) addUnknown(s Static) {
	for in, named := range unknown {
		switch from := fs.Function.(type) {
		case *Native:
			s[in] = named.of(ask(in))
		case Static:
			if out, ok := from[in]; ok {
				s[in] = out
			}
		}
	}
}

// LikeHost reports whether programs that saw fs find the same features when they ask this
// processor. An engine that saved nothing unknown had answered with nothing.
func (fs FeatureSet) LikeHost() bool {
	saved, ok := fs.Function.(Static)
	if !ok {
		return false
	}
	host := HostFeatureSet()
	for in, named := range known {
		if named.of(fs.Query(in)) != named.of(host.Query(in)) {
			return false
		}
	}
	for in, named := range unknown {
		if out, ok := saved[in]; ok && named.of(out) != named.of(host.Query(in)) {
			return false
		}
	}
	return true
}

// checkUnknown fails if programs may use what this processor lacks.
func (fs FeatureSet) checkUnknown(host FeatureSet) error {
	for in, named := range unknown {
		had, has := named.of(fs.Query(in)), named.of(host.Query(in))
		lacks := had.Eax&^has.Eax | had.Ebx&^has.Ebx | had.Ecx&^has.Ecx | had.Edx&^has.Edx
		if in == vectors {
			lacks = 0
			if had.Ebx&vectorsVersion > has.Ebx&vectorsVersion {
				lacks = had.Ebx
			}
		}
		if lacks != 0 {
			return &ErrIncompatible{reason: fmt.Sprintf("missing features: %#x of CPUID function %#x, %d", lacks, in.Eax, in.Ecx)}
		}
	}
	return nil
}
`,
	"pkg/sentry/platform/systrap/asked_amd64.go": `//go:build amd64

package systrap

import (
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/sentry/arch"
)

// emulateCPUID has the instruction CPUID trap in a stub that is attached, and in all threads
// that it starts. A host that cannot do that answers it itself, as it does with gVisor
// unchanged.
func (t *thread) emulateCPUID() {
	if _, err := t.syscallIgnoreInterrupt(&t.initRegs, unix.SYS_ARCH_PRCTL,
		arch.SyscallArgument{Value: linux.ARCH_SET_CPUID}, arch.SyscallArgument{Value: 0}); err != nil {
		log.Warningf("this host cannot emulate CPUID: %v", err)
	}
}
`,
	"pkg/sentry/platform/systrap/asked_arm64.go": `//go:build arm64

package systrap

// emulateCPUID does nothing: there is no such instruction.
func (*thread) emulateCPUID() {}
`,
}

// processorEdits let programs of a guest ask the processor itself. gVisor has the instruction
// CPUID trap in every stub. The host then changes a register of the processor whenever it
// switches between a stub and anything else. A virtual machine pays for that with an exit.
var processorEdits = []edit{
	{"pkg/cpuid/static_amd64.go", `	// Processor Extended State Enumeration.
`, `	fs.addUnknown(s)

	// Processor Extended State Enumeration.
`},
	{"pkg/cpuid/cpuid_amd64.go", `			reason: fmt.Sprintf("CPU cache line size %d incompatible with host cache line size %d", fsCache, hostCache),
		}
	}

	return nil
`, `			reason: fmt.Sprintf("CPU cache line size %d incompatible with host cache line size %d", fsCache, hostCache),
		}
	}

	return fs.checkUnknown(hfs)
`},
	// The first stub of all is the parent of the others, and never runs a program.
	{"pkg/sentry/platform/systrap/subprocess_linux.go", `	// Enable cpuid-faulting.
	enableCpuidFault()

`, ``},
	{"pkg/sentry/platform/systrap/subprocess.go", `	"gvisor.dev/gvisor/pkg/atomicbitops"
`, `	"gvisor.dev/gvisor/pkg/atomicbitops"
	"gvisor.dev/gvisor/pkg/cpuid"
`},
	{"pkg/sentry/platform/systrap/subprocess.go", `	// dead indicates whether the subprocess is alive or not.
`, `	// emulated says that CPUID traps in the subprocess.
	emulated bool

	// dead indicates whether the subprocess is alive or not.
`},
	// One of the other kind would be from before a restore, of which there is none: it is left
	// alone.
	{"pkg/sentry/platform/systrap/subprocess.go", `	if sp := globalPool.fetchAvailable(); sp != nil {
`, `	emulated := cpuid.Emulated.Load()
	if sp := globalPool.fetchAvailable(); sp != nil && sp.emulated == emulated {
`},
	{"pkg/sentry/platform/systrap/subprocess.go", `		memoryFile:        memoryFile,
		sysmsgThreads:     make(map[uint32]*sysmsgThread),
`, `		memoryFile:        memoryFile,
		emulated:          emulated,
		sysmsgThreads:     make(map[uint32]*sysmsgThread),
`},
	{"pkg/sentry/platform/systrap/subprocess.go", `	sp.sysmsgInitRegs = ptraceThread.initRegs
`, `	if emulated {
		ptraceThread.emulateCPUID()
	}
	sp.sysmsgInitRegs = ptraceThread.initRegs
`},
	// What the guest knows of its processor is read first. No stub of it is there yet.
	{"pkg/sentry/kernel/kernel.go", `	timeline.Reached("CPUID checked")
`, `	likeHost := k.featureSet.LikeHost()
	cpuid.Emulated.Store(!likeHost)
	timeline.Reached("CPUID checked")
`},
	{"pkg/sentry/kernel/kernel.go", `	log.Infof("Kernel load took [%s].", time.Since(kernelStart))
	timeline.Reached("Kernel loaded")

	if asyncMFLoader == nil {
`, `	if likeHost {
		k.featureSet = cpuid.HostFeatureSet() // with what an earlier engine did not save
	}
	log.Infof("Kernel load took [%s].", time.Since(kernelStart))
	timeline.Reached("Kernel loaded")

	if asyncMFLoader == nil {
`},
}
