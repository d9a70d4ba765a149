package main

import (
	"context"
	"errors"
	"os"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/daemon"
	"github.com/dozehq/doze/internal/doctor"
	"github.com/dozehq/doze/internal/front"
	"github.com/dozehq/doze/internal/host"
	"github.com/dozehq/doze/internal/instance"
	"github.com/dozehq/doze/internal/metric"
	"github.com/dozehq/doze/internal/quota"
	"github.com/dozehq/doze/internal/settings"
	"github.com/dozehq/doze/internal/trace/otlp"
)

// start reads and checks the settings of a command that serves, and prepares this
// process: its log, its memory, and the host that it is on, if it runs sandboxes.
func start(ctx context.Context, name string, args []string, sandboxes bool) (s settings.Settings, err error) {
	if s, err = loadAll(name, args); err == nil {
		err = s.Prepare()
	}
	if err != nil {
		return s, err
	}
	level, err := s.LogLevel()
	if err != nil {
		return s, err
	}
	daemon.OpenLog(os.Stderr, level)
	if sandboxes && !doctor.Print(os.Stderr, doctor.Lacking(doctor.Examine(examined(ctx, s)))) {
		return s, errors.New("this host cannot run sandboxes: see MISSING above")
	}
	if err := daemon.ForbidDumps(); err != nil {
		return s, err
	}
	memory, err := host.TotalMemory()
	if err != nil {
		return s, err
	}
	daemon.BoundMemory(memory.Bytes())
	return s, nil
}

// claim takes the addresses and the directories of a dozed for this process alone.
// It leaves nothing if it fails.
func claim(ctx context.Context, s settings.Settings, lock func() (unlock func(), err error)) (_ *front.Listeners, release func(), err error) {
	// The addresses first: if one is taken, no directory should be made.
	in, err := listen(ctx, s)
	if err != nil {
		return nil, nil, err
	}
	// A process with one right and one wrong directory would delete unknown sandboxes
	// as leftovers.
	unlock, err := lock()
	if err != nil {
		return nil, nil, errors.Join(err, in.Close())
	}
	release = func() {
		unlock()
		_ = in.Close() // if nobody else has
	}
	err = in.Hold(ctx)
	if err == nil {
		err = instance.Announce(s.Data, instance.Instance{Address: s.LocalURL(in.Address()), Run: s.Run, Cgroup: s.Cgroup})
	}
	if err != nil {
		err = errors.Join(err, in.Shut())
		release()
		return nil, nil, err
	}
	return in, release, nil
}

func listen(ctx context.Context, s settings.Settings) (_ *front.Listeners, err error) {
	e := s.Entrance()
	if e.Given, err = daemon.Inherited(); err != nil {
		return nil, err
	}
	if e.Program, err = os.Executable(); err != nil {
		return nil, err
	}
	return front.Listen(ctx, e)
}

// meters are what every role counts with.
type meters struct {
	metrics *metric.Metrics
	quotas  *quota.Book
	traces  *otlp.Exporter // nil without a collector
}

func openMeters(ctx context.Context, s settings.Settings) (m meters, err error) {
	limits, err := doze.ParseLimits(s.Quotas)
	if err != nil {
		return m, err
	}
	m.metrics = metric.New()
	m.quotas = quota.New(quota.Options{Defaults: limits, PerKey: s.KeyRequests, Refused: m.metrics.Refused})
	if s.OTLPEndpoint != "" {
		m.traces, err = otlp.Open(ctx, s.OTLPEndpoint, version)
	}
	return m, err
}
