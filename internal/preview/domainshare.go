package preview

import (
	"cmp"
	"context"
	"net/http"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/api"
)

// sharedWith is a domain of another workspace as one sees it that it is shared
// with. Only its owner sees what proves whose it is.
func sharedWith(workspace string, d doze.CustomDomain) doze.CustomDomain {
	d.Metadata.SharedFrom, d.Metadata.Workspace = d.Metadata.Workspace, workspace
	d.Spec.TXTRecords = map[string]string{}
	return d
}

func (s *Server) listShares(ctx context.Context, r *http.Request) ([]doze.DomainShare, error) {
	workspace, name := api.Caller(ctx).Workspace, domainOf(r)
	if _, err := s.Store.Domain(ctx, workspace, name); err != nil {
		return nil, s.notOurs(ctx, workspace, name, err)
	}
	targets, err := s.Store.DomainShares(ctx, workspace, name)
	if err != nil {
		return nil, err
	}
	list := make([]doze.DomainShare, len(targets))
	for i, target := range targets {
		list[i] = doze.DomainShare{Workspace: target, Status: doze.ShareActive}
		if target == doze.DomainEverybody {
			continue
		}
		w, err := s.Store.Workspace(ctx, target)
		if err != nil {
			return nil, err
		}
		list[i].DisplayName = cmp.Or(w.DisplayName, target)
	}
	return list, nil
}

// shareDomain lets another workspace, or all, serve previews on a domain.
func (s *Server) shareDomain(ctx context.Context, r *http.Request, body map[string]any) (doze.CustomDomain, error) {
	var in api.ShareRequest
	var wrong doze.Problems
	api.Decode(&in, body, "", &wrong)
	if in.Target == "" {
		wrong.Add("targetWorkspace", "must be the name of a workspace, or %s for all", doze.DomainEverybody)
	}
	return s.changeShares(ctx, r, func(ctx context.Context, d doze.CustomDomain, shared []string) error {
		workspace, name := d.Metadata.Workspace, d.Metadata.Name
		if err := wrong.Err(); err != nil {
			return err
		}
		switch {
		case d.Spec.Status != doze.DomainVerified:
			return doze.Errorf(doze.Invalid, "the domain is not verified: only then it can be shared")
		case in.Target == workspace:
			return doze.Errorf(doze.Invalid, "targetWorkspace is the workspace that has the domain")
		case len(shared) >= doze.DomainSharesMax:
			return doze.Errorf(doze.Exhausted, "the domain is shared with %d workspaces, which is the limit: share it with %s", len(shared), doze.DomainEverybody)
		case in.Target != doze.DomainEverybody:
			if _, err := s.Store.Workspace(ctx, in.Target); err != nil {
				return err
			}
		}
		return s.Store.InsertDomainShare(ctx, workspace, name, in.Target)
	})
}

// unshareDomain ends a share. Previews of that workspace are served no more.
func (s *Server) unshareDomain(ctx context.Context, r *http.Request) (doze.CustomDomain, error) {
	return s.changeShares(ctx, r, func(ctx context.Context, d doze.CustomDomain, _ []string) error {
		return s.Store.DeleteDomainShare(ctx, d.Metadata.Workspace, d.Metadata.Name, r.PathValue("target"))
	})
}

// changeShares changes the workspaces that share a domain, in the records and then
// at the edge.
func (s *Server) changeShares(ctx context.Context, r *http.Request, change func(ctx context.Context, d doze.CustomDomain, shared []string) error) (doze.CustomDomain, error) {
	d, life, release, err := s.ownDomain(ctx, r)
	if err != nil {
		return d, err
	}
	defer release()
	shared, err := s.Store.DomainShares(life, d.Metadata.Workspace, d.Metadata.Name)
	if err == nil {
		err = change(life, d, shared)
	}
	if err != nil {
		return doze.CustomDomain{}, err
	}
	return s.domainView(d), s.serveDomain(life, d)
}
