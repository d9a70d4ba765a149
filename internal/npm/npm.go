// Package npm gets packages of an npm registry, each of which is pinned by its sum.
package npm

import (
	"context"
	"crypto/sha512"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path"
	"strings"
	"time"

	"github.com/dozehq/doze"
)

// Default is the registry of a host whose npm names no other.
const Default = "https://registry.npmjs.org"

const (
	// bytesMax is what a package may have, compressed. Those with a program have 50 MB.
	bytesMax = 256 << 20
	// fetchTime ends a download of a registry that sends, but hardly anything.
	fetchTime = 10 * time.Minute
	// answerTime is how long a registry may think.
	answerTime = 30 * time.Second
	// attempts is how often a package is asked for. Registries break off now and then.
	attempts = 3
	// configTime is how long the search for the registry may take.
	configTime = 20 * time.Second
	// authoritiesMax is what authorities may have that a build is given as a secret. All
	// authorities of a system are more: then the one of the registry is looked for.
	authoritiesMax = 48 << 10
	// bundleMax bounds the file of authorities.
	bundleMax = 4 << 20
)

// A Registry is where packages come from.
type Registry struct {
	URL string // without a slash at its end
	// Authorities are certificate authorities besides those of the system that vouch for
	// the registry, in PEM: what the cafile of npm says. Most hosts have none.
	Authorities []byte
}

// A Package is one version of a package, for ever the same.
type Package struct {
	Name, Version string
	// Integrity is the sum of its archive, as in a package-lock.json: sha512- and base64.
	Integrity string
}

// Find returns the registry that this host uses: that of NPM_CONFIG_REGISTRY, or of
// npm, if it is installed, or [Default].
func Find(ctx context.Context) Registry {
	ctx, cancel := context.WithTimeout(ctx, configTime)
	defer cancel()
	var set struct {
		Registry string `json:"registry"`
		CAFile   string `json:"cafile"`
	}
	if program, err := exec.LookPath("npm"); err == nil {
		cmd := exec.CommandContext(ctx, program, "config", "list", "--json") //nolint:gosec // G204: the npm of this host, with constant arguments
		cmd.Dir = "/"                                                        // the configuration of no project
		cmd.Env = environment()
		out, err := cmd.Output()
		if err == nil {
			err = json.Unmarshal(out, &set)
		}
		if err != nil {
			slog.Warn("npm does not say which registry it uses", "registry", Default, "err", err)
		}
	}
	if named := os.Getenv("NPM_CONFIG_REGISTRY"); named != "" { //nolint:forbidigo // a setting of npm, which has its own name
		set.Registry = named
	}
	r := Registry{URL: strings.TrimRight(set.Registry, "/")}
	if u, err := url.Parse(r.URL); err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		r.URL = Default
	}
	if set.CAFile != "" {
		if err := r.believe(ctx, set.CAFile); err != nil {
			slog.Warn("the authorities of npm cannot be used", "cafile", set.CAFile, "err", err)
		}
	}
	return r
}

// believe sets the authorities: those of a file, or the one of them that vouches for the
// registry, if they are many.
func (r *Registry) believe(ctx context.Context, file string) error {
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	if info.Size() > bundleMax {
		return doze.Errorf(doze.Invalid, "it has more than %d MB", bundleMax>>20)
	}
	all, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if len(all) <= authoritiesMax {
		r.Authorities = all
		return nil
	}
	client, err := Registry{Authorities: all}.client()
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodHead, r.URL+"/", nil)
	if err != nil {
		return err
	}
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }() // there is none
	if answer.TLS == nil || len(answer.TLS.VerifiedChains) == 0 {
		return nil // plain HTTP has no authority
	}
	chain := answer.TLS.VerifiedChains[0]
	r.Authorities = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: chain[len(chain)-1].Raw})
	return nil
}

// environment is that of this process, with a home: services often have none.
func environment() []string {
	env := os.Environ()
	if os.Getenv("HOME") == "" { //nolint:forbidigo // what npm reads, and not a setting of ours
		env = append(env, "HOME=/root")
	}
	return env
}

// Config returns what an npmrc says to use the registry, where the authorities are in
// the file. Without authorities it names no file.
func (r Registry) Config(authorities string) string {
	config := "registry=" + r.URL + "/\nupdate-notifier=false\n"
	if len(r.Authorities) > 0 {
		config += "cafile=" + authorities + "\n"
	}
	return config
}

// Fetch writes the archive of a package to a file that does not exist, and compares its
// sum. On an error there is no file.
func (r Registry) Fetch(ctx context.Context, p Package, file string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, fetchTime, doze.Errorf(doze.Timeout, "the registry %s took longer than %v to send %s", r.URL, fetchTime, p.Name))
	defer cancel()
	client, err := r.client()
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	for try := 1; ; try++ {
		err = r.fetch(ctx, client, p, file)
		if err == nil || try == attempts || !again(err) {
			break
		}
		select {
		case <-time.After(time.Duration(try) * time.Second):
		case <-ctx.Done():
		}
	}
	if stopped := context.Cause(ctx); err != nil && stopped != nil {
		return stopped
	}
	return err
}

// again reports whether the same request may have another answer.
func again(err error) bool {
	return doze.Public(err).Kind == doze.Unavailable
}

func (r Registry) client() (*http.Client, error) {
	transport, ok := http.DefaultTransport.(*http.Transport)
	if !ok {
		return nil, doze.Errorf(doze.Internal, "the default transport is a %T", http.DefaultTransport)
	}
	transport = transport.Clone()
	transport.ResponseHeaderTimeout = answerTime
	if len(r.Authorities) > 0 {
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		pool.AppendCertsFromPEM(r.Authorities)
		transport.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool}
	}
	return &http.Client{Transport: transport}, nil
}

func (r Registry) fetch(ctx context.Context, client *http.Client, p Package, file string) (err error) {
	at := fmt.Sprintf("%s/%s/-/%s-%s.tgz", r.URL, p.Name, path.Base(p.Name), p.Version)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return fmt.Errorf("ask for %s: %w", p.Name, err)
	}
	answer, err := client.Do(request)
	if err != nil {
		return doze.Wrap(err, doze.Unavailable, "cannot reach the npm registry %s: set NPM_CONFIG_REGISTRY to one that this host reaches", r.URL)
	}
	defer func() { _ = answer.Body.Close() }() // it was read
	if answer.StatusCode != http.StatusOK {
		kind := doze.Invalid
		if answer.StatusCode >= http.StatusInternalServerError || answer.StatusCode == http.StatusTooManyRequests {
			kind = doze.Unavailable
		}
		return doze.Errorf(kind, "the npm registry %s answered with status %d to a request for %s@%s", r.URL, answer.StatusCode, p.Name, p.Version)
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("write %s: %w", p.Name, err)
	}
	defer func() {
		err = errors.Join(err, f.Close())
		if err != nil {
			err = errors.Join(err, os.Remove(file))
		}
	}()
	sum := sha512.New()
	n, err := io.Copy(io.MultiWriter(f, sum), io.LimitReader(answer.Body, bytesMax+1))
	switch got := "sha512-" + base64.StdEncoding.EncodeToString(sum.Sum(nil)); {
	case err != nil:
		return doze.Wrap(err, doze.Unavailable, "the npm registry %s broke off while it sent %s", r.URL, p.Name)
	case n > bytesMax:
		return doze.Errorf(doze.TooLarge, "%s@%s of the npm registry %s is larger than %d MB", p.Name, p.Version, r.URL, bytesMax>>20)
	case got != p.Integrity:
		return doze.Errorf(doze.Invalid, "%s@%s of the npm registry %s has the sum %s, not %s", p.Name, p.Version, r.URL, got, p.Integrity)
	}
	return nil
}
