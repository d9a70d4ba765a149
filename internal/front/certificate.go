package front

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// certificateCheck is how often we look whether the files of a certificate
// changed: tools that renew it do so days before its end.
const certificateCheck = time.Minute

// A pair is a certificate and its key in files, which others replace.
type pair struct {
	cert, key string

	mu      sync.Mutex
	loaded  *tls.Certificate // guarded by mu
	version string           // guarded by mu; of the files that were loaded
	checked time.Time        // guarded by mu
}

// openPair loads the certificate and its key from files in the form of
// PEM.
func openPair(cert, key string) (*pair, error) {
	p := &pair{cert: cert, key: key}
	version, err := p.current()
	if err != nil {
		return nil, fmt.Errorf("certificate: %w", err)
	}
	loaded, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("certificate: %w", err)
	}
	p.loaded, p.version, p.checked = &loaded, version, time.Now()
	return p, nil
}

// current tells versions of the files apart.
func (p *pair) current() (version string, err error) {
	for _, name := range []string{p.cert, p.key} {
		info, err := os.Stat(name)
		if err != nil {
			return "", err
		}
		version += fmt.Sprint(info.ModTime().UnixNano(), info.Size(), ";")
	}
	return version, nil
}

// get returns the certificate, anew if its files changed. If they cannot be
// loaded, perhaps because only one of the two is new yet, the one before stays.
func (p *pair) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	now := time.Now()
	p.mu.Lock()
	loaded, version, look := p.loaded, p.version, now.Sub(p.checked) >= certificateCheck
	if look {
		p.checked = now // one connection looks, the others go on
	}
	p.mu.Unlock()
	if !look {
		return loaded, nil
	}
	newer, err := p.current()
	if err == nil && newer == version {
		return loaded, nil
	}
	var renewed tls.Certificate
	if err == nil {
		renewed, err = tls.LoadX509KeyPair(p.cert, p.key)
	}
	if err != nil {
		slog.Error("the certificate that changed is not used", "err", err)
		return loaded, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.loaded, p.version = &renewed, newer
	return &renewed, nil
}

// end is when the certificate that is loaded ends.
func (p *pair) end() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.loaded.Leaf.NotAfter
}

// orElse returns the certificate of the files for the names in it, and for callers
// who name nobody. It asks other for the rest.
func (p *pair) orElse(other func(*tls.ClientHelloInfo) (*tls.Certificate, error)) func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		ours, err := p.get(hello)
		if err == nil && (hello.ServerName == "" || ours.Leaf.VerifyHostname(hello.ServerName) == nil) {
			return ours, nil
		}
		return other(hello)
	}
}
