package drive

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/minio/minio-go/v7"

	"github.com/dozehq/doze/internal/drive/op"
)

const (
	// keyMax is what S3 allows a key to have.
	keyMax = 1024
	// listMax bounds a directory that is listed: its names are held in memory.
	listMax = 100_000
)

// files are those below a prefix of a bucket, as a file system: a key is a path.
// A directory is there while a key is below it; one that was made has an object
// of its own, whose key ends with a slash.
type files struct {
	bucket *Bucket
	root   string // with a slash at its end
}

// key is that of a path. What could lead out of the root is EINVAL.
func (f files) key(name string) (string, error) {
	if name == "" {
		return f.root, nil
	}
	if path.Clean("/"+name) != "/"+name || strings.ContainsRune(name, 0) {
		return "", syscall.EINVAL
	}
	if len(f.root)+len(name)+1 > keyMax {
		return "", syscall.ENAMETOOLONG
	}
	return f.root + name, nil
}

// stat returns what is at a path.
func (f files) stat(ctx context.Context, name string) (op.Node, error) {
	key, err := f.key(name)
	if err != nil || name == "" {
		return op.Node{Dir: true}, err
	}
	o, err := f.bucket.client.StatObject(ctx, f.bucket.name, key, minio.StatObjectOptions{})
	if err == nil {
		return op.Node{Size: o.Size, Modified: o.LastModified.UnixNano()}, nil
	}
	if errno := errnoOf(err); errno != syscall.ENOENT {
		return op.Node{}, err
	}
	below, err := f.below(ctx, key+"/", 1)
	switch {
	case err != nil:
		return op.Node{}, err
	case len(below) == 0:
		return op.Node{}, syscall.ENOENT
	}
	return op.Node{Dir: true, Modified: below[0].LastModified.UnixNano()}, nil
}

// below returns up to limit objects whose keys begin with a prefix.
func (f files) below(ctx context.Context, prefix string, limit int) (found []minio.ObjectInfo, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for o := range f.bucket.client.ListObjectsIter(ctx, f.bucket.name, minio.ListObjectsOptions{Prefix: prefix, Recursive: true, MaxKeys: limit}) {
		if o.Err != nil {
			return nil, o.Err
		}
		if found = append(found, o); len(found) == limit {
			break
		}
	}
	return found, nil
}

// list returns what is in a directory.
func (f files) list(ctx context.Context, name string) ([]op.Node, error) {
	if n, err := f.stat(ctx, name); err != nil || !n.Dir {
		return nil, orErr(err, syscall.ENOTDIR)
	}
	key, err := f.key(name)
	if err != nil {
		return nil, err
	}
	prefix := strings.TrimSuffix(key, "/") + "/"
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // of a listing that is too long
	all := map[string]op.Node{}
	for o := range f.bucket.client.ListObjectsIter(ctx, f.bucket.name, minio.ListObjectsOptions{Prefix: prefix}) {
		if o.Err != nil {
			return nil, o.Err
		}
		base, isDir := strings.CutSuffix(strings.TrimPrefix(o.Key, prefix), "/")
		if base == "" || strings.Contains(base, "/") { // the directory itself, or no file's name
			continue
		}
		if len(all) == listMax {
			return nil, syscall.EFBIG
		}
		if n, ok := all[base]; !ok || n.Dir { // of a file and a directory, stat finds the file
			all[base] = op.Node{Name: base, Dir: isDir, Size: o.Size, Modified: max(0, o.LastModified.UnixNano())}
		}
	}
	nodes := make([]op.Node, 0, len(all))
	for _, n := range all {
		nodes = append(nodes, n)
	}
	slices.SortFunc(nodes, func(a, b op.Node) int { return strings.Compare(a.Name, b.Name) })
	return nodes, nil
}

// read returns up to size bytes of a file; none behind its end.
func (f files) read(ctx context.Context, name string, at, size int64) ([]byte, error) {
	key, err := f.key(name)
	if err != nil || size == 0 {
		return nil, err
	}
	var o minio.GetObjectOptions
	if err := o.SetRange(at, at+size-1); err != nil {
		return nil, syscall.EINVAL
	}
	r, _, _, err := minio.Core{Client: f.bucket.client}.GetObject(ctx, f.bucket.name, key, o)
	if minio.ToErrorResponse(err).StatusCode == http.StatusRequestedRangeNotSatisfiable {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }()
	return op.ReadBody(io.LimitReader(r, size), size)
}

// fetch copies a file to w.
func (f files) fetch(ctx context.Context, name string, w io.Writer) error {
	key, err := f.key(name)
	if err != nil {
		return err
	}
	r, err := f.bucket.client.GetObject(ctx, f.bucket.name, key, minio.GetObjectOptions{})
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	_, err = io.Copy(w, r)
	return err
}

// put makes a file of size bytes of r, in place of the one that is there.
func (f files) put(ctx context.Context, name string, r io.Reader, size int64) error {
	key, err := f.key(name)
	if err != nil {
		return err
	}
	return f.bucket.put(ctx, key, r, size)
}

// mkdir makes a directory.
func (f files) mkdir(ctx context.Context, name string) error {
	key, err := f.key(name)
	if err != nil {
		return err
	}
	return f.bucket.put(ctx, key+"/", bytes.NewReader(nil), 0)
}

// remove removes a file. Its directory stays, whatever else is in it.
func (f files) remove(ctx context.Context, name string) error {
	key, err := f.key(name)
	if err != nil {
		return err
	}
	if err := f.ensureParent(ctx, name); err != nil {
		return err
	}
	return f.bucket.client.RemoveObject(ctx, f.bucket.name, key, minio.RemoveObjectOptions{})
}

// ensureParent makes sure that the directory of a path outlasts what is in it.
func (f files) ensureParent(ctx context.Context, name string) error {
	if dir := path.Dir(name); dir != "." {
		return f.mkdir(ctx, dir)
	}
	return nil
}

// rmdir removes an empty directory.
func (f files) rmdir(ctx context.Context, name string) error {
	key, err := f.key(name)
	if err != nil {
		return err
	}
	found, err := f.below(ctx, key+"/", 2)
	switch {
	case err != nil:
		return err
	case len(found) == 0:
		return syscall.ENOENT
	case len(found) > 1 || found[0].Key != key+"/":
		return syscall.ENOTEMPTY
	}
	if err := f.ensureParent(ctx, name); err != nil {
		return err
	}
	return f.bucket.client.RemoveObject(ctx, f.bucket.name, key+"/", minio.RemoveObjectOptions{})
}

// rename gives a file another path, in place of the file that is there. A
// bucket cannot do that to a directory in one step: EXDEV has programs copy it.
func (f files) rename(ctx context.Context, name, to string) error {
	from, err := f.key(name)
	if err != nil {
		return err
	}
	target, err := f.key(to)
	if err != nil {
		return err
	}
	n, err := f.stat(ctx, name)
	if err != nil {
		return err
	}
	if n.Dir {
		return syscall.EXDEV
	}
	if n, err := f.stat(ctx, to); err == nil && n.Dir {
		return syscall.EISDIR
	}
	_, err = f.bucket.client.CopyObject(ctx,
		minio.CopyDestOptions{Bucket: f.bucket.name, Object: target}, minio.CopySrcOptions{Bucket: f.bucket.name, Object: from})
	if err != nil {
		return err
	}
	return f.remove(ctx, name)
}

// orErr is err, or if there is none, other.
func orErr(err, other error) error {
	if err != nil {
		return err
	}
	return other
}

// errnoOf is what a process is told of an error.
func errnoOf(err error) syscall.Errno {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno
	}
	switch minio.ToErrorResponse(err).StatusCode {
	case http.StatusNotFound:
		return syscall.ENOENT
	case http.StatusForbidden, http.StatusUnauthorized:
		return syscall.EACCES
	case http.StatusInsufficientStorage:
		return syscall.ENOSPC
	}
	slog.Warn("a call to the bucket of drives", "err", err)
	return syscall.EIO
}
