package control

import (
	"context"
	"net/http"
	"time"

	"github.com/dozehq/doze"
)

// policyLists are what callers may ask of the list of policies.
var policyLists = Listing{limit: limitDefault, most: limitMax}

func (s *Server) listPolicies(ctx context.Context, r *http.Request) (listAnswer[doze.Policy], error) {
	return answerListing(ctx, r, policyLists, s.Store.ListPolicies, func(p doze.Policy) doze.Policy { return p })
}

func (s *Server) policy(ctx context.Context, r *http.Request) (doze.Policy, error) {
	return s.Store.Policy(ctx, callerOf(ctx).Workspace, r.PathValue("policy"))
}

func (s *Server) createPolicy(ctx context.Context, _ *http.Request, body map[string]any) (doze.Policy, error) {
	var p doze.Policy
	if err := decodePolicy(&p, body); err != nil {
		return doze.Policy{}, err
	}
	stamp(&p.Metadata, callerOf(ctx))
	return p, s.Store.InsertPolicy(ctx, p)
}

func (s *Server) updatePolicy(ctx context.Context, r *http.Request, body map[string]any) (doze.Policy, error) {
	c := callerOf(ctx)
	return s.Store.ChangePolicy(ctx, c.Workspace, r.PathValue("policy"), func(p *doze.Policy) error {
		p.Metadata.UpdatedAt, p.Metadata.UpdatedBy = doze.Time{Time: time.Now()}, c.Sub
		return decodePolicy(p, body)
	})
}

func (s *Server) deletePolicy(ctx context.Context, r *http.Request) (doze.Policy, error) {
	return s.Store.DeletePolicy(ctx, callerOf(ctx).Workspace, r.PathValue("policy"))
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
	decodeMetadata(&p.Metadata, body, &wrong)
	spec := member(body, "spec", &wrong)
	if to, ok := spec["type"].(string); ok && to != p.Spec.Type { // what the type before said counts no more
		p.Spec.Locations, p.Spec.Flavors, p.Spec.MaxTokens = nil, nil, nil
	}
	decode(&p.Spec, spec, "spec", &wrong)
	if name != "" {
		keepName(&p.Metadata, name, "policy", &wrong)
	}
	p.Check(&wrong)
	return wrong.Err()
}
