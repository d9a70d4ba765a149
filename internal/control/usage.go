package control

import (
	"context"
	"net/http"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/api"
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
// A sandbox that the node does not have, such as one that ended, takes nothing.
func (s *Server) consumption(ctx context.Context, all ...store.Sandbox) (func(store.Sandbox) doze.SandboxUsage, error) {
	uids := make([]string, len(all))
	for i, sb := range all {
		uids[i] = sb.Machine
	}
	by, err := s.look(ctx, all...)
	if err != nil {
		return nil, err
	}
	used, err := s.Node.Consumption(ctx, uids)
	if err != nil {
		return nil, err
	}
	now := doze.Time{Time: time.Now()}
	return func(sb store.Sandbox) doze.SandboxUsage {
		seen := s.bare(sb, by)
		u := doze.SandboxUsage{Name: sb.Metadata.Name, Status: seen.Status, State: seen.State, Usage: doze.Usage{MeasuredAt: now, CountedSince: now}}
		if is, ok := used[sb.Machine]; ok {
			u.Usage = is
		}
		u.Memory.LimitBytes, u.Processor.Limit = sb.Spec.Runtime.Memory.Bytes(), sb.Spec.Runtime.Memory.CPUs()
		return u
	}, nil
}
