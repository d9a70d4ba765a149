package control

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/api"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/network"
	"github.com/dozehq/doze/internal/store"
)

// updateSandbox changes a sandbox to what the body says (section 6.3 of the
// public API): in place where that is possible, on a fresh machine otherwise.
// With upload=true the body counts when an image is built of the files that are put to
// the address in the answer.
func (s *Server) updateSandbox(ctx context.Context, r *http.Request, body map[string]any) (out doze.Sandbox, address string, err error) {
	found, err := s.living(ctx, r.PathValue("name"))
	uploads := asksUpload(r)
	if err == nil && uploads {
		err = Builds{s}.rebuildable(ctx, found, body)
	}
	if err != nil {
		return doze.Sandbox{}, "", err
	}
	life, sb, release, err := s.occupy(ctx, found)
	if err != nil {
		return doze.Sandbox{}, "", err
	}
	defer release()
	if uploads {
		out, address, err = Builds{s}.rebuild(life, sb, body)
	} else {
		out, err = s.update(life, sb, body)
	}
	return out, address, unlessDeleted(life, err)
}

// update changes a sandbox to what body says. Preconditions: the lock of sb is
// held.
func (s *Server) update(ctx context.Context, sb store.Sandbox, body map[string]any) (doze.Sandbox, error) {
	by := s.learn(ctx, learnTimeout, sb) // it may end, or not, for being unused
	want, err := s.wanted(ctx, sb, body, "", nil)
	if err != nil {
		return doze.Sandbox{}, err
	}
	now := time.Now()
	want.Metadata.UpdatedAt, want.Metadata.UpdatedBy = doze.Time{Time: now}, api.Caller(ctx).Sub
	want.Deadline = deadline(want, s.lastUsed(sb, by, now))
	changed, err := become(ctx, s, sb, want)
	if err != nil {
		return doze.Sandbox{}, err
	}
	return s.view(changed, s.glance(ctx, changed)), nil
}

// become makes sb what is wanted, for the edge and the node too. Preconditions: the lock of
// sb is held.
func become(ctx context.Context, s *Server, sb, want store.Sandbox) (store.Sandbox, error) {
	if err := s.turnInto(ctx, sb, want); err != nil {
		return sb, err
	}
	s.expiry.by(want.Deadline)
	if text := warning(s.node.Load(), sb.Spec.Network, want.Spec.Network); text != "" {
		if err := s.Store.Notify(ctx, sb.UID, text, time.Now()); err != nil {
			return sb, err
		}
	}
	changed, err := s.Store.Sandbox(ctx, sb.UID)
	if err == nil {
		err = errors.Join(s.Node.SetGrace(ctx, changed.Machine, grace(changed)), s.setNetwork(ctx, s.Node, changed))
	}
	return changed, err
}

// living is the sandbox of the caller that has a name, or NotFound.
func (s *Server) living(ctx context.Context, name string) (store.Sandbox, error) {
	return s.Store.Living(ctx, api.Caller(ctx).Workspace, name)
}

// occupy waits for the turn of a sandbox, in the manner of take, and reads its
// record again.
func (s *Server) occupy(ctx context.Context, found store.Sandbox) (_ context.Context, sb store.Sandbox, _ func(), err error) {
	life, release, err := s.take(ctx, found.UID, grace(found))
	if err != nil {
		return nil, sb, nil, err
	}
	defer func() {
		if err != nil {
			err = unlessDeleted(life, err)
			release()
		}
	}()
	if err := s.resume(life, found.UID); err != nil {
		return nil, sb, nil, err
	}
	sb, err = s.Store.Sandbox(life, found.UID)
	if err == nil && sb.Phase.Ended() { // before we had the turn
		err = errDeleted
	}
	return life, sb, release, err
}

// wanted is sb with the changes of body, or all mistakes in them, with what is
// lacking for the request. It gets the image that is built for it, if one is named.
func (s *Server) wanted(ctx context.Context, sb store.Sandbox, body map[string]any, built string, lacking doze.Problems) (store.Sandbox, error) {
	var p doze.Problems
	want := doze.Sandbox{Metadata: sb.Metadata, Spec: sb.Spec}
	decodeSandbox(&want.Metadata, &want.Spec, body, &p) // what is absent stays as it is
	api.SameName(&want.Metadata, sb.Metadata.Name, "sandbox", &p)
	api.SameRegion(&p, "spec.region", want.Spec.Region, sb.Spec.Region, "sandbox")
	want.Spec.Region = sb.Spec.Region
	now, was := &want.Spec.Runtime, sb.Spec.Runtime
	if now.Image = cmp.Or(now.Image, was.Image); built != "" {
		if now.Image != was.Image {
			p.Add("spec.runtime.image", "must be left out of a request with upload=true: the build makes the image")
		}
		now.Image = built
	}
	now.Memory = cmp.Or(now.Memory, was.Memory)
	if now.Memory != was.Memory { // what it has it may keep
		s.checkMemory(now.Memory, &p)
	}
	if now.Storage = cmp.Or(now.Storage, was.Storage); now.Storage != was.Storage {
		p.Add("spec.runtime.storage", "cannot be changed: create another sandbox")
		now.Storage = was.Storage
	}
	for k := range was.ExtraArgs {
		if v, ok := now.ExtraArgs[k]; ok && v != was.ExtraArgs[k] {
			p.Add("spec.runtime.extraArgs."+k, "cannot be changed: create another sandbox")
		}
	}
	for k, v := range now.ExtraArgs {
		if _, ok := was.ExtraArgs[k]; !ok && v != doze.ExtraDefault(k) {
			p.Add("spec.runtime.extraArgs."+api.Clip(k), "cannot be changed: create another sandbox")
		}
	}
	now.ExtraArgs = was.ExtraArgs
	now.Envs = unmask(was.Envs, now.Envs, "spec.runtime.envs", &p)
	want.Default(s.Regions[0])
	// Null is left out; an empty list takes some away.
	if want.Spec.Volumes != nil && !slices.Equal(want.Spec.Volumes, sb.Spec.Volumes) {
		p.Add("spec.volumes", "cannot be changed: create another sandbox")
	}
	want.Spec.Volumes = sb.Spec.Volumes
	carrySecrets(sb.Spec.Network, want.Spec.Network)
	checkLasts(&want.Spec, sb.Metadata.CreatedAt.Time, s.lastUsed(sb, s.glance(ctx, sb), time.Now()), &p)
	s.check(&want, &p)
	err := network.Check(ctx, s.Store, &want, &p)
	if err != nil {
		return sb, err
	}
	fresh := replaces(sb, want.Spec)
	if fresh || built != "" {
		if err := s.checkReferences(ctx, sb.Metadata.Workspace, "spec.runtime.envs", now.Envs, &p); err != nil {
			return sb, err
		}
	}
	if fresh && built == "" && !awaitsImage(sb.Phase) {
		err = s.Images.Check(ctx, sb.Metadata.Workspace, "spec.runtime.image", now.Image, api.Verdict(p, lacking))
	} else {
		err = api.Verdict(p, lacking)
	}
	if err != nil {
		return sb, err
	}
	if err := s.sealRouting(&want); err != nil {
		return sb, err
	}
	sb.Metadata, sb.Spec = want.Metadata, want.Spec
	return sb, nil
}

// unmask returns the variables that a caller wants in a field of a body. A variable
// that came back masked or without a value gets the stored one, since callers send back
// what they were shown. A value that was kept secret stays secret. Of variables with
// the same name, the nth stands for the nth.
func unmask(was, now []doze.Env, field string, p *doze.Problems) []doze.Env {
	stored := map[string][]doze.Env{}
	for _, e := range was {
		stored[e.Name] = append(stored[e.Name], e)
	}
	now = slices.Clone(now)
	for i := range now {
		e := &now[i]
		var old *doze.Env
		if same := stored[e.Name]; len(same) > 0 {
			old, stored[e.Name] = &same[0], same[1:]
		}
		switch {
		case e.From() && e.Text() == doze.MaskedValue:
			e.Value = nil // a value from elsewhere is not stored
		case e.From(), e.Value != nil && *e.Value != doze.MaskedValue:
		case old != nil:
			e.Value, e.ValueFrom, e.Secret = old.Value, old.ValueFrom, e.Secret || old.Secret
		case e.Value != nil:
			p.Add(field, "has the masked value of %s, of which no value is stored", api.Clip(e.Name))
		}
	}
	return now
}

// replaces reports whether a sandbox gets a fresh machine with a change to want.
// A failed one has nothing to lose, and no other way back.
func replaces(sb store.Sandbox, want doze.SandboxSpec) bool {
	return needsMachine(sb.Spec.Runtime, want.Runtime) || sb.Phase == doze.Failed && want.IsEnabled()
}

// needsMachine reports whether a change needs a fresh machine.
func needsMachine(was, now doze.Runtime) bool {
	return was.Image != now.Image || was.Memory != now.Memory ||
		!slices.EqualFunc(was.Envs, now.Envs, func(a, b doze.Env) bool {
			return a.Name == b.Name && a.Text() == b.Text() && bytes.Equal(a.ValueFrom, b.ValueFrom)
		})
}

// turnInto makes sb what is wanted. Preconditions: the lock of sb is held.
func (s *Server) turnInto(ctx context.Context, sb, want store.Sandbox) error {
	off := sb.Phase == doze.Disabling || sb.Phase == doze.Disabled
	enable, disable := off && want.Spec.IsEnabled(), !off && !want.Spec.IsEnabled()
	packed := sb.Phase == doze.Archiving || sb.Phase == doze.Archived || sb.Phase == doze.Unarchiving
	fresh := replaces(sb, want.Spec)

	if awaitsImage(sb.Phase) { // it has no machine that could differ
		if sb.Spec.Runtime.Image != want.Spec.Runtime.Image {
			return doze.Errorf(doze.Conflict, "the sandbox is %s, and gets the image of its build: wait for its end, or cancel it", sb.Phase.Status())
		}
		_, err := s.Store.Update(ctx, want)
		return err
	}
	if packed && (fresh || disable) {
		return doze.Errorf(doze.Conflict, "the sandbox is %s: unarchive it to change its image, memory, envs or enabled", sb.Phase)
	}
	if fresh && (off && !enable || disable) {
		return doze.Errorf(doze.Conflict, "the sandbox is not enabled: set spec.enabled to true to change its image, memory or envs")
	}
	if fresh {
		// Until its image is here, the machine that there is stays.
		source, login, err := s.Images.Source(ctx, sb.Metadata.Workspace, want.Spec.Runtime.Image)
		if err != nil {
			return err
		}
		if err := s.Node.FetchImage(ctx, source, login); err != nil {
			return fleet.Tell(err, "the pull of the image")
		}
	}
	if enable {
		enabled, err := s.enable(ctx, sb, want)
		if err != nil {
			return err
		}
		sb = enabled
	}
	switch {
	case fresh:
		return s.redeploy(ctx, sb, want)
	case enable:
		return nil
	case disable && sb.Phase != doze.Failed:
		return s.disable(ctx, sb, &want)
	}
	updated, err := s.Store.Update(ctx, want)
	if _, found := s.Directory.Find(sb.Metadata.Workspace, sb.Metadata.Name, time.Time{}); err == nil && found {
		s.putUpstream(ctx, updated) // until another moment, perhaps
	}
	return err
}

// enable lets requests in again. The node comes first: if we stop in between,
// the sandbox is still disabled for everybody.
func (s *Server) enable(ctx context.Context, sb, want store.Sandbox) (store.Sandbox, error) {
	if sb.Phase == doze.Disabling {
		if err := s.finishDisable(ctx, sb.UID); err != nil {
			return sb, fleet.Tell(err, "the disabling of the sandbox")
		}
	}
	if err := s.Node.Enable(ctx, sb.Machine); err != nil {
		return sb, fleet.Tell(err, "the enabling of the sandbox")
	}
	sb, err := s.Store.Apply(ctx, sb.UID, store.Step{
		On: doze.Enable, Message: "the sandbox is enabled", At: time.Now(), Revision: sb.Revision, Write: &want,
	})
	if err == nil {
		s.putUpstream(ctx, sb)
	}
	return sb, err
}

// disable lets no request in any more. The record comes first, and the reconcile
// loop completes what we leave.
func (s *Server) disable(ctx context.Context, sb store.Sandbox, want *store.Sandbox) error {
	sb, err := s.Store.Apply(ctx, sb.UID, store.Step{
		On: doze.Disable, At: time.Now(), Revision: sb.Revision, Write: want,
	})
	if err != nil {
		return err
	}
	s.putUpstream(ctx, sb)
	if err := s.finishDisable(ctx, sb.UID); err != nil {
		slog.WarnContext(ctx, "disabling is tried again", "sandbox", sb.UID, "err", err)
		s.reconciling.Ring()
	}
	return nil
}

// putUpstream lets the edge find sb, unless it was deleted meanwhile.
func (s *Server) putUpstream(ctx context.Context, sb store.Sandbox) {
	putFor(ctx, s, sb, upstreamOf(sb))
}

// putFor is putUpstream with what the edge is to find.
func putFor(ctx context.Context, s *Server, sb store.Sandbox, up fleet.Upstream) {
	s.Directory.Put(up)
	// A delete before Put would leave the upstream. A delete after this look removes
	// the upstream itself.
	if now, err := s.Store.Sandbox(ctx, sb.UID); err != nil || now.Phase.Ended() {
		s.drop(sb)
	}
}

// redeploy gives a sandbox a fresh machine. What was on the old one is lost.
func (s *Server) redeploy(ctx context.Context, sb, want store.Sandbox) error {
	old, fresh := sb, store.NewID()
	// Before the old machine is given up: without room for another one, the
	// sandbox stays as it is.
	if err := s.claim(ctx, want, fresh, old.Machine); err != nil {
		return err
	}
	sb, err := s.Store.Apply(ctx, sb.UID, store.Step{
		On: doze.Redeploy, Message: "the sandbox is redeployed", At: time.Now(),
		Revision: sb.Revision, Write: &want, Machine: fresh,
	})
	if err != nil {
		return errors.Join(err, s.Node.Delete(context.WithoutCancel(ctx), fresh)) // which only has the claim
	}
	s.drop(old)
	if err := s.clear(ctx, old.Machine); err != nil {
		return s.unboot(ctx, sb, "", fleet.Tell(err, "the end of the machine before"))
	}
	_, err = s.boot(ctx, sb, "")
	return err
}
