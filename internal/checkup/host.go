package checkup

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/doctor"
	"github.com/dozehq/doze/internal/fleet/mtls"
	"github.com/dozehq/doze/internal/front"
	"github.com/dozehq/doze/internal/host"
	"github.com/dozehq/doze/internal/instance"
	"github.com/dozehq/doze/internal/settings"
	"github.com/dozehq/doze/internal/swap"
)

// Host is what the doctor looks at on the host of a dozed with these settings and this
// swap for sandboxes. Companion returns the path of another program of ours.
func Host(s settings.Settings, companion func(name string) string, given swap.Plan) doctor.Host {
	pool, _ := doze.ParseAddressPool(s.EgressPool) // what is wrong with it, config check says
	programs := []string{companion(host.Launcher(s.Driver)), companion("doze-agent")}
	h := doctor.Host{Data: s.Data, Binaries: programs, Pool: pool, Link: s.EgressLink, Swap: given}
	if p := s.Proxy(); p != nil {
		h.Proxy = p
	}
	if s.Front().Plain() {
		h.Plain = s.Listen
	}
	h.Fleet = certificates(s, time.Now())
	if !front.FindsNames(s.Domain) {
		h.Unfound = s.Domain
	}
	return h
}

// certificates are those of the roles of a fleet that this host may have. That of a node is renewed
// by itself, and must be of the node in the data directory.
func certificates(s settings.Settings, now time.Time) (all []doctor.Certificate) {
	for _, c := range mtls.Look(s.FleetKeys) {
		seen := doctor.Certificate{Role: string(c.Role), Ends: c.Ends, Err: c.Err, Soon: c.Node == "" && c.Ends.Sub(now) < mtls.Soon}
		if id := instance.KnownNode(s.Data); seen.Err == nil && c.Node != "" && id != "" && c.Node != id {
			seen.Err = fmt.Errorf("%s has the certificate of the node %s, and %s is of the node %s: give each node directories of its own", s.FleetKeys, c.Node, s.Data, id)
		}
		all = append(all, seen)
	}
	return all
}

// Measured is a host whose platforms the doctor may measure. That takes a second.
func Measured(ctx context.Context, h doctor.Host, s settings.Settings, companion func(name string) string) doctor.Host {
	h.Measure = func() (all []doctor.Platform) {
		for _, m := range host.MeasurePlatforms(ctx, s.Driver, companion(host.Launcher(s.Driver))) {
			all = append(all, doctor.Platform{Name: m.Platform, Took: m.Took, Err: m.Err})
		}
		return all
	}
	return h
}

// Here makes the checkup of this host. Sandboxes says whether this process runs them.
func Here(h doctor.Host, sandboxes bool) *Checkup {
	name, _ := os.Hostname() // the answer then has none
	return New(name, sandboxes, func() []doctor.Finding { return doctor.Running(h, sandboxes) })
}
