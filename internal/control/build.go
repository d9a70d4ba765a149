package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/api"
	"github.com/dozehq/doze/internal/build"
	"github.com/dozehq/doze/internal/store"
)

// Builds is what builds of images ask of the sandboxes that they are for.
type Builds struct{ *Server }

// BuilderDisk implements build.Sandboxes.
func (s Builds) BuilderDisk() doze.Megabytes { return s.node.Load().BuildDisk }

// awaitsImage reports whether a sandbox in a phase gets its machine when an image is built.
func awaitsImage(p doze.Phase) bool { return p == doze.Uploading || p == doze.Building }

// asksUpload reports whether a request wants to upload the files of an image. The label of
// clients that says so too says it of what was built for ever.
func asksUpload(r *http.Request) bool { return api.Upload.In(r.URL.Query()) }

// checkBuild fails if no image of the name of a sandbox can be built.
func (s Builds) checkBuild(ctx context.Context, m doze.Metadata) error {
	var p doze.Problems
	if _, _, err := s.Images.CheckBuild(ctx, m.Workspace, m.Name, &p); err != nil {
		return err
	}
	return p.Err()
}

// createBuilt records a sandbox that gets its machine when its image is built, and returns the
// address for the files. A name in use is a taken error.
func (s Builds) createBuilt(ctx context.Context, want doze.Sandbox) (doze.Sandbox, string, error) {
	id := store.NewID()
	tag := doze.BuildTag(id)
	want.Spec.Runtime.Image = doze.BuiltImage(want.Metadata.Name, tag)
	sb := recordOf(want)
	life, release, err := s.take(ctx, sb.UID, 0)
	if err != nil {
		return doze.Sandbox{}, "", err
	}
	defer release()
	if sb, err = insert(life, s.Server, sb, doze.Offered); err != nil {
		return doze.Sandbox{}, "", err
	}
	b, err := s.Builds.Offer(life, build.Offer{
		ID: id, Workspace: sb.Metadata.Workspace, Name: sb.Metadata.Name, Tag: tag, UID: sb.UID, By: sb.Metadata.CreatedBy,
	})
	if err != nil {
		return doze.Sandbox{}, "", errors.Join(err, s.Store.Remove(context.WithoutCancel(life), sb.UID))
	}
	s.putUpstream(life, sb)
	out, err := s.answer(life, sb.UID)
	return out, b.UploadURL, err
}

// rebuildable returns all mistakes in a request to build another image for a sandbox.
func (s Builds) rebuildable(ctx context.Context, sb store.Sandbox, body map[string]any) error {
	var lacking doze.Problems
	if err := s.Builds.Available(ctx); err != nil {
		if doze.Public(err).Kind != doze.Unsupported {
			return err
		}
		lacking = doze.Problems{doze.Public(err).Message}
	}
	want, err := s.wanted(ctx, sb, body, sb.Spec.Runtime.Image, lacking)
	if err != nil {
		return err
	}
	return s.checkBuild(ctx, want.Metadata)
}

// rebuild offers an address for the files of another image of a sandbox. What runs goes on
// until the image is there: only then the body counts. Preconditions: the lock of sb is held.
func (s Builds) rebuild(ctx context.Context, sb store.Sandbox, body map[string]any) (doze.Sandbox, string, error) {
	waits := awaitsImage(sb.Phase) || sb.Phase == doze.Failed
	if !waits && sb.Phase.Status() != doze.Running.Status() {
		return doze.Sandbox{}, "", doze.Errorf(doze.Conflict, "the sandbox is %s: only one that is %s or %s gets another image", sb.Phase.Status(), doze.Running.Status(), doze.Failed.Status())
	}
	id := store.NewID()
	tag := doze.BuildTag(id)
	want, err := s.wanted(ctx, sb, body, doze.BuiltImage(sb.Metadata.Name, tag), nil)
	if err != nil {
		return doze.Sandbox{}, "", err
	}
	if !want.Spec.IsEnabled() {
		return doze.Sandbox{}, "", doze.Errorf(doze.Conflict, "the sandbox is not enabled: set spec.enabled to true to build another image for it")
	}
	o := build.Offer{ID: id, Workspace: sb.Metadata.Workspace, Name: sb.Metadata.Name, Tag: tag, UID: sb.UID, By: api.Caller(ctx).Sub}
	if !waits {
		none := &doze.Problems{} // they were found
		delete(api.Member(api.Member(body, "spec", none), "runtime", none), "image")
		if o.Change, err = json.Marshal(body); err != nil {
			return doze.Sandbox{}, "", err
		}
	}
	b, err := s.Builds.Offer(ctx, o)
	if err != nil {
		return doze.Sandbox{}, "", err
	}
	if waits {
		now := time.Now()
		want.Metadata.UpdatedAt, want.Metadata.UpdatedBy = doze.Time{Time: now}, o.By
		want.Deadline = deadline(want, s.lastUsed(sb, s.glance(ctx, sb), now))
		moved, err := s.Store.Apply(ctx, sb.UID, store.Step{On: doze.Offered, At: now, Revision: sb.Revision, Write: &want})
		if err != nil {
			s.Builds.Undo(ctx, b)
			return doze.Sandbox{}, "", err
		}
		s.putUpstream(ctx, moved)
		s.expiry.by(want.Deadline)
	}
	out, err := s.answer(ctx, sb.UID)
	return out, b.UploadURL, err
}

// Uploaded records that the files of the image of a sandbox are there. A sandbox that ended
// is NotFound.
func (s Builds) Uploaded(ctx context.Context, uid string) error {
	sb, err := s.Store.Sandbox(ctx, uid)
	switch {
	case err != nil:
		return err
	case sb.Phase.Ended():
		return doze.Errorf(doze.NotFound, "the sandbox was deleted meanwhile")
	case !awaitsImage(sb.Phase): // it runs on
		return nil
	}
	_, err = s.Store.Apply(ctx, uid, store.Step{On: doze.Uploaded, At: time.Now()})
	return err
}

// Deploy gives the sandbox of a build a machine of its image, with the change that came with
// the request. The end of ctx counts until it is the turn of the sandbox.
func (s Builds) Deploy(ctx context.Context, b *store.Build) error {
	found, err := s.Store.Sandbox(ctx, b.UID)
	if err != nil {
		return err
	}
	life, sb, release, err := s.occupy(ctx, found)
	if err != nil {
		return err
	}
	defer release()
	if err := context.Cause(ctx); err != nil { // another build took the place of this one
		return err
	}
	return unlessDeleted(life, s.deploy(life, sb, b))
}

// deploy does what [Builds.Deploy] says. Preconditions: the lock of sb is held.
func (s Builds) deploy(ctx context.Context, sb store.Sandbox, b *store.Build) error {
	body := map[string]any{}
	if len(b.Hidden.Change) > 0 {
		d := json.NewDecoder(bytes.NewReader(b.Hidden.Change))
		d.UseNumber() // as in the request
		if err := d.Decode(&body); err != nil {
			return err
		}
	}
	want, err := s.wanted(ctx, sb, body, b.Image, nil)
	if err != nil {
		return err
	}
	now := time.Now()
	want.Metadata.UpdatedAt, want.Metadata.UpdatedBy = doze.Time{Time: now}, b.CreatedBy
	want.Deadline = deadline(want, s.lastUsed(sb, s.glance(ctx, sb), now))
	if !awaitsImage(sb.Phase) {
		_, err := become(ctx, s.Server, sb, want)
		return err
	}
	// A machine of its own, since the first one of a sandbox ends with a start that is cut
	// short: this one is started again.
	sb, err = s.Store.Apply(ctx, sb.UID, store.Step{
		On: doze.Placed, Message: "the image is built, and the sandbox is being started", At: now, Revision: sb.Revision, Write: &want, Machine: store.NewID(),
	})
	if err != nil {
		return err
	}
	up := upstreamOf(sb)
	up.Building = true // until it has its machine
	putFor(ctx, s.Server, sb, up)
	if sb, err = s.boot(ctx, sb, ""); err != nil || sb.Spec.IsEnabled() {
		return err
	}
	return s.disable(ctx, sb, nil)
}

// Failed records that there is no image for a sandbox, and why. What runs is left alone.
func (s Builds) Failed(ctx context.Context, uid, why string) error {
	sb, err := s.Store.Sandbox(ctx, uid)
	switch {
	case err != nil:
		return err
	case sb.Phase.Ended():
		return nil
	case !awaitsImage(sb.Phase):
		return s.Store.Notify(ctx, uid, why, time.Now())
	}
	sb, err = s.Store.Apply(ctx, uid, store.Step{On: doze.Broke, Message: why, At: time.Now()})
	if err == nil {
		s.putUpstream(ctx, sb)
	}
	return err
}
