package main

import (
	"context"
	"fmt"
	"net"
	"net/http"

	"github.com/dozehq/doze/internal/daemon"
	"github.com/dozehq/doze/internal/fleet/mtls"
	"github.com/dozehq/doze/internal/instance"
	"github.com/dozehq/doze/internal/settings"
)

// role is a process with one role, before it serves.
type role struct {
	settings settings.Settings
	meters   meters
	identity *mtls.Identity
	release  func() // gives the directories back
}

// startRole prepares this process for one role: its settings, its certificate, and
// its directories.
func startRole(ctx context.Context, name mtls.Role, args []string) (r role, err error) {
	if r.settings, err = start(ctx, string(name), args, name == mtls.Node); err != nil {
		return r, err
	}
	if r.meters, err = openMeters(ctx, r.settings); err != nil {
		return r, err
	}
	if r.release, err = instance.LockRole(string(name), r.settings.Data, r.settings.Run); err != nil {
		return r, err
	}
	if r.identity, err = instance.Identify(ctx, name, r.settings); err != nil {
		r.release()
	}
	return r, err
}

// listenFleet listens for the other roles.
func listenFleet(ctx context.Context, address, flag string) (net.Listener, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for the other roles: %w: choose another address with --%s", err, flag)
	}
	return l, nil
}

// serveFleet serves the other roles with serve, which is a method of an identity.
func serveFleet(serve func(context.Context, net.Listener, http.Handler, ...func()) error, l net.Listener, h http.Handler, ending ...func()) daemon.Service {
	return daemon.Service{Name: "fleet", Run: func(ctx context.Context) error { return serve(ctx, l, h, ending...) }}
}
