package preview

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/api"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/store"
)

const (
	// previewSetting is the sealed key from which labels of hosts are made.
	previewSetting = "preview_key"
	// labelLetters of base32 are 80 bits: a label cannot be guessed.
	labelLetters = 16
	tokenPrefix  = "dzp_" // of a preview token
	// previewLock is the beginning of the keys of the previews of a workspace,
	// which may take addresses from each other.
	previewLock = "previews/"
)

// secretKey is what names that nobody can guess are made with.
func (s *Server) secretKey(ctx context.Context) ([]byte, error) {
	key, err := s.Store.SealedSetting(ctx, previewSetting)
	if err != nil || len(key) > 0 {
		return key, err
	}
	key = make([]byte, sha256.Size)
	_, _ = rand.Read(key) // it never fails
	return key, s.Store.SetSealedSetting(ctx, previewSetting, key)
}

// previewLabel is the first label of the host of a preview. Without a prefix it is
// the same for the same names, so that a preview that is made again has its
// address again.
func previewLabel(key []byte, p doze.Preview) string {
	label := p.Spec.PrefixURL
	if label == "" {
		mac := hmac.New(sha256.New, key)
		_, _ = mac.Write([]byte(p.Metadata.Workspace + "/" + p.Metadata.ResourceName + "/" + p.Metadata.Name)) // it never fails
		label = strings.ToLower(base32.StdEncoding.EncodeToString(mac.Sum(nil)))[:labelLetters]
	}
	switch {
	case p.Spec.CustomDomain != "":
		// The workspaces that may use the domain share its names: the prefix is enough.
		return label + ".preview." + p.Spec.CustomDomain
	case p.Spec.PrefixURL != "":
		return label + "-" + p.Metadata.Workspace
	}
	return label
}

// Load makes the previews and the custom domains of the records known
// to the edge.
func (s *Server) Load(ctx context.Context) error {
	domains, err := s.Store.Domains(ctx, "")
	if err != nil {
		return err
	}
	for _, d := range domains {
		if err := s.serveDomain(ctx, d); err != nil {
			return err
		}
	}
	all, err := s.Store.LivingPreviews(ctx, time.Now())
	for _, p := range all {
		if err := s.publish(ctx, p); err != nil {
			return err
		}
	}
	return err
}

// publish makes a preview known to the edge as its record is.
func (s *Server) publish(ctx context.Context, p store.Preview) error {
	tokens, err := s.Store.PreviewTokens(ctx, p.ID)
	if err != nil {
		return err
	}
	out := fleet.Preview{
		ID: p.ID, Label: p.Label, Domain: p.Spec.CustomDomain, Workspace: p.Metadata.Workspace, Sandbox: p.Metadata.ResourceName,
		Port: p.Spec.Port, Public: p.Spec.Public, Expires: p.Deadline(),
		RequestHeaders: p.Spec.RequestHeaders, ResponseHeaders: p.Spec.ResponseHeaders,
		Tokens: map[fleet.TokenHash]time.Time{},
	}
	for _, t := range tokens {
		out.Tokens[fleet.HashToken(t.Spec.Token)] = t.Spec.ExpiresAt.Time
	}
	s.Previews.Put(out)
	return nil
}

// Unpublish ends the previews of sandboxes that have ended.
func (s *Server) Unpublish(ctx context.Context, uids ...string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	all, err := s.Store.DeletePreviews(ctx, uids)
	if err != nil { // they lead nowhere, and a new one takes their labels
		slog.WarnContext(ctx, "previews are not removed", "sandboxes", len(uids), "err", err)
	}
	for _, p := range all {
		s.Previews.Drop(p.Label, p.ID)
	}
}

// onePreview is the preview that a path names, and its sandbox.
func (s *Server) onePreview(ctx context.Context, r *http.Request) (store.Sandbox, store.Preview, error) {
	sb, err := s.Store.Living(ctx, api.Caller(ctx).Workspace, r.PathValue("name"))
	if err != nil {
		return store.Sandbox{}, store.Preview{}, err
	}
	p, err := s.Store.Preview(ctx, sb.UID, r.PathValue("preview"), time.Now())
	return sb, p, err
}

// shown is a preview of a sandbox as callers see it.
func (s *Server) shown(sb store.Sandbox, p store.Preview) doze.Preview {
	p.Spec.URL, p.Spec.Region, p.Status = s.URL(p.Label), s.Regions[0], doze.Running.Status()
	if at := s.StreamURL(p.Label); at != "" && sb.Spec.Runtime.Streams()[p.Spec.Port] != "" {
		p.Spec.URL = at
	}
	return p.Preview
}

func (s *Server) listPreviews(ctx context.Context, r *http.Request) ([]doze.Preview, error) {
	sb, err := s.Store.Living(ctx, api.Caller(ctx).Workspace, r.PathValue("name"))
	if err != nil {
		return nil, err
	}
	all, err := s.Store.Previews(ctx, sb.UID, time.Now())
	list := make([]doze.Preview, len(all))
	for i, p := range all {
		list[i] = s.shown(sb, p)
	}
	return list, err
}

func (s *Server) preview(ctx context.Context, r *http.Request) (doze.Preview, error) {
	sb, p, err := s.onePreview(ctx, r)
	return s.shown(sb, p), err
}

func (s *Server) createPreview(ctx context.Context, r *http.Request, body map[string]any) (doze.Preview, error) {
	sb, err := s.Store.Living(ctx, api.Caller(ctx).Workspace, r.PathValue("name"))
	if err != nil {
		return doze.Preview{}, err
	}
	c, now := api.Caller(ctx), doze.Time{Time: time.Now()}
	p := store.Preview{ID: store.NewID(), UID: sb.UID}
	p.Metadata = doze.PreviewMetadata{
		ResourceName: sb.Metadata.Name, ResourceType: doze.KindSandbox, Workspace: c.Workspace, CreatedAt: now, CreatedBy: c.Sub,
	}
	all, err := s.Store.Previews(ctx, sb.UID, now.Time)
	if err == nil && len(all) >= doze.PreviewsMax {
		err = doze.Errorf(doze.Exhausted, "the sandbox has %d previews, which is the limit: delete one first", len(all))
	}
	if err != nil {
		return doze.Preview{}, err
	}
	return s.writePreview(ctx, r, sb, p, "", body)
}

func (s *Server) updatePreview(ctx context.Context, r *http.Request, body map[string]any) (doze.Preview, error) {
	sb, err := s.Store.Living(ctx, api.Caller(ctx).Workspace, r.PathValue("name"))
	if err != nil {
		return doze.Preview{}, err
	}
	p, err := s.Store.Preview(ctx, sb.UID, r.PathValue("preview"), time.Now())
	if err != nil {
		return doze.Preview{}, err
	}
	return s.writePreview(ctx, r, sb, p, p.Label, body)
}

// writePreview writes what a body makes of p, which had the label old. One
// change of a workspace's previews is made at a time, so that what the edge
// knows is what is recorded.
func (s *Server) writePreview(ctx context.Context, r *http.Request, sb store.Sandbox, p store.Preview, old string, body map[string]any) (doze.Preview, error) {
	name, now := p.Metadata.Name, time.Now()
	wrong := api.Mistakes(ctx)
	set := struct {
		Name        string `json:"name"`
		DisplayName string `json:"displayName"`
	}{p.Metadata.Name, p.Metadata.DisplayName}
	api.Decode(&set, api.Member(body, "metadata", &wrong), "metadata", &wrong)
	api.Decode(&p.Spec, api.Member(body, "spec", &wrong), "spec", &wrong)
	p.Metadata.Name, p.Metadata.DisplayName, p.Spec.URL, p.Spec.Region = set.Name, set.DisplayName, "", ""
	p.Metadata.UpdatedAt, p.Metadata.UpdatedBy = doze.Time{Time: now}, api.Caller(ctx).Sub
	if name != "" && p.Metadata.Name == "" {
		p.Metadata.Name = name
	}
	if name != "" && p.Metadata.Name != name {
		wrong.Add("metadata.name", "cannot be changed: create another preview")
	}
	p.Check(&wrong)
	if at := p.Deadline(); !at.IsZero() && !at.After(now) {
		wrong.Add("spec", "is of a preview that would have ended already")
	}
	if n := len(p.Spec.PrefixURL + "-" + p.Metadata.Workspace); n > doze.LabelMax {
		wrong.Add("spec.prefixUrl", "is too long: with the name of the workspace it is %d bytes, and DNS has room for %d", n, doze.LabelMax)
	}
	p.Spec.CustomDomain = strings.ToLower(p.Spec.CustomDomain)
	if p.Spec.CustomDomain != "" {
		if err := s.verifiedDomain(ctx, p.Metadata.Workspace, p.Spec.CustomDomain); doze.Public(err).Kind == doze.Invalid {
			wrong = append(wrong, doze.Public(err).Message)
		} else if err != nil {
			return doze.Preview{}, err
		}
	}
	if err := wrong.Err(); err != nil {
		return doze.Preview{}, err
	}
	key, err := s.secretKey(ctx)
	if err != nil {
		return doze.Preview{}, err
	}
	p.Label = previewLabel(key, p.Preview)
	var yield func(store.Preview) store.Preview
	if api.Force.In(r.URL.Query()) {
		yield = func(other store.Preview) store.Preview { // it goes on at the address of its name
			other.Spec.PrefixURL = ""
			other.Metadata.UpdatedAt, other.Metadata.UpdatedBy = p.Metadata.UpdatedAt, p.Metadata.UpdatedBy
			other.Label = previewLabel(key, other.Preview)
			return other
		}
	}

	life, release, err := s.locks.Take(ctx, previewLock+p.Metadata.Workspace)
	if err != nil {
		return doze.Preview{}, err
	}
	defer release()
	moved, err := s.Store.PutPreview(life, p, yield, now)
	if err != nil {
		return doze.Preview{}, err
	}
	for _, other := range moved {
		s.Previews.Drop(p.Label, other.ID)
		if err := s.publish(life, other); err != nil {
			return doze.Preview{}, err
		}
		_ = s.stillThere(life, other.UID) // who ended that sandbox asked for it
	}
	if old != "" && old != p.Label {
		s.Previews.Drop(old, p.ID)
	}
	if err := s.publish(life, p); err != nil {
		return doze.Preview{}, err
	}
	s.Recheck()
	return s.shown(sb, p), s.stillThere(life, sb.UID)
}

// stillThere ends the previews of a sandbox that was deleted while one was
// made: what ends after this look ends them itself.
func (s *Server) stillThere(ctx context.Context, uid string) error {
	if sb, err := s.Store.Sandbox(ctx, uid); err != nil || sb.Phase.Ended() {
		s.Unpublish(ctx, uid)
		return doze.Errorf(doze.NotFound, "the sandbox was deleted meanwhile")
	}
	return nil
}

func (s *Server) deletePreview(ctx context.Context, r *http.Request) (doze.Preview, error) {
	sb, err := s.Store.Living(ctx, api.Caller(ctx).Workspace, r.PathValue("name"))
	if err != nil {
		return doze.Preview{}, err
	}
	life, release, err := s.locks.Take(ctx, previewLock+sb.Metadata.Workspace)
	if err != nil {
		return doze.Preview{}, err
	}
	defer release()
	p, err := s.Store.DeletePreview(life, sb.UID, r.PathValue("preview"))
	if err != nil {
		return doze.Preview{}, err
	}
	s.Previews.Drop(p.Label, p.ID)
	s.Recheck()
	return s.shown(sb, p), nil
}

func (s *Server) listPreviewTokens(ctx context.Context, r *http.Request) ([]doze.PreviewToken, error) {
	_, p, err := s.onePreview(ctx, r)
	if err != nil {
		return nil, err
	}
	all, err := s.Store.PreviewTokens(ctx, p.ID)
	list := make([]doze.PreviewToken, len(all))
	for i, t := range all {
		list[i] = t.PreviewToken
		list[i].Spec.Expired = !t.Spec.ExpiresAt.IsZero() && !t.Spec.ExpiresAt.After(time.Now())
	}
	return list, err
}

func (s *Server) createPreviewToken(ctx context.Context, r *http.Request, body map[string]any) (doze.PreviewToken, error) {
	_, p, err := s.onePreview(ctx, r)
	if err != nil {
		return doze.PreviewToken{}, err
	}
	now := time.Now()
	in := struct {
		Name string `json:"name"`
	}{Name: "token"}
	var spec struct {
		ExpiresAt string `json:"expiresAt"`
	}
	var wrong doze.Problems
	api.Decode(&in, api.Member(body, "metadata", &wrong), "metadata", &wrong)
	api.Decode(&spec, api.Member(body, "spec", &wrong), "spec", &wrong)
	doze.CheckName(&wrong, "metadata.name", in.Name)
	t := store.PreviewToken{ID: store.NewID()}
	if spec.ExpiresAt != "" {
		at, err := doze.ParseTime(spec.ExpiresAt)
		if err != nil {
			wrong.Add("spec.expiresAt", "%v", err)
		} else if !at.After(now) {
			wrong.Add("spec.expiresAt", "is in the past: leave it out for a token without an end")
		}
		t.Spec.ExpiresAt = doze.Time{Time: at}
	}
	if err := wrong.Err(); err != nil {
		return doze.PreviewToken{}, err
	}
	t.Metadata = doze.PreviewTokenMetadata{
		Name: in.Name, PreviewName: p.Metadata.Name, ResourceName: p.Metadata.ResourceName, ResourceType: doze.KindSandbox, Workspace: p.Metadata.Workspace,
	}
	t.Spec.Token = access.NewCode(tokenPrefix, t.ID)
	err = s.changeTokens(ctx, p, func(ctx context.Context, all []store.PreviewToken) error {
		if len(all) >= doze.PreviewTokensMax {
			return doze.Errorf(doze.Exhausted, "the preview has %d tokens, which is the limit: delete one first", len(all))
		}
		return s.Store.InsertPreviewToken(ctx, p.ID, t, now)
	})
	return t.PreviewToken, err
}

// changeTokens changes the tokens of a preview, in the records and then at the
// edge.
func (s *Server) changeTokens(ctx context.Context, p store.Preview, change func(context.Context, []store.PreviewToken) error) error {
	life, release, err := s.locks.Take(ctx, previewLock+p.Metadata.Workspace)
	if err != nil {
		return err
	}
	defer release()
	all, err := s.Store.PreviewTokens(life, p.ID)
	if err != nil {
		return err
	}
	if err := change(life, all); err != nil {
		return err
	}
	// Read again: it may have been changed, or deleted, before our turn.
	now, err := s.Store.Preview(life, p.UID, p.Metadata.Name, time.Now())
	if err != nil {
		return err
	}
	return s.publish(life, now)
}

// deletePreviewToken removes the tokens that have a name, or a value.
func (s *Server) deletePreviewToken(ctx context.Context, r *http.Request) (map[string]string, error) {
	_, p, err := s.onePreview(ctx, r)
	if err != nil {
		return nil, err
	}
	err = s.changeTokens(ctx, p, func(ctx context.Context, all []store.PreviewToken) error {
		var ids []string
		for _, t := range all {
			if asked := r.PathValue("token"); t.Metadata.Name == asked || t.Spec.Token == asked {
				ids = append(ids, t.ID)
			}
		}
		if len(ids) == 0 {
			return doze.Errorf(doze.NotFound, "there is no such token")
		}
		return s.Store.DeletePreviewTokens(ctx, ids)
	})
	if err != nil {
		return nil, err
	}
	s.Recheck()
	return map[string]string{"message": "the token is deleted"}, nil
}
