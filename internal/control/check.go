package control

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/api"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/network"
	"github.com/dozehq/doze/internal/store"
)

// ownLabels is the prefix of labels that the platform may give a meaning.
const ownLabels = "doze."

// check adds every mistake in what a caller wants that the records do not tell.
func (s *Server) check(sb *doze.Sandbox, p *doze.Problems) {
	sb.Check(p)
	for k := range sb.Metadata.Labels {
		if strings.HasPrefix(k, ownLabels) {
			p.Add("metadata.labels", "has the key %q; the prefix %s is reserved", api.Clip(k), ownLabels)
		}
	}
	if sb.Spec.Runtime.Has(doze.ExtraNFS) {
		p.Add("spec.runtime.extraArgs.nfs", "is of another generation: sandboxes of %s have no file system of the network; leave it out, and copy files with the sandbox API", doze.Generation)
	}
}

// checkMemory adds that a sandbox would have more memory than there is. What
// callers get who ask for none is always good: a sandbox takes what it touches.
func (s *Server) checkMemory(memory doze.Megabytes, p *doze.Problems) {
	limit := s.node.Load().Memory
	if most := max(limit, doze.MemoryDefault); limit > 0 && memory > most {
		p.Add("spec.runtime.memory", "is %d; one sandbox can have %d megabytes on this host: ask for no more", memory, most)
	}
}

// verdictOn is verdict for a sandbox. Of another generation is a mistake that
// has a name.
func verdictOn(spec *doze.SandboxSpec, p, lacking doze.Problems) error {
	err := api.Verdict(p, lacking)
	if len(p) > 0 && spec.Runtime.Has(doze.ExtraNFS) {
		return &doze.Error{Kind: doze.Invalid, Name: doze.Unsupported.String(), Message: doze.Public(err).Message}
	}
	return err
}

// order is what a node gets to run.
func (s *Server) order(ctx context.Context, sb store.Sandbox) (fleet.Order, error) {
	env, err := s.variables(ctx, sb.Metadata, sb.Spec)
	if err != nil {
		return fleet.Order{}, err
	}
	volumes, err := s.volumesOf(ctx, sb)
	if err != nil {
		return fleet.Order{}, err
	}
	network, err := s.networkOf(ctx, sb)
	if err != nil {
		return fleet.Order{}, err
	}
	o := orderOf(sb)
	o.Env, o.Volumes, o.Network = env, volumes, network
	o.Image, o.Login, err = s.Images.Source(ctx, sb.Metadata.Workspace, sb.Spec.Runtime.Image)
	return o, err
}

// orderOf is what the record of a sandbox alone says of its order.
func orderOf(sb store.Sandbox) fleet.Order {
	r := sb.Spec.Runtime
	return fleet.Order{
		Authority: sb.Authority,
		UID:       sb.Machine, Name: sb.Metadata.Name, Workspace: sb.Metadata.Workspace, Region: sb.Spec.Region,
		Memory: r.Memory, Storage: r.Storage, Grace: grace(sb), IPTables: r.Has(doze.ExtraIPTables), Tun: r.Has(doze.ExtraTun),
		Containers:   r.Has(doze.ExtraContainers),
		NoEntrypoint: !r.Has(doze.ExtraEntrypoint),
	}
}

// networkOf is the network of a sandbox as a node gets it: one without rules, if
// there is none, and with the address that its gateway has now.
func (s *Server) networkOf(ctx context.Context, sb store.Sandbox) (*doze.Network, error) {
	if sb.Spec.Network == nil {
		return new(doze.Network), nil
	}
	n := *sb.Spec.Network
	if n.Subnet != "" && n.Subnet != doze.DefaultSubnet { // none of these names has a slash
		n.Segment = sb.Metadata.Workspace + "/" + cmp.Or(sb.Spec.VPC, doze.DefaultVPC) + "/" + n.Subnet
	}
	if !n.Egress.NeedsGateway() {
		return &n, nil
	}
	all, err := s.Store.GatewayAddresses(ctx, sb.Metadata.Workspace, n.Egress.Gateway)
	egress := *n.Egress
	n.Egress, egress.Source = &egress, network.Address(all, sb.UID, sb.Metadata.CreatedAt.Time)
	return &n, err
}

// closedWarning is the notice of a sandbox whose rules can open nothing.
const closedWarning = doze.WarningPrefix + "egress is closed on this platform, so the network rules of this sandbox open nothing: " +
	"ask the operator to start it with --egress open"

// warning returns what to warn the caller about who sets a network in place of the one
// before, on a node; or nothing.
func warning(node *fleet.NodeInfo, was, now *doze.Network) string {
	if node.Proxy || !now.Led() || reflect.DeepEqual(was, now) {
		return ""
	}
	return closedWarning
}

// setNetwork has the recorded network of a sandbox obeyed. A machine that the
// node does not have gets it when it is made.
func (s *Server) setNetwork(ctx context.Context, to fleet.Node, sb store.Sandbox) error {
	n, err := s.networkOf(ctx, sb)
	if err != nil {
		return err
	}
	err = to.SetNetwork(ctx, sb.Machine, n)
	if doze.Public(err).Kind == doze.NotFound {
		return nil
	}
	return err
}

// variables are those of a sandbox as the processes inside get them. A value
// that is referred to and not there is Invalid.
func (s *Server) variables(ctx context.Context, m doze.Metadata, spec doze.SandboxSpec) ([]string, error) {
	var p doze.Problems
	all, in := make([]string, 0, len(spec.Runtime.Envs)), doze.Sandbox{Metadata: m, Spec: spec}
	for _, e := range spec.Runtime.Envs {
		value, has := e.Text(), true
		if e.From() {
			from, err := doze.ParseValueSource(e.ValueFrom)
			if err != nil {
				return nil, doze.Wrap(err, doze.Invalid, "the variable %s has a valueFrom that is damaged", api.Clip(e.Name))
			}
			switch {
			case from.Field != nil:
				value = from.Field.Value(&in)
			case from.Resource != nil:
				value = from.Resource.Value(&in)
			default:
				if value, has, err = s.secretValue(ctx, m.Workspace, from.Secret); err != nil {
					return nil, err
				}
				if !has && !from.Secret.Optional {
					addMissing(&p, "spec.runtime.envs", e.Name, from.Secret)
				}
			}
		}
		if has {
			all = append(all, e.Name+"="+value)
		}
	}
	return all, p.Err()
}

// checkReferences adds the variables, in a field of a body, that refer to what is
// not there.
func (s *Server) checkReferences(ctx context.Context, workspace, field string, envs []doze.Env, p *doze.Problems) error {
	for _, e := range envs {
		from, err := doze.ParseValueSource(e.ValueFrom)
		if err != nil || from.Secret == nil { // that mistake is known, or it has its value from elsewhere
			continue
		}
		_, has, err := s.secretValue(ctx, workspace, from.Secret)
		if err != nil {
			return err
		}
		if !has && !from.Secret.Optional {
			addMissing(p, field, e.Name, from.Secret)
		}
	}
	return nil
}

// addMissing adds that a variable refers to what is not there.
func addMissing(p *doze.Problems, field, variable string, ref *doze.SecretRef) {
	p.Add(field, "%s refers to the key %q of the secret %q, which is not there", api.Clip(variable), api.Clip(ref.Key), api.Clip(ref.Name))
}

// checkVolumes adds the volumes of a new sandbox that are not there.
func (s *Server) checkVolumes(ctx context.Context, sb *doze.Sandbox, p *doze.Problems) error {
	for i, a := range sb.Spec.Volumes {
		var wrong doze.Problems
		if doze.CheckName(&wrong, "", a.Name); a.Type != doze.VolumePersistent || len(wrong) > 0 {
			continue
		}
		_, err := s.Store.Volume(ctx, sb.Metadata.Workspace, a.Name)
		switch {
		case doze.Public(err).Kind == doze.NotFound:
			p.Add(fmt.Sprintf("spec.volumes[%d].name", i), "is %q, and there is no such volume: create it first", a.Name)
		case err != nil:
			return err
		}
	}
	return nil
}

// secretValue is what a variable refers to, or false if it is not there.
func (s *Server) secretValue(ctx context.Context, workspace string, ref *doze.SecretRef) (string, bool, error) {
	sec, err := s.Store.Secret(ctx, workspace, ref.Name)
	if doze.Public(err).Kind == doze.NotFound {
		return "", false, nil
	}
	if err != nil {
		return "", false, err
	}
	value, ok := sec.Data[ref.Key]
	return value, ok, nil
}

// grace is what the processes of a sandbox get to end by themselves.
func grace(sb store.Sandbox) time.Duration { return time.Duration(sb.Spec.Runtime.Grace) * time.Second }
