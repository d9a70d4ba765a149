package preview

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/api"
	"github.com/dozehq/doze/internal/bell"
	"github.com/dozehq/doze/internal/fleet"
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

// domainView is a domain as callers see it. Where it has to lead is what the
// configuration says now; without a name for that, it says what to do.
func (s *Server) domainView(d doze.CustomDomain) doze.CustomDomain {
	d.Spec.CNAMERecords = ""
	if s.hasName() {
		d.Spec.CNAMERecords = s.DomainTarget
	} else if d.Spec.Status == doze.DomainPending {
		d.Spec.VerificationError = s.remedy(d)
	}
	return d
}

// hasName reports whether a CNAME record can lead to the host that custom domains
// lead to.
func (s *Server) hasName() bool {
	var p doze.Problems
	doze.CheckDomain(&p, "", s.DomainTarget)
	return len(p) == 0
}

// remedy says how the names of a domain can lead here, where no name of ours is
// in the DNS.
func (s *Server) remedy(d doze.CustomDomain) string {
	return fmt.Sprintf("this platform has no domain in the DNS for a CNAME record: give *.preview.%s the address of %s, or have the operator start dozed with one as --domain",
		d.Metadata.Name, s.DomainTarget)
}

// listDomains returns the domains of the workspace, and then those that others
// share with it.
func (s *Server) listDomains(ctx context.Context, r *http.Request) ([]doze.CustomDomain, error) {
	workspace := api.Caller(ctx).Workspace
	own, err := s.Store.Domains(ctx, workspace)
	if err != nil {
		return nil, err
	}
	shared, err := s.Store.SharedDomains(ctx, workspace)
	if err != nil {
		return nil, err
	}
	all := make([]doze.CustomDomain, 0, len(own)+len(shared))
	for _, d := range own {
		all = append(all, s.domainView(d))
	}
	for _, d := range shared {
		all = append(all, sharedWith(workspace, s.domainView(d)))
	}
	return api.Labelled(r, all, func(d doze.CustomDomain) map[string]string { return d.Metadata.Labels })
}

func domainOf(r *http.Request) string { return strings.ToLower(r.PathValue("domain")) }

func (s *Server) domain(ctx context.Context, r *http.Request) (doze.CustomDomain, error) {
	workspace := api.Caller(ctx).Workspace
	d, err := s.Store.Domain(ctx, workspace, domainOf(r))
	if doze.Public(err).Kind == doze.NotFound {
		d, err = s.Store.SharedDomain(ctx, workspace, domainOf(r))
		d = sharedWith(workspace, d)
	}
	return s.domainView(d), err
}

// ownDomain is a domain that a caller may change: their workspace's. life and
// release are those of its turn.
func (s *Server) ownDomain(ctx context.Context, r *http.Request) (d doze.CustomDomain, life context.Context, release func(), err error) {
	workspace, name := api.Caller(ctx).Workspace, domainOf(r)
	if life, release, err = s.locks.Take(ctx, domainLock(workspace, name)); err != nil {
		return d, nil, nil, err
	}
	if d, err = s.Store.Domain(life, workspace, name); err != nil {
		release()
		return d, nil, nil, s.notOurs(ctx, workspace, name, err)
	}
	return d, life, release, nil
}

// domainLock is the turn of a change of a domain.
func domainLock(workspace, name string) string { return "domain/" + workspace + "/" + name }

// notOurs says of a domain that is not found if it is another workspace's that
// shares it.
func (s *Server) notOurs(ctx context.Context, workspace, name string, err error) error {
	if d, found := s.Store.SharedDomain(ctx, workspace, name); found == nil {
		return doze.Errorf(doze.Forbidden, "the domain is shared by the workspace %s: only there it can be changed", d.Metadata.Workspace)
	}
	return err
}

func (s *Server) createDomain(ctx context.Context, _ *http.Request, body map[string]any) (doze.CustomDomain, error) {
	c, now := api.Caller(ctx), doze.Time{Time: time.Now()}
	var p doze.Problems
	d := doze.CustomDomain{Spec: doze.CustomDomainSpec{DomainType: doze.DomainPreviews, Region: s.Regions[0]}}
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
	d.Spec.TXTRecords = map[string]string{challengeName + d.Metadata.Name: value}
	d.Spec.AlternativeNames, d.Spec.Status = []string{"*.preview." + d.Metadata.Name}, doze.DomainPending
	return s.domainView(d), s.Store.InsertDomain(ctx, d)
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
		Fallback   string `json:"fallbackPreviewId"`
	}{d.Spec.DomainType, d.Spec.Region, d.Spec.FallbackPreviewID}
	api.Decode(&meta, api.Member(body, "metadata", p), "metadata", p)
	api.Decode(&spec, api.Member(body, "spec", p), "spec", p)
	name := strings.ToLower(strings.TrimSuffix(meta.Name, "."))
	if was := d.Metadata.Name; was != "" && name != "" && name != was {
		p.Add("metadata.name", "cannot be changed: create another custom domain")
	} else if was == "" {
		d.Metadata.Name = name
		d.Spec.Region = api.RegionOf(spec.Region, d.Spec.Region)
		api.CheckRegion(p, "spec.region", d.Spec.Region, s.Regions)
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
	api.SameRegion(p, "spec.region", spec.Region, d.Spec.Region, "custom domain")
	doze.CheckFallback(p, "spec.fallbackPreviewId", spec.Fallback)
	d.Metadata.DisplayName, d.Metadata.Labels, d.Spec.FallbackPreviewID = meta.DisplayName, meta.Labels, spec.Fallback
}

func (s *Server) updateDomain(ctx context.Context, r *http.Request, body map[string]any) (doze.CustomDomain, error) {
	d, life, release, err := s.ownDomain(ctx, r)
	if err != nil {
		return d, err
	}
	defer release()
	var p doze.Problems
	s.decodeDomain(&d, body, &p)
	if err := p.Err(); err != nil {
		return d, err
	}
	d.Metadata.UpdatedAt, d.Metadata.UpdatedBy = doze.Time{Time: time.Now()}, api.Caller(ctx).Sub
	if err := s.Store.UpdateDomain(life, d); err != nil {
		return d, err
	}
	return s.domainView(d), s.serveDomain(life, d)
}

func (s *Server) deleteDomain(ctx context.Context, r *http.Request) (doze.CustomDomain, error) {
	d, life, release, err := s.ownDomain(ctx, r)
	if err != nil {
		return d, err
	}
	defer release()
	if d, err = s.Store.DeleteDomain(life, d.Metadata.Workspace, d.Metadata.Name); err == nil {
		s.Previews.DropDomain(d.Metadata.Name, d.Metadata.Workspace)
	}
	return s.domainView(d), err
}

// verifyDomain looks into the DNS. What it finds is in the answer, which is no
// error.
func (s *Server) verifyDomain(ctx context.Context, r *http.Request) (doze.CustomDomain, error) {
	d, life, release, err := s.ownDomain(ctx, r)
	if err != nil {
		return d, err
	}
	defer release()
	d, err = s.verify(life, d)
	return s.domainView(d), err
}

// verify looks into the DNS and records what it says of d. Previews are served
// while it is verified.
// Preconditions: the caller has its turn.
func (s *Server) verify(ctx context.Context, d doze.CustomDomain) (doze.CustomDomain, error) {
	problem, certain := s.lookUp(ctx, d)
	switch {
	case !certain && d.Spec.Status == doze.DomainVerified: // the DNS did not answer: it stays as it was
	case problem != "":
		d.Spec.Status = doze.DomainFailed
	default:
		d.Spec.Status, d.Spec.LastVerifiedAt = doze.DomainVerified, doze.Time{Time: time.Now()}
	}
	d.Spec.VerificationError = problem
	err := s.Store.UpdateDomain(ctx, d)
	if doze.Public(err).Kind == doze.Conflict {
		d.Spec.Status, d.Spec.VerificationError = doze.DomainFailed, doze.Public(err).Message
		err = s.Store.UpdateDomain(ctx, d)
	}
	if err != nil {
		return d, err
	}
	return d, s.serveDomain(ctx, d)
}

// lookUp is what is wrong with the records of a domain, or nothing. It is not
// certain if the DNS did not answer.
func (s *Server) lookUp(ctx context.Context, d doze.CustomDomain) (problem string, certain bool) {
	ctx, cancel := context.WithTimeout(ctx, lookupTime)
	defer cancel()
	var wrong []string // all of it: records take their time to be seen
	for name, value := range d.Spec.TXTRecords {
		found, err := present(s.Resolver.LookupTXT(ctx, name+"."))
		switch {
		case err != nil:
			return "the DNS did not answer when asked for the TXT record " + name, false
		case !slices.Contains(found, value):
			wrong = append(wrong, "the TXT record "+name+" is not "+value)
		}
	}
	leads, err := s.leadsHere(ctx, probeLabel+d.Metadata.Name+".")
	switch {
	case err != nil && len(wrong) == 0:
		return "the DNS did not answer when asked for *.preview." + d.Metadata.Name, false
	case err != nil: // what is wrong already is certain
	case !leads && !s.hasName():
		wrong = append(wrong, s.remedy(d))
	case !leads:
		wrong = append(wrong, "the CNAME record *.preview."+d.Metadata.Name+" does not lead to "+s.DomainTarget)
	}
	return strings.Join(wrong, "; "), true
}

// leadsHere reports whether a name is an alias of our target, or has an address
// of it: some providers resolve an alias themselves, and our target may be one.
// An error is that the DNS did not answer.
func (s *Server) leadsHere(ctx context.Context, name string) (bool, error) {
	alias, err := present(s.Resolver.LookupCNAME(ctx, name))
	if err != nil || strings.EqualFold(strings.TrimSuffix(alias, "."), s.DomainTarget) {
		return err == nil, err
	}
	target := s.DomainTarget
	if _, err := netip.ParseAddr(target); err != nil {
		target += "." // no name of the local network
	}
	theirs, err1 := present(s.Resolver.LookupHost(ctx, name))
	ours, err2 := present(s.Resolver.LookupHost(ctx, target))
	return slices.ContainsFunc(theirs, func(ip string) bool { return slices.Contains(ours, ip) }), errors.Join(err1, err2)
}

// present leaves out the error that something is not in the DNS.
func present[T any](found T, err error) (T, error) {
	if isAbsent(err) {
		err = nil
	}
	return found, err
}

func isAbsent(err error) bool {
	e, ok := errors.AsType[*net.DNSError](err)
	return ok && e.IsNotFound
}

// serveDomain makes the edge serve previews on a domain as its records say, or
// serve them no more.
func (s *Server) serveDomain(ctx context.Context, d doze.CustomDomain) error {
	defer s.Recheck()
	if d.Spec.Status != doze.DomainVerified {
		s.Previews.DropDomain(d.Metadata.Name, d.Metadata.Workspace)
		return nil
	}
	shared, err := s.Store.DomainShares(ctx, d.Metadata.Workspace, d.Metadata.Name)
	if err != nil {
		return err
	}
	s.Previews.PutDomain(fleet.Domain{Name: d.Metadata.Name, Workspace: d.Metadata.Workspace, Shared: shared, Fallback: d.Spec.FallbackPreviewID})
	return nil
}

// reverify looks at all domains that were verified, again and again, until ctx
// ends.
func (s *Server) reverify(ctx context.Context) {
	for never := bell.New(); never.Wait(ctx, verifyEvery); {
		all, err := s.Store.Domains(ctx, "")
		for _, d := range all {
			if d.Spec.Status != doze.DomainVerified || ctx.Err() != nil {
				continue
			}
			err = errors.Join(err, s.verifyAgain(ctx, d.Metadata.Workspace, d.Metadata.Name))
		}
		if err != nil && ctx.Err() == nil {
			slog.WarnContext(ctx, "custom domains are not verified again yet", "err", err)
		}
	}
}

// verifyAgain looks at a domain in its turn.
func (s *Server) verifyAgain(ctx context.Context, workspace, name string) error {
	life, release, err := s.locks.Take(ctx, domainLock(workspace, name))
	if err != nil {
		return err
	}
	defer release()
	d, err := s.Store.Domain(life, workspace, name)
	if err == nil {
		_, err = s.verify(life, d)
	}
	return err
}

// verifiedDomain is nil for a domain that previews of a workspace can use: its
// own, or one that is shared with it.
func (s *Server) verifiedDomain(ctx context.Context, workspace, name string) error {
	d, err := s.Store.Domain(ctx, workspace, name)
	if err == nil && d.Spec.Status == doze.DomainVerified {
		return nil
	}
	_, missing := s.Store.SharedDomain(ctx, workspace, name)
	switch {
	case doze.Public(missing).Kind != doze.NotFound: // or there is one
		return missing
	case doze.Public(err).Kind == doze.NotFound:
		return doze.Errorf(doze.Invalid, "spec.customDomain %q is not a custom domain of the workspace", api.Clip(name))
	case err != nil:
		return err
	}
	return doze.Errorf(doze.Invalid, "spec.customDomain %q is not verified yet", api.Clip(name))
}
