package control

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/api"
	"github.com/dozehq/doze/internal/store"
)

// driveLock is the beginning of the keys of drives.
const driveLock = "drive/"

// drivePhases are the values that a status filter of drives may have.
var drivePhases = api.StatusesWith(map[string][]string{doze.DriveDeployed: {store.DriveReady}})

// listDrives answers those of the workspace, in the form of listSandboxes.
func (s *Server) listDrives(ctx context.Context, r *http.Request) (api.List[doze.Drive], error) {
	return api.AnswerPage(ctx, r, drivePhases, s.Store.ListDrives, func(d store.Drive) doze.Drive {
		d.Events = nil
		return s.driveView(d)
	})
}

// driveView is a drive as callers see it.
func (s *Server) driveView(d store.Drive) doze.Drive {
	if s.Bucket != nil {
		d.State.S3URL = s.Bucket.URL()
	}
	return d.Drive
}

func (s *Server) drive(ctx context.Context, r *http.Request) (doze.Drive, error) {
	d, err := s.Store.Drive(ctx, api.Caller(ctx).Workspace, r.PathValue("drive"))
	return s.driveView(d), err
}

func (s *Server) driveByExternalID(ctx context.Context, r *http.Request) (doze.Drive, error) {
	d, err := s.Store.DriveByExternalID(ctx, api.Caller(ctx).Workspace, r.PathValue("externalId"))
	return s.driveView(d), err
}

// decodeDrive writes what a caller may set of a drive.
func decodeDrive(d *doze.Drive, body map[string]any, p *doze.Problems) {
	api.DecodeMetadata(&d.Metadata, body, p)
	api.Decode(&d.Spec, api.Member(body, "spec", p), "spec", p)
	d.Default()
}

// createDrive needs nothing of the bucket: a drive without files is not there.
func (s *Server) createDrive(ctx context.Context, _ *http.Request, body map[string]any) (doze.Drive, error) {
	c := api.Caller(ctx)
	d := store.Drive{ID: store.NewID()}
	var p doze.Problems
	decodeDrive(&d.Drive, body, &p)
	api.Stamp(&d.Metadata, c)
	d.Spec.Region = api.RegionOf(d.Spec.Region, s.Regions[0])
	s.siblings.Check(&p, "metadata.name", "/drives/{}", d.Metadata.Name)
	d.Check(&p)
	api.CheckRegion(&p, "spec.region", d.Spec.Region, s.Regions)
	var lacking doze.Problems
	if s.Bucket == nil {
		lacking.Add("this platform", "has no bucket for drives: its operator names one with --drives and --drives-credentials")
	}
	if err := api.Verdict(p, lacking); err != nil {
		return doze.Drive{}, err
	}
	d.Events = []doze.Event{doze.Event{Type: doze.EventDeployment, Status: doze.DriveDeployed, Message: "the drive was created", Time: d.Metadata.CreatedAt}.Revised(doze.FirstRevision)}
	if err := s.Store.InsertDrive(ctx, d); err != nil {
		return doze.Drive{}, err
	}
	d.Status = doze.DriveDeployed
	return s.driveView(d), nil
}

// updateDrive changes metadata and permissions. These count for the next mount.
func (s *Server) updateDrive(ctx context.Context, r *http.Request, body map[string]any) (doze.Drive, error) {
	c := api.Caller(ctx)
	d, err := s.Store.ChangeDrive(ctx, c.Workspace, r.PathValue("drive"), func(d *store.Drive) error {
		was := d.Drive
		var p doze.Problems
		decodeDrive(&d.Drive, body, &p)
		api.SameName(&d.Metadata, was.Metadata.Name, "drive", &p)
		d.Metadata.ExternalID = cmp.Or(d.Metadata.ExternalID, was.Metadata.ExternalID)
		api.SameRegion(&p, "spec.region", d.Spec.Region, was.Spec.Region, "drive")
		d.Spec.Region = was.Spec.Region
		d.Metadata.UpdatedAt, d.Metadata.UpdatedBy = doze.Time{Time: time.Now()}, c.Sub
		d.Check(&p)
		return p.Err()
	})
	return s.driveView(d), err
}

// deleted is the answer to a DELETE that returns no resource.
type deleted struct {
	Message string `json:"message"`
	Name    string `json:"name"`
}

// deleteDrive removes a drive; its files are removed in the background.
func (s *Server) deleteDrive(ctx context.Context, r *http.Request) (deleted, error) {
	d, err := s.Store.Drive(ctx, api.Caller(ctx).Workspace, r.PathValue("drive"))
	if err != nil {
		return deleted{}, err
	}
	life, release, err := s.take(ctx, driveLock+d.ID, 0)
	if err != nil {
		return deleted{}, err
	}
	defer release()
	users, err := s.Node.DriveUsers(ctx, d.ID)
	if err != nil {
		return deleted{}, err
	}
	if len(users) > 0 {
		return deleted{}, &doze.Error{
			Kind: doze.Conflict, Name: doze.NameDriveMounted,
			Message: fmt.Sprintf("the drive %s is mounted by %d of the sandboxes: unmount it there, or delete them", d.Metadata.Name, len(users)),
		}
	}
	if err := s.Store.DeleteDrive(life, d.ID); err != nil {
		return deleted{}, err
	}
	s.reconciling.Ring() // its files are left
	return deleted{"the drive was deleted", d.Metadata.Name}, nil
}

// driveToken proves to others that its bearer may use a drive. Mounts need none.
func (s *Server) driveToken(ctx context.Context, r *http.Request) (doze.DriveToken, error) {
	c := api.Caller(ctx)
	d, err := s.Store.Drive(ctx, c.Workspace, r.PathValue("drive"))
	if err != nil {
		return doze.DriveToken{}, err
	}
	token, err := s.Credentials.Tokens.SignDrive(access.DriveClaims{
		Sub: c.Sub, Audience: d.ID, Workspace: c.Workspace, Drive: d.Metadata.Name,
	}, time.Now())
	return doze.DriveToken{AccessToken: token, ExpiresIn: int(access.DriveTokenLife.Seconds()), TokenType: "Bearer"}, err
}

// driveKeys are what others need to check tokens of drives.
func (s *Server) driveKeys(context.Context, *http.Request) (any, error) {
	return s.Credentials.Tokens.JWKS(), nil
}

// clearDrive removes the files of a drive that nobody needs.
func (s *Server) clearDrive(ctx context.Context, id string) error {
	if err := s.Bucket.Purge(ctx, id); err != nil {
		return err
	}
	return s.Store.ForgetDrive(ctx, id)
}
