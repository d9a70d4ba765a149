package doze

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// PullSecretKey is the key of a secret under which credentials for registries
// are, in the form of a Docker configuration; so it is in Kubernetes.
const PullSecretKey = ".dockerconfigjson" //nolint:gosec // G101: the name of a key

// RegistryLogin are credentials for a registry.
type RegistryLogin struct{ Username, Password string }

// ParsePullSecret reads {"auths": {"<registry>[/<path>]": {"auth": base64 of
// user:password}}}, or username and password in place of auth.
func ParsePullSecret(text string) (map[string]RegistryLogin, error) {
	var in struct {
		Auths map[string]struct {
			Auth     string `json:"auth"`
			Username string `json:"username"`
			Password string `json:"password"`
		} `json:"auths"`
	}
	if err := json.Unmarshal([]byte(text), &in); err != nil || len(in.Auths) == 0 {
		return nil, errors.New(`must be like {"auths":{"registry.example.com":{"username":"…","password":"…"}}}`)
	}
	all := map[string]RegistryLogin{}
	for place, a := range in.Auths {
		login := RegistryLogin{a.Username, a.Password}
		if a.Auth != "" {
			plain, err := base64.StdEncoding.DecodeString(a.Auth)
			user, password, ok := strings.Cut(string(plain), ":")
			if err != nil || !ok {
				return nil, fmt.Errorf("has an auth for %q that is not the base64 of user:password", clip(place))
			}
			login = RegistryLogin{user, password}
		}
		if login.Username == "" || login.Password == "" {
			return nil, fmt.Errorf("has no username and password for %q", clip(place))
		}
		all[registryPlace(place)] = login
	}
	return all, nil
}

// registryPlace is a registry as references spell it. Docker's configuration
// has the addresses of its first interface too.
func registryPlace(place string) string {
	place = strings.TrimPrefix(strings.TrimPrefix(place, "https://"), "http://")
	place = strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(place, "/"), "/v1"), "/v2")
	if host, path, _ := strings.Cut(place, "/"); host == "docker.io" || host == "registry-1.docker.io" {
		return strings.TrimSuffix("index.docker.io/"+path, "/")
	}
	return place
}

// Registry is the registry and path of an image reference, without its tag or
// digest; registry is empty for one that names none.
func Registry(ref string) (registry, path string) {
	ref, _, _ = strings.Cut(ref, "@")
	registry, path, ok := strings.Cut(ref, "/")
	if !ok || registry != "localhost" && !strings.ContainsAny(registry, ".:") {
		return "", ref
	}
	path, _, _ = strings.Cut(path, ":")
	return registry, path
}

// LoginFor is the one of the credentials that is for an image reference: that of
// the longest path. ok is false if there is none.
func LoginFor(all map[string]RegistryLogin, ref string) (login RegistryLogin, ok bool) {
	registry, path := Registry(ref)
	if registry == "" {
		return login, false
	}
	for place := registryPlace(registry + "/" + path); ; {
		if login, ok = all[place]; ok {
			return login, true
		}
		at := strings.LastIndexByte(place, '/')
		if at < 0 {
			return login, false
		}
		place = place[:at]
	}
}
