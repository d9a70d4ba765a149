package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/outproxy"
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
	from   name.Registry // that was asked: the one of ref, or its mirror
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
	from, mirrored := ref, false
	if p.login == nil { // credentials are for the registry that the caller named
		var err error
		if from, mirrored, err = p.o.Mirrors.of(ref); err != nil {
			return nil, err
		}
	}
	p.from = from.Context().Registry
	guarded := newGuard(p.o.PrivateRegistries, p.o.Through)
	if mirrored {
		guarded = newGuard(p.o.PrivateRegistries, p.o.Through, p.from)
	}
	return remote.Image(
		from,
		remote.WithContext(ctx),
		remote.WithAuth(who),
		remote.WithTransport(guarded),
		remote.WithPlatform(v1.Platform{OS: "linux", Architecture: runtime.GOARCH}),
		remote.WithUserAgent(userAgent),
	)
}

// A shipment is an image of a registry whose small files are here.
type shipment struct {
	manifest *v1.Manifest
	file     *v1.ConfigFile
	layers   []v1.Layer
}

// open reads what describes the image, and refuses one that cannot be used.
func (p *pull) open(ctx context.Context, l limits) (s shipment, err error) {
	// The image of resolve is tied to a context that has ended. By its digest
	// it is the same one, whatever happened to the tag.
	if p.image, err = p.fetch(ctx, p.ref.Context().Digest(p.digest)); err != nil {
		return s, p.explain(err)
	}
	if s.manifest, err = p.image.Manifest(); err != nil {
		return s, p.explain(err)
	}
	if err := p.weigh(s.manifest, l); err != nil {
		return s, err
	}
	if s.layers, err = p.image.Layers(); err != nil {
		return s, p.explain(err)
	}
	if s.file, err = p.image.ConfigFile(); err != nil {
		return s, p.explain(err)
	}
	return s, p.fits(s.file, s.layers)
}

// download makes the image of a pull. Layers that an earlier pull of the same repository
// brought, lowest first, are taken from there. The others are downloaded.
func (l *Library) download(ctx context.Context, r reference, p *pull, report func(Progress)) (_ Image, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, pullTimeout, errPullTimeout)
	defer cancel()
	s, err := p.open(ctx, l.limits)
	if err != nil {
		return Image{}, err
	}
	c, err := p.config(s.file)
	if err != nil {
		return Image{}, err
	}
	made := record{Image: Image{Ref: r.key, Digest: p.digest, ImageConfig: c.ImageConfig}, Configured: true}
	for _, diff := range s.file.RootFS.DiffIDs {
		made.Layers = append(made.Layers, diff.String())
	}
	under, n, err := l.longest(made.Layers, len(made.Layers), r.shares)
	if err != nil {
		return Image{}, err
	}
	return l.compose(ctx, made, under, n, func(t *rootTree) error { return p.lay(ctx, t, s, n, report) })
}

// lay downloads and applies all layers but the lowest n.
func (p *pull) lay(ctx context.Context, t *rootTree, s shipment, n int, report func(Progress)) error {
	var total, done int64
	for _, d := range s.manifest.Layers[n:] {
		total += d.Size
	}
	all := &stretch{left: expansion(total)}
	for i, layer := range s.layers[n:] {
		report(Progress{Step: fmt.Sprintf("layer %d of %d", n+i+1, len(s.layers)), Percent: int(90 * float64(done) / float64(max(total, 1)))})
		size := s.manifest.Layers[n+i].Size
		if err := lay(ctx, t, layer, s.file.RootFS.DiffIDs[n+i], size, all); err != nil {
			return p.explain(p.refuse(err, n+i+1))
		}
		done += size
	}
	report(Progress{Step: "writing the image", Percent: 95})
	return nil
}

// shares reports whether an image came from the repository of r, with the same
// credentials. Then the registry has shown its layers to the caller.
func (r reference) shares(of record) bool {
	_, mine, _ := strings.Cut(r.key, ownerMark)
	for key := range of.Refs {
		plain, owner, _ := strings.Cut(key, ownerMark)
		known, err := parse(plain)
		if err == nil && known.remote != nil && owner == mine && known.remote.Context().Name() == r.remote.Context().Name() {
			return true
		}
	}
	return false
}

// configure asks the registry for the configuration of the image alone.
func (p *pull) configure(ctx context.Context) (_ config, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, pullTimeout, errPullTimeout)
	defer cancel()
	if p.image, err = p.fetch(ctx, p.ref.Context().Digest(p.digest)); err != nil {
		return config{}, p.explain(err)
	}
	manifest, err := p.image.Manifest()
	if err != nil {
		return config{}, p.explain(err)
	}
	if err := p.weighConfig(manifest); err != nil {
		return config{}, err
	}
	file, err := p.image.ConfigFile()
	if err != nil {
		return config{}, p.explain(err)
	}
	if err := checkConfig(p.ref.String(), file); err != nil {
		return config{}, err
	}
	return p.config(file)
}

// config is what the image says of itself.
func (p *pull) config(file *v1.ConfigFile) (config, error) {
	raw, err := p.image.RawConfigFile()
	if err != nil {
		return config{}, p.explain(err)
	}
	c := configOf(*file)
	c.readRaw(raw)
	c.digest = p.digest
	return c, nil
}

// weigh looks at what a manifest announces, before anything of it is downloaded.
// What has no size is downloaded without a limit and is refused.
func (p *pull) weigh(m *v1.Manifest, l limits) error {
	if n := len(m.Layers); n > l.layers {
		return invalid(p.ref.String(), "%s has %d layers; at most %d are allowed", p.ref, n, l.layers)
	}
	if err := p.weighConfig(m); err != nil {
		return err
	}
	left := l.bytes
	for i, d := range m.Layers {
		if d.Size < 0 {
			return invalid(p.ref.String(), "the manifest of %s has no size for layer %d", p.ref, i+1)
		}
		if d.Size > left {
			return invalid(p.ref.String(), "the layers of %s are larger than %d MB, which is the limit: the operator sets it with --image-max-mb", p.ref, l.bytes>>20)
		}
		left -= d.Size
	}
	return nil
}

// weighConfig is weigh for the configuration alone.
func (p *pull) weighConfig(m *v1.Manifest) error {
	if n := m.Config.Size; n < 0 || n > configBytesMax {
		return invalid(p.ref.String(), "the manifest of %s has a configuration with a size of %d bytes; at most %d are allowed", p.ref, n, configBytesMax)
	}
	return nil
}

// fits looks at what an image says about itself.
func (p *pull) fits(file *v1.ConfigFile, layers []v1.Layer) error {
	if file.OS != "linux" || file.Architecture != runtime.GOARCH {
		return invalid(p.ref.String(), "%s is for %.20s/%.20s, not for linux/%s", p.ref, file.OS, file.Architecture, runtime.GOARCH)
	}
	if len(file.RootFS.DiffIDs) != len(layers) {
		return invalid(p.ref.String(), "the configuration of %s has %d diff_ids for %d layers", p.ref, len(file.RootFS.DiffIDs), len(layers))
	}
	return checkConfig(p.ref.String(), file)
}

// refuse names an image that cannot be used because of one of its layers. The fault is
// in the image, and not in the caller's request or in this host.
func (p *pull) refuse(err error, layer int) error {
	public := doze.Public(err)
	if public.Name != "" || public.Kind != doze.Invalid && public.Kind != doze.TooLarge {
		return err
	}
	return errors.Join(invalid(p.ref.String(), "%s cannot be used: layer %d: %s", p.ref, layer, public.Message), err)
}

// explain says what to do about a registry's error. What a registry wrote is
// for our log only.
func (p *pull) explain(err error) error {
	ref := p.ref
	if _, ok := errors.AsType[*doze.Error](err); ok || err == nil {
		return err
	}
	registry := p.from.RegistryStr()
	refused, answered := errors.AsType[*transport.Error](err)
	fault, proxied := errors.AsType[*outproxy.Error](err)
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, errPrivate):
		return invalid(ref.Name(), "%s is on a private address; an operator can allow private registries in the configuration", registry)
	case errors.Is(err, errPlain):
		return invalid(ref.Name(), "%s does not speak https", registry)
	case proxied:
		return doze.Wrap(err, doze.Unavailable, "the registry %s cannot be reached: %s", registry, fault.Why)
	case slices.ContainsFunc(ours, func(own error) bool { return errors.Is(err, own) }):
		return err
	case !answered && transferred(err):
		return doze.Wrap(err, doze.Unavailable, "the registry %s cannot be reached, or breaks off", registry)
	case !answered:
		return errors.Join(invalid(ref.String(), "what the registry %s has as %s is no image that can be used: push it again", registry, ref), err)
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
// and takes plain HTTP to loopback only. A mirror comes from the operator, and may be on
// any address.
type guard struct{ *http.Transport }

func newGuard(private bool, through *outproxy.Proxy, mirrors ...name.Registry) guard {
	return guard{&http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			trusted := private || slices.ContainsFunc(mirrors, func(m name.Registry) bool { return at(m, address) })
			allowed := func(at netip.Addr) error {
				if !trusted && !public(at) {
					return fmt.Errorf("%w: %s", errPrivate, at)
				}
				return nil
			}
			dialer := &net.Dialer{Timeout: answerTimeout, Control: func(_, address string, _ syscall.RawConn) error {
				at, err := netip.ParseAddrPort(address)
				if err != nil {
					return fmt.Errorf("%w: %s", errPrivate, address)
				}
				return allowed(at.Addr())
			}}
			return through.DialChecked(ctx, dialer, network, address, allowed)
		},
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
	answer, err := g.Transport.RoundTrip(r)
	if err == nil {
		answer.Body = &transfer{answer.Body}
	}
	return answer, err
}

// A transfer is the body of an answer. Its errors say that they are those of the
// network: all others of a layer are those of the layer.
type transfer struct{ io.ReadCloser }

func (t *transfer) Read(b []byte) (int, error) {
	n, err := t.ReadCloser.Read(b)
	if err != nil && !errors.Is(err, io.EOF) { // an unexpected end is another one
		err = &transferError{err}
	}
	return n, err
}

// transferred reports whether an error is one of the way to a registry, and not of
// what came.
func transferred(err error) bool {
	_, asked := errors.AsType[*url.Error](err)
	_, broken := errors.AsType[*transferError](err)
	_, network := errors.AsType[net.Error](err)
	return asked || broken || network
}

type transferError struct{ err error }

func (e *transferError) Error() string { return "transfer: " + e.err.Error() }
func (e *transferError) Unwrap() error { return e.err }

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
