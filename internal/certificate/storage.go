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
	"github.com/dozehq/doze/internal/store"
)

// storage keeps certificates, their keys and the account in the records, where
// they are sealed. Its locks are those of one process: only one serves a data
// directory.
type storage struct {
	store *store.Store

	mu    sync.Mutex
	locks map[string]chan struct{} // guarded by mu; closed when they are given up
}

var _ certmagic.Storage = (*storage)(nil)

func newStorage(s *store.Store) *storage {
	return &storage{store: s, locks: map[string]chan struct{}{}}
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
	return s.store.PutCertificateFile(ctx, path(key), value, time.Now())
}

// Load implements [certmagic.Storage].
func (s *storage) Load(ctx context.Context, key string) ([]byte, error) {
	value, err := s.store.CertificateFile(ctx, path(key))
	return value, absent(err)
}

// Delete implements [certmagic.Storage].
func (s *storage) Delete(ctx context.Context, key string) error {
	return s.store.DeleteCertificateFiles(ctx, path(key))
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
		if f.ModifiedAt.After(info.Modified) {
			info.Modified = f.ModifiedAt
		}
	}
	return info, nil
}

// below returns the file of a key, or those in its directory: at least one.
func (s *storage) below(ctx context.Context, key string) ([]store.CertificateFile, error) {
	files, err := s.store.CertificateFiles(ctx, path(key))
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
