// Package certificate gets certificates from an authority that speaks ACME
// (RFC 8555), for the names that it is told are ours, when somebody first asks
// for one by that name. It keeps them in [Files], and renews them.
//
// What must always hold: nothing is got, loaded or served for a name that is
// not ours at that moment.
package certificate

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/certmagic"
	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"github.com/dozehq/doze"
)

const (
	// LetsEncrypt is the directory of the authority that we ask unless another
	// one is chosen.
	LetsEncrypt = certmagic.LetsEncryptProductionCA
	// refusalsRetention is how long after the last pause a name starts afresh.
	refusalsRetention = time.Hour
	// newMax certificates of one domain are got at once, and then one each
	// newEvery. Names below a domain with a fallback can be made up by anybody,
	// and authorities give 50 certificates of a domain in a week.
	newMax   = 20
	newEvery = time.Hour
	// cacheMax is how many are held in memory, at about 10 KB.
	cacheMax = 10_000
	// cleanEvery and cleanAfter are when certificates that ended are removed.
	cleanEvery = 24 * time.Hour
	cleanAfter = 14 * 24 * time.Hour
)

// pauses are how long we ask for no certificate of a name after one refusal of the
// authority, after two, and after more. Authorities count refusals, and allow 5 in an
// hour.
var pauses = [...]time.Duration{10 * time.Second, time.Minute, 20 * time.Minute}

// refusals are those of one name.
type refusals struct {
	count int
	until time.Time // when we ask again
}

// Config is what an Issuer works with.
type Config struct {
	Files     Files          // where certificates are kept
	Directory string         // URL of the authority
	Roots     *x509.CertPool // whom to believe that it is the authority; nil are those of the host
	Email     string         // where the authority writes when something is wrong; may be empty
	Listen    string         // the address that our TLS is served on: challenges come there
	// ListenHTTP is the address that [Issuer.Challenges] is served on, or empty.
	ListenHTTP string
	// Ours reports whether a name is ours, and the domain that it belongs to.
	// It must not block.
	Ours func(name string) (domain string, ok bool)
}

// Issuer gets certificates. It is safe for concurrent use.
type Issuer struct {
	ours    func(name string) (domain string, ok bool)
	storage *storage
	cache   *certmagic.Cache
	magic   *certmagic.Config
	acme    *certmagic.ACMEIssuer

	mu      sync.Mutex
	refused map[string]refusals      // guarded by mu; by name
	recent  map[string]*rate.Limiter // guarded by mu; new certificates, by domain
	given   map[string]bool          // guarded by mu; names that clients got a certificate for
}

// New returns an issuer. [Issuer.Run] belongs to it.
func New(c Config) (*Issuer, error) {
	host, port, err := listening(c.Listen)
	if err != nil {
		return nil, err
	}
	i := &Issuer{ours: c.Ours, storage: newStorage(c.Files), refused: map[string]refusals{}, recent: map[string]*rate.Limiter{}, given: map[string]bool{}}
	quiet := zap.NewNop() // what matters are events
	i.cache = certmagic.NewCache(certmagic.CacheOptions{
		GetConfigForCert: func(certmagic.Certificate) (*certmagic.Config, error) { return i.magic, nil },
		Capacity:         cacheMax, Logger: quiet,
	})
	i.magic = certmagic.New(i.cache, certmagic.Config{
		Storage: i.storage, Logger: quiet, OnEvent: i.heed,
		OnDemand: &certmagic.OnDemandConfig{DecisionFunc: i.decide},
		OCSP:     certmagic.OCSPConfig{DisableStapling: true},
	})
	template := certmagic.ACMEIssuer{
		CA: c.Directory, Email: c.Email, Agreed: true, TrustedRoots: c.Roots, Logger: quiet,
		// This process answers all challenges. The library makes listeners of its own
		// only where nobody listens.
		DisableDistributedSolvers: true, ListenHost: host, AltTLSALPNPort: port, DisableHTTPChallenge: true,
	}
	if c.ListenHTTP != "" {
		if _, template.AltHTTPPort, err = listening(c.ListenHTTP); err != nil {
			return nil, err
		}
		template.DisableHTTPChallenge = false
	}
	i.acme = certmagic.NewACMEIssuer(i.magic, template)
	i.magic.Issuers = []certmagic.Issuer{once{i.acme}}
	return i, nil
}

// once asks the authority once. The library would have a client wait for its
// next tries, of which the first comes after a minute.
type once struct{ *certmagic.ACMEIssuer }

// Issue implements [certmagic.Issuer].
func (o once) Issue(ctx context.Context, csr *x509.CertificateRequest) (*certmagic.IssuedCertificate, error) {
	issued, err := o.ACMEIssuer.Issue(ctx, csr)
	if err != nil {
		return nil, certmagic.ErrNoRetry{Err: err}
	}
	return issued, nil
}

func listening(address string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(address)
	if err == nil {
		port, err = strconv.Atoi(text)
	}
	return host, port, err
}

// TLS returns the configuration of a listener. Connections that name nobody,
// or somebody else, end.
func (i *Issuer) TLS() *tls.Config {
	c := i.magic.TLSConfig() // knows the protocol of challenges
	c.MinVersion, c.GetCertificate = tls.VersionTLS12, i.certificate
	return c
}

// certificate is that of the name in hello, or the answer to a challenge of
// the authority. The library asks decide only for what is not in its memory.
func (i *Issuer) certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	name := strings.ToLower(hello.ServerName)
	if err := i.decide(hello.Context(), name); err != nil {
		return nil, err
	}
	got, err := i.magic.GetCertificate(hello)
	if err == nil {
		i.note(name)
	}
	return got, err
}

// note remembers that a client got a certificate for a name.
func (i *Issuer) note(name string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(i.given) < cacheMax {
		i.given[name] = true
	}
}

// End is when the first of the certificates ends that clients got since the start. It is
// zero without one. Names that are no longer ours do not count.
func (i *Issuer) End() (first time.Time) {
	i.mu.Lock()
	names := slices.Collect(maps.Keys(i.given))
	i.mu.Unlock()
	for _, name := range names {
		var last time.Time // of a name: the old one is held for a moment after its renewal
		if _, ok := i.ours(name); ok {
			for _, c := range i.cache.AllMatchingCertificates(name) {
				if c.Leaf != nil && c.Leaf.NotAfter.After(last) {
					last = c.Leaf.NotAfter
				}
			}
		}
		if last.IsZero() {
			i.mu.Lock()
			delete(i.given, name)
			i.mu.Unlock()
			continue
		}
		if first.IsZero() || last.Before(first) {
			first = last
		}
	}
	return first
}

// Challenges answers those of the authority that come by plain HTTP, and
// leaves the rest to next.
func (i *Issuer) Challenges(next http.Handler) http.Handler { return i.acme.HTTPChallengeHandler(next) }

// Run removes what has ended, now and then, until ctx ends.
func (i *Issuer) Run(ctx context.Context) error {
	defer i.cache.Stop()
	ticker := time.NewTicker(cleanEvery)
	defer ticker.Stop()
	for {
		err := certmagic.CleanStorage(ctx, i.storage, certmagic.CleanStorageOptions{
			Logger: zap.NewNop(), ExpiredCerts: true, ExpiredCertGracePeriod: cleanAfter,
		})
		if err != nil && ctx.Err() == nil {
			slog.WarnContext(ctx, "certificates that ended are not removed yet", "err", err)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
		}
	}
}

// decide is asked before a certificate is got, loaded or renewed.
func (i *Issuer) decide(_ context.Context, name string) error {
	if _, ok := i.ours(name); !ok {
		return doze.Errorf(doze.NotFound, "%s is not a name of ours", name)
	}
	return nil
}

// heed is told what the library does. An error ends what is only about to be
// done.
func (i *Issuer) heed(ctx context.Context, event string, data map[string]any) error {
	name, _ := data["identifier"].(string)
	renewal, _ := data["renewal"].(bool)
	switch event {
	case "cert_obtaining":
		if err := i.admit(name, renewal, time.Now()); err != nil {
			slog.WarnContext(ctx, "no certificate is asked for", "host", name, "renewal", renewal, "err", err)
			return certmagic.ErrNoRetry{Err: err}
		}
	case "cert_obtained":
		i.mu.Lock()
		delete(i.refused, name)
		i.mu.Unlock()
		slog.InfoContext(ctx, "got a certificate", "host", name, "renewal", renewal)
	case "cert_failed":
		again := i.refuse(name, time.Now())
		slog.WarnContext(ctx, "got no certificate", "host", name, "renewal", renewal, "again_after", again, "err", data["error"])
	}
	return nil
}

// refuse notes a refusal, and returns for how long we do not ask again.
func (i *Issuer) refuse(name string, now time.Time) time.Duration {
	i.mu.Lock()
	defer i.mu.Unlock()
	r := i.refused[name]
	pause := pauses[min(r.count, len(pauses)-1)]
	i.refused[name] = refusals{count: r.count + 1, until: now.Add(pause)}
	return pause
}

// admit decides whether the authority may be asked for a certificate now.
func (i *Issuer) admit(name string, renewal bool, now time.Time) error {
	domain, ok := i.ours(name)
	if !ok {
		return doze.Errorf(doze.NotFound, "%s is not a name of ours", name)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	// What is over is forgotten: both maps would only grow.
	maps.DeleteFunc(i.refused, func(_ string, r refusals) bool { return now.After(r.until.Add(refusalsRetention)) })
	maps.DeleteFunc(i.recent, func(_ string, l *rate.Limiter) bool { return l.TokensAt(now) >= newMax })
	if until := i.refused[name].until; now.Before(until) {
		return doze.Errorf(doze.Unavailable, "there was no certificate for %s: we ask again in %s", name, until.Sub(now).Round(time.Second))
	}
	if renewal {
		return nil
	}
	limit, ok := i.recent[domain]
	if !ok {
		limit = rate.NewLimiter(rate.Every(newEvery), newMax)
		i.recent[domain] = limit
	}
	if !limit.AllowN(now, 1) {
		return fmt.Errorf("%s had %d new certificates lately: there is one more each %s", domain, newMax, newEvery)
	}
	return nil
}
