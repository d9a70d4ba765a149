package tenancy

import (
	"context"
	"net/http"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/api"
)

// policyLists are what callers may ask of the list of policies.
var policyLists = api.Listing{Limit: api.LimitDefault, Most: api.LimitMax, Labels: true}

func (s *Server) listPolicies(ctx context.Context, r *http.Request) (api.List[doze.Policy], error) {
	return api.AnswerListing(ctx, r, policyLists, s.Store.ListPolicies, func(p doze.Policy) doze.Policy { return p })
}

func (s *Server) policy(ctx context.Context, r *http.Request) (doze.Policy, error) {
	return s.Store.Policy(ctx, api.Caller(ctx).Workspace, r.PathValue("policy"))
}

func (s *Server) createPolicy(ctx context.Context, _ *http.Request, body map[string]any) (doze.Policy, error) {
	var p doze.Policy
	if err := decodePolicy(&p, body); err != nil {
		return doze.Policy{}, err
	}
	api.Stamp(&p.Metadata, api.Caller(ctx))
	return p, s.Store.InsertPolicy(ctx, p)
}

func (s *Server) updatePolicy(ctx context.Context, r *http.Request, body map[string]any) (doze.Policy, error) {
	c := api.Caller(ctx)
	return s.Store.ChangePolicy(ctx, c.Workspace, r.PathValue("policy"), func(p *doze.Policy) error {
		p.Metadata.UpdatedAt, p.Metadata.UpdatedBy = doze.Time{Time: time.Now()}, c.Sub
		return decodePolicy(p, body)
	})
}

func (s *Server) deletePolicy(ctx context.Context, r *http.Request) (doze.Policy, error) {
	return s.Store.DeletePolicy(ctx, api.Caller(ctx).Workspace, r.PathValue("policy"))
}

// policyUsages are none: what refers to policies does not run here.
func (s *Server) policyUsages(ctx context.Context, r *http.Request) (doze.PolicyUsages, error) {
	_, err := s.policy(ctx, r)
	return doze.PolicyUsages{Agents: []string{}, Functions: []string{}, Jobs: []string{}, Models: []string{}, Sandboxes: []string{}}, err
}

// decodePolicy writes what a caller may set of a policy. Its name stays.
func decodePolicy(p *doze.Policy, body map[string]any) error {
	var wrong doze.Problems
	name := p.Metadata.Name
	api.DecodeMetadata(&p.Metadata, body, &wrong)
	spec := api.Member(body, "spec", &wrong)
	if to, ok := spec["type"].(string); ok && to != p.Spec.Type { // what the type before said counts no more
		p.Spec.Locations, p.Spec.Flavors, p.Spec.MaxTokens = nil, nil, nil
	}
	api.Decode(&p.Spec, spec, "spec", &wrong)
	if name != "" {
		api.SameName(&p.Metadata, name, "policy", &wrong)
	}
	p.Check(&wrong)
	return wrong.Err()
}
