package host

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dozehq/doze/internal/hostnet"
	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/machine/gvisor"
)

// driver is a [machine.Driver] as a host needs it.
type driver interface {
	machine.Driver

	// Free is how much memory its machines can still take, in bytes.
	Free() (int64, error)
	// Tidy removes what no machine, copy or spare machine in some directories needs
	// any more. It is called after the sandboxes were adopted.
	Tidy(ctx context.Context, dirs ...string) error
}

// opener opens a driver on a host.
type opener func(context.Context, *Host) (driver, error)

// kind is what a host knows of a driver before it opens one.
type kind struct {
	open      opener
	traits    machine.Traits
	launcher  string   // file name of the program that starts machines
	processes []string // patterns for its programs: see teardown.Platform
}

// drivers is the table of those that a host can have.
var drivers = map[string]kind{
	gvisor.DriverName: {openGVisor, gvisor.Traits(), gvisor.Program, gvisor.Processes()},
}

// DriverDefault is the one that every host can have.
const DriverDefault = gvisor.DriverName

// Drivers are the names of all.
func Drivers() []string { return slices.Sorted(maps.Keys(drivers)) }

// Traits are those of a driver. An unknown driver has none.
func Traits(driver string) machine.Traits { return drivers[driver].traits }

// Launcher is the file name of the program that starts the machines of a driver. An
// installation has it where [Companion] looks. It is empty for an unknown driver.
func Launcher(driver string) string { return drivers[driver].launcher }

// Processes are patterns for the programs of all drivers: an earlier dozed may have
// had another driver.
func Processes() (patterns []string) {
	for _, name := range Drivers() {
		patterns = append(patterns, drivers[name].processes...)
	}
	return patterns
}

// driverNamed returns how the driver of a name is opened.
func driverNamed(name string) (opener, error) {
	d, known := drivers[name]
	if !known {
		return nil, fmt.Errorf("there is no driver %q: --driver must be %s", name, strings.Join(Drivers(), " or "))
	}
	return d.open, nil
}

func openGVisor(ctx context.Context, h *Host) (driver, error) {
	return gvisor.Open(ctx, gvisor.Options{
		Sentry: h.o.Launcher, Engines: filepath.Join(h.o.Data, "engines"), Run: h.o.Run, Cgroup: h.o.Cgroup,
		Ready: h.o.Memory.readyProcesses(h.memory), Memory: h.memory,
		Dial: func(ctx context.Context, l machine.Link, port uint16) (net.Conn, error) {
			ip, err := netip.ParseAddr(l.IP)
			if err != nil {
				return nil, err
			}
			return h.net.Dial(ctx, hostnet.Slot{IP: ip}, port)
		},
	})
}
