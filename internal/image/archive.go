package image

import (
	"archive/tar"
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/api"
	"github.com/dozehq/doze/internal/fleet"
)

// Images as archives. A saved image is an OCI layout in a tar with one layer, which
// docker loads too. A loaded one is either of the two, of any tool.

const (
	// saveTimeout bounds the download of an image, of a large one over a slow line.
	saveTimeout = time.Hour
	// loadTimeout bounds an upload, and what becomes of it.
	loadTimeout = time.Hour
	// transfersMax is how many archives of a workspace are on their way at a time. Each
	// takes a part of the disk and of the processors of the node.
	transfersMax = 4
	// smallMax bounds the files of an archive in which an image gets its name.
	smallMax = 1 << 20
)

// Tags returns the tags of an image that a workspace has, or that is shared with it.
func (s *Server) Tags(ctx context.Context, workspace, name string) ([]doze.ImageTag, error) {
	i, err := s.Store.Image(ctx, workspace, name)
	return i.Spec.Tags, err
}

// Save returns a tag of an image as an OCI layout in a tar, which the caller closes.
func (s *Server) Save(ctx context.Context, workspace, name, tag string) (io.ReadCloser, error) {
	source, login, err := s.Source(ctx, workspace, name+":"+tag)
	if err != nil {
		return nil, err
	}
	archive, err := s.Node.SaveImage(ctx, source, login)
	if err != nil {
		return nil, fleet.Tell(err, "the export of the image")
	}
	return archive, nil
}

// enter counts an archive of a workspace on its way until leave is called.
func (s *Server) enter(workspace string) (leave func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.transfers[workspace] >= transfersMax {
		return nil, doze.Errorf(doze.Exhausted, "the workspace has %d archives on their way, which is the limit: try again when one has come", transfersMax)
	}
	s.transfers[workspace]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.transfers[workspace]--; s.transfers[workspace] == 0 {
			delete(s.transfers, workspace)
		}
	}, nil
}

// saveImage sends an image as an archive.
func (s *Server) saveImage(w http.ResponseWriter, r *http.Request) error {
	ctx, cancel := context.WithTimeout(r.Context(), saveTimeout)
	defer cancel()
	i, tag, err := s.imageOf(ctx, r)
	if err != nil {
		return err
	}
	tag = cmp.Or(tag, doze.TagDefault)
	if !slices.ContainsFunc(i.Spec.Tags, func(t doze.ImageTag) bool { return t.Name == tag }) {
		return doze.Errorf(doze.NotFound, "the image %s has no tag %q", i.Metadata.Name, api.Clip(tag))
	}
	workspace := api.Caller(ctx).Workspace
	leave, err := s.enter(workspace)
	if err != nil {
		return err
	}
	defer leave()
	archive, err := s.Save(ctx, workspace, i.Metadata.Name, tag)
	if err != nil {
		return err
	}
	defer func() { _ = archive.Close() }() // read to its end, or given up
	in := bufio.NewReader(archive)
	if _, err := in.Peek(1); err != nil { // an error that is late is none of a status
		return fleet.Tell(err, "the export of the image")
	}
	w.Header().Set("Content-Type", api.TarType)
	w.Header().Set("Content-Disposition", fmt.Sprintf("attachment; filename=%q", i.Metadata.Name+"-"+tag+".tar"))
	if err := rename(w, in, i.Metadata.Name+":"+tag); err != nil {
		panic(http.ErrAbortHandler) // half an archive must not look whole
	}
	return nil
}

// rename copies the archive of an image, and gives the image a name: that under which
// docker loads it.
func rename(w io.Writer, r io.Reader, name string) error {
	in, out := tar.NewReader(r), tar.NewWriter(w)
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return out.Close()
		}
		if err != nil {
			return err
		}
		content := io.Reader(in)
		if named := namers[h.Name]; named != nil {
			raw, err := io.ReadAll(io.LimitReader(in, smallMax))
			if err == nil {
				raw, err = named(raw, name)
			}
			if err != nil {
				return err
			}
			h.Size, content = int64(len(raw)), bytes.NewReader(raw)
		}
		if err := out.WriteHeader(h); err != nil {
			return err
		}
		if _, err := io.Copy(out, content); err != nil {
			return err
		}
	}
}

// namers put a name into the files of an archive that have one.
var namers = map[string]func(raw []byte, name string) ([]byte, error){
	"index.json": func(raw []byte, name string) ([]byte, error) {
		var index map[string]any
		if err := json.Unmarshal(raw, &index); err != nil {
			return nil, err
		}
		all, _ := index["manifests"].([]any)
		for _, one := range all {
			if m, ok := one.(map[string]any); ok {
				m["annotations"] = map[string]string{"io.containerd.image.name": "docker.io/library/" + name, "org.opencontainers.image.ref.name": name}
			}
		}
		return json.Marshal(index)
	},
	"manifest.json": func(raw []byte, name string) ([]byte, error) {
		var all []map[string]any
		if err := json.Unmarshal(raw, &all); err != nil {
			return nil, err
		}
		for _, m := range all {
			m["RepoTags"] = []string{name}
		}
		return json.Marshal(all)
	},
}

// loadImage makes a tag of an image of the archive in the body.
func (s *Server) loadImage(ctx context.Context, r *http.Request) (out doze.ImageResponse, err error) {
	if r.PathValue("type") != doze.KindSandbox {
		return out, doze.Errorf(doze.Unsupported, "this platform runs sandboxes only: write /images/%s", doze.KindSandbox)
	}
	name, tag, ok := doze.WorkspaceImage(r.PathValue("image"))
	if !ok || strings.Contains(r.PathValue("image"), "/") {
		return out, doze.Errorf(doze.Invalid, "the name of the image must be lowercase letters, digits and hyphens, at most %d, and may have a tag like app:1.0", doze.NameMax)
	}
	if err := s.Node.CheckImage(ctx, name+":"+tag); err == nil {
		return out, doze.Errorf(doze.Conflict, "the platform has an image %s: choose another name", name)
	}
	workspace := api.Caller(ctx).Workspace
	if i, err := s.Store.Image(ctx, workspace, name); err == nil && i.Metadata.Workspace != workspace {
		return out, doze.Errorf(doze.Conflict, "the workspace %s shares an image %s: choose another name", i.Metadata.Workspace, name)
	} else if err == nil && len(i.Spec.Tags) >= doze.ImageTagsMax && !slices.ContainsFunc(i.Spec.Tags, func(t doze.ImageTag) bool { return t.Name == tag }) {
		return out, errTagsMax(len(i.Spec.Tags))
	}
	leave, err := s.enter(workspace)
	if err != nil {
		return out, err
	}
	defer leave()
	held, release, err := s.locks.Take(ctx, workspace+"/"+name)
	if err != nil {
		return out, doze.Wrap(err, doze.Timeout, "another change of the image takes too long")
	}
	defer release()
	// What does not come is the caller's doing: then it ends with the caller.
	ctx, cancel := context.WithTimeoutCause(ctx, loadTimeout, doze.Errorf(doze.Timeout, "the archive did not come within %v", loadTimeout))
	defer cancel()
	loaded, err := s.Node.LoadImage(ctx, uuid.NewString(), r.Body)
	if err != nil {
		return out, fleet.Tell(err, "the import of the archive")
	}
	life, end := context.WithTimeout(held, recordTimeout)
	defer end()
	if err := s.point(life, workspace, name, tag, fleet.Pinned{Ref: loaded.Ref, Bytes: loaded.Bytes, Config: loaded.Image}); err != nil {
		return out, err
	}
	return doze.ImageResponse{
		Message: fmt.Sprintf("the image is %s:%s", name, tag), Name: name, ResourceType: doze.KindSandbox, Image: loaded.Ref,
	}, nil
}

// recordTimeout bounds the writing of a record.
const recordTimeout = time.Minute

// point makes a tag mean an image, and lets the node remove what it meant before.
func (s *Server) point(ctx context.Context, workspace, name, tag string, to fleet.Pinned) error {
	now := doze.Time{Time: time.Now()}
	var moved []string
	_, err := s.Store.ChangeImage(ctx, workspace, name, func(i *doze.Image) error {
		moved = nil
		for _, t := range i.Spec.Tags {
			if t.Name == tag && t.Image != to.Ref {
				moved = append(moved, t.Image)
			}
		}
		return setTag(i, tag, to, now)
	})
	if err != nil {
		s.release(ctx, []string{to.Ref}) // nobody has it, unless another tag means it
		return err
	}
	s.release(ctx, moved)
	return nil
}
