package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
)

// download copies a file or a directory out of the sandbox.
func (c *copier) download(ctx context.Context, from, to string) error {
	isDir, err := c.agent.IsDir(ctx, from)
	if err != nil {
		return err
	}
	if to == stdio {
		return c.downloadOutput(ctx, from)
	}
	target, err := here(from, to)
	if err != nil {
		return err
	}
	var all []entry
	dir := filepath.Dir(target)
	if isDir {
		dir = target
		if err := os.MkdirAll(dir, dirMode); err != nil {
			return err
		}
		all, err = c.there(ctx, from, ".", nil)
	} else {
		all, err = c.one(ctx, from)
	}
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(dir) // nothing in it leads out
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // all in it is closed
	return c.transfer(ctx, "downloading", all, func(_ context.Context, e entry) error {
		if err := root.Mkdir(filepath.FromSlash(e.name), dirMode); !errors.Is(err, fs.ErrExist) {
			return err
		}
		return nil
	}, func(ctx context.Context, e entry, p *progress) error {
		if !isDir {
			return c.fetch(ctx, root, from, filepath.Base(target), e.mode, p)
		}
		source := path.Join(from, e.name)
		err := c.fetch(ctx, root, source, filepath.FromSlash(e.name), e.mode, p)
		switch doze.Public(err).Kind { //nolint:exhaustive // all others are errors
		case doze.NotFound, doze.Invalid, doze.Unprocessable: // a link to nothing or to a directory, or a device
			c.pass(source)
			return nil
		}
		return err
	})
}

func (c *copier) downloadOutput(ctx context.Context, from string) error {
	r, err := c.agent.ReadFile(ctx, from)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }() // it was only read
	p := c.app.watch("downloading", 0)
	defer p.end()
	return copyWhole(c.app.out, r, p)
}

// here is where a copy of a path of the sandbox goes.
func here(from, to string) (string, error) {
	info, err := os.Stat(to)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	isDir := err == nil && info.IsDir()
	if !isDir && os.IsPathSeparator(to[len(to)-1]) {
		return "", fmt.Errorf("no such directory: %s", to)
	}
	base := path.Base(path.Clean("/" + from))
	if !isDir || base == "/" {
		return to, nil
	}
	return filepath.Join(to, base), checkName(base)
}

// fetch copies one file beside its place, and puts it there when it is whole.
func (c *copier) fetch(ctx context.Context, root *os.Root, from, name string, mode fs.FileMode, p *progress) (err error) {
	r, err := c.agent.ReadFile(ctx, from)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }() // it was only read
	half := filepath.Join(filepath.Dir(name), ".doze-"+rand.Text())
	f, err := root.OpenFile(half, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	err = errors.Join(copyWhole(f, r, p), f.Close())
	if err == nil {
		err = root.Rename(half, name)
	}
	if err != nil {
		err = errors.Join(err, root.Remove(half))
	}
	return err
}

// What a file has whose permissions are not known, and a directory; the user's
// own mask counts too.
const (
	fileMode = 0o644
	dirMode  = 0o755
)

// one is the entry of one file.
func (c *copier) one(ctx context.Context, from string) ([]entry, error) {
	d, err := c.agent.ReadDir(ctx, path.Dir(from))
	if err != nil {
		return nil, err
	}
	for _, f := range d.Files {
		if f.Name == path.Base(from) {
			return []entry{fileEntry(".", f)}, nil
		}
	}
	return []entry{{name: ".", mode: fileMode}}, nil
}

// there lists what is in a directory of the sandbox, directories before what is in
// them. The names may be hostile.
func (c *copier) there(ctx context.Context, root, below string, all []entry) ([]entry, error) {
	d, err := c.agent.ReadDir(ctx, path.Join(root, below))
	if err != nil {
		return nil, err
	}
	for _, f := range d.Files {
		if err := checkName(f.Name); err != nil {
			return nil, err
		}
		all = append(all, fileEntry(path.Join(below, f.Name), f))
	}
	for _, sub := range d.Subdirectories {
		if err := checkName(sub.Name); err != nil {
			return nil, err
		}
		name := path.Join(below, sub.Name)
		if all, err = c.there(ctx, root, name, append(all, entry{name: name, dir: true})); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// checkName refuses what would lead elsewhere, or cannot be here.
func checkName(name string) error {
	if name == "." || strings.Contains(name, "/") || !filepath.IsLocal(name) {
		return fmt.Errorf("cannot create a local file with the name %q from the sandbox", name)
	}
	return nil
}

func fileEntry(name string, f client.File) entry {
	mode, err := strconv.ParseUint(f.Permissions, 8, 32)
	if err != nil {
		mode = fileMode
	}
	return entry{name: name, size: f.Size, mode: fs.FileMode(mode).Perm()}
}
