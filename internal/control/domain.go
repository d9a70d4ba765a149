package control

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"doze"
)

const (
	// domainsMax bounds the custom domains of a workspace.
	domainsMax = 100
	// challengeName is in front of a domain where its owner proves that they are.
	challengeName  = "_doze-challenge."
	challengeValue = "doze-domain-verification="
	// probeLabel is a name below which previews are; a wildcard record has it.
	probeLabel = "doze-probe.preview."
	// lookupTime bounds the questions of one verification.
	lookupTime = 10 * time.Second
	// verifyEvery is how often we look again: a domain that changes hands must
	// not serve what is not its owner's for long.
	verifyEvery = time.Hour
)

// Resolver asks the DNS. [net.Resolver] is one.
type Resolver interface {
	LookupTXT(ctx context.Context, name string) ([]string, error)
	LookupCNAME(ctx context.Context, host string) (string, error)
	LookupHost(ctx context.Context, host string) ([]string, error)
}

// challenge is what the DNS must say of a domain for a workspace. Nobody can
// guess that of another workspace.
func (s *Server) challenge(ctx context.Context, workspace, domain string) (string, error) {
	key, err := s.secretKey(ctx)
	if err != nil {
		return "", err
	}
	mac := hmac.New(sha256.New, key)
	_, _ = mac.Write([]byte("domain/" + workspace + "/" + domain)) // it never fails
	return challengeValue + hex.EncodeToString(mac.Sum(nil)[:20]), nil
}

func (s *Server) listDomains(ctx context.Context, _ *http.Request) ([]doze.CustomDomain, error) {
	all, err := s.Store.Domains(ctx, callerOf(ctx).Workspace)
	if all == nil {
		all = []doze.CustomDomain{}
	}
	return all, err
}

func domainOf(r *http.Request) string { return strings.ToLower(r.PathValue("domain")) }

func (s *Server) domain(ctx context.Context, r *http.Request) (doze.CustomDomain, error) {
	return s.Store.Domain(ctx, callerOf(ctx).Workspace, domainOf(r))
}

func (s *Server) createDomain(ctx context.Context, _ *http.Request, body map[string]any) (doze.CustomDomain, error) {
	c, now := callerOf(ctx), doze.Time{Time: time.Now()}
	var p doze.Problems
	d := doze.CustomDomain{Spec: doze.CustomDomainSpec{DomainType: doze.DomainPreviews, Region: s.Region}}
	s.decodeDomain(&d, body, &p)
	if err := p.Err(); err != nil {
		return d, err
	}
	all, err := s.Store.Domains(ctx, c.Workspace)
	if err == nil && len(all) >= domainsMax {
		err = doze.Errorf(doze.Exhausted, "the workspace has %d custom domains, which is the limit: delete one first", len(all))
	}
	if err != nil {
		return d, err
	}
	value, err := s.challenge(ctx, c.Workspace, d.Metadata.Name)
	if err != nil {
		return d, err
	}
	d.Metadata.Workspace, d.Metadata.CreatedAt, d.Metadata.CreatedBy = c.Workspace, now, c.Sub
	d.Metadata.UpdatedAt, d.Metadata.UpdatedBy = now, c.Sub
	d.Spec.CNAMERecords, d.Spec.TXTRecords = s.DomainTarget, map[string]string{challengeName + d.Metadata.Name: value}
	d.Spec.AlternativeNames, d.Spec.Status = []string{"*.preview." + d.Metadata.Name}, doze.DomainPending
	return d, s.Store.InsertDomain(ctx, d)
}

// decodeDomain writes what a caller may set of a domain.
func (s *Server) decodeDomain(d *doze.CustomDomain, body map[string]any, p *doze.Problems) {
	meta := struct {
		Name        string            `json:"name"`
		DisplayName string            `json:"displayName"`
		Labels      map[string]string `json:"labels"`
	}{d.Metadata.Name, d.Metadata.DisplayName, maps.Clone(d.Metadata.Labels)}
	spec := struct {
		DomainType string `json:"domainType"`
		Region     string `json:"region"`
	}{d.Spec.DomainType, d.Spec.Region}
	decode(&meta, member(body, "metadata", p), "metadata", p)
	decode(&spec, member(body, "spec", p), "spec", p)
	name := strings.ToLower(strings.TrimSuffix(meta.Name, "."))
	if was := d.Metadata.Name; was != "" && name != "" && name != was {
		p.Add("metadata.name", "cannot be changed: create another custom domain")
	} else if was == "" {
		d.Metadata.Name = name
		doze.CheckDomain(p, "metadata.name", name)
		if t := s.DomainTarget; name == t || strings.HasSuffix(t, "."+name) || strings.HasSuffix(name, "."+t) {
			p.Add("metadata.name", "is a domain of the platform")
		}
	}
	rest := doze.Metadata{Name: "x", DisplayName: meta.DisplayName, Labels: meta.Labels}
	rest.Check(p)
	if spec.DomainType != "" && spec.DomainType != doze.DomainPreviews {
		p.Add("spec.domainType", "must be %s", doze.DomainPreviews)
	}
	if spec.Region != "" && spec.Region != anyRegion && spec.Region != s.Region {
		p.Add("spec.region", "is %q; this platform has the region %s", clip(spec.Region), s.Region)
	}
	d.Metadata.DisplayName, d.Metadata.Labels = meta.DisplayName, meta.Labels
}

func (s *Server) updateDomain(ctx context.Context, r *http.Request, body map[string]any) (doze.CustomDomain, error) {
	c := callerOf(ctx)
	life, release, err := s.turns.take(ctx, "domain/"+c.Workspace+"/"+domainOf(r))
	if err != nil {
		return doze.CustomDomain{}, err
	}
	defer release()
	d, err := s.domain(life, r)
	if err != nil {
		return d, err
	}
	var p doze.Problems
	s.decodeDomain(&d, body, &p)
	if err := p.Err(); err != nil {
		return d, err
	}
	d.Metadata.UpdatedAt, d.Metadata.UpdatedBy = doze.Time{Time: time.Now()}, c.Sub
	return d, s.Store.UpdateDomain(life, d)
}

func (s *Server) deleteDomain(ctx context.Context, r *http.Request) (doze.CustomDomain, error) {
	return s.Store.DeleteDomain(ctx, callerOf(ctx).Workspace, domainOf(r))
}

// verifyDomain looks into the DNS. What it finds is in the answer, which is no
// error.
func (s *Server) verifyDomain(ctx context.Context, r *http.Request) (doze.CustomDomain, error) {
	return s.verify(ctx, callerOf(ctx).Workspace, domainOf(r))
}

// verify looks into the DNS and records what it says of a domain. Previews are
// served while it is verified.
func (s *Server) verify(ctx context.Context, workspace, name string) (doze.CustomDomain, error) {
	life, release, err := s.turns.take(ctx, "domain/"+workspace+"/"+name)
	if err != nil {
		return doze.CustomDomain{}, err
	}
	defer release()
	d, err := s.Store.Domain(life, workspace, name)
	if err != nil {
		return d, err
	}
	was := d.Spec.Status
	problem, certain := s.lookUp(life, d)
	if !certain && was == doze.DomainVerified {
		d.Spec.VerificationError = problem // the DNS did not answer: it stays as it was
		return d, s.Store.UpdateDomain(life, d)
	}
	d.Spec.Status, d.Spec.VerificationError = doze.DomainFailed, problem
	if problem == "" {
		d.Spec.Status, d.Spec.LastVerifiedAt = doze.DomainVerified, doze.Time{Time: time.Now()}
	}
	err = s.Store.UpdateDomain(life, d)
	if doze.Public(err).Kind == doze.Conflict {
		d.Spec.Status, d.Spec.VerificationError = doze.DomainFailed, doze.Public(err).Message
		err = s.Store.UpdateDomain(life, d)
	}
	if err == nil && (was == doze.DomainVerified) != (d.Spec.Status == doze.DomainVerified) {
		err = s.serveDomain(life, d)
	}
	return d, err
}

// lookUp is what is wrong with the records of a domain, or nothing. It is not
// certain if the DNS did not answer.
func (s *Server) lookUp(ctx context.Context, d doze.CustomDomain) (problem string, certain bool) {
	ctx, cancel := context.WithTimeout(ctx, lookupTime)
	defer cancel()
	for name, value := range d.Spec.TXTRecords {
		found, err := s.Resolver.LookupTXT(ctx, name+".")
		switch {
		case err != nil && !isAbsent(err):
			return "the DNS did not answer when asked for the TXT record " + name, false
		case !slices.Contains(found, value):
			return "the TXT record " + name + " is not " + value, true
		}
	}
	probe := probeLabel + d.Metadata.Name + "."
	alias, err := s.Resolver.LookupCNAME(ctx, probe)
	if err == nil && strings.EqualFold(strings.TrimSuffix(alias, "."), s.DomainTarget) {
		return "", true
	}
	if err != nil && !isAbsent(err) {
		return "the DNS did not answer when asked for *.preview." + d.Metadata.Name, false
	}
	// Some providers resolve an alias themselves, and our target may be one.
	theirs, err1 := s.Resolver.LookupHost(ctx, probe)
	ours, err2 := s.Resolver.LookupHost(ctx, s.DomainTarget+".")
	if err1 == nil && err2 == nil && slices.ContainsFunc(theirs, func(ip string) bool { return slices.Contains(ours, ip) }) {
		return "", true
	}
	return "the CNAME record *.preview." + d.Metadata.Name + " does not lead to " + s.DomainTarget, true
}

func isAbsent(err error) bool {
	e, ok := errors.AsType[*net.DNSError](err)
	return ok && e.IsNotFound
}

// serveDomain makes the edge serve the previews of a domain, or serve them no
// more.
func (s *Server) serveDomain(ctx context.Context, d doze.CustomDomain) error {
	all, err := s.Store.LivingPreviews(ctx, time.Now())
	if err != nil {
		return err
	}
	for _, p := range all {
		switch {
		case p.Metadata.Workspace != d.Metadata.Workspace || p.Spec.CustomDomain != d.Metadata.Name:
		case d.Spec.Status == doze.DomainVerified:
			err = errors.Join(err, s.publish(ctx, p))
		default:
			s.Previews.Drop(p.Label, p.ID)
		}
	}
	s.Recheck()
	return err
}

// reverify looks at all domains that were verified, again and again, until ctx
// ends.
func (s *Server) reverify(ctx context.Context) {
	for never := newBell(); never.wait(ctx, verifyEvery); {
		all, err := s.Store.Domains(ctx, "")
		for _, d := range all {
			if d.Spec.Status != doze.DomainVerified || ctx.Err() != nil {
				continue
			}
			_, again := s.verify(ctx, d.Metadata.Workspace, d.Metadata.Name)
			err = errors.Join(err, again)
		}
		if err != nil && ctx.Err() == nil {
			slog.WarnContext(ctx, "custom domains are not verified again yet", "err", err)
		}
	}
}

// verifiedDomain is nil for a domain that previews of a workspace can use.
func (s *Server) verifiedDomain(ctx context.Context, workspace, name string) error {
	d, err := s.Store.Domain(ctx, workspace, name)
	switch {
	case doze.Public(err).Kind == doze.NotFound:
		return doze.Errorf(doze.Invalid, "spec.customDomain %q is not a custom domain of the workspace", clip(name))
	case err == nil && d.Spec.Status != doze.DomainVerified:
		return doze.Errorf(doze.Invalid, "spec.customDomain %q is not verified yet", clip(name))
	}
	return err
}
