package tenancy

import (
	"context"
	"maps"
	"net/http"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/api"
)

func (s *Server) listSecrets(ctx context.Context, _ *http.Request) ([]doze.Secret, error) {
	all, err := s.Store.Secrets(ctx, api.Caller(ctx).Workspace)
	list := make([]doze.Secret, len(all))
	for i, sec := range all {
		list[i] = masked(sec)
	}
	return list, err
}

func (s *Server) secret(ctx context.Context, r *http.Request) (doze.Secret, error) {
	sec, err := s.Store.Secret(ctx, api.Caller(ctx).Workspace, r.PathValue("secret"))
	return masked(sec), err
}

func (s *Server) createSecret(ctx context.Context, _ *http.Request, body map[string]any) (doze.Secret, error) {
	c := api.Caller(ctx)
	var sec doze.Secret
	var p doze.Problems
	decodeSecret(&sec, body, &p)
	sec.Check(&p)
	if err := p.Err(); err != nil {
		return sec, err
	}
	all, err := s.Store.Secrets(ctx, c.Workspace)
	if err == nil && len(all) >= doze.SecretsMax {
		err = doze.Errorf(doze.Exhausted, "the workspace has %d secrets, which is the limit: delete one first", len(all))
	}
	if err != nil {
		return doze.Secret{}, err
	}
	api.Stamp(&sec.Metadata, c)
	return masked(sec), s.Store.InsertSecret(ctx, sec)
}

// updateSecret changes a secret. A value that comes back masked stays; sandboxes
// see the others when they get their next machine.
func (s *Server) updateSecret(ctx context.Context, r *http.Request, body map[string]any) (doze.Secret, error) {
	c := api.Caller(ctx)
	sec, err := s.Store.ChangeSecret(ctx, c.Workspace, r.PathValue("secret"), func(sec *doze.Secret) error {
		var p doze.Problems
		name, was := sec.Metadata.Name, maps.Clone(sec.Data)
		decodeSecret(sec, body, &p)
		api.SameName(&sec.Metadata, name, "secret", &p)
		for k, v := range sec.Data {
			old, there := was[k]
			switch {
			case v != doze.MaskedValue:
			case there:
				sec.Data[k] = old
			default:
				p.Add("data", "has the masked value of %q, of which no value is stored", api.Clip(k))
			}
		}
		sec.Metadata.UpdatedAt, sec.Metadata.UpdatedBy = doze.Time{Time: time.Now()}, c.Sub
		sec.Check(&p)
		return p.Err()
	})
	return masked(sec), err
}

func (s *Server) deleteSecret(ctx context.Context, r *http.Request) (doze.Secret, error) {
	sec, err := s.Store.DeleteSecret(ctx, api.Caller(ctx).Workspace, r.PathValue("secret"))
	return masked(sec), err
}

// decodeSecret writes a body onto a secret.
func decodeSecret(sec *doze.Secret, body map[string]any, p *doze.Problems) {
	api.DecodeMetadata(&sec.Metadata, body, p)
	in := struct {
		Data map[string]string `json:"data"`
	}{sec.Data}
	api.Decode(&in, body, "", p)
	sec.Data = in.Data
}

// masked is a secret as callers see it.
func masked(sec doze.Secret) doze.Secret {
	data := map[string]string{}
	for k := range sec.Data {
		data[k] = doze.MaskedValue
	}
	sec.Data = data
	return sec
}
