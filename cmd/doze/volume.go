package main

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
)

func (a *app) volume() *cobra.Command {
	cmd := &cobra.Command{
		Use: "volume", Aliases: []string{"volumes"}, Short: "Manage disks that outlive sandboxes",
		Args: cobra.ArbitraryArgs, RunE: group,
	}
	cmd.AddCommand(a.createVolume(), a.listVolumes(), a.resizeVolume(), a.removeVolume(), a.volumeTemplate())
	return cmd
}

func (a *app) createVolume() *cobra.Command {
	var v doze.Volume
	var size int
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Create a volume; attach it with doze sandbox create --volume",
		Example: "  doze volume create data --size 2048\n  doze sandbox create web --volume data:/var/lib/data",
		Args:    takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			v.Metadata.Name, v.Spec.Size = args[0], doze.Megabytes(size)
			return a.withVolume(cmd.Context(), v, (*client.Client).CreateVolume)
		},
	}
	cmd.Flags().IntVar(&size, "size", 0, fmt.Sprintf("size in `megabytes` (default: that of the template, or %d)", doze.VolumeDefault))
	cmd.Flags().StringVar(&v.Spec.Template, "template", "", "volume template, `name[:version]`")
	return cmd
}

// withVolume prints what a call makes of a volume.
func (a *app) withVolume(ctx context.Context, v doze.Volume, do func(*client.Client, context.Context, doze.Volume) (doze.Volume, error)) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	if v, err = do(c, ctx, v); err != nil {
		return err
	}
	return a.show(v, volumeRows(v))
}

func (a *app) listVolumes() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List volumes, newest first", Args: takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			all := []doze.Volume{} // [] in JSON
			for v, err := range c.Volumes(cmd.Context()) {
				if err != nil {
					return err
				}
				all = append(all, v)
			}
			return a.show(all, volumeRows(all...))
		},
	}
}

func volumeRows(all ...doze.Volume) [][]string {
	rows := [][]string{{"NAME", "MB", "ATTACHED TO", "TEMPLATE", "CREATED"}}
	for _, v := range all {
		rows = append(rows, []string{
			v.Metadata.Name, strconv.Itoa(int(v.Spec.Size)), v.State.AttachedTo, v.Spec.Template, moment(v.Metadata.CreatedAt),
		})
	}
	return rows
}

func (a *app) resizeVolume() *cobra.Command {
	return &cobra.Command{
		Use: "resize NAME MEGABYTES", Short: "Grow a volume; takes effect in the next sandbox", Args: takes(2, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			size, err := strconv.Atoi(args[1])
			if err != nil {
				return usagef("the size must be a number of megabytes, not %q", args[1])
			}
			v := doze.Volume{Metadata: doze.Metadata{Name: args[0]}, Spec: doze.VolumeSpec{Size: doze.Megabytes(size)}}
			return a.withVolume(cmd.Context(), v, func(c *client.Client, ctx context.Context, v doze.Volume) (doze.Volume, error) {
				now, err := c.Volume(ctx, v.Metadata.Name)
				if err != nil {
					return now, err
				}
				now.Spec.Size = v.Spec.Size
				return c.UpdateVolume(ctx, now)
			})
		},
	}
}

func (a *app) removeVolume() *cobra.Command {
	return &cobra.Command{
		Use: "rm NAME…", Aliases: []string{"delete"}, Short: "Delete volumes with all their files", Args: takes(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.each(cmd.Context(), args, func(ctx context.Context, c *client.Client, name string) error { return c.DeleteVolume(ctx, name) })
		},
	}
}

func (a *app) volumeTemplate() *cobra.Command {
	cmd := &cobra.Command{
		Use: "template", Aliases: []string{"templates"}, Short: "Manage templates for new volumes",
		Args: cobra.ArbitraryArgs, RunE: group,
	}
	cmd.AddCommand(a.uploadTemplate(), a.listTemplates(), a.removeTemplate())
	return cmd
}

func (a *app) uploadTemplate() *cobra.Command {
	var t doze.VolumeTemplate
	var size int
	var version string
	cmd := &cobra.Command{
		Use: "upload NAME PATH", Short: "Upload a template version: a directory, a tar, or - for a tar on standard input",
		Example: "  doze volume template upload assets ./assets\n  doze volume create web-assets --template assets:1",
		Args:    takes(2, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			files, err := a.archiveOf(args[1])
			if err != nil {
				return err
			}
			defer func() { _ = files.Close() }() // it was read, or the error says more
			t.Metadata.Name, t.Spec.DefaultSize = args[0], doze.Megabytes(size)
			p := a.watch("uploading", 0)
			made, err := c.UploadVolumeTemplate(cmd.Context(), t, version, p.counts(files))
			p.end()
			if err != nil {
				return err
			}
			return a.show(made, templateRows(made))
		},
	}
	cmd.Flags().IntVar(&size, "size", 0, fmt.Sprintf("size of new volumes in `megabytes` (default: that of the last version, or %d)", doze.VolumeDefault))
	cmd.Flags().StringVar(&version, "version", "", "`name` of the version (default: the next number)")
	cmd.Flags().StringVar(&t.Spec.Description, "description", "", "short `text` about the template")
	return cmd
}

// archiveOf is a tar: a file, the standard input, or one that is made of a
// directory while it is read.
func (a *app) archiveOf(path string) (io.ReadCloser, error) {
	if path == "-" {
		return io.NopCloser(a.in), nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return os.Open(path)
	}
	if err := uploadable(path); err != nil {
		return nil, err
	}
	r, w := io.Pipe()
	go func() { // ends when all is read, or the reader is closed
		out := tar.NewWriter(w)
		err := out.AddFS(os.DirFS(path))
		if err == nil {
			err = out.Close() // it writes the end
		}
		_ = w.CloseWithError(err) // never fails
	}()
	return r, nil
}

// uploadable says which file below a directory a template cannot have, before
// there is a version that lacks it.
func uploadable(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && !d.Type().IsRegular() {
			err = fmt.Errorf("%s is neither a file nor a directory: a template cannot have links or special files", path)
		}
		return err
	})
}

func (a *app) listTemplates() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List volume templates", Args: takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			all, err := c.VolumeTemplates(cmd.Context())
			if err != nil {
				return err
			}
			return a.show(all, templateRows(all...))
		},
	}
}

func templateRows(all ...doze.VolumeTemplate) [][]string {
	rows := [][]string{{"NAME", "STATUS", "MB", "LATEST", "VERSIONS", "DESCRIPTION"}}
	for _, t := range all {
		var versions []string
		for _, v := range t.Versions {
			versions = append(versions, v.Name)
		}
		rows = append(rows, []string{
			t.Metadata.Name, t.State.Status, strconv.Itoa(int(t.Spec.DefaultSize)), t.State.LatestVersion, strings.Join(versions, ","), t.Spec.Description,
		})
	}
	return rows
}

func (a *app) removeTemplate() *cobra.Command {
	return &cobra.Command{
		Use: "rm NAME[:VERSION]…", Aliases: []string{"delete"}, Short: "Delete volume templates or versions; existing volumes stay", Args: takes(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.each(cmd.Context(), args, func(ctx context.Context, c *client.Client, name string) error {
				if name, version, ok := strings.Cut(name, ":"); ok {
					return c.DeleteVolumeTemplateVersion(ctx, name, version)
				}
				return c.DeleteVolumeTemplate(ctx, name)
			})
		},
	}
}

// attachments reads what --volume and --scratch say.
func attachments(volumes, scratch []string) (all []doze.VolumeAttachment, err error) {
	for _, s := range volumes {
		name, path, ok := strings.Cut(s, ":")
		path, readOnly := strings.CutSuffix(path, ":ro")
		if !ok {
			return nil, usagef("--volume must be NAME:PATH or NAME:PATH:ro, not %q", s)
		}
		all = append(all, doze.VolumeAttachment{Name: name, MountPath: path, ReadOnly: readOnly})
	}
	for i, s := range scratch {
		path, size, _ := strings.Cut(s, ":")
		mb, err := strconv.Atoi(size)
		if err != nil {
			return nil, usagef("--scratch must be PATH:MEGABYTES, not %q", s)
		}
		all = append(all, doze.VolumeAttachment{
			Name: "scratch-" + strconv.Itoa(i+1), MountPath: path, SizeMB: doze.Megabytes(mb), Type: doze.VolumeEphemeral,
		})
	}
	return all, nil
}
