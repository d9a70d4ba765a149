package certificate

import (
	"context"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/certmagic"

	"github.com/dozehq/doze"
)

// Files keeps certificates, their keys and the account of the authority, by paths
// with slashes. What it keeps is secret.
type Files interface {
	// PutCertificateFile writes a file. It replaces the one before.
	PutCertificateFile(ctx context.Context, key string, value []byte, now time.Time) error
	// CertificateFile returns what is in a file, or NotFound.
	CertificateFile(ctx context.Context, key string) ([]byte, error)
	// EachCertificateFile tells of the file of a path, or of those below it, by key.
	EachCertificateFile(ctx context.Context, path string, tell func(key string, size int64, modified time.Time)) error
	// DeleteCertificateFiles removes the file of a path, or all below it.
	DeleteCertificateFiles(ctx context.Context, path string) error
}

// storage is [Files] as the library wants them. Its locks are those of one process:
// only one serves a data directory.
type storage struct {
	files Files

	mu    sync.Mutex
	locks map[string]chan struct{} // guarded by mu; closed when they are given up
}

var _ certmagic.Storage = (*storage)(nil)

func newStorage(f Files) *storage {
	return &storage{files: f, locks: map[string]chan struct{}{}}
}

// absent turns our error for what is not there into that of the file system,
// which is how the library knows it.
func absent(err error) error {
	if doze.Public(err).Kind == doze.NotFound {
		return fs.ErrNotExist
	}
	return err
}

// path is a key without slashes around it.
func path(key string) string { return strings.Trim(key, "/") }

// Store implements [certmagic.Storage].
func (s *storage) Store(ctx context.Context, key string, value []byte) error {
	return s.files.PutCertificateFile(ctx, path(key), value, time.Now())
}

// Load implements [certmagic.Storage].
func (s *storage) Load(ctx context.Context, key string) ([]byte, error) {
	value, err := s.files.CertificateFile(ctx, path(key))
	return value, absent(err)
}

// Delete implements [certmagic.Storage].
func (s *storage) Delete(ctx context.Context, key string) error {
	return s.files.DeleteCertificateFiles(ctx, path(key))
}

// Exists implements [certmagic.Storage].
func (s *storage) Exists(ctx context.Context, key string) bool {
	_, err := s.Stat(ctx, key)
	return err == nil
}

// List implements [certmagic.Storage]: all files below a directory or, if it
// is not recursive, what is directly in it.
func (s *storage) List(ctx context.Context, dir string, recursive bool) ([]string, error) {
	files, err := s.below(ctx, dir)
	if err != nil {
		return nil, err
	}
	var keys []string
	for _, f := range files {
		key := f.Key
		if rest, in := strings.CutPrefix(key, path(dir)+"/"); in && !recursive {
			child, _, _ := strings.Cut(rest, "/")
			key = path(dir) + "/" + child
		}
		keys = append(keys, key)
	}
	return slices.Compact(keys), nil
}

// Stat implements [certmagic.Storage].
func (s *storage) Stat(ctx context.Context, key string) (certmagic.KeyInfo, error) {
	files, err := s.below(ctx, key)
	if err != nil {
		return certmagic.KeyInfo{}, err
	}
	info := certmagic.KeyInfo{Key: key, IsTerminal: files[0].Key == path(key)}
	for _, f := range files {
		info.Size += f.Size
		if f.Modified.After(info.Modified) {
			info.Modified = f.Modified
		}
	}
	return info, nil
}

// below returns the file of a key, or those in its directory: at least one.
func (s *storage) below(ctx context.Context, key string) (files []certmagic.KeyInfo, err error) {
	err = s.files.EachCertificateFile(ctx, path(key), func(key string, size int64, modified time.Time) {
		files = append(files, certmagic.KeyInfo{Key: key, Size: size, Modified: modified})
	})
	if err == nil && len(files) == 0 {
		err = fs.ErrNotExist
	}
	return files, err
}

// Lock implements [certmagic.Locker]. It waits until nobody else has the lock.
func (s *storage) Lock(ctx context.Context, name string) error {
	for {
		s.mu.Lock()
		taken, ok := s.locks[name]
		if !ok {
			s.locks[name] = make(chan struct{})
			s.mu.Unlock()
			return nil
		}
		s.mu.Unlock()
		select {
		case <-taken:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Unlock implements [certmagic.Locker].
func (s *storage) Unlock(_ context.Context, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if taken, ok := s.locks[name]; ok {
		close(taken)
		delete(s.locks, name)
	}
	return nil
}
