package agent

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"path/filepath"
	"strings"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/drive"
	"github.com/dozehq/doze/internal/agentapi"
	"github.com/dozehq/doze/internal/httpx"
)

// driveCalls answers the calls of the node about drives.
type driveCalls struct {
	set *drive.Set
	who workload
}

// newDriveCalls returns the calls about a set of drives, whose files belong to a
// user unless a mount says otherwise.
func newDriveCalls(set *drive.Set, who workload) *driveCalls { return &driveCalls{set, who} }

// prepareDrive makes ready what the host is about to mount.
func (c *driveCalls) prepareDrive(w http.ResponseWriter, r *http.Request, _ string) error {
	in, err := decode[agentapi.Mount](w, r)
	if err != nil {
		return err
	}
	if in.ID == "" || strings.ContainsAny(in.ID, "/@\x00") || !filepath.IsAbs(in.Path) {
		return doze.Errorf(doze.Invalid, "a mount needs an id and an absolute path")
	}
	var owner drive.Owner
	if acc, err := c.who.account(); err == nil {
		owner = drive.Owner{UID: acc.uid, GID: acc.gid}
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

// serveDrive lends the connection of its request to a mount: over it, we ask the
// host.
func (c *driveCalls) serveDrive(w http.ResponseWriter, r *http.Request, id string) error {
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

// dropDrive ends what belongs to a mount that the host took away.
func (c *driveCalls) dropDrive(_ *http.Request, id string) (struct{}, error) {
	c.set.Drop(id)
	return struct{}{}, nil
}
