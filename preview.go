package doze

import (
	"strconv"
	"strings"
	"time"
)

// Limits of previews. Headers are added to each request or answer.
const (
	PreviewsMax       = 100 // of a sandbox
	PreviewTokensMax  = 100 // of a preview
	PreviewHeadersMax = 32
	HeaderValueMax    = 4 << 10
	headerNameMax     = 128
	PrefixMax         = 40
	// ControlPort is the port by which a preview names the API of the sandbox
	// itself.
	ControlPort = 443
)

// Preview gives the world, or the bearers of a token, a way to one port of a sandbox
// (section 7 of the public API).
type Preview struct {
	Metadata PreviewMetadata `json:"metadata"`
	Spec     PreviewSpec     `json:"spec"`
	Status   string          `json:"status,omitempty"`
}

// PreviewMetadata is [Metadata] with the resource that the preview leads to.
type PreviewMetadata struct {
	Name         string `json:"name"`
	DisplayName  string `json:"displayName,omitempty"`
	ResourceName string `json:"resourceName,omitempty"`
	ResourceType string `json:"resourceType,omitempty"`
	Workspace    string `json:"workspace,omitempty"`
	CreatedAt    Time   `json:"createdAt,omitzero"`
	UpdatedAt    Time   `json:"updatedAt,omitzero"`
	CreatedBy    string `json:"createdBy,omitempty"`
	UpdatedBy    string `json:"updatedBy,omitempty"`
}

// PreviewSpec is what a caller wants. URL and Region are set by us.
type PreviewSpec struct {
	Port            int               `json:"port"`
	Public          bool              `json:"public"`
	PrefixURL       string            `json:"prefixUrl,omitempty"`
	CustomDomain    string            `json:"customDomain,omitempty"`
	URL             string            `json:"url,omitempty"`
	TTL             string            `json:"ttl,omitempty"`     // a Duration, from creation
	Expires         string            `json:"expires,omitempty"` // RFC 3339
	RequestHeaders  map[string]string `json:"requestHeaders,omitempty"`
	ResponseHeaders map[string]string `json:"responseHeaders,omitempty"`
	Region          string            `json:"region,omitempty"`
}

// PreviewToken opens a private preview.
type PreviewToken struct {
	Metadata PreviewTokenMetadata `json:"metadata"`
	Spec     PreviewTokenSpec     `json:"spec"`
}

// PreviewTokenMetadata says what a token belongs to. Names need not be unique.
type PreviewTokenMetadata struct {
	Name         string `json:"name"`
	PreviewName  string `json:"previewName,omitempty"`
	ResourceName string `json:"resourceName,omitempty"`
	ResourceType string `json:"resourceType,omitempty"`
	Workspace    string `json:"workspace,omitempty"`
}

// PreviewTokenSpec holds the token, which can be read again.
type PreviewTokenSpec struct {
	ExpiresAt Time   `json:"expiresAt,omitzero"`
	Token     string `json:"token,omitempty"`
	Expired   bool   `json:"expired"`
}

var (
	// prefixForm is also that of the first label of every preview's host.
	prefixForm = formOf(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)
	headerForm = formOf("^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")
	// connectionHeaders are about one connection, or say how long a body is:
	// nobody can set them for a sandbox, or for what it sends.
	connectionHeaders = []string{"connection", "content-length", "host", "keep-alive", "proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade"}
)

// Check adds every mistake of p.
func (p *Preview) Check(wrong *Problems) {
	m := Metadata{Name: p.Metadata.Name, DisplayName: p.Metadata.DisplayName}
	m.Check(wrong)
	s := p.Spec
	switch {
	case s.Port < 1 || s.Port > 65535 || s.Port == 80:
		wrong.first("spec.port", "is %d; it must be 1 to 65535, and not 80", s.Port)
	case s.Public && (s.Port == ControlPort || s.Port == AgentPort):
		wrong.Add("spec.public", "must be false for port %s: everybody could run commands in the sandbox", strconv.Itoa(s.Port))
	}
	if s.PrefixURL != "" && (len(s.PrefixURL) > PrefixMax || !prefixForm.MatchString(s.PrefixURL)) {
		wrong.Add("spec.prefixUrl", "must be at most %d lowercase letters, digits and hyphens, and begin and end with a letter or digit", PrefixMax)
	}
	if s.TTL != "" {
		if _, err := ParseDuration(s.TTL); err != nil {
			wrong.Add("spec.ttl", "%v", err)
		}
	}
	if s.Expires != "" {
		if _, err := ParseTime(s.Expires); err != nil {
			wrong.Add("spec.expires", "%v", err)
		}
	}
	checkHeaders(wrong, "spec.requestHeaders", s.RequestHeaders)
	checkHeaders(wrong, "spec.responseHeaders", s.ResponseHeaders)
}

func checkHeaders(p *Problems, field string, headers map[string]string) {
	if len(headers) > PreviewHeadersMax {
		p.Add(field, "has %d entries; at most %d are allowed", len(headers), PreviewHeadersMax)
	}
	for name, value := range headers {
		lower := strings.ToLower(name)
		switch {
		case len(name) > headerNameMax || !headerForm.MatchString(name):
			p.Add(field, "has the name %q, which no header can have", clip(name))
		case strings.HasPrefix(lower, "x-blaxel-"), strings.HasPrefix(lower, "proxy-"):
			p.Add(field, "has the name %q, which only the platform sets", clip(name))
		}
		for _, h := range connectionHeaders {
			if lower == h {
				p.Add(field, "has the name %q, which only the platform sets", clip(name))
			}
		}
		if len(value) > HeaderValueMax || strings.ContainsAny(value, "\x00\r\n") {
			p.Add(field, "has a value of %s that is longer than %d bytes or has more than one line", clip(name), HeaderValueMax)
		}
	}
}

// Deadline is when p ends; the zero time means with its sandbox.
func (p *Preview) Deadline() (at time.Time) {
	if d, err := ParseDuration(p.Spec.TTL); err == nil {
		at = p.Metadata.CreatedAt.Add(d)
	}
	if t, err := ParseTime(p.Spec.Expires); err == nil && (at.IsZero() || t.Before(at)) {
		at = t
	}
	return at
}
