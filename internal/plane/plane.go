// Package plane composes the control role: the records, what the edge has to know of
// them, and the control API over a node. It knows the other two roles by the
// contracts of package fleet alone.
package plane

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/audit"
	"github.com/dozehq/doze/internal/catalogue"
	"github.com/dozehq/doze/internal/checkup"
	"github.com/dozehq/doze/internal/control"
	"github.com/dozehq/doze/internal/drive"
	"github.com/dozehq/doze/internal/edge"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/history"
	"github.com/dozehq/doze/internal/instance"
	"github.com/dozehq/doze/internal/quota"
	"github.com/dozehq/doze/internal/seal"
	"github.com/dozehq/doze/internal/settings"
	"github.com/dozehq/doze/internal/store"
	"github.com/dozehq/doze/internal/tenancy"
)

// Plane is the control role. It is made by Open, and orders from a node after Begin.
type Plane struct {
	Store       *store.Store
	Directory   *fleet.Directory
	Previews    *fleet.Previews
	Credentials *access.Credentials
	History     *history.History
	Doctor      *checkup.Checkup // set before Begin; nil: nobody looks at the host
	*Rooms                       // nil before Begin

	settings settings.Settings
	quotas   *quota.Book
}

// Node is whom control orders from.
type Node struct {
	Node    fleet.Node
	Gate    fleet.Gate
	Info    fleet.NodeInfo // the zero one while none has joined
	Bucket  *drive.Bucket  // nil: there are no drives
	Enforce func()         // see Parts; may be nil
}

// Open opens the records, and loads who may call.
func Open(ctx context.Context, s settings.Settings, quotas *quota.Book) (_ *Plane, err error) {
	p := &Plane{settings: s, quotas: quotas, Directory: fleet.NewDirectory(), Previews: fleet.NewPreviews()}
	if err := instance.CutShort(s.Data); err != nil {
		return nil, err
	}
	cipher, err := seal.Open(instance.SealFile(s.Data))
	if err != nil {
		return nil, err
	}
	address, err := instance.Records(s.Data, s.Database)
	if err != nil {
		return nil, err
	}
	if p.Store, err = store.Open(ctx, address, cipher); err != nil {
		return nil, err
	}
	p.Store.SetDefaultLimits(quotas.Defaults)
	if p.Credentials, err = tenancy.LoadCredentials(ctx, p.Store, s.APIURL()); err != nil {
		return nil, errors.Join(fmt.Errorf("load the credentials: %w", err), p.Close())
	}
	if p.History, err = history.Open(filepath.Join(s.Data, instance.HistoryDir)); err != nil {
		return nil, errors.Join(fmt.Errorf("open the history: %w", err), p.Close())
	}
	return p, nil
}

// standbyEvery is how often a control that stands by asks whether the database is free.
const standbyEvery = time.Second

// OpenWhenFree is Open. If another control has the database, or the database is away, and the
// settings say so, it waits for that to end.
func OpenWhenFree(ctx context.Context, s settings.Settings, quotas *quota.Book) (*Plane, error) {
	key := instance.SealFile(s.Data)
	_, missing := os.Lstat(key)
	for said := ""; ; {
		p, err := Open(ctx, s, quotas)
		taken := errors.Is(err, store.ErrTaken)
		switch {
		case taken && !s.Standby:
			if errors.Is(missing, fs.ErrNotExist) { // the key that Open made is of no use
				err = errors.Join(err, os.Remove(key))
			}
			return nil, doze.Wrap(err, doze.Unavailable, "another dozed uses the database: stop it first, or start this one with --standby, and it takes over when the other one ends")
		case err == nil || !s.Standby || !taken && doze.Public(err).Kind != doze.Unavailable:
			return p, err
		case taken && errors.Is(missing, fs.ErrNotExist):
			return nil, errors.Join(fmt.Errorf("this control could read no secret of the one that is active: copy %s from there first", filepath.Base(key)), os.Remove(key))
		}
		why := "the records are out of reach"
		if taken {
			why = "another control is active"
		}
		if why != said {
			slog.InfoContext(ctx, "standing by", "why", why)
			said = why
		}
		t := time.NewTimer(standbyEvery)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil, context.Cause(ctx)
		}
	}
}

// Begin makes the control API over a node, and makes a fresh platform usable. It
// returns the first key, if this start made it: its file comes before the record.
// recheck has the edge look again at who may do less; it must not wait.
func (p *Plane) Begin(ctx context.Context, n Node, a edge.Addresses, recheck func()) (key string, err error) {
	s := p.settings
	pool, err := doze.ParseAddressPool(s.EgressPool)
	if err != nil {
		return "", err
	}
	c := Parts{
		Store: p.Store, Node: n.Node, Gate: n.Gate, Info: n.Info, Enforce: n.Enforce,
		Directory: p.Directory, Previews: p.Previews, Credentials: p.Credentials,
		History: p.History, Checkup: p.Doctor,
		Audit: audit.New(p.Store, s.AuditRetention.Duration), Quotas: p.quotas, Operator: s.Workspace,
		Regions: s.Regions, Base: s.APIURL(), URL: a.URL, PreviewURL: a.PreviewURL, StreamURL: a.StreamURL, DomainTarget: a.Target(), Resolver: s.DNS(),
		Hub: hub(), Recheck: recheck, Pool: pool, Spool: filepath.Join(s.Data, "builds"), Parallel: s.Builds,
	}
	if n.Bucket != nil { // a nil of its type would be a bucket
		c.Bucket = n.Bucket
	}
	p.Rooms = NewRooms(c)
	secret, created, err := p.Tenancy.Bootstrap(ctx, s.Workspace, func(secret access.Secret) error {
		return instance.SaveKey(s.Data, secret.Reveal())
	})
	if err != nil {
		return "", fmt.Errorf("create the workspace: %w", err)
	}
	if created {
		key = secret.Reveal()
	}
	return key, nil
}

// BeginHere is Begin for a node that is there already, and takes over from the
// process before.
func (p *Plane) BeginHere(ctx context.Context, n Node, a edge.Addresses, recheck func()) (key string, err error) {
	if key, err = p.Begin(ctx, n, a, recheck); err != nil {
		return "", err
	}
	if err := p.Recover(ctx); err != nil {
		return "", fmt.Errorf("recover: %w", err)
	}
	return key, nil
}

// Close closes the records and the history.
func (p *Plane) Close() error {
	err := p.Store.Close()
	if p.History != nil {
		err = errors.Join(err, p.History.Close())
	}
	return err
}

// hub is the list of images that the platform makes itself.
func hub() (list []control.HubImage) {
	for _, o := range catalogue.Hub() {
		list = append(list, control.HubImage{
			Name: o.Name, DisplayName: o.DisplayName, Image: o.Image, Memory: o.Memory, Ports: o.Ports, Description: o.Description,
			Categories: []string{},
		})
	}
	return list
}
