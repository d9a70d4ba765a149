package host

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

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
	platforms []string // that it can be asked for; none for a driver without a choice
	processes []string // patterns for its programs: see teardown.Platform
}

// drivers is the table of those that a host can have.
var drivers = map[string]kind{
	gvisor.DriverName: {openGVisor, gvisor.Traits(), gvisor.Program, gvisor.Platforms(), gvisor.Processes()},
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

// PlatformDefault is the one that a host chooses itself.
const PlatformDefault = gvisor.PlatformAuto

// Platforms are how the machines of a driver can run, by the names that [Options.Platform] may have.
func Platforms(driver string) []string { return drivers[driver].platforms }

// Measured is what one system call of a sandbox takes on a platform, or why it does not work on this host.
type Measured struct {
	Platform string
	Took     time.Duration
	Err      error
}

// MeasurePlatforms measures all platforms of a driver, whose launcher is at a path. It takes a second.
func MeasurePlatforms(ctx context.Context, driver, launcher string) (all []Measured) {
	for _, name := range Platforms(driver) {
		if name == PlatformDefault {
			continue
		}
		took, err := gvisor.Measure(ctx, launcher, name)
		all = append(all, Measured{name, took, err})
	}
	return all
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
	platform, why, err := gvisor.Choose(ctx, h.o.Launcher, h.o.Platform)
	if err != nil {
		return nil, err
	}
	slog.InfoContext(ctx, "chose the platform of sandboxes", "platform", platform, "why", why)
	return gvisor.Open(ctx, gvisor.Options{
		Platform: platform,
		Sentry:   h.o.Launcher, Engines: filepath.Join(h.o.Data, "engines"), Run: h.o.Run, Cgroup: h.o.Cgroup,
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
