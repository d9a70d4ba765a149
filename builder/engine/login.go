package engine

import (
	"context"
	"slices"

	"github.com/dozehq/doze/internal/buildapi"
	"github.com/moby/buildkit/session/auth"
	"google.golang.org/grpc"
)

// hub are the names of Docker's registry. A login has the first.
var hub = []string{"docker.io", "index.docker.io", "registry-1.docker.io", "https://index.docker.io/v1/"}

// authority answers BuildKit's questions for the credentials of registries.
type authority struct {
	auth.UnimplementedAuthServer // it asks for tokens by itself then
	logins                       map[string]buildapi.Login
}

// logins returns what answers with some logins, by host.
func logins(all map[string]buildapi.Login) *authority {
	byHost := map[string]buildapi.Login{}
	for host, l := range all {
		if slices.Contains(hub, host) {
			host = hub[0]
		}
		byHost[host] = l
	}
	return &authority{logins: byHost}
}

// Register implements session.Attachable.
func (a *authority) Register(s *grpc.Server) { auth.RegisterAuthServer(s, a) }

// Credentials implements [auth.AuthServer]. No login is an empty answer.
func (a *authority) Credentials(_ context.Context, r *auth.CredentialsRequest) (*auth.CredentialsResponse, error) {
	host := r.Host
	if slices.Contains(hub, host) {
		host = hub[0]
	}
	l := a.logins[host]
	return &auth.CredentialsResponse{Username: l.User, Secret: l.Password}, nil
}
