package main

import (
	"context"
	"fmt"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/audit"
	"github.com/dozehq/doze/internal/control"
	"github.com/dozehq/doze/internal/disk"
	"github.com/dozehq/doze/internal/edge"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/host"
	"github.com/dozehq/doze/internal/instance"
	"github.com/dozehq/doze/internal/oauth"
	"github.com/dozehq/doze/internal/seal"
	"github.com/dozehq/doze/internal/settings"
	"github.com/dozehq/doze/internal/store"
)

// openRecords opens the records of a data directory. Limits are those of workspaces
// without limits of their own.
func openRecords(ctx context.Context, s settings.Settings, limits doze.Limits) (*store.Store, error) {
	box, err := seal.Open(instance.SealFile(s.Data))
	if err != nil {
		return nil, err
	}
	address, err := instance.Records(s.Data, s.Database)
	if err != nil {
		return nil, err
	}
	records, err := store.Open(ctx, address, box)
	if err != nil {
		return nil, err
	}
	records.SetDefaultLimits(limits)
	return records, nil
}

// openFeed loads what the edge must know of the records before it answers.
func openFeed(ctx context.Context, s settings.Settings, records *store.Store) (feed, error) {
	credentials, err := control.LoadCredentials(ctx, records, s.APIURL())
	if err != nil {
		return feed{}, fmt.Errorf("load the credentials: %w", err)
	}
	return feed{directory: fleet.NewDirectory(), previews: fleet.NewPreviews(), credentials: credentials}, nil
}

// newControl returns the control API over the records and one host.
func newControl(s settings.Settings, m meters, records *store.Store, h *host.Host, f feed, a edge.Addresses, recheck func()) (*control.Server, error) {
	pool, err := doze.ParseAddressPool(s.EgressPool)
	if err != nil {
		return nil, err
	}
	node := h.Node()
	c := control.Config{
		Store: records, Node: node, Gate: node, Directory: f.directory, Previews: f.previews, Credentials: f.credentials,
		OAuth: oauth.New(oauth.Config{Store: records, Credentials: f.credentials, Base: s.APIURL()}),
		Audit: audit.New(records, s.AuditKeep.Duration), Quotas: m.quotas, Operator: s.Workspace,
		Region: s.Region, Base: s.APIURL(), URL: a.URL, PreviewURL: a.PreviewURL, DomainTarget: a.Target(), Resolver: s.DNS(),
		Hub: hub(), Recheck: recheck, Pool: pool, Info: h.Info(), Enforce: h.Enforce,
	}
	if b := h.Bucket(); b != nil { // a nil of its type would be a bucket
		c.Bucket = b
	}
	return control.New(c), nil
}

// settle makes a fresh platform usable, and ends what the last process began. It
// returns the first key, if this start made it. The file of the key comes before
// the record.
func settle(ctx context.Context, s settings.Settings, c *control.Server) (key string, err error) {
	secret, created, err := c.Bootstrap(ctx, s.Workspace, func(secret access.Secret) error {
		return instance.KeepKey(s.Data, secret.Reveal())
	})
	if err != nil {
		return "", fmt.Errorf("create the workspace: %w", err)
	}
	if created {
		key = secret.Reveal()
	}
	if err := c.Recover(ctx); err != nil {
		return "", fmt.Errorf("recover: %w", err)
	}
	return key, nil
}

// hub is the list of images that the platform makes itself.
func hub() (list []control.HubImage) {
	for _, o := range disk.Hub() {
		list = append(list, control.HubImage{
			Name: o.Name, DisplayName: o.DisplayName, Image: o.Image, Memory: o.Memory, Ports: o.Ports, Description: o.Description,
			Categories: []string{},
		})
	}
	return list
}
