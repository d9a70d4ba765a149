package network

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/api"
	"github.com/dozehq/doze/internal/store"
)

// networksMax bounds the resources of a kind in a workspace.
const networksMax = 1000

// vpcOf is the VPC that a path names. The default one exists without a record.
func (s *Server) vpcOf(ctx context.Context, r *http.Request) (doze.NetworkResource, error) {
	name := r.PathValue("vpc")
	if name != doze.DefaultVPC {
		return s.Store.Network(ctx, api.Caller(ctx).Workspace, store.VPC, name)
	}
	return doze.NetworkResource{
		Metadata: doze.NetworkMetadata{Name: name, DisplayName: name, Workspace: api.Caller(ctx).Workspace},
		Status:   doze.Running.Status(), Events: []doze.Event{},
	}, nil
}

// gatewayOf is the gateway that a path names, in its VPC.
func (s *Server) gatewayOf(ctx context.Context, r *http.Request) (doze.NetworkResource, error) {
	g, err := s.Store.Network(ctx, api.Caller(ctx).Workspace, store.Gateway, r.PathValue("gateway"))
	if err == nil && g.Metadata.VPCName != r.PathValue("vpc") {
		return doze.NetworkResource{}, doze.Errorf(doze.NotFound, "there is no such egress gateway")
	}
	return g, err
}

// ipOf is the address that a path names, in its gateway.
func (s *Server) ipOf(ctx context.Context, r *http.Request) (doze.NetworkResource, error) {
	missing := doze.Errorf(doze.NotFound, "there is no such egress IP")
	if _, err := s.gatewayOf(ctx, r); err != nil {
		return doze.NetworkResource{}, err
	}
	ip, err := s.Store.Network(ctx, api.Caller(ctx).Workspace, store.IP, r.PathValue("ip"))
	if err == nil && ip.Metadata.GatewayName != r.PathValue("gateway") {
		return doze.NetworkResource{}, missing
	}
	return ip, err
}

// networks lists a kind; nil is an empty list.
func (s *Server) networks(ctx context.Context, kind store.NetworkKind, parent string) ([]doze.NetworkResource, error) {
	all, err := s.Store.Networks(ctx, api.Caller(ctx).Workspace, kind, parent)
	if all == nil {
		all = []doze.NetworkResource{}
	}
	return all, err
}

// makeNetwork records a resource of a kind in its parent. Check looks at the
// spec, and may fill in what is left out.
func (s *Server) makeNetwork(ctx context.Context, kind store.NetworkKind, parent string, where doze.NetworkMetadata, body map[string]any, check func(*doze.NetworkSpec, *doze.Problems)) (doze.NetworkResource, error) {
	c, now := api.Caller(ctx), doze.Time{Time: time.Now()}
	var p doze.Problems
	meta := struct {
		Name        string `json:"name"`
		DisplayName string `json:"displayName"`
	}{}
	api.Decode(&meta, api.Member(body, "metadata", &p), "metadata", &p)
	n := doze.NetworkResource{Metadata: where, Status: doze.Running.Status()}
	api.Decode(&n.Spec, api.Member(body, "spec", &p), "spec", &p)
	rest := doze.Metadata{Name: meta.Name, DisplayName: meta.DisplayName}
	rest.Check(&p)
	n.Spec.PublicIP = ""
	check(&n.Spec, &p)
	if err := p.Err(); err != nil {
		return doze.NetworkResource{}, err
	}
	all, err := s.networks(ctx, kind, "")
	if err == nil && len(all) >= networksMax {
		err = doze.Errorf(doze.Exhausted, "the workspace has %d of these, which is the limit: delete one first", len(all))
	}
	if err != nil {
		return doze.NetworkResource{}, err
	}
	n.Metadata.Name, n.Metadata.DisplayName, n.Metadata.Workspace = meta.Name, meta.DisplayName, c.Workspace
	n.Metadata.CreatedAt, n.Metadata.CreatedBy, n.Metadata.UpdatedAt, n.Metadata.UpdatedBy = now, c.Sub, now, c.Sub
	message := "it is recorded"
	if kind == store.IP {
		n.Status, message = doze.Starting.Status(), "it asks for an address"
	}
	n.Events = []doze.Event{doze.Event{Type: doze.EventDeployment, Status: n.Status, Message: message, Time: now}.Revised(doze.FirstRevision)}
	return n, s.Store.InsertNetwork(ctx, kind, parent, n)
}

func (s *Server) listVPCs(ctx context.Context, r *http.Request) ([]doze.NetworkResource, error) {
	all, err := s.networks(ctx, store.VPC, "")
	if err != nil {
		return nil, err
	}
	r.SetPathValue("vpc", doze.DefaultVPC)
	first, err := s.vpcOf(ctx, r)
	return append([]doze.NetworkResource{first}, all...), err
}

func (s *Server) createVPC(ctx context.Context, _ *http.Request, body map[string]any) (doze.NetworkResource, error) {
	return s.makeNetwork(ctx, store.VPC, "", doze.NetworkMetadata{}, body, func(spec *doze.NetworkSpec, p *doze.Problems) {
		*spec = doze.NetworkSpec{}
		if m, ok := body["metadata"].(map[string]any); ok && m["name"] == doze.DefaultVPC {
			p.Add("metadata.name", "is that of the VPC that every workspace has")
		}
	})
}

func (s *Server) deleteVPC(ctx context.Context, r *http.Request) (doze.NetworkResource, error) {
	if r.PathValue("vpc") == doze.DefaultVPC {
		return doze.NetworkResource{}, doze.Errorf(doze.Conflict, "the default VPC cannot be deleted")
	}
	vpc, workspace := r.PathValue("vpc"), api.Caller(ctx).Workspace
	err := s.Store.EachLiving(ctx, func(sb store.Sandbox) error {
		if sb.Metadata.Workspace == workspace && sb.Spec.VPC == vpc {
			return doze.Errorf(doze.Conflict, "the sandbox %s is in this VPC: delete it, or change its spec.vpc first", sb.Metadata.Name)
		}
		return nil
	})
	if err != nil {
		return doze.NetworkResource{}, err
	}
	return s.Store.DeleteNetwork(ctx, workspace, store.VPC, vpc)
}

func (s *Server) listGateways(ctx context.Context, r *http.Request) ([]doze.NetworkResource, error) {
	if _, err := s.vpcOf(ctx, r); err != nil {
		return nil, err
	}
	return s.networks(ctx, store.Gateway, r.PathValue("vpc"))
}

func (s *Server) allGateways(ctx context.Context, _ *http.Request) ([]doze.NetworkResource, error) {
	return s.networks(ctx, store.Gateway, "")
}

func (s *Server) createGateway(ctx context.Context, r *http.Request, body map[string]any) (doze.NetworkResource, error) {
	vpc, err := s.vpcOf(ctx, r)
	if err != nil {
		return vpc, err
	}
	where := doze.NetworkMetadata{VPCName: vpc.Metadata.Name}
	return s.makeNetwork(ctx, store.Gateway, vpc.Metadata.Name, where, body, func(spec *doze.NetworkSpec, p *doze.Problems) {
		*spec = doze.NetworkSpec{Region: spec.Region}
		if spec.Region == doze.AnyRegion {
			spec.Region = s.Regions[0]
		}
		api.CheckRegion(p, "spec.region", spec.Region, s.Regions)
	})
}

func (s *Server) deleteGateway(ctx context.Context, r *http.Request) (doze.NetworkResource, error) {
	if _, err := s.gatewayOf(ctx, r); err != nil {
		return doze.NetworkResource{}, err
	}
	return s.Store.DeleteNetwork(ctx, api.Caller(ctx).Workspace, store.Gateway, r.PathValue("gateway"))
}

// gatewayUsage says which sandboxes use which gateway.
func (s *Server) gatewayUsage(ctx context.Context, _ *http.Request) (map[string][]string, error) {
	all, err := s.networks(ctx, store.Gateway, "")
	usage := map[string][]string{}
	for _, g := range all {
		usage[g.Metadata.Name] = []string{}
	}
	if err != nil {
		return nil, err
	}
	err = s.eachUser(ctx, api.Caller(ctx).Workspace, func(gateway string, sb store.Sandbox) error {
		usage[gateway] = append(usage[gateway], sb.Metadata.Name)
		return nil
	})
	for _, names := range usage {
		slices.Sort(names)
	}
	return usage, err
}

func (s *Server) listIPs(ctx context.Context, r *http.Request) ([]doze.NetworkResource, error) {
	if _, err := s.gatewayOf(ctx, r); err != nil {
		return nil, err
	}
	return s.networks(ctx, store.IP, r.PathValue("gateway"))
}

func (s *Server) allIPs(ctx context.Context, _ *http.Request) ([]doze.NetworkResource, error) {
	return s.networks(ctx, store.IP, "")
}

func (s *Server) createIP(ctx context.Context, r *http.Request, body map[string]any) (doze.NetworkResource, error) {
	g, err := s.gatewayOf(ctx, r)
	if err != nil {
		return g, err
	}
	where := doze.NetworkMetadata{VPCName: g.Metadata.VPCName, GatewayName: g.Metadata.Name}
	ip, err := s.makeNetwork(ctx, store.IP, g.Metadata.Name, where, body, func(spec *doze.NetworkSpec, p *doze.Problems) {
		*spec = doze.NetworkSpec{IPFamily: spec.IPFamily}
		switch spec.IPFamily {
		case "":
			spec.IPFamily = doze.IPv4
		case doze.IPv4:
		case doze.IPv6:
			p.Add("spec.ipFamily", "is %s, of which this platform has no addresses: leave it out, or say %s", doze.IPv6, doze.IPv4)
		default:
			p.Add("spec.ipFamily", "must be %s or %s", doze.IPv4, doze.IPv6)
		}
	})
	if err != nil {
		return ip, err
	}
	if err := s.Store.GiveAddresses(ctx, s.Pool, time.Now()); err != nil {
		return ip, err
	}
	return s.Store.Network(ctx, ip.Metadata.Workspace, store.IP, ip.Metadata.Name)
}

// deleteIP returns an address. Sandboxes that left from it leave from another one
// of its gateway from then on; if there is none, they have to go first.
func (s *Server) deleteIP(ctx context.Context, r *http.Request) (doze.NetworkResource, error) {
	ip, err := s.ipOf(ctx, r)
	if err != nil {
		return ip, err
	}
	users, err := s.usersOf(ctx, ip.Metadata)
	if err != nil {
		return ip, err
	}
	if len(users) > 0 {
		inIt, err := s.networks(ctx, store.IP, ip.Metadata.GatewayName)
		if err != nil {
			return ip, err
		}
		if !slices.ContainsFunc(inIt, func(other doze.NetworkResource) bool {
			return other.Metadata.Name != ip.Metadata.Name && other.Spec.PublicIP != ""
		}) {
			return ip, doze.Errorf(doze.Conflict, "%s from this address: change spec.network.egress there, delete what is not needed, or create another egress IP in %s first",
				leaving(users), ip.Metadata.GatewayName)
		}
	}
	if err := s.Store.RetireAddress(ctx, ip.Metadata.Workspace, ip.Metadata.Name); err != nil {
		return ip, err
	}
	if err := s.vacate(ctx, ip.Metadata); err != nil {
		return ip, err
	}
	if ip, err = s.Store.DeleteNetwork(ctx, ip.Metadata.Workspace, store.IP, ip.Metadata.Name); err != nil {
		return ip, err
	}
	return ip, s.Store.GiveAddresses(ctx, s.Pool, time.Now())
}

// vacate has nobody leave from an egress IP that is retired. A create or an
// update that is under way may have read its address before: it has its turn
// first. What begins later reads another one.
func (s *Server) vacate(ctx context.Context, ip doze.NetworkMetadata) error {
	users, err := s.usersOf(ctx, ip)
	for _, sb := range users {
		err = errors.Join(err, s.Reroute(ctx, sb))
	}
	return err
}

// leaving says who leaves; there is somebody.
func leaving(users []store.Sandbox) string {
	first := "the sandbox " + users[0].Metadata.Name
	switch more := len(users) - 1; more {
	case 0:
		return first + " leaves"
	case 1:
		return first + " and another one leave"
	default:
		return fmt.Sprintf("%s and %d others leave", first, more)
	}
}

// usersOf are the sandboxes that leave by the gateway of an egress IP.
func (s *Server) usersOf(ctx context.Context, ip doze.NetworkMetadata) (users []store.Sandbox, err error) {
	err = s.eachUser(ctx, ip.Workspace, func(gateway string, sb store.Sandbox) error {
		if gateway == ip.GatewayName {
			users = append(users, sb)
		}
		return nil
	})
	return users, err
}

// Check adds the mistakes in the VPC and the gateway of a sandbox. The VPC must exist.
// The gateway must be in it or in the default VPC, and have an address.
func Check(ctx context.Context, st *store.Store, sb *doze.Sandbox, p *doze.Problems) error {
	vpc := cmp.Or(sb.Spec.VPC, doze.DefaultVPC)
	if vpc != doze.DefaultVPC {
		_, err := st.Network(ctx, sb.Metadata.Workspace, store.VPC, vpc)
		if doze.Public(err).Kind == doze.NotFound {
			p.Add("spec.vpc", "is %q; there is no such VPC: create it first", api.Clip(vpc))
		} else if err != nil {
			return err
		}
	}
	n := sb.Spec.Network
	if n == nil || n.Egress == nil || n.Egress.Gateway == "" {
		return nil
	}
	const field = "spec.network.egress.gateway"
	name := n.Egress.Gateway
	g, err := st.Network(ctx, sb.Metadata.Workspace, store.Gateway, name)
	switch {
	case doze.Public(err).Kind == doze.NotFound || err == nil && g.Metadata.VPCName != doze.DefaultVPC && g.Metadata.VPCName != vpc:
		where := "the VPC " + doze.DefaultVPC
		if vpc != doze.DefaultVPC {
			where += ", nor in " + api.Clip(vpc)
		}
		p.Add(field, "is %q; there is no such egress gateway in %s", api.Clip(name), where)
		return nil
	case err != nil:
		return err
	}
	all, err := st.GatewayAddresses(ctx, sb.Metadata.Workspace, name)
	if err == nil && len(all) == 0 {
		p.Add(field, "is %q, which has no address: create an egress IP in it, and wait until that is DEPLOYED", api.Clip(name))
	}
	return err
}

// eachUser calls fn for every living sandbox of a workspace that leaves by a
// gateway.
func (s *Server) eachUser(ctx context.Context, workspace string, fn func(gateway string, sb store.Sandbox) error) error {
	return s.Store.EachLiving(ctx, func(sb store.Sandbox) error {
		if n := sb.Spec.Network; sb.Metadata.Workspace == workspace && n != nil && n.Egress.NeedsGateway() {
			return fn(n.Egress.Gateway, sb)
		}
		return nil
	})
}
