package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"strconv"

	"github.com/dozehq/doze"
)

// pageSize is the most that a server puts into one page.
const pageSize = 200

// Filter selects sandboxes. The zero Filter selects all that live.
type Filter struct {
	Query      string // part of a name, display name or label
	Status     string // comma-separated
	ExternalID string
	Labels     map[string]string // all of these
	Terminated bool              // those too that have ended and are still on record
}

// values are the query of a list.
func (f Filter) values() url.Values {
	q := url.Values{}
	for name, v := range map[string]string{"q": f.Query, "status": f.Status, "externalId": f.ExternalID} {
		if v != "" {
			q.Set(name, v)
		}
	}
	for key, value := range f.Labels {
		q.Add("labels", key+"="+value)
	}
	if f.Terminated {
		q.Set("showTerminated", "true")
	}
	return q
}

// Create makes a sandbox and returns it when it is ready. A name that is taken
// is a Conflict, or with ifNotExists, the answer is the sandbox that has it.
func (c *Client) Create(ctx context.Context, s doze.Sandbox, ifNotExists bool) (doze.Sandbox, error) {
	address := c.base + "/sandboxes"
	if ifNotExists {
		address += "?createIfNotExist=true"
	}
	return exchange[doze.Sandbox](ctx, c, http.MethodPost, address, revealed(s))
}

// Sandbox returns one by its name.
func (c *Client) Sandbox(ctx context.Context, name string) (doze.Sandbox, error) {
	return exchange[doze.Sandbox](ctx, c, http.MethodGet, c.sandbox(name), nil)
}

// Traces returns where the time of the last wakes of a sandbox and of its create
// went, the newest first.
func (c *Client) Traces(ctx context.Context, name string) ([]doze.Trace, error) {
	return exchange[[]doze.Trace](ctx, c, http.MethodGet, c.sandbox(name)+"/traces", nil)
}

// Egress returns where a sandbox connected to of late, and what it was refused. It does
// not wake it.
func (c *Client) Egress(ctx context.Context, name string) (doze.EgressSummary, error) {
	return exchange[doze.EgressSummary](ctx, c, http.MethodGet, c.sandbox(name)+"/egress", nil)
}

// Usage returns what a sandbox takes, and what it has done. It does not wake it.
func (c *Client) Usage(ctx context.Context, name string) (doze.SandboxUsage, error) {
	return exchange[doze.SandboxUsage](ctx, c, http.MethodGet, c.sandbox(name)+"/usage", nil)
}

// Usages returns what each sandbox that matches f takes, newest first, page by page. It
// ends after the first error.
func (c *Client) Usages(ctx context.Context, f Filter) iter.Seq2[doze.SandboxUsage, error] {
	return all[doze.SandboxUsage](ctx, c, "/usage/sandboxes", f.values())
}

// ByExternalID returns the newest sandbox with an external id that has not
// ended.
func (c *Client) ByExternalID(ctx context.Context, id string) (doze.Sandbox, error) {
	return exchange[doze.Sandbox](ctx, c, http.MethodGet, c.base+"/sandboxes/by-external-id/"+url.PathEscape(id), nil)
}

// Update changes a sandbox. What is zero in s stays as it is. To remove the network
// rules, set s.Spec.Network to an empty [doze.Network].
func (c *Client) Update(ctx context.Context, s doze.Sandbox) (doze.Sandbox, error) {
	return exchange[doze.Sandbox](ctx, c, http.MethodPut, c.sandbox(s.Metadata.Name), revealed(s))
}

// Delete ends a sandbox and returns it as it was.
func (c *Client) Delete(ctx context.Context, name string) (doze.Sandbox, error) {
	return exchange[doze.Sandbox](ctx, c, http.MethodDelete, c.sandbox(name), nil)
}

func (c *Client) sandbox(name string) string { return c.base + "/sandboxes/" + url.PathEscape(name) }

// page is one part of a list.
type page[T any] struct {
	Data []T `json:"data"`
	Meta struct {
		NextCursor string `json:"nextCursor"`
	} `json:"meta"`
}

// Sandboxes returns all that match f, newest first, page by page. It ends
// after the first error.
func (c *Client) Sandboxes(ctx context.Context, f Filter) iter.Seq2[doze.Sandbox, error] {
	return all[doze.Sandbox](ctx, c, "/sandboxes", f.values())
}

// all returns what a list has, page by page. It ends after the first error.
func all[T any](ctx context.Context, c *Client, path string, q url.Values) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		q.Set("limit", strconv.Itoa(pageSize))
		for seen := map[string]bool{"": true}; ; {
			p, err := exchange[page[T]](ctx, c, http.MethodGet, c.base+path+"?"+q.Encode(), nil)
			if err != nil {
				var none T
				yield(none, err)
				return
			}
			for _, one := range p.Data {
				if !yield(one, nil) {
					return
				}
			}
			if seen[p.Meta.NextCursor] { // the last page, or a server that goes in circles
				return
			}
			seen[p.Meta.NextCursor] = true
			q.Set("cursor", p.Meta.NextCursor)
		}
	}
}

// Sleep pauses a sandbox now or, if deep is set, moves it to disk. One that somebody uses
// is a Conflict. The next request wakes it.
func (c *Client) Sleep(ctx context.Context, name string, deep bool) (doze.Sandbox, error) {
	tier := doze.SleepPaused
	if deep {
		tier = doze.SleepDisk
	}
	return exchange[doze.Sandbox](ctx, c, http.MethodPost, c.sandbox(name)+"/sleep?tier="+tier, nil)
}

// Wake wakes a sandbox, and returns when it runs.
func (c *Client) Wake(ctx context.Context, name string) (doze.Sandbox, error) {
	return exchange[doze.Sandbox](ctx, c, http.MethodPost, c.sandbox(name)+"/wake", nil)
}

// CreateWorkspace makes a workspace.
func (c *Client) CreateWorkspace(ctx context.Context, name string) (doze.Workspace, error) {
	return resource[doze.Workspace](ctx, c, http.MethodPost, map[string]string{"name": name}, "workspaces")
}

// DeleteWorkspace removes a workspace that has nothing in it.
func (c *Client) DeleteWorkspace(ctx context.Context, name string) error {
	_, err := resource[doze.Workspace](ctx, c, http.MethodDelete, nil, "workspaces", name)
	return err
}

// Workspaces returns those that the key may enter.
func (c *Client) Workspaces(ctx context.Context) ([]doze.Workspace, error) {
	return exchange[[]doze.Workspace](ctx, c, http.MethodGet, c.base+"/workspaces", nil)
}
