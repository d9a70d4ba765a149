package main

import (
	"context"
	"os"

	"github.com/dozehq/doze/internal/checkup"
	"github.com/dozehq/doze/internal/doctor"
	"github.com/dozehq/doze/internal/host"
	"github.com/dozehq/doze/internal/settings"
)

// companion returns the path of another program of ours.
func companion(name string) string {
	self, err := os.Executable()
	if err != nil {
		return name
	}
	return host.Companion(self, name)
}

// examined is what doctor looks at before a start.
func examined(ctx context.Context, s settings.Settings) doctor.Host {
	return checkup.Host(s, companion, s.Memory().ExpectedSwap(ctx, s.Data, s.Disk()))
}

// examine says what the host lacks, and changes what it may if it is told to.
func examine(ctx context.Context, args []string) error {
	var v doctor.Visit
	s, err := loadAll("doctor", args, v.Bind)
	if err != nil {
		return err
	}
	return v.Do(os.Stdout, func() doctor.Host { return checkup.Measured(ctx, examined(ctx, s), s, companion) })
}
