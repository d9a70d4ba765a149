package main

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
)

func (a *app) image() *cobra.Command {
	cmd := &cobra.Command{
		Use: "image", Aliases: []string{"images"}, Short: "Add, build, copy and share the images of the workspace",
		Args: cobra.ArbitraryArgs, RunE: group,
	}
	list := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List the images of the workspace, and images shared with it", Args: takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			all, err := c.Images(cmd.Context())
			if err != nil {
				return err
			}
			return a.show(all, imageRows(all...))
		},
	}
	get := &cobra.Command{
		Use: "get NAME[:TAG]", Short: "Print one image, with all its tags or with one", Args: takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			name, tag, tagged := strings.Cut(strings.TrimPrefix(args[0], doze.KindSandbox+"/"), ":")
			i, err := c.Image(cmd.Context(), name)
			if err != nil {
				return err
			}
			if tagged {
				i.Spec.Tags = slices.DeleteFunc(i.Spec.Tags, func(t doze.ImageTag) bool { return t.Name != tag })
				if len(i.Spec.Tags) == 0 {
					return doze.Errorf(doze.NotFound, "the image %s has no tag %q: see doze image get %s", name, tag, name)
				}
			}
			rows := imageRows(i)
			if len(i.Spec.Tags) == 0 { // it is built for the first time
				rows = [][]string{
					{"NAME", "STATUS", "UPDATED", "REASON"},
					{i.Metadata.Name, i.Metadata.Status, moment(i.Metadata.UpdatedAt), "doze image build-logs " + i.Metadata.Name},
				}
			}
			return a.show(i, rows)
		},
	}
	remove := &cobra.Command{
		Use: "rm NAME[:TAG]…", Aliases: []string{"delete"}, Short: "Delete images or tags that no sandbox uses", Args: takes(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.each(cmd.Context(), args, func(ctx context.Context, c *client.Client, name string) error { return c.DeleteImage(ctx, name) })
		},
	}
	prune := &cobra.Command{
		Use: "prune", Short: "Delete all tags that no sandbox uses", Args: takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			n, err := c.CleanImages(cmd.Context())
			if err != nil {
				return err
			}
			return a.show(map[string]int{"deleted": n}, [][]string{{"DELETED"}, {strconv.Itoa(n)}})
		},
	}
	catalog := &cobra.Command{
		Use: "catalog", Short: "List the images that the platform offers", Args: takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			all, err := c.Catalog(cmd.Context())
			if err != nil {
				return err
			}
			rows := [][]string{{"IMAGE", "MEMORY", "DESCRIPTION", extra + "NAME", extra + "PORTS", extra + "CATEGORIES"}}
			for _, i := range all {
				var ports []string
				for _, p := range i.Ports {
					ports = append(ports, strconv.Itoa(p.Target))
				}
				rows = append(rows, []string{i.Image, strconv.Itoa(int(i.Memory)), i.Description, i.Name, strings.Join(ports, ","), strings.Join(i.Categories, ",")})
			}
			return a.show(all, rows)
		},
	}
	cmd.AddCommand(
		a.addImage(), list, get, catalog, a.saveImage(), a.loadImage(), a.pushImage(), a.pullImage(), remove, prune, a.buildLogs(),
		a.imageShare("share NAME WORKSPACE…", "Let other workspaces use an image", (*client.Client).ShareImage),
		a.imageShare("unshare NAME WORKSPACE…", "Stop sharing an image; existing sandboxes keep running", (*client.Client).UnshareImage),
	)
	return cmd
}

func (a *app) addImage() *cobra.Command {
	return &cobra.Command{
		Use: "add NAME[:TAG] IMAGE", Short: "Pull a registry image and add it under a name",
		Long: `Pull a registry image and add it to the workspace under a name. The name stays on
the pulled version, even if the registry's tag moves. Add it again to update it.

Credentials come from a workspace secret with the key ` + doze.PullSecretKey + `.
Its value has the format of Docker's config.json.`,
		Example: "  doze secret set hub \"" + doze.PullSecretKey + "=$(cat ~/.docker/config.json)\"\n  doze image add app registry.example.com/team/app:1.0\n  doze sandbox create web --image app",
		Args:    takes(2, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			p := a.watch("pulling "+args[1], 0)
			made, err := c.CreateImage(cmd.Context(), args[0], args[1])
			p.end()
			if err != nil {
				return err
			}
			return a.show(made, [][]string{{"NAME", "IMAGE"}, {made.Name, made.Image}})
		},
	}
}

// imageShare is a command that does something to an image for workspaces.
func (a *app) imageShare(use, short string, do func(c *client.Client, ctx context.Context, name, workspace string) error) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: takes(2, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.each(cmd.Context(), args[1:], func(ctx context.Context, c *client.Client, workspace string) error {
				return do(c, ctx, args[0], workspace)
			})
		},
	}
}

func imageRows(all ...doze.Image) [][]string {
	rows := [][]string{{"NAME", "TAG", "IMAGE", "MB", "FROM", "UPDATED", extra + "REFERENCE"}}
	for _, i := range all {
		for _, t := range i.Spec.Tags {
			rows = append(rows, []string{
				i.Metadata.Name, t.Name, briefImage(t.Image), strconv.FormatInt(t.Size>>20, 10), i.Metadata.SourceWorkspace, moment(t.UpdatedAt), t.Image,
			})
		}
	}
	return rows
}

const (
	// digestLetters is how many digits of a digest a table has, as in the tables of docker.
	digestLetters = 12
	// repositoryMax is how much of the name of a repository a table has.
	repositoryMax = 40
)

// briefImage is a reference for a table. Of an image that was built or loaded it is the digest.
func briefImage(ref string) string {
	repository, digest, pinned := strings.Cut(ref, "@sha256:")
	if len(repository) > repositoryMax {
		repository = "…" + strings.ToValidUTF8(repository[len(repository)-repositoryMax+1:], "")
	}
	switch {
	case !pinned:
		return repository
	case strings.HasPrefix(ref, doze.BuiltPrefix):
		return digest[:min(digestLetters, len(digest))]
	}
	return repository + "@" + digest[:min(digestLetters, len(digest))]
}
