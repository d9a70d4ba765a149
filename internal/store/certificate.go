package store

import (
	"context"
	"encoding/hex"
	"time"
	"unicode/utf8"
)

// certificateFile says of a file of a certificate, its key or the account that
// it was got with, all but what is in it.
type certificateFile struct {
	key        string // a path, with slashes
	modifiedAt time.Time
	size       int64
}

const (
	certificatePlace = "certificate/"
	errNoCertificate = "there is no such file of a certificate"
	// belowDir selects the file $1, or those in the directory whose name, with a
	// slash at its end, is $2 and has $3 characters.
	belowDir = `key = $1 OR substr(key, 1, $3) = $2`
)

// PutCertificateFile writes a file, sealed. It replaces the one before.
func (s *Store) PutCertificateFile(ctx context.Context, key string, value []byte, now time.Time) error {
	sealed := hex.EncodeToString(s.cipher.Seal(value, certificatePlace+key))
	_, err := s.write.ExecContext(ctx, `INSERT INTO certificate_files (key, modified_at, size, sealed) VALUES ($1, $2, $3, $4)
		ON CONFLICT (key) DO UPDATE SET modified_at = excluded.modified_at, size = excluded.size, sealed = excluded.sealed`,
		key, millis(now), len(value), sealed)
	return wrap(err, "write file of a certificate")
}

// CertificateFile returns what is in a file, or NotFound.
func (s *Store) CertificateFile(ctx context.Context, key string) ([]byte, error) {
	text, err := one(ctx, s.read, scanText, errNoCertificate, `SELECT sealed FROM certificate_files WHERE key = $1`, key)
	if err != nil {
		return nil, err
	}
	sealed, err := hex.DecodeString(text)
	if err != nil {
		return nil, wrap(err, "read file of a certificate")
	}
	return s.cipher.Unseal(sealed, certificatePlace+key)
}

// EachCertificateFile tells of the file of a path, or of those below it, by key.
func (s *Store) EachCertificateFile(ctx context.Context, path string, tell func(key string, size int64, modified time.Time)) error {
	dir := path + "/"
	all, err := collect(ctx, s.read, scanCertificateFile, `SELECT key, modified_at, size FROM certificate_files WHERE `+belowDir+` ORDER BY key`,
		path, dir, utf8.RuneCountInString(dir))
	for _, f := range all {
		tell(f.key, f.size, f.modifiedAt)
	}
	return wrap(err, "list files of certificates")
}

// DeleteCertificateFiles removes the file of a path, or all below it.
func (s *Store) DeleteCertificateFiles(ctx context.Context, path string) error {
	dir := path + "/"
	_, err := s.write.ExecContext(ctx, `DELETE FROM certificate_files WHERE `+belowDir, path, dir, utf8.RuneCountInString(dir))
	return wrap(err, "delete files of certificates")
}

func scanCertificateFile(r row) (f certificateFile, err error) {
	var at int64
	err = r.Scan(&f.key, &at, &f.size)
	f.modifiedAt = time.UnixMilli(at)
	return f, err
}
