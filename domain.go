package doze

import (
	"net/netip"
	"slices"
	"strings"
)

// LabelMax is the longest label of a host name (RFC 1035), in bytes.
const LabelMax = 63

// DomainMax is the longest name of a custom domain: there must be room for the
// host of a preview below it.
const DomainMax = 180

// Statuses of a custom domain.
const (
	DomainPending  = "pending"
	DomainVerified = "verified"
	DomainFailed   = "failed"
)

// A domain can be shared with DomainSharesMax others; DomainEverybody stands for
// all workspaces of the platform.
const (
	DomainSharesMax = 100
	DomainEverybody = "account"
)

// DomainPreviews is the type of a custom domain that serves previews.
const DomainPreviews = "previews"

// CustomDomain is a domain under which previews are served, at
// <preview>.preview.<domain> (spec 2.12).
type CustomDomain struct {
	Metadata CustomDomainMetadata `json:"metadata"`
	Spec     CustomDomainSpec     `json:"spec"`
}

// CustomDomainMetadata has the domain itself as its name.
type CustomDomainMetadata struct {
	Name        string            `json:"name"`
	DisplayName string            `json:"displayName,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Workspace   string            `json:"workspace,omitempty"`
	SharedFrom  string            `json:"sharedFromWorkspace,omitempty"` // whose it is, where another workspace sees it
	CreatedAt   Time              `json:"createdAt,omitzero"`
	UpdatedAt   Time              `json:"updatedAt,omitzero"`
	CreatedBy   string            `json:"createdBy,omitempty"`
	UpdatedBy   string            `json:"updatedBy,omitempty"`
}

// CustomDomainSpec says what its owner has to write into the DNS, and what we
// found there. All but DomainType, FallbackPreviewID and Region is set by us.
type CustomDomainSpec struct {
	CNAMERecords      string            `json:"cnameRecords"` // the target; empty if that has no name
	TXTRecords        map[string]string `json:"txtRecords"`   // name to value
	AlternativeNames  []string          `json:"subjectAlternativeNames"`
	DomainType        string            `json:"domainType"`
	FallbackPreviewID string            `json:"fallbackPreviewId,omitempty"` // the first label of the preview that serves names which no preview has
	Region            string            `json:"region"`
	Status            string            `json:"status"`
	LastVerifiedAt    Time              `json:"lastVerifiedAt,omitzero"`
	VerificationError string            `json:"verificationError,omitempty"`
}

// DomainShare lets another workspace, or all, serve previews on a domain.
type DomainShare struct {
	Workspace   string `json:"workspace"` // or DomainEverybody
	DisplayName string `json:"workspaceDisplayName,omitempty"`
	Status      string `json:"status"`
}

// ShareActive is the status of every share: nobody has to accept one.
const ShareActive = "active"

// domainForm does not say how long a label may be: to count in a pattern costs
// some 100 KB.
var domainForm = formOf(`^([a-z0-9]([a-z0-9-]*[a-z0-9])?\.)+[a-z]([a-z0-9-]*[a-z0-9])?$`)

func hasLongLabel(name string) bool {
	return slices.ContainsFunc(strings.Split(name, "."), func(label string) bool { return len(label) > LabelMax })
}

// CheckDomain adds what is wrong with a domain. It is in lower case.
func CheckDomain(p *Problems, field, name string) {
	_, err := netip.ParseAddr(name)
	if len(name) > DomainMax || err == nil || !domainForm.MatchString(name) || hasLongLabel(name) {
		p.first(field, "must be a domain such as example.com, of at most %d bytes", DomainMax)
	}
	if name == "localhost" || strings.HasSuffix(name, ".localhost") {
		p.Add(field, "is not in the DNS")
	}
}

// CheckFallback adds what is wrong with the first label of a preview's host;
// none is fine.
func CheckFallback(p *Problems, field, label string) {
	if label != "" && (len(label) > LabelMax || !prefixForm.MatchString(label)) {
		p.Add(field, "must be the name in front of .preview.<domain> in the address of a preview, such as www")
	}
}
