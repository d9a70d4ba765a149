package client

import (
	"context"
	"net/http"
	"net/url"
	"strings"

	"github.com/dozehq/doze"
)

// resource calls a path of the control API whose segments are given.
func resource[Out any](ctx context.Context, c *Client, method string, in any, segments ...string) (Out, error) {
	path := make([]string, len(segments))
	for i, s := range segments {
		path[i] = url.PathEscape(s)
	}
	return exchange[Out](ctx, c, method, c.base+"/"+strings.Join(path, "/"), in)
}

// Whoami returns whose credential this client has.
func (c *Client) Whoami(ctx context.Context) (doze.Caller, error) {
	return resource[doze.Caller](ctx, c, http.MethodGet, nil, "whoami")
}

// Keys returns the API keys of the workspace, without their secrets.
func (c *Client) Keys(ctx context.Context) ([]doze.APIKey, error) {
	return resource[[]doze.APIKey](ctx, c, http.MethodGet, nil, "api_keys")
}

// CreateKey makes an API key. Its secret is in the answer, and nowhere else.
// Without scopes it has those of the caller; life is a duration, or empty for
// ever.
func (c *Client) CreateKey(ctx context.Context, name, life string, scopes []string) (doze.APIKey, error) {
	in := map[string]any{"name": name}
	if life != "" {
		in["expires_in"] = life
	}
	if len(scopes) > 0 {
		in["scopes"] = scopes
	}
	return resource[doze.APIKey](ctx, c, http.MethodPost, in, "api_keys")
}

// DeleteKey makes an API key void at once.
func (c *Client) DeleteKey(ctx context.Context, id string) error {
	_, err := resource[any](ctx, c, http.MethodDelete, nil, "api_keys", id)
	return err
}

// Users returns the users of all workspaces, for operators.
func (c *Client) Users(ctx context.Context) ([]doze.User, error) {
	return resource[[]doze.User](ctx, c, http.MethodGet, nil, "platform", "users")
}

// SetWorkspaceCreator says whether a user, by id or address, may create
// workspaces. It is for operators.
func (c *Client) SetWorkspaceCreator(ctx context.Context, user string, may bool) (doze.User, error) {
	return resource[doze.User](ctx, c, http.MethodPut, map[string]bool{"workspaceCreator": may}, "platform", "users", user)
}

// Secrets returns the secrets of the workspace, with their values masked.
func (c *Client) Secrets(ctx context.Context) ([]doze.Secret, error) {
	return resource[[]doze.Secret](ctx, c, http.MethodGet, nil, "secrets")
}

// SetSecret makes a secret or, if its name is taken, replaces its values.
func (c *Client) SetSecret(ctx context.Context, s doze.Secret) (doze.Secret, error) {
	made, err := resource[doze.Secret](ctx, c, http.MethodPut, s, "secrets", s.Metadata.Name)
	if doze.Public(err).Kind == doze.NotFound {
		return resource[doze.Secret](ctx, c, http.MethodPost, s, "secrets")
	}
	return made, err
}

// DeleteSecret removes a secret.
func (c *Client) DeleteSecret(ctx context.Context, name string) error {
	_, err := resource[any](ctx, c, http.MethodDelete, nil, "secrets", name)
	return err
}

// Previews returns the previews of a sandbox.
func (c *Client) Previews(ctx context.Context, sandbox string) ([]doze.Preview, error) {
	return resource[[]doze.Preview](ctx, c, http.MethodGet, nil, "sandboxes", sandbox, "previews")
}

// CreatePreview makes a preview of a sandbox.
func (c *Client) CreatePreview(ctx context.Context, sandbox string, p doze.Preview) (doze.Preview, error) {
	return resource[doze.Preview](ctx, c, http.MethodPost, p, "sandboxes", sandbox, "previews")
}

// DeletePreview ends a preview.
func (c *Client) DeletePreview(ctx context.Context, sandbox, name string) error {
	_, err := resource[any](ctx, c, http.MethodDelete, nil, "sandboxes", sandbox, "previews", name)
	return err
}

// CreatePreviewToken makes a token that opens a private preview.
func (c *Client) CreatePreviewToken(ctx context.Context, sandbox, preview string, t doze.PreviewToken) (doze.PreviewToken, error) {
	return resource[doze.PreviewToken](ctx, c, http.MethodPost, t, "sandboxes", sandbox, "previews", preview, "tokens")
}

// Domains returns the custom domains of the workspace.
func (c *Client) Domains(ctx context.Context) ([]doze.CustomDomain, error) {
	return resource[[]doze.CustomDomain](ctx, c, http.MethodGet, nil, "customdomains")
}

// CreateDomain adds a custom domain. The answer says what to write into the
// DNS.
func (c *Client) CreateDomain(ctx context.Context, name string) (doze.CustomDomain, error) {
	in := doze.CustomDomain{Metadata: doze.CustomDomainMetadata{Name: name}}
	return resource[doze.CustomDomain](ctx, c, http.MethodPost, in, "customdomains")
}

// VerifyDomain has the server look into the DNS.
func (c *Client) VerifyDomain(ctx context.Context, name string) (doze.CustomDomain, error) {
	return resource[doze.CustomDomain](ctx, c, http.MethodPost, nil, "customdomains", name, "verify")
}

// SetFallback chooses the preview that serves the other names on a custom domain, by
// the first label of its host. An empty label is none.
func (c *Client) SetFallback(ctx context.Context, name, label string) (doze.CustomDomain, error) {
	in := map[string]any{"spec": map[string]string{"fallbackPreviewId": label}}
	return resource[doze.CustomDomain](ctx, c, http.MethodPut, in, "customdomains", name)
}

// DomainShares returns the workspaces that share a custom domain.
func (c *Client) DomainShares(ctx context.Context, name string) ([]doze.DomainShare, error) {
	return resource[[]doze.DomainShare](ctx, c, http.MethodGet, nil, "customdomains", name, "share")
}

// ShareDomain lets another workspace, or all for [doze.DomainEverybody], serve
// previews on a custom domain.
func (c *Client) ShareDomain(ctx context.Context, name, workspace string) (doze.CustomDomain, error) {
	return resource[doze.CustomDomain](ctx, c, http.MethodPost, map[string]string{"targetWorkspace": workspace}, "customdomains", name, "share")
}

// UnshareDomain ends that.
func (c *Client) UnshareDomain(ctx context.Context, name, workspace string) error {
	_, err := resource[any](ctx, c, http.MethodDelete, nil, "customdomains", name, "share", workspace)
	return err
}

// DeleteDomain removes a custom domain.
func (c *Client) DeleteDomain(ctx context.Context, name string) error {
	_, err := resource[any](ctx, c, http.MethodDelete, nil, "customdomains", name)
	return err
}

// Quotas returns those of a workspace, or of the caller's for the empty name.
func (c *Client) Quotas(ctx context.Context, workspace string) ([]doze.QuotaStatus, error) {
	path := []string{"quotas"}
	if workspace != "" {
		path = []string{"workspaces", workspace, "quotas"}
	}
	return resource[[]doze.QuotaStatus](ctx, c, http.MethodGet, nil, path...)
}

// SetQuotas changes limits of a workspace, for operators, and returns all of its
// quotas. Nil gives one its default back.
func (c *Client) SetQuotas(ctx context.Context, workspace string, limits map[string]*int64) ([]doze.QuotaStatus, error) {
	return resource[[]doze.QuotaStatus](ctx, c, http.MethodPut, map[string]any{"quotas": limits}, "workspaces", workspace, "quotas")
}
