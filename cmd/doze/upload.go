package main

import (
	"context"
	"io/fs"
	"os"
	"path"
	"path/filepath"
)

// upload copies a file, a directory or the standard input into the sandbox.
func (c *copier) upload(ctx context.Context, from, to string) error {
	if from == stdio {
		return c.uploadInput(ctx, to)
	}
	all, err := c.here(from)
	if err != nil {
		return err
	}
	into, err := c.remoteDir(ctx, to)
	if err != nil {
		return err
	}
	base := filepath.Base(from)
	if whole, err := filepath.Abs(from); err == nil { // . has a name too
		base = filepath.Base(whole)
	}
	target := inside(to, base, into)
	return c.transfer(ctx, "uploading", all, func(ctx context.Context, e entry) error {
		_, err := c.agent.MakeDir(ctx, path.Join(target, e.name), e.permissions())
		return err
	}, func(ctx context.Context, e entry, p *progress) error {
		f, err := os.Open(filepath.Join(from, filepath.FromSlash(e.name)))
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }() // it was only read
		_, err = c.agent.Upload(ctx, path.Join(target, e.name), p.counts(f), e.permissions())
		return err
	})
}

func (c *copier) uploadInput(ctx context.Context, to string) error {
	p := c.app.watch("uploading", 0)
	defer p.end()
	if _, err := c.agent.Upload(ctx, to, p.counts(c.app.in), ""); err != nil {
		return err
	}
	c.sum = copied{Files: 1, Bytes: p.done.Load()}
	return nil
}

// here lists what is copied, directories before what is in them.
func (c *copier) here(from string) (all []entry, err error) {
	err = filepath.WalkDir(from, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, name)
		if err != nil {
			return err
		}
		info, err := os.Stat(name) // links are followed
		switch {
		case err == nil && info.Mode().IsRegular():
			all = append(all, entry{filepath.ToSlash(rel), false, info.Size(), info.Mode().Perm()})
		case err == nil && info.IsDir() && (d.IsDir() || rel == "."):
			all = append(all, entry{filepath.ToSlash(rel), true, 0, info.Mode().Perm()})
		default:
			c.pass(name)
		}
		return nil
	})
	return all, err
}
