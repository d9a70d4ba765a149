package launcher

import (
	"os"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"

	"github.com/dozehq/doze/internal/machine/gvisor"
)

// The engine has a tun device in every machine, whatever the spec says. A process that
// is root in a user namespace of its own makes a node of it, or finds one in its image,
// and attaches a link. A machine without the right to tun devices must not be able to:
// a machine with such a link cannot be saved.

// tunMajor and tunMinor are the number of the device.
var tunMajor, tunMinor int64 = 10, 200

// devicesFor are the device rules of a machine.
func devicesFor(c gvisor.Config) []specs.LinuxDeviceCgroup {
	if c.Tun {
		return nil
	}
	return []specs.LinuxDeviceCgroup{{Allow: false, Type: "c", Major: &tunMajor, Minor: &tunMinor, Access: "rwm"}}
}

// deniesTun reports whether the rules of a machine say that it has no tun device.
func deniesTun(spec *specs.Spec) bool {
	return spec.Linux != nil && spec.Linux.Resources != nil &&
		slices.ContainsFunc(spec.Linux.Resources.Devices, func(d specs.LinuxDeviceCgroup) bool {
			return !d.Allow && d.Major != nil && *d.Major == tunMajor && d.Minor != nil && *d.Minor == tunMinor
		})
}

// DenyTun makes the engine's process keep the rule of the spec that a machine
// has no tun device: nothing can be attached. It is called before gVisor's own
// main.
func DenyTun() {
	if spec, ok := inheritedSpec(os.Args); ok && !deniesTun(&spec) {
		return // a spec that cannot be read denies
	}
	wrap(map[string]wrapper{"ioctl": withoutTun})
}

// withoutTun answers the attachment of a device as a kernel without one does.
func withoutTun(ioctl kernel.SyscallFn) kernel.SyscallFn {
	return func(t *kernel.Task, sysno uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
		if args[1].Uint() == linux.TUNSETIFF {
			return 0, nil, linuxerr.ENODEV
		}
		return ioctl(t, sysno, args)
	}
}
