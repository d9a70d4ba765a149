// Package archive finds what is different between a root and the image that it
// began as, and packs it. It needs both as directories: which image that is,
// somebody outside has to know. It also unpacks what the engine packed, which
// knows both.
package archive

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/dozehq/doze"
)

// changesMax bounds the list of changes, which is held in memory.
const changesMax = 2_000_000

// Kind is what happened to a path.
type Kind string

// The kinds of changes.
const (
	Added    Kind = "added"
	Modified Kind = "modified"
	Deleted  Kind = "deleted"
)

// Change is one path that is different. What is below a deleted directory is not
// listed.
type Change struct {
	Kind Kind   `json:"kind"`
	Path string `json:"path"` // relative to the root
	Size int64  `json:"size"` // bytes of a regular file
	info fs.FileInfo
}

// Excluded is left out of every comparison: it is the system's or ours.
var Excluded = slices.Concat([]string{"proc", "sys", "dev", "var/log/doze", "var/lib/doze"}, authorities)

// authorities are the files with authorities that the agent writes.
var authorities = []string{
	strings.Trim(path.Dir(doze.TrustFile), "/"),
	"usr/local/share/ca-certificates/doze.crt", "etc/pki/ca-trust/source/anchors/doze.crt", "etc/pki/trust/anchors/doze.crt",
}

// Scan lists what is different in root, in the order of the paths. Other file
// systems that are mounted there, sockets, and what is at or below excludes do
// not count. A root or an image that cannot be read is Internal.
func Scan(ctx context.Context, root, image string, excludes []string) ([]Change, error) {
	s := &scan{ctx: ctx, root: root, image: image, excludes: slices.Concat(Excluded, excludes)}
	if rel, err := filepath.Rel(root, image); err == nil && rel != "." && !strings.HasPrefix(rel, "..") {
		s.excludes = append(s.excludes, rel)
	}
	for i, e := range s.excludes {
		s.excludes[i] = strings.Trim(path.Clean("/"+e), "/")
	}
	info, err := os.Stat(root)
	if err != nil {
		return nil, doze.Wrap(err, doze.Internal, "%v", err)
	}
	s.dev = device(info)
	if err := s.both("."); err != nil {
		return nil, err
	}
	return s.changes, nil
}

type scan struct {
	ctx         context.Context //nolint:containedctx // it lives as long as one call
	root, image string
	excludes    []string
	dev         uint64 // of the root
	changes     []Change
}

func device(info fs.FileInfo) uint64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Dev
	}
	return 0
}

// skips reports whether a path does not count.
func (s *scan) skips(rel string, info fs.FileInfo) bool {
	return slices.Contains(s.excludes, rel) ||
		info != nil && (info.IsDir() && device(info) != s.dev || info.Mode()&fs.ModeSocket != 0 || info.Mode()&fs.ModeSymlink != 0 && s.leadsOut(rel))
}

// leadsOut reports whether a link is the agent's: that of the bundle of the image, or the
// one by which OpenSSL finds an authority. Both lead to an excluded file.
func (s *scan) leadsOut(rel string) bool {
	target, err := os.Readlink(filepath.Join(s.root, rel))
	if err != nil || path.IsAbs(target) { // ours are relative
		return false
	}
	at := path.Join(path.Dir(rel), target)
	return slices.ContainsFunc(authorities, func(e string) bool { return at == e || strings.HasPrefix(at, e+"/") })
}

// entries lists a directory by name.
func entries(dir string) (map[string]fs.FileInfo, error) {
	list, err := os.ReadDir(dir)
	if err != nil {
		return nil, doze.Wrap(err, doze.Internal, "%v", err)
	}
	all := make(map[string]fs.FileInfo, len(list))
	for _, e := range list {
		if info, err := e.Info(); err == nil { // else it is gone by now
			all[e.Name()] = info
		}
	}
	return all, nil
}

// both compares a directory that the root and the image have.
func (s *scan) both(dir string) error {
	if err := s.ctx.Err(); err != nil {
		return err
	}
	now, err := entries(filepath.Join(s.root, dir))
	if err != nil {
		return err
	}
	was, err := entries(filepath.Join(s.image, dir))
	if err != nil {
		return err
	}
	return s.each(dir, now, was)
}

// each compares what is in a directory now with what was.
func (s *scan) each(dir string, now, was map[string]fs.FileInfo) error {
	names := make([]string, 0, len(now))
	for name := range now {
		names = append(names, name)
	}
	for name := range was {
		if now[name] == nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		rel := path.Join(dir, name)
		if s.skips(rel, now[name]) {
			continue
		}
		if err := s.compare(rel, now[name], was[name]); err != nil {
			return err
		}
	}
	return nil
}

// compare notes what is different at a path and below it. One of both may be
// nil: then it is not there.
func (s *scan) compare(rel string, now, was fs.FileInfo) error {
	switch {
	case now == nil:
		return s.note(Deleted, rel, nil)
	case was == nil:
		return s.added(rel, now)
	case now.Mode().Type() != was.Mode().Type():
		if err := s.note(Modified, rel, now); err != nil || !now.IsDir() {
			return err
		}
		return s.below(rel)
	}
	if !same(now, was) || now.Mode()&fs.ModeSymlink != 0 && !s.sameTarget(rel) {
		if err := s.note(Modified, rel, now); err != nil {
			return err
		}
	}
	if now.IsDir() {
		return s.both(rel)
	}
	return nil
}

// added notes a new path and all below it.
func (s *scan) added(rel string, now fs.FileInfo) error {
	if err := s.note(Added, rel, now); err != nil || !now.IsDir() {
		return err
	}
	return s.below(rel)
}

// below notes what is in a directory that the image does not have.
func (s *scan) below(dir string) error {
	if err := s.ctx.Err(); err != nil {
		return err
	}
	now, err := entries(filepath.Join(s.root, dir))
	if err != nil {
		return err
	}
	return s.each(dir, now, nil)
}

func (s *scan) note(kind Kind, rel string, info fs.FileInfo) error {
	if len(s.changes) >= changesMax {
		return doze.Errorf(doze.Internal, "more than %d paths are different; exclude some", changesMax)
	}
	c := Change{Kind: kind, Path: rel, info: info}
	if info != nil && info.Mode().IsRegular() {
		c.Size = info.Size()
	}
	s.changes = append(s.changes, c)
	return nil
}

// same reports whether two files of one type look the same. A write changes the
// time; what sets it back wants to be overlooked.
func same(a, b fs.FileInfo) bool {
	x, ok := a.Sys().(*syscall.Stat_t)
	y, ok2 := b.Sys().(*syscall.Stat_t)
	if !ok || !ok2 || a.Mode() != b.Mode() || x.Uid != y.Uid || x.Gid != y.Gid {
		return false
	}
	switch {
	case a.Mode().IsRegular():
		return a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
	case a.Mode()&fs.ModeDevice != 0:
		return x.Rdev == y.Rdev
	}
	return true
}

func (s *scan) sameTarget(rel string) bool {
	now, err := os.Readlink(filepath.Join(s.root, rel))
	was, err2 := os.Readlink(filepath.Join(s.image, rel))
	return errors.Join(err, err2) == nil && now == was
}
