package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/dozehq/doze"
)

func (a *app) saveImage() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use: "save NAME[:TAG]", Short: "Write an image to a tar archive",
		Long: `Write an image of the workspace to a tar archive: an OCI layout with one layer.
docker load and doze image load take it.`,
		Example: "  doze image save app:1.0 -o app.tar\n  doze image save app | docker load",
		Args:    takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if f, ok := a.out.(*os.File); ok && file == "" && term.IsTerminal(int(f.Fd())) {
				return usagef("an archive is nothing for a terminal: write -o FILE, or | docker load")
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			r, err := c.SaveImage(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			defer func() { _ = r.Close() }() // it was only read
			p := a.watch("saving "+args[0], 0)
			to := ""
			if file == "" || file == stdio {
				err = copyWhole(a.out, r, p)
			} else {
				to = " to " + file
				err = writeBeside(file, func(w io.Writer) error { return copyWhole(w, r, p) })
			}
			p.end()
			if err != nil {
				return err
			}
			a.say(printable(fmt.Sprintf("saved %s%s, %s MB in %.1fs", args[0], to, megabytes(p.done.Load()), time.Since(p.began).Seconds())) + "\n")
			return nil
		},
	}
	// The format of answers has this name elsewhere; here there is none.
	cmd.Flags().StringVarP(&file, "output", "o", "", "write to this `file` (default: standard output)")
	return cmd
}

// writeBeside writes a file beside its place, and puts it there when it is whole.
func writeBeside(file string, write func(io.Writer) error) (err error) {
	if info, err := os.Stat(file); err == nil && info.IsDir() {
		return fmt.Errorf("%s is a directory: name a file in it", file)
	}
	dir := filepath.Dir(file)
	half := filepath.Join(dir, ".doze-"+rand.Text())
	f, err := os.OpenFile(half, os.O_CREATE|os.O_EXCL|os.O_WRONLY, fileMode)
	if at, ok := errors.AsType[*fs.PathError](err); ok { // the name of this file means nothing to a user
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("there is no directory %s: make it first", dir)
		}
		return fmt.Errorf("cannot make a file in the directory %s: %w", dir, at.Err)
	}
	if err != nil {
		return err
	}
	err = errors.Join(write(f), f.Close())
	if err == nil {
		err = os.Rename(half, file)
	}
	if err != nil {
		err = errors.Join(err, os.Remove(half))
	}
	return err
}

func (a *app) loadImage() *cobra.Command {
	var file, name string
	cmd := &cobra.Command{
		Use: "load", Short: "Add an image from a tar archive",
		Long: `Add an image to the workspace from a tar archive. The archive has an OCI layout, or
is what docker save writes, with one image. It may be compressed.`,
		Example: "  doze image load -i app.tar -t app:1.0\n  docker save app | doze image load -t app",
		Args:    takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if name == "" {
				return usagef("give the image a name: -t NAME[:TAG]")
			}
			in, size := a.in, int64(0)
			if file != stdio {
				f, err := os.Open(file)
				if err != nil {
					return err
				}
				defer func() { _ = f.Close() }() // it was only read
				info, err := f.Stat()
				if err != nil {
					return err
				}
				in, size = f, info.Size()
			}
			return a.load(cmd.Context(), name, "loading "+name, size, in)
		},
	}
	cmd.Flags().StringVarP(&file, "input", "i", stdio, "read this `file`; - is standard input")
	cmd.Flags().StringVarP(&name, "tag", "t", "", "`NAME[:TAG]` of the image in the workspace")
	return cmd
}

// load uploads an archive, and shows what became of it.
func (a *app) load(ctx context.Context, name, what string, size int64, archive io.Reader) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	p := a.watch(what, size)
	made, err := c.LoadImage(ctx, name, p.counts(archive))
	p.end()
	if err != nil {
		return err
	}
	return a.show(made, [][]string{{"NAME", "IMAGE"}, {made.Name, made.Image}})
}

// errArchive is for an archive of the server that cannot be used.
var errArchive = doze.Errorf(doze.Unavailable, "the server sent an archive that is no image: try again")

// wrongArchive says why.
func wrongArchive(err error) error { return fmt.Errorf("%w: %w", errArchive, err) }
