package image

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/api"
	"github.com/dozehq/doze/internal/build"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/store"
)

// imageTypes are what images of the API may be for. We run sandboxes.
var imageTypes = []string{doze.KindSandbox, "agent", "function", "job"}

// errBuilt is for a caller who writes what only records have.
func errBuilt(ref string) error {
	return &doze.Error{
		Kind: doze.Invalid, Name: doze.NameInvalidImage,
		Message: fmt.Sprintf("%q is no name of an image: write the one that it has in the workspace, as in app:1.0", api.Clip(ref)),
	}
}

var errNoImage = doze.Errorf(doze.NotFound, "there is no such image")

// anyType stands in paths for every type of an image.
const anyType = "_"

// Source is the reference that control asks a node for. An image of a registry is
// itself, with the credentials of the workspace. An image of the workspace is what its
// tag was when it was made. All others are the node's.
func (s *Server) Source(ctx context.Context, workspace, ref string) (source string, login *fleet.Login, err error) {
	if registry, _ := doze.Registry(ref); registry != "" {
		login, err = s.loginFor(ctx, workspace, ref)
		return ref, login, err
	}
	if strings.HasPrefix(ref, doze.BuiltPrefix) { // a record has it, perhaps of another workspace
		return "", nil, errBuilt(ref)
	}
	name, tag, ok := doze.WorkspaceImage(ref)
	if !ok {
		return ref, nil, nil
	}
	image, err := s.Store.Image(ctx, workspace, name)
	if doze.Public(err).Kind == doze.NotFound {
		return ref, nil, nil
	}
	if err != nil {
		return "", nil, err
	}
	at := slices.IndexFunc(image.Spec.Tags, func(t doze.ImageTag) bool { return t.Name == tag })
	if at < 0 {
		return ref, nil, nil
	}
	source = image.Spec.Tags[at].Image
	login, err = s.loginFor(ctx, image.Metadata.Workspace, source)
	return source, login, err
}

// loginFor are the credentials that the secrets of a workspace have for an
// image, of the first secret by name that has some; nil for none.
func (s *Server) loginFor(ctx context.Context, workspace, ref string) (*fleet.Login, error) {
	p, err := s.pullsOf(ctx, workspace)
	if err != nil {
		return nil, err
	}
	return p.loginFor(ref), nil
}

// pulls are the credentials of a workspace for registries.
type pulls struct {
	// workspace is the id: another workspace of the name that comes later is a stranger.
	workspace string
	secrets   []map[string]doze.RegistryLogin // in the order of their names, by place
}

func (s *Server) pullsOf(ctx context.Context, workspace string) (p pulls, err error) {
	secrets, err := s.Store.Secrets(ctx, workspace)
	if err != nil {
		return p, err
	}
	for _, sec := range secrets {
		text, ok := sec.Data[doze.PullSecretKey]
		if !ok {
			continue
		}
		all, err := doze.ParsePullSecret(text)
		if err != nil {
			return p, doze.Wrap(err, doze.Invalid, "the secret %s: its key %s %v", sec.Metadata.Name, doze.PullSecretKey, err)
		}
		p.secrets = append(p.secrets, all)
	}
	if len(p.secrets) == 0 {
		return p, nil
	}
	w, err := s.Store.Workspace(ctx, workspace)
	p.workspace = w.ID
	return p, err
}

// loginFor are the first credentials for an image; nil for none.
func (p *pulls) loginFor(ref string) *fleet.Login {
	for _, all := range p.secrets {
		if login, ok := doze.LoginFor(all, ref); ok {
			return &fleet.Login{Workspace: p.workspace, Username: login.Username, Password: login.Password}
		}
	}
	return nil
}

// Note notes that the image of a sandbox was deployed.
func (s *Server) Note(ctx context.Context, sb store.Sandbox) {
	name, _, ok := doze.WorkspaceImage(sb.Spec.Runtime.Image)
	if !ok {
		return
	}
	if err := s.Store.TouchImage(ctx, sb.Metadata.Workspace, name, time.Now()); err != nil {
		slog.WarnContext(ctx, "the last use of an image is not recorded", "image", name, "err", err)
	}
}

// imageView is an image as a workspace sees it.
func imageView(workspace string, i doze.Image) doze.Image {
	i.Metadata.ResourceType, i.Metadata.Status = doze.KindSandbox, doze.ImageBuilt
	i.Spec.Size = 0
	if i.Metadata.Workspace != workspace {
		i.Metadata.SourceWorkspace, i.Metadata.Workspace = i.Metadata.Workspace, workspace
	}
	counted := map[string]bool{}
	for _, t := range i.Spec.Tags {
		if !counted[t.Image] { // a build gives one image two tags
			i.Spec.Size += t.Size
		}
		counted[t.Image] = true
	}
	return i
}

func (s *Server) listImages(ctx context.Context, _ *http.Request) ([]doze.Image, error) {
	workspace := api.Caller(ctx).Workspace
	all, err := s.Store.Images(ctx, workspace)
	list := make([]doze.Image, len(all))
	for i, one := range all {
		list[i] = imageView(workspace, one)
		for at := range list[i].Spec.Tags {
			list[i].Spec.Tags[at].Config = nil
		}
	}
	return list, err
}

// imageOf is the image that a path names, as its workspace has it. Clients write
// a tag behind the name, or as a segment of its own; tag is empty for neither.
func (s *Server) imageOf(ctx context.Context, r *http.Request) (i doze.Image, tag string, err error) {
	if kind := r.PathValue("type"); kind != doze.KindSandbox && kind != anyType {
		return i, "", errNoImage
	}
	name, tag := nameOf(r)
	i, err = s.Store.Image(ctx, api.Caller(ctx).Workspace, name)
	return i, tag, err
}

// nameOf is the name of an image in a path, and its tag if there is one.
func nameOf(r *http.Request) (name, tag string) {
	name, tag, _ = strings.Cut(r.PathValue("image"), ":")
	return name, cmp.Or(r.PathValue("tag"), tag)
}

// ownImageOf is imageOf for a caller that wants to change the image.
func (s *Server) ownImageOf(ctx context.Context, r *http.Request) (i doze.Image, tag string, err error) {
	i, tag, err = s.imageOf(ctx, r)
	if err == nil && i.Metadata.Workspace != api.Caller(ctx).Workspace {
		err = doze.Errorf(doze.Forbidden, "the image is shared by the workspace %s: only there it can be changed", i.Metadata.Workspace)
	}
	return i, tag, err
}

// image answers an image, with the status of its build for as long as there is one to see. An
// image that was never built is there as long as its last build is on record.
func (s *Server) image(ctx context.Context, r *http.Request) (doze.Image, error) {
	workspace := api.Caller(ctx).Workspace
	i, _, err := s.imageOf(ctx, r)
	name, _ := nameOf(r)
	status, building := s.Builds.Shown(build.ImageTarget(workspace, name))
	switch {
	case err == nil:
		i = imageView(workspace, i)
		if building {
			i.Metadata.Status = status
		}
		return i, nil
	case doze.Public(err).Kind != doze.NotFound, errors.Is(err, errNoImage):
		return i, err
	}
	b, unbuilt := s.Builds.Latest(ctx, workspace, name)
	if unbuilt != nil || b.Status == doze.BuildBuilt { // it was deleted since
		return i, err
	}
	if b.Status == doze.BuildCancelled {
		b.Status = doze.BuildFailed // clients know no other end
	}
	return doze.Image{
		Metadata: doze.ImageMetadata{
			Name: name, ResourceType: doze.KindSandbox, Status: b.Status, Workspace: workspace, CreatedAt: b.CreatedAt, UpdatedAt: b.CreatedAt,
		},
		Spec: doze.ImageSpec{Tags: []doze.ImageTag{}},
	}, nil
}

// createImage gives an image of a registry a name in the workspace, and answers when it is
// here. Without such an image it offers an upload of what the image is built of.
func (s *Server) createImage(ctx context.Context, r *http.Request, body map[string]any) (out doze.ImageResponse, address string, err error) {
	in := doze.ImageRequest{ResourceType: doze.KindSandbox}
	var wrong doze.Problems
	api.Decode(&in, body, "", &wrong)
	name, tag := checkName(in.Name, &wrong)
	if !slices.Contains(imageTypes, in.ResourceType) {
		wrong.Add("resourceType", "must be %s", doze.KindSandbox)
	}
	var lacking doze.Problems
	if in.Image == "" {
		switch err := s.Builds.Available(ctx); {
		case doze.Public(err).Kind == doze.Unsupported && err != nil:
			lacking = doze.Problems{doze.Public(err).Message}
		case err != nil:
			return out, "", err
		case !api.Upload.In(r.URL.Query()) || api.SkipBuild.In(r.URL.Query()):
			wrong.Add("image", "is required, unless upload=true asks for a build")
		}
	}
	if in.Image != "" && api.Upload.In(r.URL.Query()) && !api.SkipBuild.In(r.URL.Query()) {
		wrong.Add("image", "has no place beside upload=true: an image is either built of files that you upload, or imported from a registry; leave one of them out")
	}
	if slices.Contains(imageTypes[1:], in.ResourceType) {
		lacking = append(lacking, "this platform runs sandboxes only: resourceType must be "+doze.KindSandbox)
	}
	c := api.Caller(ctx)
	if err = api.Verdict(wrong, lacking); in.Image != "" {
		err = s.Check(ctx, c.Workspace, "image", in.Image, err)
	}
	if err != nil {
		return out, "", err
	}
	if err := s.checkFree(ctx, c.Workspace, name, tag); err != nil {
		return out, "", err
	}
	if in.Image != "" {
		out, err = s.importImage(ctx, name, tag, in.Image)
		return out, "", err
	}
	b, err := s.Builds.Offer(ctx, build.Offer{ID: store.NewID(), Workspace: c.Workspace, Name: name, Tag: tag, By: c.Sub})
	return doze.ImageResponse{
		Message: "put the files of the image to the address in the header " + strings.ToLower(build.UploadHeader), Name: name, ResourceType: doze.KindSandbox,
	}, b.UploadURL, err
}

// importImage gives an image of a registry a name in the workspace of the caller.
func (s *Server) importImage(ctx context.Context, name, tag, ref string) (out doze.ImageResponse, err error) {
	workspace := api.Caller(ctx).Workspace
	login, err := s.loginFor(ctx, workspace, ref)
	if err != nil {
		return out, err
	}
	life, release, err := s.take(ctx, workspace, name)
	if err != nil {
		return out, err
	}
	defer release()
	pinned, err := s.Node.PinImage(life, ref, login)
	if err != nil {
		return out, fleet.Tell(err, "the pull of the image")
	}
	if err := s.point(life, workspace, name, tag, pinned); err != nil {
		return out, err
	}
	return doze.ImageResponse{
		Message: fmt.Sprintf("the image is %s:%s", name, tag), Name: name, ResourceType: doze.KindSandbox, Image: pinned.Ref,
	}, nil
}

// setTag makes a tag mean an image of a registry, from now on.
func setTag(i *doze.Image, name string, pinned fleet.Pinned, now doze.Time) error {
	if i.Metadata.CreatedAt.IsZero() {
		i.Metadata.CreatedAt = now
	}
	i.Metadata.UpdatedAt = now
	made := doze.ImageTag{Name: name, Image: pinned.Ref, Size: pinned.Bytes, CreatedAt: now, UpdatedAt: now, Config: pinned.Config.Recorded()}
	defer forgetConfigs(i)
	if at := slices.IndexFunc(i.Spec.Tags, func(t doze.ImageTag) bool { return t.Name == name }); at >= 0 {
		made.CreatedAt = i.Spec.Tags[at].CreatedAt
		i.Spec.Tags[at] = made
		return nil
	}
	if len(i.Spec.Tags) >= doze.ImageTagsMax {
		return errTagsMax(len(i.Spec.Tags))
	}
	i.Spec.Tags = append(i.Spec.Tags, made)
	return nil
}

// forgetConfigs leaves the configuration to the tags that moved last.
func forgetConfigs(i *doze.Image) {
	tags := make([]*doze.ImageTag, len(i.Spec.Tags))
	for at := range i.Spec.Tags {
		tags[at] = &i.Spec.Tags[at]
	}
	slices.SortStableFunc(tags, func(a, b *doze.ImageTag) int { return b.UpdatedAt.Compare(a.UpdatedAt.Time) })
	for _, t := range tags[min(doze.ImageConfigsMax, len(tags)):] {
		t.Config = nil
	}
}

func errTagsMax(n int) error {
	return doze.Errorf(doze.Exhausted, "the image has %d tags, which is the limit: delete one first", n)
}

// deleteImage removes an image, or one of its tags. What was made of it runs on,
// but a living sandbox must be able to get a fresh machine.
func (s *Server) deleteImage(ctx context.Context, r *http.Request) (doze.Image, error) {
	i, tag, err := s.ownImageOf(ctx, r)
	if missing := doze.Public(err).Kind == doze.NotFound && !errors.Is(err, errNoImage); (err == nil || missing) && tag == "" {
		// Its build would make it again.
		name, _ := nameOf(r)
		building, cancelled := s.image(ctx, r)
		if was, err := s.Builds.Cancel(ctx, build.ImageTarget(api.Caller(ctx).Workspace, name)); err != nil || was && missing {
			return building, cmp.Or(err, cancelled)
		}
	}
	if err != nil {
		return i, err
	}
	if tag != "" && !slices.ContainsFunc(i.Spec.Tags, func(t doze.ImageTag) bool { return t.Name == tag }) {
		return doze.Image{}, doze.Errorf(doze.NotFound, "the image has no tag %q", api.Clip(tag))
	}
	used, err := s.tagsInUse(ctx, i)
	if err != nil {
		return doze.Image{}, err
	}
	for _, t := range i.Spec.Tags {
		if (tag == "" || tag == t.Name) && used[t.Name] {
			return doze.Image{}, doze.Errorf(doze.Invalid, "the image %s:%s is in use by a sandbox: delete that first", i.Metadata.Name, t.Name)
		}
	}
	workspace := api.Caller(ctx).Workspace
	var dropped []string
	_, err = s.Store.ChangeImage(ctx, workspace, i.Metadata.Name, func(now *doze.Image) error {
		dropped = dropTags(now, func(t doze.ImageTag) bool { return tag == "" || tag == t.Name })
		return nil
	})
	if err == nil {
		s.release(ctx, dropped)
	}
	return imageView(workspace, i), err
}

// dropTags takes tags away from an image, and returns the references that they
// meant.
func dropTags(i *doze.Image, drop func(doze.ImageTag) bool) (refs []string) {
	for _, t := range i.Spec.Tags {
		if drop(t) {
			refs = append(refs, t.Image)
		}
	}
	i.Spec.Tags = slices.DeleteFunc(i.Spec.Tags, drop)
	return refs
}

// release tells the node of images whose records are gone. The node asks for all
// records before it removes one: another may name the same image.
func (s *Server) release(ctx context.Context, refs []string) {
	for _, ref := range refs {
		if err := s.Node.ReleaseImage(ctx, ref); err != nil {
			slog.WarnContext(ctx, "an image without a record stays on the node until its next start", "image", ref, "err", err)
		}
	}
}

// tagsInUse are the tags of an image that living sandboxes have, those of
// workspaces too that it is shared with.
func (s *Server) tagsInUse(ctx context.Context, i doze.Image) (map[string]bool, error) {
	targets, err := s.Store.ImageShares(ctx, i.Metadata.Workspace, i.Metadata.Name)
	if err != nil {
		return nil, err
	}
	used := map[string]bool{}
	for _, workspace := range append(targets, i.Metadata.Workspace) {
		refs, err := s.Store.ImagesInUse(ctx, workspace)
		if err != nil {
			return nil, err
		}
		for ref := range refs {
			if name, tag, ok := doze.WorkspaceImage(ref); ok && name == i.Metadata.Name {
				used[tag] = true
			}
		}
	}
	return used, nil
}

// cleaned says how much a clean-up removed.
type cleaned struct {
	Deleted int    `json:"deleted"`
	Message string `json:"message"`
}

// cleanImages removes the tags of the workspace that no living sandbox has.
func (s *Server) cleanImages(ctx context.Context, _ *http.Request) (out cleaned, err error) {
	workspace := api.Caller(ctx).Workspace
	all, err := s.Store.Images(ctx, workspace)
	if err != nil {
		return out, err
	}
	for _, i := range all {
		if i.Metadata.Workspace != workspace {
			continue
		}
		used, err := s.tagsInUse(ctx, i)
		if err != nil {
			return out, err
		}
		var dropped []string
		_, err = s.Store.ChangeImage(ctx, workspace, i.Metadata.Name, func(now *doze.Image) error {
			dropped = dropTags(now, func(t doze.ImageTag) bool { return !used[t.Name] })
			return nil
		})
		if err != nil {
			return out, err
		}
		out.Deleted += len(dropped)
		s.release(ctx, dropped)
	}
	out.Message = fmt.Sprintf("%d tags that no sandbox has are deleted", out.Deleted)
	return out, nil
}

func (s *Server) listImageShares(ctx context.Context, r *http.Request) ([]doze.ImageShare, error) {
	i, _, err := s.ownImageOf(ctx, r)
	if err != nil {
		return nil, err
	}
	targets, err := s.Store.ImageShares(ctx, i.Metadata.Workspace, i.Metadata.Name)
	list := make([]doze.ImageShare, len(targets))
	for at, target := range targets {
		list[at] = doze.ImageShare{Workspace: target, Status: doze.ShareActive}
	}
	return list, err
}

// shareImage lets another workspace use an image, with our credentials.
func (s *Server) shareImage(ctx context.Context, r *http.Request, body map[string]any) (doze.Image, error) {
	i, _, err := s.ownImageOf(ctx, r)
	if err != nil {
		return i, err
	}
	var in api.ShareRequest
	var wrong doze.Problems
	api.Decode(&in, body, "", &wrong)
	switch in.Target {
	case "":
		wrong.Add("targetWorkspace", "is required")
	case i.Metadata.Workspace:
		wrong.Add("targetWorkspace", "is the workspace that has the image")
	}
	if err := wrong.Err(); err != nil {
		return doze.Image{}, err
	}
	if _, err := s.Store.Workspace(ctx, in.Target); err != nil {
		return doze.Image{}, err
	}
	shared, err := s.Store.ImageShares(ctx, i.Metadata.Workspace, i.Metadata.Name)
	if err == nil && len(shared) >= doze.ImageSharesMax {
		err = doze.Errorf(doze.Exhausted, "the image is shared with %d workspaces, which is the limit: end one share first", len(shared))
	}
	if err == nil {
		err = s.Store.InsertImageShare(ctx, i.Metadata.Workspace, i.Metadata.Name, in.Target)
	}
	return imageView(i.Metadata.Workspace, i), err
}

// unshareImage ends a share. Sandboxes that were made of the image run on.
func (s *Server) unshareImage(ctx context.Context, r *http.Request) (doze.Image, error) {
	i, _, err := s.ownImageOf(ctx, r)
	if err != nil {
		return i, err
	}
	return imageView(i.Metadata.Workspace, i), s.Store.DeleteImageShare(ctx, i.Metadata.Workspace, i.Metadata.Name, r.PathValue("target"))
}

// pendingImageShares are none: all workspaces are of one account, within which
// shares need no answer.
func (s *Server) pendingImageShares(context.Context, *http.Request) ([]doze.ImageShare, error) {
	return []doze.ImageShare{}, nil
}

func (s *Server) answerImageShare(context.Context, *http.Request) (doze.Image, error) {
	return doze.Image{}, doze.Errorf(doze.NotFound, "there is no such share: those of this platform need no answer")
}

// Check adds what is wrong with the image in a field to the other mistakes
// of a request, which are Invalid, Unsupported or nil.
func (s *Server) Check(ctx context.Context, workspace, field, ref string, others error) error {
	source, _, err := s.Source(ctx, workspace, ref)
	if err == nil {
		if err = s.Node.CheckImage(ctx, source); err == nil {
			return others
		}
		err = fleet.Tell(err, "the look at the image")
	}
	e, rest := doze.Public(err), doze.Public(others)
	if e.Kind != doze.Invalid {
		return cmp.Or(others, err)
	}
	e.Message = field + ": " + e.Message
	if others != nil {
		e.Message += "; " + rest.Message
	}
	return e
}
