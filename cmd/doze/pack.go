package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"
)

const (
	ignoreFile = ".dockerignore"
	// ignoreMax bounds a .dockerignore, in bytes.
	ignoreMax = 1 << 20
)

// ignored are the files of a directory that are not uploaded.
type ignored struct {
	patterns *patternmatcher.PatternMatcher
	always   []string // paths that are uploaded whatever the patterns say
}

// readIgnore reads the patterns for a Dockerfile: those beside it, or those of the directory.
func readIgnore(root *os.Root, dockerfile string) (ignored, error) {
	i := ignored{always: []string{dockerfile, ignoreFile, dockerfile + ignoreFile}}
	for _, name := range []string{dockerfile + ignoreFile, ignoreFile} {
		f, err := root.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return i, err
		}
		raw, err := io.ReadAll(io.LimitReader(f, ignoreMax+1))
		if err = errors.Join(err, f.Close()); err != nil {
			return i, err
		}
		if len(raw) > ignoreMax {
			return i, usagef("%s has more than %d bytes", name, ignoreMax)
		}
		lines, err := ignorefile.ReadAll(bytes.NewReader(raw))
		if err != nil {
			return i, usagef("%s: %w", name, err)
		}
		if i.patterns, err = patternmatcher.New(lines); err != nil {
			return i, usagef("%s: %w", name, err)
		}
		return i, nil
	}
	return i, nil
}

// leaves reports whether a file is left out, and whether all below it is.
func (i *ignored) leaves(name string) (out, all bool, err error) {
	if i.patterns == nil || slices.Contains(i.always, name) {
		return false, false, nil
	}
	out, err = i.patterns.MatchesOrParentMatches(filepath.ToSlash(name))
	if err != nil || !out {
		return false, false, err
	}
	// A later pattern with ! may bring back something below.
	all = !i.patterns.Exclusions() && !slices.ContainsFunc(i.always, func(one string) bool {
		return strings.HasPrefix(one, name+string(filepath.Separator))
	})
	return true, all, nil
}

// pack writes the directory as a tar.gz. What is no file, directory or link is left out, as
// sockets are. Everything belongs to root, as in what COPY makes of it.
func (f *buildFiles) pack(w io.Writer) error {
	zip, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
	if err != nil {
		return err
	}
	out := tar.NewWriter(zip)
	err = fs.WalkDir(f.root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		left, all, err := f.ignore.leaves(filepath.FromSlash(name))
		switch {
		case err != nil:
			return err
		case left && d.IsDir() && all:
			return fs.SkipDir
		case left:
			return nil
		}
		return f.add(out, name, d)
	})
	return errors.Join(err, out.Close(), zip.Close())
}

// add writes one file.
func (f *buildFiles) add(out *tar.Writer, name string, d fs.DirEntry) error {
	info, err := d.Info()
	if errors.Is(err, fs.ErrNotExist) { // it was deleted just now
		return nil
	}
	if err != nil {
		return err
	}
	link := ""
	switch {
	case info.Mode().IsRegular(), info.IsDir():
	case info.Mode()&fs.ModeSymlink != 0:
		if link, err = f.root.Readlink(name); err != nil {
			return err
		}
	default:
		return nil
	}
	h, err := tar.FileInfoHeader(info, filepath.ToSlash(link))
	if err != nil {
		return err
	}
	h.Name, h.Uid, h.Gid, h.Uname, h.Gname = name, 0, 0, "", ""
	if info.IsDir() {
		h.Name += "/"
	}
	if runtime.GOOS == "windows" { // which has no bit that says so
		h.Mode |= 0o111
	}
	if err := out.WriteHeader(h); err != nil || !info.Mode().IsRegular() {
		return err
	}
	file, err := f.root.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // it was only read
	n, err := io.Copy(out, io.LimitReader(file, info.Size()))
	if err == nil && n < info.Size() {
		err = fmt.Errorf("%s became shorter while it was read: try again", name)
	}
	return err
}
