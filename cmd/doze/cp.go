package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"path/filepath"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
)

// filesAtOnce hides the way there and back, of which each small file needs one.
const filesAtOnce = 4

func (a *app) cp() *cobra.Command {
	return &cobra.Command{
		Use: "cp FROM TO", Short: "Copy files into a sandbox or out of one",
		Long: `Copy files and directories into a sandbox or out of one.

One of FROM and TO is NAME:PATH, a path in a sandbox. A relative PATH starts at
the root of the sandbox's file API. The other is a local path, or - for standard
input or output. Write ./a:b for a local name with a colon.

If TO is a directory or ends in a slash, the copy is made in it, under the name
of FROM. Directories are copied with everything in them and merged into existing
ones. New files get the permissions of the original. Each file is replaced
atomically. An error stops the copy; finished files stay. Links to files are
followed. Links to directories and special files are skipped, and listed at the
end.`,
		Example: "  doze sandbox cp ./app web:/srv/\n  doze sandbox cp web:/var/log/app.log .\n  pg_dump app | doze sandbox cp - web:/tmp/app.sql",
		Args:    takes(2, 2), ValidArgsFunction: a.completePlace,
		RunE: func(cmd *cobra.Command, args []string) error {
			from, to := parsePlace(args[0]), parsePlace(args[1])
			if (from.sandbox == "") == (to.sandbox == "") || args[0] == "" || args[1] == "" {
				return usagef("one of the two must be a place in a sandbox, like web:/srv, and the other one here")
			}
			agent, err := a.enter(cmd.Context(), from.sandbox+to.sandbox)
			if err != nil {
				return err
			}
			c := &copier{app: a, agent: agent}
			if to.sandbox != "" {
				err = c.upload(cmd.Context(), from.path, to.path)
			} else {
				err = c.download(cmd.Context(), from.path, to.path)
			}
			return errors.Join(err, c.conclude(err == nil && to.path != stdio))
		},
	}
}

// A place is a path here, or in a sandbox.
type place struct{ sandbox, path string }

func parsePlace(text string) place {
	name, rest, ok := strings.Cut(text, ":")
	if !ok || name == "" || strings.ContainsAny(name, `/\.`) || filepath.VolumeName(text) != "" {
		return place{path: text}
	}
	return place{name, rest}
}

// stdio is the path of standard input and output.
const stdio = "-"

// A copier copies in one direction.
type copier struct {
	app   *app
	agent *client.Agent
	sum   copied

	mu     sync.Mutex
	passed []string // guarded by mu; what was left out
}

func (c *copier) pass(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.passed = append(c.passed, name)
}

// copied is how much was.
type copied struct {
	Files       int   `json:"files"`
	Directories int   `json:"directories"`
	Bytes       int64 `json:"bytes"`
}

// An entry is a file or a directory below what is copied.
type entry struct {
	name string // with slashes, relative; "." is what is copied itself
	dir  bool
	size int64
	mode fs.FileMode // its permissions
}

func (e *entry) permissions() string { return fmt.Sprintf("%04o", e.mode) }

// conclude says what was copied, if it is to, and what was not.
func (c *copier) conclude(say bool) (err error) {
	if say && c.app.whole() {
		err = c.app.printWhole(c.sum)
	}
	if len(c.passed) > 0 {
		err = errors.Join(err, fmt.Errorf("skipped links and special files: %s", strings.Join(c.passed, ", ")))
	}
	return err
}

// transfer makes the directories of all, in their order, and copies the files.
func (c *copier) transfer(
	ctx context.Context, what string, all []entry,
	directory func(context.Context, entry) error, file func(context.Context, entry, *progress) error,
) error {
	var total int64
	for _, e := range all {
		total += e.size
	}
	p := c.app.watch(what, total)
	defer p.end()
	g, inner := errgroup.WithContext(ctx)
	g.SetLimit(filesAtOnce)
	for _, e := range all {
		if inner.Err() != nil {
			break
		}
		if e.dir {
			if err := directory(inner, e); err != nil {
				return errors.Join(err, g.Wait())
			}
			c.sum.Directories++
			continue
		}
		c.sum.Files++
		g.Go(func() error {
			if err := file(inner, e, p); err != nil {
				return fmt.Errorf("%s: %w", e.name, err)
			}
			return nil
		})
	}
	err := g.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	c.sum.Bytes = p.done.Load()
	return err
}

// inside is where a copy called name goes, if to is a directory or is meant to
// be one.
func inside(to, name string, isDir bool) string {
	if isDir || strings.HasSuffix(to, "/") {
		return path.Join(to, name)
	}
	return to
}

// copyWhole copies all of r, and counts it.
func copyWhole(w io.Writer, r io.Reader, p *progress) error {
	_, err := io.Copy(w, p.counts(r))
	return err
}

// remoteDir reports whether a name in the sandbox is a directory.
func (c *copier) remoteDir(ctx context.Context, name string) (bool, error) {
	is, err := c.agent.IsDir(ctx, name)
	if doze.Public(err).Kind == doze.NotFound {
		return false, nil
	}
	return is, err
}
