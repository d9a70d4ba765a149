package disk

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"slices"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"doze"
)

const (
	// pullTimeout ends a pull from a registry that sends, but hardly anything.
	pullTimeout = 30 * time.Minute
	// answerTimeout is how long a registry may think, and a connection take.
	answerTimeout = 30 * time.Second
	// configBytesMax bounds what an image says about itself.
	configBytesMax = 4 << 20
	userAgent      = "doze"
)

// A pull is an image of a registry whose manifest is here.
type pull struct {
	image  v1.Image
	ref    name.Reference
	login  *Login
	digest string // of the manifest for this kind of machine
	o      Options
}

// resolve asks the registry what a reference means now.
func (l *Library) resolve(ctx context.Context, r reference) (*pull, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, pullTimeout, errPullTimeout)
	defer cancel()
	p := &pull{ref: r.remote, login: r.login, o: l.o}
	var err error
	if p.image, err = p.fetch(ctx, p.ref); err != nil {
		return nil, p.explain(err)
	}
	digest, err := p.image.Digest()
	if err != nil {
		return nil, p.explain(err)
	}
	p.digest = digest.String()
	return p, nil
}

var errPullTimeout = doze.Errorf(doze.Timeout, "the registry took longer than %v to send the image", pullTimeout)

func (p *pull) fetch(ctx context.Context, ref name.Reference) (v1.Image, error) {
	who := authn.Anonymous
	if p.login != nil {
		who = &authn.Basic{Username: p.login.Username, Password: p.login.Password}
	}
	return remote.Image(
		ref,
		remote.WithContext(ctx),
		remote.WithAuth(who),
		remote.WithTransport(newGuard(p.o.PrivateRegistries)),
		remote.WithPlatform(v1.Platform{OS: "linux", Architecture: runtime.GOARCH}),
		remote.WithUserAgent(userAgent),
	)
}

// unpack downloads the layers and applies them, lowest first.
func (p *pull) unpack(ctx context.Context, dir string, l limits, report func(Progress)) (_ config, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, pullTimeout, errPullTimeout)
	defer cancel()
	// The image of resolve is tied to a context that has ended. By its digest
	// it is the same one, whatever happened to the tag.
	if p.image, err = p.fetch(ctx, p.ref.Context().Digest(p.digest)); err != nil {
		return config{}, p.explain(err)
	}
	manifest, err := p.image.Manifest()
	if err != nil {
		return config{}, p.explain(err)
	}
	if n := manifest.Config.Size; n > configBytesMax {
		return config{}, invalid(p.ref.String(), "the configuration of %s is %d bytes long", p.ref, n)
	}
	layers, err := p.image.Layers()
	if err != nil {
		return config{}, p.explain(err)
	}
	if len(layers) > l.layers {
		return config{}, doze.Errorf(doze.TooLarge, "%s has %d layers; at most %d are allowed", p.ref, len(layers), l.layers)
	}
	file, err := p.image.ConfigFile()
	if err != nil {
		return config{}, p.explain(err)
	}
	if file.OS != "linux" || file.Architecture != runtime.GOARCH {
		return config{}, invalid(p.ref.String(), "%s is for %.20s/%.20s, not for linux/%s", p.ref, file.OS, file.Architecture, runtime.GOARCH)
	}

	tree, err := openTree(dir, l)
	if err != nil {
		return config{}, err
	}
	defer func() { err = errors.Join(err, tree.Close()) }()
	var total, done int64
	for _, d := range manifest.Layers {
		total += max(d.Size, 1)
	}
	for i, layer := range layers {
		report(Progress{Step: fmt.Sprintf("layer %d of %d", i+1, len(layers)), Percent: int(90 * done / max(total, 1))})
		if err := lay(ctx, tree, layer); err != nil {
			return config{}, p.explain(err)
		}
		done += max(manifest.Layers[i].Size, 1)
	}
	c := file.Config
	return config{env: c.Env, user: c.User, workDir: c.WorkingDir, digest: p.digest}, nil
}

// lay applies one layer. Its reader fails if the bytes are not those of its
// digest.
func lay(ctx context.Context, tree *rootTree, layer v1.Layer) error {
	content, err := layer.Uncompressed()
	if err != nil {
		return err
	}
	defer func() { _ = content.Close() }()
	return tree.apply(ctx, content)
}

// explain says what to do about a registry's error. What a registry wrote is
// for our log only.
func (p *pull) explain(err error) error {
	ref := p.ref
	if _, ok := errors.AsType[*doze.Error](err); ok {
		return err
	}
	registry := ref.Context().RegistryStr()
	refused, answered := errors.AsType[*transport.Error](err)
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, errPrivate):
		return invalid(ref.Name(), "%s is on a private address; an operator can allow private registries in the configuration", registry)
	case errors.Is(err, errPlain):
		return invalid(ref.Name(), "%s does not speak https", registry)
	case !answered:
		return doze.Wrap(err, doze.Unavailable, "the registry %s cannot be reached, or its answer makes no sense", registry)
	}
	switch refused.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden:
		says := "%s wants credentials for %s, or there is no such image: put credentials into the workspace, as a secret with the key " + doze.PullSecretKey
		if p.login != nil {
			says = "%s refuses the credentials for %s, or there is no such image: look at the secrets with the key " + doze.PullSecretKey
		}
		return errors.Join(invalid(ref.String(), says, registry, ref), refused)
	case http.StatusNotFound:
		return errors.Join(invalid(ref.String(), "%s has no image %s for linux/%s", registry, ref, runtime.GOARCH), refused)
	case http.StatusTooManyRequests:
		return doze.Wrap(err, doze.Unavailable, "%s asks to come back later: it had too many requests", registry)
	}
	return doze.Wrap(err, doze.Unavailable, "the registry %s answered with status %d", registry, refused.StatusCode)
}

var (
	errPrivate = errors.New("the address is not a public one")
	errPlain   = errors.New("plain http is for loopback only")
)

// A guard carries requests to registries. References come from callers and
// redirects from strangers, so it looks at each address that it connects to,
// and takes plain HTTP to loopback only.
type guard struct{ *http.Transport }

func newGuard(private bool) guard {
	dialer := &net.Dialer{Timeout: answerTimeout}
	if !private {
		dialer.Control = func(_, address string, _ syscall.RawConn) error {
			at, err := netip.ParseAddrPort(address)
			if err != nil || !public(at.Addr()) {
				return fmt.Errorf("%w: %s", errPrivate, address)
			}
			return nil
		}
	}
	return guard{&http.Transport{
		DialContext:           dialer.DialContext,
		ForceAttemptHTTP2:     true,
		TLSHandshakeTimeout:   answerTimeout,
		ResponseHeaderTimeout: answerTimeout,
		DisableKeepAlives:     true, // a pull is a handful of requests; then nobody has to close the rest
	}}
}

// RoundTrip is [http.Transport.RoundTrip] without plain HTTP to others.
func (g guard) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" && !loopback(r.URL.Hostname()) {
		return nil, fmt.Errorf("%w: %s", errPlain, r.URL.Host)
	}
	return g.Transport.RoundTrip(r)
}

func loopback(host string) bool {
	at, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && at.IsLoopback()
}

// special are the networks that are not the public internet, and those that
// carry an IPv4 address inside, which could be any of the others.
var special = func() (all []netip.Prefix) {
	for _, s := range []string{
		"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
		"192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15",
		"198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
		"::/8", "64:ff9b::/32", "100::/64", "2001::/23", "2001:db8::/32", "2002::/16", "fc00::/7", "fe80::/9", "ff00::/8",
	} {
		all = append(all, netip.MustParsePrefix(s))
	}
	return all
}()

func public(at netip.Addr) bool {
	at = at.Unmap()
	return at.IsValid() && !slices.ContainsFunc(special, func(p netip.Prefix) bool { return p.Contains(at) })
}
