package image

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/store"
)

// dockerHub is how builders spell the registry that Docker's configuration has under the
// name of its first interface.
const dockerHub, dockerHubPlace = "docker.io", "index.docker.io"

// checkName reads the name of an image, with or without a tag.
func checkName(ref string, wrong *doze.Problems) (name, tag string) {
	name, tag, ok := doze.WorkspaceImage(ref)
	if !ok || strings.Contains(ref, "/") {
		wrong.Add("name", "must be lowercase letters, digits and hyphens, at most %d, and may have a tag like app:1.0", doze.NameMax)
	}
	return name, tag
}

// checkFree fails if a workspace cannot have an image of a name.
func (s *Server) checkFree(ctx context.Context, workspace, name, tag string) error {
	if err := s.Node.CheckImage(ctx, name+":"+tag); err == nil {
		return doze.Errorf(doze.Conflict, "the platform has an image %s: choose another name", name)
	}
	i, err := s.Store.Image(ctx, workspace, name)
	switch {
	case doze.Public(err).Kind == doze.NotFound:
		return nil
	case err == nil && i.Metadata.Workspace != workspace:
		return doze.Errorf(doze.Conflict, "the image %s is shared by the workspace %s: only there it can be changed", name, i.Metadata.Workspace)
	}
	return err
}

// CheckBuild reads the name of an image that is to be built, with or without a tag, and adds
// what is wrong with its form. A name that the workspace cannot have is a Conflict.
func (s *Server) CheckBuild(ctx context.Context, workspace, ref string, wrong *doze.Problems) (name, tag string, err error) {
	was := len(*wrong)
	if name, tag = checkName(ref, wrong); len(*wrong) > was {
		return name, tag, nil
	}
	return name, tag, s.checkFree(ctx, workspace, name, tag)
}

// basesMax bounds the tags that a Dockerfile of a workspace may begin with: each goes with
// every order. Of more, the newest count.
const basesMax = 1000

// Materials returns what builds of a workspace may begin with. These are its images and
// those that others share with it, by every name that a Dockerfile may use. It returns
// the credentials of the workspace too, by the host of a registry.
func (s *Server) Materials(ctx context.Context, workspace string) (map[string]fleet.Base, map[string]fleet.Login, error) {
	images, err := s.Store.Images(ctx, workspace)
	if err != nil {
		return nil, nil, err
	}
	type base struct {
		name, owner string
		tag         doze.ImageTag
	}
	var all []base
	for _, i := range images {
		for _, t := range i.Spec.Tags {
			all = append(all, base{i.Metadata.Name, i.Metadata.Workspace, t})
		}
	}
	slices.SortFunc(all, func(a, b base) int { return b.tag.UpdatedAt.Compare(a.tag.UpdatedAt.Time) })
	bases, owners := map[string]fleet.Base{}, map[string]pulls{}
	for _, one := range all[:min(len(all), basesMax)] {
		from, known := owners[one.owner]
		if !known {
			if from, err = s.pullsOf(ctx, one.owner); err != nil {
				return nil, nil, err
			}
			owners[one.owner] = from
		}
		names := []string{one.name + ":" + one.tag.Name}
		if one.tag.Name == doze.TagDefault {
			names = append(names, one.name)
		}
		for _, name := range names {
			b := fleet.Base{Ref: one.tag.Image, Login: from.loginFor(one.tag.Image)}
			bases[name], bases[doze.KindSandbox+"/"+name] = b, b
		}
	}
	own, err := s.pullsOf(ctx, workspace)
	return bases, own.byHost(), err
}

// byHost are the credentials by the host of a registry. Of several for one host, those for
// the whole of it count, then those of the first secret by name.
func (p *pulls) byHost() map[string]fleet.Login {
	all, whole := map[string]fleet.Login{}, map[string]bool{}
	for _, places := range p.secrets {
		for _, place := range slices.Sorted(maps.Keys(places)) {
			host, path, _ := strings.Cut(place, "/")
			if host == dockerHubPlace {
				host = dockerHub
			}
			if _, there := all[host]; there && (path != "" || whole[host]) {
				continue
			}
			login := places[place]
			all[host] = fleet.Login{Workspace: p.workspace, Username: login.Username, Password: login.Password}
			whole[host] = path == ""
		}
	}
	return all
}

// Tag gives an image that a node made its name in a workspace. If it is for a sandbox, it has
// the tag latest besides. Then older tags of such builds that no sandbox has are deleted.
func (s *Server) Tag(ctx context.Context, b *store.Build, built fleet.Built) error {
	life, release, err := s.take(ctx, b.Workspace, b.Name)
	if err != nil {
		return err
	}
	defer release()
	tags := []string{b.Tag}
	var used map[string]bool
	if b.UID != "" {
		tags = append(tags, doze.TagDefault)
		i, err := s.Store.Image(life, b.Workspace, b.Name)
		if err == nil {
			used, err = s.tagsInUse(life, i)
		}
		if err != nil && doze.Public(err).Kind != doze.NotFound {
			return err
		}
	}
	now := doze.Time{Time: time.Now()}
	var moved []string // what the tags meant before
	_, err = s.Store.ChangeImage(life, b.Workspace, b.Name, func(i *doze.Image) error {
		moved = nil
		if b.UID != "" {
			moved = dropTags(i, func(t doze.ImageTag) bool {
				return t.Build && t.Name != doze.TagDefault && t.Name != b.Tag && !used[t.Name]
			})
		}
		for _, tag := range tags {
			at := slices.IndexFunc(i.Spec.Tags, func(t doze.ImageTag) bool { return t.Name == tag })
			if at >= 0 && tag != b.Tag && !i.Spec.Tags[at].Build {
				continue // somebody gave latest to another image
			}
			if at >= 0 && i.Spec.Tags[at].Image != built.Ref {
				moved = append(moved, i.Spec.Tags[at].Image)
			}
			if err := setTag(i, tag, fleet.Pinned{Ref: built.Ref, Bytes: built.Bytes, Config: built.Image}, now); err != nil {
				return err
			}
			if at < 0 {
				at = len(i.Spec.Tags) - 1
			}
			i.Spec.Tags[at].Build = b.UID != ""
		}
		return nil
	})
	if err == nil {
		s.release(life, moved)
	}
	return err
}
