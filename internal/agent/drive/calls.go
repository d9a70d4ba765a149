package drive

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"path/filepath"
	"strings"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/account"
	"github.com/dozehq/doze/internal/agent/body"
	"github.com/dozehq/doze/internal/agentapi"
	"github.com/dozehq/doze/internal/httpx"
)

// Calls answers the calls of the node about drives.
type Calls struct {
	set *Set
	who account.User
}

// NewCalls returns the calls about a set of drives, whose files belong to a
// user unless a mount says otherwise.
func NewCalls(set *Set, who account.User) *Calls { return &Calls{set, who} }

// Prepare makes ready what the host is about to mount.
func (c *Calls) Prepare(w http.ResponseWriter, r *http.Request, _ string) error {
	in, err := body.Decode[agentapi.Mount](w, r)
	if err != nil {
		return err
	}
	if in.ID == "" || strings.ContainsAny(in.ID, "/@\x00") || !filepath.IsAbs(in.Path) {
		return doze.Errorf(doze.Invalid, "a mount needs an id and an absolute path")
	}
	var owner Owner
	if acc, err := c.who.Lookup(); err == nil {
		owner = Owner{UID: acc.UID, GID: acc.GID}
	}
	if in.UID != nil {
		owner.UID = *in.UID
	}
	if in.GID != nil {
		owner.GID = *in.GID
	}
	stale, err := c.set.Prepare(context.WithoutCancel(r.Context()), in.ID, filepath.Clean(in.Path), owner)
	if err == nil {
		httpx.WriteJSON(w, http.StatusOK, agentapi.Prepared{Stale: stale})
	}
	return err
}

// Serve lends the connection of its request to a mount: over it, we ask the
// host.
func (c *Calls) Serve(w http.ResponseWriter, r *http.Request, id string) error {
	if r.Header.Get("Upgrade") != agentapi.DriveProtocol {
		return doze.Errorf(doze.Invalid, "this is for the host alone")
	}
	return c.set.Serve(r.Context(), id, func() (net.Conn, error) {
		h := w.Header()
		h.Set("Connection", "Upgrade")
		h.Set("Upgrade", agentapi.DriveProtocol)
		w.WriteHeader(http.StatusSwitchingProtocols)
		conn, rest, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return nil, err
		}
		return &rested{conn, rest.Reader}, nil
	})
}

// rested is a connection of which a part was read already.
type rested struct {
	net.Conn

	from *bufio.Reader
}

func (c *rested) Read(b []byte) (int, error) { return c.from.Read(b) }

// Drop ends what belongs to a mount that the host took away.
func (c *Calls) Drop(_ *http.Request, id string) (struct{}, error) {
	c.set.Drop(id)
	return struct{}{}, nil
}
