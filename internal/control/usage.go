package control

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/api"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/listing"
	"github.com/dozehq/doze/internal/store"
)

// usage answers what one sandbox takes, and what it has done. It wakes nobody.
func (s *Server) usage(ctx context.Context, r *http.Request) (doze.SandboxUsage, error) {
	sb, err := s.living(ctx, r.PathValue("name"))
	if err != nil {
		return doze.SandboxUsage{}, err
	}
	used, err := s.consumption(ctx, sb)
	if err != nil {
		return doze.SandboxUsage{}, err
	}
	return used(sb), nil
}

// listUsage answers the same of many sandboxes, by the queries of the list of sandboxes.
func (s *Server) listUsage(ctx context.Context, r *http.Request) (api.List[doze.SandboxUsage], error) {
	var used func(store.Sandbox) doze.SandboxUsage
	list := func(ctx context.Context, q listing.Query, now time.Time) (listing.Page[store.Sandbox], error) {
		page, err := s.Store.List(ctx, q, now)
		if err == nil {
			used, err = s.consumption(ctx, page.Records...)
		}
		return page, err
	}
	return api.AnswerPage(ctx, r, sandboxPhases, list, func(sb store.Sandbox) doze.SandboxUsage { return used(sb) })
}

// consumption asks the node once about sandboxes, and returns what shows one of them.
func (s *Server) consumption(ctx context.Context, all ...store.Sandbox) (func(store.Sandbox) doze.SandboxUsage, error) {
	shown, err := measured(ctx, s, all...)
	if err != nil {
		return nil, err
	}
	return func(sb store.Sandbox) doze.SandboxUsage {
		seen, u := shown(sb)
		return doze.SandboxUsage{Name: seen.Metadata.Name, Status: seen.Status, State: seen.State, Usage: u}
	}, nil
}

// measured asks the node once about sandboxes, and returns what shows one of them and what
// it takes. A sandbox that the node does not have, such as one that ended, takes nothing.
// With an error, it shows what is known without what failed.
func measured(ctx context.Context, s *Server, all ...store.Sandbox) (func(store.Sandbox) (doze.Sandbox, doze.Usage), error) {
	uids := make([]string, len(all))
	for i, sb := range all {
		uids[i] = sb.Machine
	}
	var by seen
	var err error
	var looking sync.WaitGroup
	looking.Go(func() { by, err = s.look(ctx, all...) }) // a silent node has the time of one call, and not of both
	used, failed := s.Node.Consumption(ctx, uids)
	looking.Wait()
	now := doze.Time{Time: time.Now()}
	return func(sb store.Sandbox) (doze.Sandbox, doze.Usage) {
		u, ok := used[sb.Machine]
		if !ok {
			u = doze.Usage{MeasuredAt: now, CountedSince: now}
		}
		u.Memory.LimitBytes, u.Processor.Limit = sb.Spec.Runtime.Memory.Bytes(), sb.Spec.Runtime.Memory.CPUs()
		u.Disk.StorageLimitBytes = sb.Spec.Runtime.Storage.Bytes()
		return s.bare(sb, by), u
	}, errors.Join(err, failed)
}

// surveyTimeout is how long a survey waits for the nodes.
const surveyTimeout = 5 * time.Second

// Survey calls each with all sandboxes of a workspace, in pages, the newest first. It wakes
// none of them, and writes nothing. Sandboxes of a node that is away are as the records have
// them, and take nothing.
func Survey(ctx context.Context, s *Server, workspace string, each func([]doze.FeedSandbox) error) error {
	q := listing.Query{Workspace: workspace, Sort: listing.NewestFirst, Limit: api.LimitMax}
	for {
		page, err := s.Store.List(ctx, q, time.Now())
		if err != nil {
			return err
		}
		bounded, cancel := context.WithTimeout(ctx, surveyTimeout)
		shown, err := measured(bounded, s, page.Records...)
		cancel()
		if err != nil && (ctx.Err() != nil || !errors.Is(err, fleet.ErrUnreachable)) {
			return err
		}
		all := make([]doze.FeedSandbox, len(page.Records))
		for i, sb := range page.Records {
			all[i] = feedSandbox(sb, shown)
		}
		if err := each(all); err != nil {
			return err
		}
		if q.Cursor = page.Next; q.Cursor == "" {
			return nil
		}
	}
}

func feedSandbox(sb store.Sandbox, shown func(store.Sandbox) (doze.Sandbox, doze.Usage)) doze.FeedSandbox {
	seen, u := shown(sb)
	if u.Tier == "" { // nothing is counted: its moment must not differ from look to look
		u.CountedSince = seen.Metadata.CreatedAt
	}
	return doze.FeedSandbox{
		Name: seen.Metadata.Name, Status: seen.Status, State: seen.State, Version: fmt.Sprintf("%d.%d", sb.Revision, sb.Seq),
		Labels: seen.Metadata.Labels, Image: seen.Spec.Runtime.Image, Origin: seen.Origin, CreatedAt: seen.Metadata.CreatedAt, LastUsedAt: seen.LastUsedAt,
		CountedSince: u.CountedSince, Tier: u.Tier, Memory: u.Memory, Processor: u.Processor, Disk: u.Disk, Network: u.Network,
		Wakes: u.Wakes, Sleeps: u.Sleeps, LastWake: u.LastWake,
	}
}
