package disk

import (
	"fmt"
	"net"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
)

// Mirrors are the repositories that images of registries are pulled from instead, by the
// name of the registry. They come from the operator, and may be on private addresses.
type Mirrors map[string]string

// ParseMirrors reads pairs such as docker.io=mirror.example.com/docker.
func ParseMirrors(pairs []string) (Mirrors, error) {
	all := Mirrors{}
	for _, pair := range pairs {
		of, to, ok := strings.Cut(pair, "=")
		registry, err := name.NewRegistry(of, name.StrictValidation)
		if !ok || err != nil || of == "" {
			return nil, fmt.Errorf("%q is no pair such as docker.io=mirror.example.com/docker", pair)
		}
		host, _, _ := strings.Cut(to, "/")
		if _, err := name.NewRepository(to+"/a", name.StrictValidation); err != nil || !hostForm.MatchString(host) || !strings.ContainsAny(host, ".:") && host != "localhost" {
			return nil, fmt.Errorf("%q is no mirror: write a host, and a path if it has one, without https://", to)
		}
		if _, twice := all[registry.RegistryStr()]; twice {
			return nil, fmt.Errorf("%s has two mirrors: choose one", of)
		}
		all[registry.RegistryStr()] = to
	}
	return all, nil
}

// of returns where the image of a reference is pulled from, and whether that is a mirror.
func (m Mirrors) of(ref name.Reference) (name.Reference, bool, error) {
	to, ok := m[ref.Context().RegistryStr()]
	if !ok {
		return ref, false, nil
	}
	sign := ":"
	if _, pinned := ref.(name.Digest); pinned {
		sign = "@"
	}
	there, err := name.ParseReference(to + "/" + ref.Context().RepositoryStr() + sign + ref.Identifier())
	return there, true, err
}

// Mirrored returns the full reference of the image of a name, and its registry, if images
// of that come from a mirror. The name is as a Dockerfile has it.
func (l *Library) Mirrored(image string) (ref, registry string, ok bool) {
	parsed, err := name.ParseReference(image)
	if err != nil {
		return "", "", false // who pulls it says why
	}
	registry = parsed.Context().RegistryStr()
	if _, ok = l.o.Mirrors[registry]; !ok {
		return "", "", false
	}
	if registry == name.DefaultRegistry {
		registry = "docker.io"
	}
	return parsed.Name(), registry, true
}

// at reports whether host:port is a registry's, whose name may have no port.
func at(registry name.Registry, address string) bool {
	host, _, err := net.SplitHostPort(address)
	return err == nil && (address == registry.RegistryStr() || host == registry.RegistryStr())
}
