package control

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/api"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/store"
)

// diskLock is the beginning of the keys of disks.
const diskLock = "disk/"

// volumePhases are the values that a status filter of volumes may have.
var volumePhases = api.StatusesWith(map[string][]string{doze.VolumeDeployed: {store.VolumeReady}})

// listVolumes answers those of the workspace, in the form of listSandboxes:
// without their events.
func (s *Server) listVolumes(ctx context.Context, r *http.Request) (api.List[doze.Volume], error) {
	return api.AnswerPage(ctx, r, volumePhases, s.Store.ListVolumes, func(v store.Volume) doze.Volume {
		v.Events = nil
		return v.Volume
	})
}

func (s *Server) volume(ctx context.Context, r *http.Request) (doze.Volume, error) {
	v, err := s.Store.Volume(ctx, api.Caller(ctx).Workspace, r.PathValue("volume"))
	return v.Volume, err
}

func (s *Server) volumeByExternalID(ctx context.Context, r *http.Request) (doze.Volume, error) {
	v, err := s.Store.VolumeByExternalID(ctx, api.Caller(ctx).Workspace, r.PathValue("externalId"))
	return v.Volume, err
}

// decodeVolume writes what a caller may set of a volume.
func decodeVolume(v *doze.Volume, body map[string]any, p *doze.Problems) {
	api.DecodeMetadata(&v.Metadata, body, p)
	api.Decode(&v.Spec, api.Member(body, "spec", p), "spec", p)
}

// createVolume answers when the volume can be attached. The record comes first,
// so that a crash leaves no disk that nobody knows of.
func (s *Server) createVolume(ctx context.Context, _ *http.Request, body map[string]any) (doze.Volume, error) {
	c := api.Caller(ctx)
	v := store.Volume{ID: store.NewID()}
	var p doze.Problems
	decodeVolume(&v.Volume, body, &p)
	api.Stamp(&v.Metadata, c)
	v.Spec.Region = api.RegionOf(v.Spec.Region, s.Regions[0])
	s.siblings.Check(&p, "metadata.name", "/volumes/{}", v.Metadata.Name)
	from, err := s.origin(ctx, &v.Volume, &p)
	if err != nil {
		return doze.Volume{}, err
	}
	v.Spec.Size = cmp.Or(v.Spec.Size, doze.VolumeDefault)
	v.Check(&p)
	api.CheckRegion(&p, "spec.region", v.Spec.Region, s.Regions)
	if err := p.Err(); err != nil {
		return doze.Volume{}, err
	}
	life, release, err := s.take(ctx, diskLock+v.ID, 0)
	if err != nil {
		return doze.Volume{}, err
	}
	defer release()
	v.Events = []doze.Event{doze.Event{Type: doze.EventDeployment, Status: doze.VolumeDeployed, Message: "the volume is ready", Time: v.Metadata.CreatedAt}.Revised(doze.FirstRevision)}
	if err := s.Store.InsertVolume(life, v); err != nil {
		return doze.Volume{}, err
	}
	if err := s.Node.MakeVolume(life, v.ID, v.Spec.Size, from); err != nil {
		return doze.Volume{}, s.abandonVolume(life, v.ID, fleet.Tell(err, "the making of the volume"))
	}
	if err := s.Store.FinishVolume(life, v.ID); err != nil {
		return doze.Volume{}, s.abandonVolume(life, v.ID, err)
	}
	v.Status = doze.VolumeDeployed
	return v.Volume, nil
}

// origin is the disk that a new volume begins with, if it has a template; of
// that it takes the size, if its caller gave none.
func (s *Server) origin(ctx context.Context, v *doze.Volume, p *doze.Problems) (id string, err error) {
	if v.Spec.Template == "" {
		return "", nil
	}
	name, version := v.Spec.From()
	from, err := s.Store.Version(ctx, v.Metadata.Workspace, name, version)
	switch e := doze.Public(err); {
	case e.Kind == doze.NotFound:
		p.Add("spec.template", "is %q: %s", api.Clip(v.Spec.Template), e.Message)
		return "", nil
	case err != nil:
		return "", err
	case from.Status != doze.VersionReady:
		p.Add("spec.template", "is %q, whose version %s is %s: upload its files first", api.Clip(v.Spec.Template), from.Name, from.Status)
		return "", nil
	}
	v.Spec.Size = cmp.Or(v.Spec.Size, from.Size)
	if v.Spec.Size < from.Size {
		p.Add("spec.size", "is %d; the template needs at least %d megabytes", v.Spec.Size, from.Size)
	}
	return from.ID, nil
}

// abandonVolume takes a volume back that err kept from being made.
func (s *Server) abandonVolume(ctx context.Context, id string, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	defer s.reconciling.Ring()
	if err := s.Store.AbandonVolume(ctx, id); err != nil {
		slog.ErrorContext(ctx, "the next start of the platform removes a volume that was not made", "volume", id, "err", err)
	}
	return err
}

// updateVolume changes metadata, and the size upwards.
func (s *Server) updateVolume(ctx context.Context, r *http.Request, body map[string]any) (doze.Volume, error) {
	c := api.Caller(ctx)
	var before doze.Megabytes
	v, err := s.Store.ChangeVolume(ctx, c.Workspace, r.PathValue("volume"), func(v *store.Volume) error {
		was := v.Volume
		before = was.Spec.Size
		var p doze.Problems
		decodeVolume(&v.Volume, body, &p)
		api.SameName(&v.Metadata, was.Metadata.Name, "volume", &p)
		v.Metadata.ExternalID = cmp.Or(v.Metadata.ExternalID, was.Metadata.ExternalID)
		api.SameRegion(&p, "spec.region", v.Spec.Region, was.Spec.Region, "volume")
		v.Spec.Size, v.Spec.Region = cmp.Or(v.Spec.Size, was.Spec.Size), was.Spec.Region
		v.Spec.Template = cmp.Or(v.Spec.Template, was.Spec.Template)
		if v.Spec.Template != was.Spec.Template {
			p.Add("spec.template", "cannot be changed: create another volume")
		}
		if v.Spec.Size < was.Spec.Size {
			p.Add("spec.size", "is %d; a volume cannot become smaller than it is, which is %d megabytes", v.Spec.Size, was.Spec.Size)
		}
		v.Metadata.UpdatedAt, v.Metadata.UpdatedBy = doze.Time{Time: time.Now()}, c.Sub
		v.Check(&p)
		return p.Err()
	})
	if err != nil {
		return doze.Volume{}, err
	}
	// If we stop here, the next machine that gets it makes it larger.
	if err := s.Node.ResizeVolume(ctx, v.ID, v.Spec.Size); err != nil {
		return doze.Volume{}, errors.Join(fleet.Tell(err, "the growth of the volume"), s.shrinkBack(ctx, v, before))
	}
	return v.Volume, nil
}

// shrinkBack gives a volume that could not grow the size on record that its disk
// has: a sandbox must be able to get it.
func (s *Server) shrinkBack(ctx context.Context, v store.Volume, size doze.Megabytes) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	_, err := s.Store.ChangeVolume(ctx, v.Metadata.Workspace, v.Metadata.Name, func(now *store.Volume) error {
		if now.ID == v.ID && now.Spec.Size == v.Spec.Size {
			now.Spec.Size = size
		}
		return nil
	})
	if doze.Public(err).Kind == doze.NotFound {
		return nil // it was deleted meanwhile
	}
	return err
}

func (s *Server) deleteVolume(ctx context.Context, r *http.Request) (doze.Volume, error) {
	v, err := s.Store.DeleteVolume(ctx, api.Caller(ctx).Workspace, r.PathValue("volume"))
	if err != nil {
		return doze.Volume{}, err
	}
	s.reconciling.Ring() // its disk is left
	return v.Volume, nil
}

// volumesOf are the volumes of a sandbox as its node gets them.
func (s *Server) volumesOf(ctx context.Context, sb store.Sandbox) (all []fleet.Volume, err error) {
	if len(sb.Spec.Volumes) == 0 {
		return nil, nil
	}
	byName, err := s.Store.VolumesOf(ctx, sb.UID)
	if err != nil {
		return nil, err
	}
	for _, a := range sb.Spec.Volumes {
		v := fleet.Volume{Path: a.MountPath, ReadOnly: a.ReadOnly, Size: a.SizeMB}
		if a.Type == doze.VolumePersistent {
			of, ok := byName[a.Name]
			if !ok { // nothing else can free it while the sandbox lives
				return nil, doze.Errorf(doze.Conflict, "the volume %s was lost with its node: delete the sandbox, and create it again", a.Name)
			}
			v.ID, v.Size = of.ID, of.Spec.Size
		}
		all = append(all, v)
	}
	return all, nil
}

// clearDisk removes a disk that nobody needs.
func (s *Server) clearDisk(ctx context.Context, id string) error {
	if err := s.Node.DropVolume(ctx, id); err != nil {
		return err
	}
	return s.Store.ForgetDisk(ctx, id)
}

// recoverVolumes takes back volumes that were being made when the platform
// stopped, and drops disks of no record.
func (s *Server) recoverVolumes(ctx context.Context) error {
	half, err := s.Store.UnfinishedVolumes(ctx)
	if err != nil {
		return err
	}
	for _, id := range half {
		if err := s.Store.AbandonVolume(ctx, id); err != nil {
			return err
		}
	}
	known, err := s.Store.Disks(ctx)
	if err != nil {
		return err
	}
	there, err := s.Node.Volumes(ctx) // those of a node that is away are dropped after another start
	if err != nil && !errors.Is(err, fleet.ErrUnreachable) {
		return err
	}
	for _, id := range there {
		if known[id] {
			continue
		}
		slog.WarnContext(ctx, "removing a disk that is not on record", "volume", id)
		if err := s.Store.DropDisk(ctx, id); err != nil {
			return err
		}
	}
	return nil
}
