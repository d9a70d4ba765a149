package instance

import (
	"context"
	"errors"

	"github.com/dozehq/doze/internal/fleet/enroll"
	"github.com/dozehq/doze/internal/fleet/mtls"
	"github.com/dozehq/doze/internal/settings"
)

// Identify returns the identity of a role of this host. A node without a certificate gets one
// from control first, if the settings have a token.
func Identify(ctx context.Context, r mtls.Role, s settings.Settings) (*mtls.Identity, error) {
	if r == mtls.Node && s.Join != "" {
		if err := join(ctx, s); err != nil {
			return nil, err
		}
	}
	return mtls.Open(s.FleetKeys, r)
}

// join makes this host a node of a platform, unless it is one.
func join(ctx context.Context, s settings.Settings) error {
	if joined, err := mtls.Joined(s.FleetKeys); joined || err != nil {
		return err
	}
	token, err := enroll.ParseToken(s.Join)
	if err != nil {
		return err
	}
	id, err := NodeID(s.Data)
	if err != nil {
		return err
	}
	var errs []error
	for _, control := range s.Controls() { // one of them is active
		if err = enroll.Join(ctx, control, token, enroll.Place{Keys: s.FleetKeys, Egress: EgressFile(s.Data), Node: id}); err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
