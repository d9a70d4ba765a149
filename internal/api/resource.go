package api

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
)

// Stamp says whose a new resource is, and since when.
func Stamp(m *doze.Metadata, c access.Caller) {
	now := doze.Time{Time: time.Now()}
	m.Workspace, m.CreatedAt, m.CreatedBy = c.Workspace, now, c.Sub
	m.UpdatedAt, m.UpdatedBy, m.Plan = now, c.Sub, doze.Plan
}

// SameName adds a mistake if a caller gives a resource, a noun, another name. No
// name is the one that it has.
func SameName(m *doze.Metadata, was, noun string, p *doze.Problems) {
	if m.Name = cmp.Or(m.Name, was); m.Name != was {
		p.Add("metadata.name", "cannot be changed: create another %s", noun)
	}
}

// RegionOf is the region of a resource whose caller wants this one, or the other
// for a caller without a wish.
func RegionOf(region, other string) string {
	if region == "" || region == doze.AnyRegion {
		return other
	}
	return region
}

// CheckRegion adds a mistake if a region is none of ours.
func CheckRegion(p *doze.Problems, field, region string, ours []string) {
	switch {
	case slices.Contains(ours, region):
	case len(ours) == 1:
		p.Add(field, "is %q; this platform has the region %s", Clip(region), ours[0])
	default:
		p.Add(field, "is %q; this platform has the regions %s", Clip(region), strings.Join(ours, ", "))
	}
}

// SameRegion adds a mistake if a caller gives a resource, a noun, another region. No
// wish is the one that it has.
func SameRegion(p *doze.Problems, field, region, was, noun string) {
	if RegionOf(region, was) != was {
		p.Add(field, "cannot be changed: create another %s", noun)
	}
}

// Verdict is the error for the mistakes in a request, and for what it asks for
// that this platform does not have: that alone is Unsupported. Nil for neither.
func Verdict(p, lacking doze.Problems) error { return VerdictAs(doze.Unsupported, p, lacking) }

// VerdictAs is verdict where what the request asks for is of another kind.
func VerdictAs(kind doze.Kind, p, lacking doze.Problems) error {
	if len(p) == 0 && len(lacking) > 0 {
		return doze.Errorf(kind, "%s", strings.Join(lacking, "; "))
	}
	return slices.Concat(p, lacking).Err()
}

// Reveals reports whether a caller asks for secrets as they are, and may.
func Reveals(ctx context.Context, r *http.Request) (bool, error) {
	if !ShowSecrets.In(r.URL.Query()) {
		return false, nil
	}
	if !Caller(ctx).May(access.Admin) {
		return false, doze.Errorf(doze.Forbidden, "show_secrets needs the scope %s", access.Admin)
	}
	return true, nil
}

// settable is what a caller may set of the metadata of a resource.
type settable struct {
	Name        string            `json:"name"`
	DisplayName string            `json:"displayName"`
	ExternalID  string            `json:"externalId"`
	Labels      map[string]string `json:"labels"`
}

// DecodeMetadata writes what a caller may set of metadata.
func DecodeMetadata(m *doze.Metadata, body map[string]any, p *doze.Problems) {
	set := settable{m.Name, m.DisplayName, m.ExternalID, maps.Clone(m.Labels)}
	Decode(&set, Member(body, "metadata", p), "metadata", p)
	m.Name, m.DisplayName, m.ExternalID, m.Labels = set.Name, set.DisplayName, set.ExternalID, set.Labels
}

// ShareRequest names who may use what is shared.
type ShareRequest struct {
	Target string `json:"targetWorkspace"`
}
