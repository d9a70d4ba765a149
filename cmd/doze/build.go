package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
)

const (
	// cancelTimeout bounds the cancellation of a build after an interrupt.
	cancelTimeout = 10 * time.Second
	// rejoinMax is how often in a row the log of a build is asked for again when the
	// connection breaks, and rejoinAfter the pause before.
	rejoinMax   = 10
	rejoinAfter = time.Second
)

// The ways to show the progress of a build.
const (
	progressAuto  = "auto"
	progressPlain = "plain"
	progressJSON  = "json"
)

var progressWords = []string{progressAuto, progressPlain, progressJSON}

func (a *app) build() *cobra.Command {
	var (
		in            doze.BuildRequest
		file          string
		args, secrets []string
		progress      string
	)
	cmd := &cobra.Command{
		Use: "build DIR", Short: "Build an image from a Dockerfile", Args: takes(0, 1),
		Long: `Upload a directory, and build an image of the workspace from the Dockerfile in it.
Files that .dockerignore names are not uploaded. An interrupt cancels the build.

FROM may name an image of a registry, of the platform (doze image catalog) or of the
workspace (doze image ls). Credentials for registries are a secret of the workspace
with the key ` + doze.PullSecretKey + `.`,
		Example: "  doze build . -t app\n  doze build . -t app:2 --build-arg VERSION=2 --secret id=token,env=TOKEN\n  doze build site -t site --target server --no-cache",
		RunE: func(cmd *cobra.Command, dirs []string) (err error) {
			if len(dirs) == 0 {
				return usagef("%s needs DIR, such as . for this directory, or one of the commands ls and cancel", cmd.CommandPath())
			}
			if in.Name == "" {
				return usagef("--tag is required: it is the name of the image, such as app or app:2")
			}
			if !slices.Contains(progressWords, progress) {
				return usagef("--progress must be %s or %s, not %q", strings.Join(progressWords[:len(progressWords)-1], ", "), progressWords[len(progressWords)-1], progress)
			}
			if in.Args, err = buildArgs(args, a.getenv); err != nil {
				return err
			}
			if in.Secrets, err = buildSecrets(secrets, a.getenv); err != nil {
				return err
			}
			files, err := openBuildFiles(dirs[0], file)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, files.Close()) }()
			in.Dockerfile = files.dockerfile
			return a.runBuild(cmd.Context(), in, files, progress)
		},
	}
	cmd.Flags().StringVarP(&in.Name, "tag", "t", "", "name of the image, as `NAME[:TAG]`")
	cmd.Flags().StringVarP(&file, "file", "f", "", "`path` of the Dockerfile (default DIR/Dockerfile)")
	cmd.Flags().StringArrayVar(&args, "build-arg", nil, "build argument, as `NAME[=VALUE]`; without =VALUE, copied from your shell")
	cmd.Flags().StringArrayVar(&secrets, "secret", nil, "secret for a mount of a step, as `id=ID,src=FILE` or id=ID,env=NAME")
	cmd.Flags().StringVar(&in.Target, "target", "", "`stage` to build (default the last one)")
	cmd.Flags().BoolVar(&in.NoCache, "no-cache", false, "run every step")
	cmd.Flags().StringVar(&progress, "progress", progressAuto, "how progress is shown: `auto|plain|json`")
	completeWords(cmd, "progress", progressWords...)
	cmd.AddCommand(a.buildList(), a.buildCancel())
	return cmd
}

// buildArgs reads NAME=VALUE, or NAME for a value from the environment.
func buildArgs(flags []string, getenv func(string) string) (map[string]string, error) {
	all := map[string]string{}
	for _, text := range flags {
		name, value, ok := strings.Cut(text, "=")
		if name == "" {
			return nil, usagef("--build-arg must be NAME=VALUE or NAME, not %q", text)
		}
		if !ok {
			value = getenv(name)
		}
		all[name] = value
	}
	return all, nil
}

// buildSecrets reads id=ID,src=FILE and id=ID,env=NAME.
func buildSecrets(flags []string, getenv func(string) string) (map[string]string, error) {
	all := map[string]string{}
	for _, text := range flags {
		parts := map[string]string{}
		for part := range strings.SplitSeq(text, ",") {
			key, value, _ := strings.Cut(part, "=")
			parts[key] = value
		}
		file, variable := parts["src"], parts["env"]
		if file == "" {
			file = parts["source"]
		}
		switch {
		case parts["id"] == "" || file == "" && variable == "" || file != "" && variable != "":
			return nil, usagef("--secret must be id=ID,src=FILE or id=ID,env=NAME, not %q", text)
		case variable != "":
			value := getenv(variable)
			if value == "" {
				return nil, usagef("--secret %s: the variable %s is not set, or empty", parts["id"], variable)
			}
			all[parts["id"]] = value
		default:
			raw, err := readBounded(file, doze.BuildArgBytesMax)
			if err != nil {
				return nil, usagef("--secret %s: %w", parts["id"], err)
			}
			all[parts["id"]] = string(raw)
		}
	}
	return all, nil
}

// readBounded reads a file of at most some bytes.
func readBounded(name string, most int) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was only read
	raw, err := io.ReadAll(io.LimitReader(f, int64(most)+1))
	if err == nil && len(raw) > most {
		err = fmt.Errorf("%s has more than %d bytes", name, most)
	}
	return raw, err
}

// runBuild uploads files, and shows the build until it has ended.
func (a *app) runBuild(ctx context.Context, in doze.BuildRequest, files *buildFiles, progress string) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	b, err := c.CreateBuild(ctx, in)
	if err != nil {
		return err
	}
	err = a.upload(ctx, c, b, files)
	var last doze.BuildEvent
	if err == nil {
		last, err = a.followBuild(ctx, c, b, progress)
	}
	if err != nil {
		if ctx.Err() != nil || last.Status == "" {
			a.cancelQuietly(ctx, c, b)
		}
		return err
	}
	if f := last.Failure; f != nil {
		f.Output = nil // it was shown
		return &doze.Error{Kind: doze.Unprocessable, Name: last.Status, Message: "the build of " + in.Name + " is " + last.Status + ": " + f.Text()}
	}
	if b, err = c.Build(ctx, b.ID); err != nil {
		return err
	}
	if progress == progressJSON {
		return nil // its last line says it
	}
	return a.show(b, [][]string{{"IMAGE", "MB", "DIGEST", extra + "BUILD"}, {b.Image, megabytes(b.Size), b.Digest, b.ID}})
}

// upload sends the files of a build.
func (a *app) upload(ctx context.Context, c *client.Client, b doze.Build, files *buildFiles) error {
	p := a.watch("uploading "+files.dir, 0)
	defer p.end()
	pipe, w := io.Pipe()
	packed := make(chan error, 1)
	go func() { // ends with the pipe
		err := files.pack(w)
		w.CloseWithError(err)
		packed <- err
	}()
	err := c.UploadBuild(ctx, b, p.counts(pipe))
	pipe.CloseWithError(errUploadEnded) // a server that took no more
	if mine := <-packed; mine != nil && !errors.Is(mine, errUploadEnded) {
		return mine // which is why the upload ended
	}
	return err
}

var errUploadEnded = errors.New("the upload has ended")

// cancelQuietly cancels a build that nobody waits for any more.
func (a *app) cancelQuietly(ctx context.Context, c *client.Client, b doze.Build) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelTimeout)
	defer cancel()
	if _, err := c.CancelBuild(ctx, b.ID); err != nil && doze.Public(err).Kind != doze.Conflict {
		a.say("the build " + b.ID + " may go on: doze build cancel " + b.ID + "\n")
	}
}

// followBuild shows the log of a build until its end, which it returns.
func (a *app) followBuild(ctx context.Context, c *client.Client, b doze.Build, progress string) (last doze.BuildEvent, err error) {
	view := a.buildView(progress)
	defer view.close()
	for again := 0; ; again++ {
		begin := last.At
		err = nil
		for e, broken := range c.BuildLog(ctx, b.ID, true) {
			if err = broken; err != nil {
				break
			}
			if !e.At.After(begin.Time) { // it was shown before the connection broke
				continue
			}
			again = 0
			if e != (doze.BuildEvent{At: e.At}) { // or the build goes on
				last = e
				if err := view.show(e); err != nil {
					return last, err
				}
			}
			if e.Status != "" {
				return e, nil
			}
		}
		if ctx.Err() != nil {
			return last, context.Cause(ctx)
		}
		if err != nil && doze.Public(err).Kind != doze.Unavailable || again >= rejoinMax {
			if err == nil {
				err = doze.Errorf(doze.Unavailable, "the log of the build %s ended early: see doze build ls", b.ID)
			}
			return last, err
		}
		select {
		case <-time.After(rejoinAfter):
		case <-ctx.Done():
		}
	}
}

func (a *app) buildList() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List the builds of the workspace, the newest first", Args: takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			all, err := c.Builds(cmd.Context())
			if err != nil {
				return err
			}
			rows := [][]string{{"ID", "IMAGE", "STATUS", "QUEUE", "CREATED", "ENDED", extra + "FOR", extra + "REASON"}}
			for _, b := range all {
				queue, reason := "", ""
				if b.Position > 0 {
					queue = fmt.Sprint(b.Position)
				}
				if b.Failure != nil {
					reason = b.Failure.Message
				}
				rows = append(rows, []string{b.ID, b.Name + ":" + b.Tag, b.Status, queue, moment(b.CreatedAt), moment(b.EndedAt), b.ResourceType, reason})
			}
			return a.show(all, rows)
		},
	}
}

func (a *app) buildCancel() *cobra.Command {
	return &cobra.Command{
		Use: "cancel ID…", Short: "Cancel builds that have not ended", Args: takes(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.each(cmd.Context(), args, func(ctx context.Context, c *client.Client, id string) error {
				_, err := c.CancelBuild(ctx, id)
				return err
			})
		},
	}
}

// buildLogs prints the log of the last build of a name.
func (a *app) buildLogs() *cobra.Command {
	var follow bool
	cmd := &cobra.Command{
		Use: "build-logs NAME", Short: "Print the log of the last build of an image or a sandbox", Args: takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			all, err := c.Builds(cmd.Context())
			if err != nil {
				return err
			}
			name, tag, tagged := strings.Cut(args[0], ":")
			i := slices.IndexFunc(all, func(b doze.Build) bool { return b.ID == args[0] || b.Name == name && (!tagged || b.Tag == tag) })
			if i < 0 {
				return doze.Errorf(doze.NotFound, "there is no build of %q: see doze build ls", args[0])
			}
			var view buildView = pastView(a.out) // the log is what was asked for
			if a.whole() {
				view = rawView{a.out}
			}
			defer view.close()
			for e, err := range c.BuildLog(cmd.Context(), all[i].ID, follow) {
				if err != nil {
					return err
				}
				if err := view.show(e); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "print new lines until the build has ended")
	return cmd
}

// buildFiles are a directory that is to be uploaded.
type buildFiles struct {
	dir        string
	root       *os.Root
	dockerfile string // its path in the directory, with slashes
	ignore     ignored
}

// openBuildFiles opens a directory with a Dockerfile, which is that of dir without a path.
// A path is looked for as it is, and then in dir.
func openBuildFiles(dir, file string) (*buildFiles, error) {
	info, err := os.Stat(dir)
	if err != nil || !info.IsDir() {
		return nil, usagef("%s is no directory: name the directory with the Dockerfile", dir)
	}
	name := "Dockerfile"
	if file != "" {
		if name, err = pathIn(dir, file); err != nil {
			return nil, err
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	f := &buildFiles{dir: dir, root: root, dockerfile: filepath.ToSlash(name)}
	if err := checkDockerfile(root, dir, name); err != nil {
		return nil, errors.Join(err, root.Close())
	}
	if f.ignore, err = readIgnore(root, name); err != nil {
		return nil, errors.Join(err, root.Close())
	}
	return f, nil
}

// checkDockerfile fails if a directory has no Dockerfile of a name that can be built.
func checkDockerfile(root *os.Root, dir, name string) error {
	link, err := root.Lstat(name)
	if err != nil {
		return usagef("%s has no %s: write one, or name it with --file", dir, name)
	}
	info, err := root.Stat(name)
	switch {
	case err != nil && link.Mode()&fs.ModeSymlink != 0:
		return usagef("%s in %s is a link to no file in that directory: put the file itself there", name, dir)
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return usagef("%s in %s is no file: name the Dockerfile with --file", name, dir)
	case info.Size() == 0:
		return usagef("%s in %s is empty: begin with a line such as FROM doze/slim", name, dir)
	}
	return nil
}

// pathIn is the path of a file in a directory.
func pathIn(dir, file string) (string, error) {
	if _, err := os.Stat(file); err != nil {
		if filepath.IsLocal(file) {
			return filepath.Clean(file), nil
		}
		return "", usagef("--file: there is no %s", file)
	}
	from, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	to, err := filepath.Abs(file)
	if err != nil {
		return "", err
	}
	name, err := filepath.Rel(from, to)
	if err != nil || !filepath.IsLocal(name) {
		return "", usagef("--file: %s is not inside of %s: move it there", file, dir)
	}
	return name, nil
}

// Close closes the directory.
func (f *buildFiles) Close() error { return f.root.Close() }
