package control

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/api"
	"github.com/dozehq/doze/internal/build"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/store"
)

const (
	// uploadHeader has the address that the files of a new version, or of an image, are put
	// to. The address alone gives the right to upload, once.
	uploadHeader = build.UploadHeader
	// generatedLabel is on what clients upload without saying so.
	generatedLabel = "x-blaxel-auto-generated"
)

func (s *Server) listVolumeTemplates(ctx context.Context, r *http.Request) ([]doze.VolumeTemplate, error) {
	all, err := s.Store.VolumeTemplates(ctx, api.Caller(ctx).Workspace)
	if all == nil {
		all = []doze.VolumeTemplate{} // [] in JSON
	}
	if err != nil {
		return nil, err
	}
	return api.Labelled(r, all, func(t doze.VolumeTemplate) map[string]string { return t.Metadata.Labels })
}

func (s *Server) volumeTemplate(ctx context.Context, r *http.Request) (doze.VolumeTemplate, error) {
	return s.Store.VolumeTemplate(ctx, api.Caller(ctx).Workspace, r.PathValue("template"))
}

func (s *Server) createVolumeTemplate(ctx context.Context, r *http.Request, body map[string]any) (doze.VolumeTemplate, string, error) {
	var t doze.VolumeTemplate
	if err := decodeTemplate(&t, r, body, ""); err != nil {
		return t, "", err
	}
	name := t.Metadata.Name
	return s.writeTemplate(ctx, r, body, name, true)
}

// decodeTemplate writes what a caller may set of a template onto t, which has a
// name already unless that is empty. It reports every mistake of the request.
func decodeTemplate(t *doze.VolumeTemplate, r *http.Request, body map[string]any, name string) error {
	p := api.Mistakes(r.Context())
	if version := r.URL.Query().Get("version"); version != "" {
		doze.CheckVersion(&p, "version", version)
	}
	was := t.Spec
	api.DecodeMetadata(&t.Metadata, body, &p)
	api.Decode(&t.Spec, api.Member(body, "spec", &p), "spec", &p)
	t.Metadata.Name = cmp.Or(t.Metadata.Name, name)
	t.Spec.DefaultSize = cmp.Or(t.Spec.DefaultSize, was.DefaultSize, doze.VolumeDefault)
	if name != "" && t.Metadata.Name != name {
		p.Add("metadata.name", "is %q; the path names %q", api.Clip(t.Metadata.Name), api.Clip(name))
	}
	t.Check(&p)
	return p.Err()
}

// putVolumeTemplate changes a template, or makes one of that name.
func (s *Server) putVolumeTemplate(ctx context.Context, r *http.Request, body map[string]any) (doze.VolumeTemplate, string, error) {
	return s.writeTemplate(ctx, r, body, r.PathValue("template"), false)
}

// writeTemplate writes what a body says of a template, with another version if
// the request asks for one, and returns where its files are to be put. A fresh one
// is a Conflict with one that there is.
func (s *Server) writeTemplate(ctx context.Context, r *http.Request, body map[string]any, name string, fresh bool) (t doze.VolumeTemplate, address string, err error) {
	c, now := api.Caller(ctx), doze.Time{Time: time.Now()}
	token := rand.Text()
	hash := sha256.Sum256([]byte(token))
	var add *store.Version
	labels, _ := api.Member(body, "metadata", &doze.Problems{})["labels"].(map[string]any) // a mistake in it is found below
	if api.Upload.In(r.URL.Query()) || labels[generatedLabel] == "true" {
		add = &store.Version{ID: store.NewID(), Token: hash[:]}
		add.Name, add.Region, add.Bucket = r.URL.Query().Get("version"), s.Regions[0], "local"
	}
	t, err = s.Store.PutVolumeTemplate(ctx, c.Workspace, name, func(t *doze.VolumeTemplate, exists bool) error {
		if fresh && exists {
			return &doze.Error{Kind: doze.Conflict, Name: doze.NameTemplateExists, Message: "the volume template " + name + " already exists"}
		}
		if !exists {
			t.Metadata = doze.Metadata{Workspace: c.Workspace, CreatedAt: now, CreatedBy: c.Sub}
		}
		if err := decodeTemplate(t, r, body, name); err != nil {
			return err
		}
		t.Metadata.UpdatedAt, t.Metadata.UpdatedBy = now, c.Sub
		if add != nil {
			add.Size = t.Spec.DefaultSize
		}
		return nil
	}, add)
	if err == nil && add != nil {
		address = s.Base + "/uploads/" + add.ID + "?token=" + url.QueryEscape(token)
	}
	return t, address, err
}

// uploaded answers an upload.
type uploaded struct {
	Message string `json:"message"`
	Version string `json:"version"`
}

// upload makes a version of the files in its body, a tar. It needs no credential
// but what is in its address. Until a version is ready it can be tried again.
func (s *Server) upload(ctx context.Context, r *http.Request) (out uploaded, err error) {
	v, err := s.uploading(ctx, r)
	if err != nil {
		return out, err
	}
	life, release, err := s.locks.Take(ctx, diskLock+v.ID)
	if err != nil {
		return out, doze.Wrap(err, doze.Timeout, "another upload of this version takes too long")
	}
	defer release()
	if v, err = s.uploading(ctx, r); err != nil { // somebody else was faster
		return out, err
	}
	// What does not come is the caller's doing; then it ends with the caller.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(life, func() { cancel(context.Cause(life)) })()
	v.ContentSize, err = s.Node.ImportVolume(ctx, v.ID, v.Size, r.Body)
	v.Status, v.Uploaded = doze.VersionReady, doze.Time{Time: time.Now()}
	if err != nil {
		v.Status, v.ContentSize, v.Uploaded = doze.VersionFailed, 0, doze.Time{}
		err = fromUpload(err)
	}
	ending, end := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer end()
	if written := s.Store.WriteVersion(ending, v); written != nil {
		defer s.reconciling.Ring()
		return out, errors.Join(err, written, s.Store.DropDisk(ending, v.ID)) // it was deleted meanwhile
	}
	return uploaded{"the files are there", v.Name}, err
}

// uploading is the version that the address of an upload is for. One that has its
// files is a Conflict.
func (s *Server) uploading(ctx context.Context, r *http.Request) (store.Version, error) {
	v, err := s.Store.VersionByID(ctx, r.PathValue("upload"))
	hash := sha256.Sum256([]byte(r.URL.Query().Get("token")))
	switch {
	case err == nil && subtle.ConstantTimeCompare(hash[:], v.Token) != 1, doze.Public(err).Kind == doze.NotFound:
		return v, doze.Errorf(doze.NotFound, "there is no such upload: use the address in %s as it came", strings.ToLower(uploadHeader))
	case err == nil && v.Status == doze.VersionReady:
		return v, doze.Errorf(doze.Conflict, "the version %s has its files: upload another version", v.Name)
	}
	return v, err
}

// fromUpload decides what a caller hears of files that did not become a version.
func fromUpload(err error) error {
	if doze.Public(err).Kind == doze.Invalid {
		return err
	}
	return fleet.Tell(err, "the unpacking of the files")
}

func (s *Server) deleteVolumeTemplate(ctx context.Context, r *http.Request) (doze.VolumeTemplate, error) {
	defer s.reconciling.Ring() // its disks are left
	return s.Store.DeleteVolumeTemplate(ctx, api.Caller(ctx).Workspace, r.PathValue("template"))
}

// versionDeleted answers the deletion of a version.
type versionDeleted struct {
	Message  string              `json:"message"`
	Template doze.VolumeTemplate `json:"template"`
}

func (s *Server) deleteVersion(ctx context.Context, r *http.Request) (versionDeleted, error) {
	defer s.reconciling.Ring() // its disk is left
	t, err := s.Store.DeleteVersion(ctx, api.Caller(ctx).Workspace, r.PathValue("template"), r.PathValue("version"))
	return versionDeleted{"the version is deleted", t}, err
}
