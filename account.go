package doze

import (
	"strings"
	"unicode/utf8"
)

// APIKey is a long-lived credential. The key itself is shown once, in the
// answer to its creation; afterwards only its hash exists.
type APIKey struct {
	ID         string `json:"id"`
	Key        string `json:"apiKey,omitempty"`
	Name       string `json:"name"`
	Sub        string `json:"sub"`
	SubType    string `json:"sub_type"`
	ExpiresIn  string `json:"expires_in,omitempty"` // a Duration
	LastUsedAt Time   `json:"lastUsedAt,omitzero"`  // to a second; absent if it was never used
	CreatedAt  Time   `json:"createdAt,omitzero"`
	CreatedBy  string `json:"createdBy,omitempty"`
	UpdatedAt  Time   `json:"updatedAt,omitzero"`
	UpdatedBy  string `json:"updatedBy,omitempty"`
}

// Workspace is what resources live in.
type Workspace struct {
	ID          string            `json:"id"`
	Name        string            `json:"name"`
	DisplayName string            `json:"displayName,omitempty"`
	Region      string            `json:"region,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Status      string            `json:"status,omitempty"`
	Resources   map[string]int    `json:"resourceCounts,omitempty"` // only when asked for
	CreatedAt   Time              `json:"createdAt,omitzero"`
	CreatedBy   string            `json:"createdBy,omitempty"`
	UpdatedAt   Time              `json:"updatedAt,omitzero"`
	UpdatedBy   string            `json:"updatedBy,omitempty"`
}

// A Caller is who a credential belongs to, and what it may do.
type Caller struct {
	Sub       string   `json:"sub"`       // of the user or service account
	Type      string   `json:"type"`      // user or service_account
	Workspace string   `json:"workspace"` // that the call is in; empty if the credential has several and the call names none
	Role      string   `json:"role"`      // in that workspace
	Scopes    []string `json:"scopes"`    // of the credential
}

// Roles of a user in a workspace.
const (
	RoleAdmin  = "admin"
	RoleMember = "member"
)

// Types of the owners of credentials.
const (
	SubUser           = "user"
	SubServiceAccount = "service_account"
)

// User is a person as a workspace sees it.
type User struct {
	Sub           string `json:"sub"`
	Email         string `json:"email"`
	EmailVerified bool   `json:"email_verified"`
	GivenName     string `json:"given_name,omitempty"`
	FamilyName    string `json:"family_name,omitempty"`
	Role          string `json:"role,omitempty"`
	Accepted      bool   `json:"accepted"`
	// WorkspaceCreator may create workspaces. Operators always may.
	WorkspaceCreator bool `json:"workspaceCreator,omitempty"`
}

// Invitation lets somebody join a workspace. Its token is shown once.
type Invitation struct {
	Email     string `json:"email"`
	InvitedBy string `json:"invitedBy"`
	Role      string `json:"role"`
	Workspace string `json:"workspace"`
	Token     string `json:"token,omitempty"`
	ExpiresAt Time   `json:"expiresAt,omitzero"`
	CreatedAt Time   `json:"createdAt,omitzero"`
	CreatedBy string `json:"createdBy,omitempty"`
}

// ServiceAccount is a program with credentials of its own (spec 2.14). The
// secret is shown once, in the answer to its creation.
type ServiceAccount struct {
	ClientID    string   `json:"client_id"`
	Secret      string   `json:"client_secret,omitempty"`
	Name        string   `json:"name"`
	Description string   `json:"description"`
	Scopes      []string `json:"scopes,omitempty"`
	CreatedAt   Time     `json:"created_at,omitzero"`
	UpdatedAt   Time     `json:"updated_at,omitzero"`
}

// OAuthClient is a program that users let act for them.
type OAuthClient struct {
	ClientID     string   `json:"client_id"`
	Name         string   `json:"client_name"`
	RedirectURIs []string `json:"redirect_uris"`
	CreatedAt    Time     `json:"created_at,omitzero"`
}

// KeysMax bounds the API keys of a workspace, unless its operator allows more:
// all are held in memory.
const KeysMax = 1000

// Limits of accounts. A password is at least as long as common rules for
// people want it, and short enough that its hash costs no more than others.
const (
	EmailMax    = 254
	PasswordMin = 10
	PasswordMax = 256
	PersonMax   = 100
)

// CheckEmail adds what is wrong with an address of a person. It is in lower
// case.
func CheckEmail(p *Problems, field, email string) {
	local, domain, ok := strings.Cut(email, "@")
	switch {
	case len(email) > EmailMax:
		p.Add(field, "is %d bytes long; at most %d are allowed", len(email), EmailMax)
	case !ok || local == "" || domain == "" || strings.ContainsAny(email, " \t\r\n<>,;\"\\") || strings.Contains(domain, "@") || !utf8.ValidString(email):
		p.Add(field, "must be an address like name@example.com")
	}
}

// CheckPassword adds what is wrong with a new password.
func CheckPassword(p *Problems, field, password string) {
	if n := len(password); n < PasswordMin || n > PasswordMax {
		p.Add(field, "must have %d to %d bytes", PasswordMin, PasswordMax)
	}
}
