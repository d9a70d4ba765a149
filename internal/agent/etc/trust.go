package etc

import (
	"bytes"
	"crypto/sha1" //nolint:gosec // G505: OpenSSL names files by it, and nothing relies on it
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/crypto/x509roots/fallback/bundle"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/environ"
)

// bundles are where distributions have the certificates of the authorities that
// they trust.
var bundles = []string{
	"etc/ssl/certs/ca-certificates.crt",                // Debian, Alpine, Arch
	"etc/pki/tls/certs/ca-bundle.crt",                  // Fedora, RHEL
	"etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", // RHEL
	"etc/ssl/ca-bundle.pem",                            // openSUSE
	"etc/ssl/cert.pem",                                 // Alpine without its package
}

// anchors are where distributions look for more authorities when they make their
// bundle anew. The directory above the last one tells the distribution.
var anchors = []string{
	"usr/local/share/ca-certificates", // Debian, Alpine
	"etc/pki/ca-trust/source/anchors", // Fedora, RHEL
	"etc/pki/trust/anchors",           // openSUSE
}

const (
	// ownFile has our authority alone. It is there once one was added to the bundle.
	ownFile = "etc/doze/authority.pem"
	// anchorName is the file of our authority in a directory of anchors.
	anchorName = "doze.crt"
	// hashedDir is where OpenSSL of Debian looks for an authority by a hash of its name.
	hashedDir = "etc/ssl/certs"
	// begin and end are the lines around our authority in a bundle. Readers of PEM
	// ignore both.
	begin = "# The authority of the platform:\n"
	end   = "# The end of it.\n"
)

// Trust adds an authority to [doze.TrustFile] below root, in place of the one of an
// earlier call. Then it has programs of the image that read the usual bundle trust it,
// too: that is best effort, since an image may be read-only.
func Trust(root, more string) error {
	own := filepath.Join(root, ownFile)
	_, err := os.Stat(own)
	if first := err != nil; !first || appendTo(filepath.Join(root, doze.TrustFile), begin+more+end) != nil {
		if err := writeBundle(root, begin+more+end); err != nil {
			return err
		}
	}
	if err := replaceFile(own, []byte(more)); err != nil {
		return err
	}
	for _, dir := range anchors {
		dir = filepath.Join(root, dir)
		if _, err := os.Stat(filepath.Dir(dir)); err != nil || os.MkdirAll(dir, 0o755) != nil { //nolint:gosec // likewise
			continue
		}
		if anchor := filepath.Join(dir, anchorName); replaceFile(anchor, []byte(more)) == nil {
			hashed(root, anchor, more)
		}
	}
	return nil
}

// writeBundle writes [doze.TrustFile]: what the image trusts, and more. Without a bundle
// of the image, it has the public authorities of Mozilla's program. The bundle of the
// image becomes a link to it.
func writeBundle(root, more string) error {
	image, all := imageBundle(root)
	if len(all) == 0 {
		all = public()
	}
	name := filepath.Join(root, doze.TrustFile)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil { //nolint:gosec // every user of the image reads it
		return err
	}
	if err := replaceFile(name, append(all, more...)); err != nil {
		return err
	}
	if image != "" {
		_ = replaceLink(image, name)
	}
	return nil
}

// appendTo adds to a file that is there.
func appendTo(name, more string) error {
	f, err := os.OpenFile(name, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(more)
	return errors.Join(err, f.Close())
}

// imageBundle returns the file with the authorities of the image, and them without
// ours; nothing if the image has none.
func imageBundle(root string) (file string, all []byte) {
	for _, name := range bundles {
		file := filepath.Join(root, name)
		target, err := filepath.EvalSymlinks(file)
		if err != nil {
			continue
		}
		b, err := environ.ReadFile(target)
		if err != nil || len(b) == 0 {
			continue
		}
		if all = withoutOurs(b); target == filepath.Join(root, doze.TrustFile) {
			return "", all // it is linked to ours already
		}
		return target, append(all, '\n')
	}
	return "", nil
}

// withoutOurs returns a bundle without what an earlier call added.
func withoutOurs(b []byte) []byte {
	before, rest, found := bytes.Cut(b, []byte(begin))
	if !found {
		return b
	}
	_, after, _ := bytes.Cut(rest, []byte(end))
	return append(bytes.Clone(before), after...)
}

// public returns the authorities that browsers trust without a condition, in PEM.
func public() []byte {
	var all bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			_ = pem.Encode(&all, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate})
		}
	}
	return all.Bytes()
}

// hashed has OpenSSL find the authority of a file in the directory in which it looks
// for one by its name.
func hashed(root, file, authority string) {
	dir := filepath.Join(root, hashedDir)
	block, _ := pem.Decode([]byte(authority))
	if info, err := os.Stat(dir); err != nil || !info.IsDir() || block == nil {
		return
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return
	}
	if name, err := subjectHash(cert.RawSubject); err == nil {
		_ = replaceLink(filepath.Join(dir, name+".0"), file)
	}
}

// subjectHash is the X509_NAME_hash of OpenSSL: the first four bytes, from the last to
// the first, of the SHA-1 of a name in lower case.
func subjectHash(subject []byte) (string, error) {
	var name pkix.RDNSequence
	if _, err := asn1.Unmarshal(subject, &name); err != nil {
		return "", err
	}
	var canonical []byte
	for _, set := range name {
		for i := range set {
			text, ok := set[i].Value.(string)
			if !ok {
				return "", fmt.Errorf("a part of the name is a %T", set[i].Value)
			}
			text = strings.ToLower(strings.Join(strings.Fields(text), " "))
			set[i].Value = asn1.RawValue{Tag: asn1.TagUTF8String, Bytes: []byte(text)}
		}
		b, err := asn1.Marshal(set)
		if err != nil {
			return "", err
		}
		canonical = append(canonical, b...)
	}
	sum := sha1.Sum(canonical) //nolint:gosec // G401: see the import
	return fmt.Sprintf("%08x", binary.LittleEndian.Uint32(sum[:])), nil
}

// replaceFile writes a file that everybody may read, in one step.
func replaceFile(name string, content []byte) error {
	fresh := name + ".new"
	if err := os.WriteFile(fresh, content, 0o644); err != nil { //nolint:gosec // every user of the image reads it
		return err
	}
	return os.Rename(fresh, name)
}

// replaceLink makes name a link to the file target, in one step.
func replaceLink(name, target string) error {
	target, err := filepath.Rel(filepath.Dir(name), target)
	if err != nil {
		return err
	}
	fresh := name + ".new"
	_ = os.Remove(fresh) // of an attempt that was interrupted
	if err := os.Symlink(target, fresh); err != nil {
		return err
	}
	return os.Rename(fresh, name)
}
