package main

import (
	"net/netip"
	"os"
	"runtime/debug"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/daemon"
	"github.com/dozehq/doze/internal/host"
	"github.com/dozehq/doze/internal/ingress"
	"github.com/dozehq/doze/internal/metric"
)

const (
	// memoryShare is the part of the host beyond which this process collects
	// garbage as often as it takes. The rest belongs to sandboxes.
	memoryShare = 8
	// memoryMin is what it may have on a small host: it takes 40 MB when idle.
	memoryMin = 256
)

// boundMemory limits the memory of this process, unless the operator did so with
// GOMEMLIMIT. It is a soft limit: what is in use stays.
func boundMemory() error {
	if os.Getenv("GOMEMLIMIT") != "" {
		return nil
	}
	total, err := host.TotalMemory()
	if err != nil {
		return err
	}
	debug.SetMemoryLimit(int64(max(total/memoryShare, memoryMin)) << 20)
	return nil
}

// limits is what strangers may do. It adds what is wrong with the settings.
func (c config) limits(p *doze.Problems) ingress.Limits {
	l := ingress.Limits{
		Connections: c.MaxConnections, PerSource: c.MaxPerSource,
		Header: c.HeaderTimeout.Duration, BodyIdle: c.BodyIdleTimeout.Duration, WriteStall: c.WriteTimeout.Duration,
	}
	for name, n := range map[string]int{"maxConnections": c.MaxConnections, "maxConnectionsPerSource": c.MaxPerSource} {
		if n < 0 {
			p.Add(name, "must not be negative")
		}
	}
	for name, d := range map[string]daemon.Duration{"headerTimeout": c.HeaderTimeout, "bodyIdleTimeout": c.BodyIdleTimeout, "writeStallTimeout": c.WriteTimeout} {
		if d.Duration <= 0 {
			p.Add(name, "must be positive")
		}
	}
	for _, rate := range []struct {
		name, text string
		to         *ingress.Rate
	}{{"sourceRate", c.SourceRate, &l.Requests}, {"sourceFailureRate", c.SourceFailures, &l.Failures}} {
		var err error
		if *rate.to, err = ingress.ParseRate(rate.text); err != nil {
			p.Add(rate.name, "is wrong: %v", err)
		}
	}
	for _, text := range c.TrustedProxies {
		network, err := netip.ParsePrefix(text)
		if err != nil {
			p.Add("trustedProxies", "must be networks such as 10.0.0.0/8 or 192.0.2.1/32: %q is none", text)
		}
		l.Proxies = append(l.Proxies, network.Masked())
	}
	return l
}

// frontMetrics is what clients did to the listeners.
func (p *platform) frontMetrics() metric.Front {
	c := p.ingress.Counts()
	return metric.Front{Open: c.Open, Refused: c.Refused, Requests: c.Requests}
}
