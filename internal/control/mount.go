package control

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/api"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/httpx"
	"github.com/dozehq/doze/internal/store"
)

const (
	// mountTimeout bounds a mount, with the wake before it.
	mountTimeout = 2 * time.Minute
	// mountsPath is where mounts are, below the address of a sandbox.
	mountsPath = "/drives/mount"
)

// mounted is the answer to a change of what is mounted.
type mounted struct {
	Success bool   `json:"success"`
	Message string `json:"message"`
	doze.DriveMount
}

type unmounted struct {
	Success   bool   `json:"success"`
	Message   string `json:"message"`
	MountPath string `json:"mountPath"`
}

type mountList struct {
	Mounts []doze.DriveMount `json:"mounts"`
}

// ServeMounts answers a request to a sandbox about its drives, whose path, as it
// was sent, begins with /drives/mount. Its caller may use the sandbox.
func (s *Server) ServeMounts(w http.ResponseWriter, r *http.Request, upstream fleet.Upstream, path string) {
	httpx.SandboxHeaders(w.Header()) // as the agent's answers have them
	if r.Method == http.MethodOptions {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), mountTimeout)
	defer cancel()
	out, err := s.serveMounts(ctx, r, upstream, strings.TrimPrefix(path, mountsPath))
	if err != nil {
		httpx.WriteErrorAs(w, r, err, httpx.SandboxBody)
		return
	}
	httpx.WriteJSON(w, http.StatusOK, out)
}

// serveMounts is ServeMounts with what is behind the path of all mounts.
func (s *Server) serveMounts(ctx context.Context, r *http.Request, upstream fleet.Upstream, rest string) (any, error) {
	switch {
	case r.Method == http.MethodDelete:
		return s.unmountDrive(ctx, upstream, rest)
	case rest != "" && rest != "/":
	case r.Method == http.MethodPost:
		body, err := api.ReadBody(r)
		if err != nil {
			return nil, err
		}
		return s.mountDrive(ctx, upstream, body)
	case r.Method == http.MethodGet, r.Method == http.MethodHead: // which gets no body
		return s.listMounts(ctx, upstream)
	}
	return nil, doze.Errorf(doze.NotFound, "there is no %s of this path", r.Method)
}

func (s *Server) listMounts(ctx context.Context, upstream fleet.Upstream) (mountList, error) {
	list := mountList{[]doze.DriveMount{}}
	all, err := s.Node.DriveMounts(ctx, upstream.UID)
	for _, m := range all {
		list.Mounts = append(list.Mounts, m.DriveMount)
	}
	return list, err
}

// mountDrive puts a drive into a sandbox, if the drive allows that.
func (s *Server) mountDrive(ctx context.Context, upstream fleet.Upstream, body map[string]any) (mounted, error) {
	var m fleet.DriveMount
	var p doze.Problems
	api.Decode(&m.DriveMount, body, "", &p)
	m.Check(&p)
	if err := p.Err(); err != nil {
		return mounted{}, err
	}
	m.Default()
	if err := m.CheckPath(); err != nil {
		return mounted{}, err
	}
	d, err := s.Store.Drive(ctx, upstream.Workspace, m.Drive)
	if err != nil {
		return mounted{}, driveError(err)
	}
	life, release, err := s.take(ctx, driveLock+d.ID, 0)
	if err != nil {
		return mounted{}, err
	}
	defer release()
	if d, err = s.Store.Drive(life, upstream.Workspace, m.Drive); err != nil { // as it is in our turn
		return mounted{}, driveError(err)
	}
	if err := s.permit(life, upstream, d, &m); err != nil {
		return mounted{}, err
	}
	m.ID, m.DriveID, m.UID, m.GID = store.NewID(), d.ID, idOf(m.UIDMap), idOf(m.GIDMap)
	if m, err = s.Node.MountDrive(life, upstream.UID, m); err != nil {
		return mounted{}, err
	}
	return mounted{true, "Drive mounted successfully", m.DriveMount}, nil
}

// driveError is err, as the sandbox API says it: no path of it is missing, but
// what the body names.
func driveError(err error) error {
	if e := doze.Public(err); e.Kind == doze.NotFound {
		return doze.Wrap(err, doze.Invalid, "driveName: %s", e.Message)
	}
	return err
}

// permit is Forbidden if a drive does not allow a mount.
func (s *Server) permit(ctx context.Context, upstream fleet.Upstream, d store.Drive, m *fleet.DriveMount) error {
	sb, err := s.Store.SandboxByName(ctx, upstream.Workspace, upstream.Name)
	if err != nil {
		return err
	}
	reads, writes := d.Allows(sb.Metadata.Labels, m.DrivePath)
	switch {
	case !reads:
		return doze.Errorf(doze.Forbidden, "permission denied: the drive %s has no permission for the labels of this sandbox and the path %s", m.Drive, m.DrivePath)
	case !writes && !m.ReadOnly:
		return doze.Errorf(doze.Forbidden, "permission denied: the drive %s lets this sandbox read %s only: mount it with readOnly", m.Drive, m.DrivePath)
	}
	return nil
}

// idOf is a number that was validated; nil if there is none.
func idOf(text string) *uint32 {
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return nil
	}
	id := uint32(n)
	return &id
}

// unmountDrive takes a drive away from the path behind that of all mounts.
func (s *Server) unmountDrive(ctx context.Context, upstream fleet.Upstream, rest string) (unmounted, error) {
	path, err := url.PathUnescape(rest)
	path = strings.TrimLeft(path, "/")
	var p doze.Problems
	switch {
	case err != nil:
		p.Add("mountPath", "cannot be read: %v", err)
	case path == "":
		return unmounted{}, doze.Errorf(doze.Invalid, "mountPath is required")
	default:
		doze.CheckMountPath(&p, "mountPath", path)
	}
	if err := p.Err(); err != nil {
		// To clients this is one more path with no drive, which has this kind.
		return unmounted{}, doze.Wrap(err, doze.Internal, "%s", doze.Public(err).Message)
	}
	path = doze.CleanMountPath(path)
	if err := s.Node.UnmountDrive(ctx, upstream.UID, path); err != nil {
		return unmounted{}, err
	}
	return unmounted{true, "Drive unmounted successfully", path}, nil
}
