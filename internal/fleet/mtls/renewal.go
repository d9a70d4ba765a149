package mtls

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"log/slog"
	"time"
)

const (
	// renewAt is the part of a life, from its end, in which a node asks for another certificate.
	renewAt = 3
	// steps is how often a certificate is looked at in its life at least. A renewal that does
	// not work is tried again as often.
	steps = 30
	// A new file of a certificate is overlooked for lookMost at most. A renewal that did not
	// work is tried again after retryMost at most.
	lookMost, retryMost = time.Minute, time.Hour
	// complainEvery is how often the log says that a certificate ends.
	complainEvery = 24 * time.Hour
)

// A Signer returns the next certificate of a node, in PEM, for a request in DER (PKCS #10).
type Signer func(ctx context.Context, request []byte) ([]byte, error)

// Renewing is a service. It has new connections use the certificate that is in the files of the
// role. Open ones stay as they are. A node whose certificate has its id asks sign for the next
// one when a third of its life is left. Other roles have no sign. The log says when a
// certificate ends and nobody renews it.
func (i *Identity) Renewing(sign Signer) func(ctx context.Context) error {
	return func(ctx context.Context) error { return i.run(ctx, sign) }
}

func (i *Identity) run(ctx context.Context, sign Signer) error {
	var tried, complained time.Time
	for {
		i.reload(ctx)
		leaf := i.cert.Load().Leaf
		id := nodeID(leaf.DNSNames)
		renewed := sign != nil && id != ""
		if pause := step(leaf, retryMost); renewed && due(leaf, time.Now()) && time.Since(tried) >= pause {
			tried = time.Now()
			if err := i.renew(ctx, id, sign); err != nil && ctx.Err() == nil {
				slog.WarnContext(ctx, "this node gets no new certificate yet", "ends", leaf.NotAfter, "again", pause, "err", err)
			}
		}
		if i.complains(i.cert.Load().Leaf, renewed) && time.Since(complained) >= complainEvery {
			complained = time.Now()
			i.complain(ctx, i.cert.Load().Leaf)
		}
		t := time.NewTimer(step(i.cert.Load().Leaf, lookMost))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return context.Cause(ctx)
		}
	}
}

// step is a part of the life of a certificate, and no longer than most.
func step(leaf *x509.Certificate, most time.Duration) time.Duration {
	return min(most, max(time.Second, leaf.NotAfter.Sub(leaf.NotBefore)/steps))
}

// due reports whether it is time for the next certificate.
func due(leaf *x509.Certificate, now time.Time) bool {
	return leaf.NotAfter.Sub(now) < leaf.NotAfter.Sub(leaf.NotBefore)/renewAt
}

// reload takes up a certificate that somebody put into the files. What is no good certificate
// of the role is not used.
func (i *Identity) reload(ctx context.Context) {
	next, err := load(i.dir, i.role)
	if err == nil && bytes.Equal(next.Leaf.Raw, i.cert.Load().Leaf.Raw) {
		return
	}
	if err == nil {
		err = i.check(next.Leaf)
	}
	if err != nil { // the files may be written just now
		slog.WarnContext(ctx, "the certificate that changed is not used", "role", string(i.role), "err", err)
		return
	}
	i.cert.Store(&next)
	slog.InfoContext(ctx, "new connections have another certificate", "role", string(i.role), "ends", next.Leaf.NotAfter)
}

// renew gets the next certificate of a node, for a key of its own.
func (i *Identity) renew(ctx context.Context, id string, sign Signer) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, renewTimeout)
	defer cancel()
	cert, err := sign(bounded, request)
	if err != nil {
		return err
	}
	if err := certifies(i.pool, id, cert, key); err != nil {
		return err
	}
	if err := replaceNode(i.dir, cert, key); err != nil {
		return err
	}
	i.reload(ctx)
	return nil
}

// renewTimeout bounds a request for a certificate.
const renewTimeout = 10 * time.Second

// complains reports whether an operator has to do something about a certificate.
func (i *Identity) complains(leaf *x509.Certificate, renewed bool) bool {
	left := time.Until(leaf.NotAfter)
	return left <= 0 || !renewed && left < Soon || time.Until(i.root.NotAfter) < Soon
}

func (i *Identity) complain(ctx context.Context, leaf *x509.Certificate) {
	switch {
	case !time.Now().Before(leaf.NotAfter):
		slog.ErrorContext(ctx, "new connections to other roles fail", "err", i.ended(leaf))
	case time.Until(i.root.NotAfter) < Soon:
		slog.WarnContext(ctx, "the authority of certificates ends soon: make another one with dozed certificates in an empty directory, and give all roles their files at the same time", "ends", i.root.NotAfter)
	default:
		slog.WarnContext(ctx, "the certificate of this role ends soon: make new ones with dozed certificates, and copy them to their hosts. Roles take them up by themselves", "role", string(i.role), "ends", leaf.NotAfter)
	}
}

// Ends are when certificates end, by names for metrics. They are that of the role, and at
// control that of the authority. id is that of a node. Other roles have none.
func (i *Identity) Ends(id string) map[string]time.Time {
	name := string(i.role)
	if id != "" {
		name += "/" + id
	}
	ends := map[string]time.Time{name: i.cert.Load().Leaf.NotAfter}
	if i.role == Control {
		ends["roles"] = i.root.NotAfter
	}
	return ends
}
