package main

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

// files are those of a certificate, which others replace.
type files struct {
	cert, key string

	mu      sync.Mutex
	loaded  *tls.Certificate // guarded by mu
	version string           // guarded by mu; of the files that were loaded
	checked time.Time        // guarded by mu
}

// openCertificate loads the certificate and its key from files in the form of
// PEM.
func openCertificate(cert, key string) (*files, error) {
	c := &files{cert: cert, key: key}
	version, err := c.current()
	if err != nil {
		return nil, fmt.Errorf("certificate: %w", err)
	}
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("certificate: %w", err)
	}
	c.loaded, c.version, c.checked = &pair, version, time.Now()
	return c, nil
}

// current tells versions of the files apart.
func (c *files) current() (version string, err error) {
	for _, name := range []string{c.cert, c.key} {
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
func (c *files) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	now := time.Now()
	c.mu.Lock()
	loaded, version, look := c.loaded, c.version, now.Sub(c.checked) >= certificateCheck
	if look {
		c.checked = now // one connection looks, the others go on
	}
	c.mu.Unlock()
	if !look {
		return loaded, nil
	}
	newer, err := c.current()
	if err == nil && newer == version {
		return loaded, nil
	}
	var pair tls.Certificate
	if err == nil {
		pair, err = tls.LoadX509KeyPair(c.cert, c.key)
	}
	if err != nil {
		slog.Error("the certificate that changed is not used", "err", err)
		return loaded, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.loaded, c.version = &pair, newer
	return &pair, nil
}

// orElse returns the certificate of the files for names in it, and for those
// who name nobody, and asks other for the rest.
func (c *files) orElse(other func(*tls.ClientHelloInfo) (*tls.Certificate, error)) func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		pair, err := c.get(hello)
		if err == nil && (hello.ServerName == "" || pair.Leaf.VerifyHostname(hello.ServerName) == nil) {
			return pair, nil
		}
		return other(hello)
	}
}
