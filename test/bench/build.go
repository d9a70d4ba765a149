package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
	"github.com/dozehq/doze/internal/npm"
	"github.com/dozehq/doze/internal/testkit"
)

const (
	buildRounds    = 10
	buildNewRounds = 3 // each boots a builder, and loads the base image into it
	// buildMemory is the memory of sandboxes of what was built.
	buildMemory = 512
	// copyFiles and copyBytes are what COPY copies.
	copyFiles, copyBytes = 2000, 4 << 10
	// importFiles and importBytes make an archive of 300 MB.
	importFiles, importBytes = 20_000, 15 << 10
	// buildPoll is how often a caller of PUT looks at its sandbox.
	buildPoll = 50 * time.Millisecond
	// trueSteps is how many steps do nothing in one build.
	trueSteps = 5
)

// The rows of whole builds. Each has a yardstick of the same name: see [withRunc].
const (
	buildNew     = "FROM and 3 RUN, new builder"
	buildCached  = "FROM and 3 RUN, all cached"
	buildChanged = "FROM and 3 RUN, one changed line"
)

// The rows that end with a sandbox. The yardstick of a rebuild makes the image, and runs nothing.
const (
	buildKnown   = "start of a known image, create + exec"
	buildFirst   = "first start of what was built, create + exec"
	buildRebuild = "cached rebuild, create + exec"
	buildPut     = "cached rebuild, PUT with upload=true + exec"
	buildAsleep  = "cached rebuild, create + exec, builder on disk"
)

// The rows of archives.
const (
	buildTar    = "tar -x, 300 MB in 20,000 files"
	buildImport = "import, 300 MB in 20,000 files"
)

// buildStep is a row about one step.
type buildStep struct {
	name, dockerfile string
	step             string // the instructions that count begin so
	rounds           int
	network          bool // without a network, the step fails
	files            int  // in the directory files
}

// buildSteps are rows about the time of one step, in builds that use no cache.
var buildSteps = []buildStep{
	{"RUN true", "FROM doze/slim\n" + strings.Repeat("RUN true\n", trueSteps), "RUN true", buildRounds, false, 0},
	{"COPY of 2,000 files", "FROM doze/slim\nCOPY files /files\n", "COPY", buildRounds, false, copyFiles},
	{"RUN apt-get install", "FROM doze/slim\nRUN apt-get update && apt-get install -y --no-install-recommends jq file bc\n", "RUN", buildNewRounds, true, 0},
	{
		"RUN npm install",
		"FROM doze/base-image\nRUN --mount=type=secret,id=npmrc,target=/root/.npmrc --mount=type=secret,id=npm-authorities mkdir /app && cd /app && npm install --fetch-retries=0 express@4.21.2 lodash@4.17.21 typescript@5.7.3\n",
		"RUN", buildNewRounds, true, 0,
	},
}

// withRunc is the yardstick of a build.
func withRunc(name string) string { return name + ", BuildKit with runc" }

// buildCases names all rows of the benchmark.
func buildCases() (names []string) {
	for _, name := range []string{buildNew, buildCached, buildChanged} {
		names = append(names, withRunc(name), name)
	}
	for _, s := range buildSteps {
		names = append(names, withRunc(s.name), s.name)
	}
	return append(names, buildTar, buildImport, buildKnown, buildFirst, buildRebuild, buildPut, buildAsleep)
}

// builds is the benchmark of builds under way.
type builds struct {
	p    *testkit.Platform
	c    *client.Client
	dir  string
	only *regexp.Regexp

	allow   []string          // flags by which builders reach the mirrors of this host
	layouts map[string]string // of base images, for the yardstick: files by names
	lacks   string            // why there is no yardstick
	secrets map[string]string // of each build: the npm settings of this host
	count   int               // names what must be new
	all     latencies
}

// buildImages builds with a platform, and with BuildKit and runc on this host.
func buildImages(ctx context.Context, dir string, only *regexp.Regexp) (_ table, err error) {
	registry := npm.Find(ctx)
	allow := testkit.Mirrors(ctx, registry)
	p, err := testkit.Start(ctx, testkit.Options{Dir: dir, Fast: true, Args: append(buildArgs("--pause-after", "1h"), allow...)})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	c, err := p.Client()
	if err != nil {
		return nil, err
	}
	b := &builds{p: p, c: c, dir: dir, only: only, allow: allow, layouts: map[string]string{}, secrets: npmSecrets(registry)}
	for _, part := range []func(context.Context) error{b.prepare, b.whole, b.steps, b.archives, b.sandboxes, b.asleep} {
		if err := part(ctx); err != nil {
			return b.all, err
		}
	}
	return b.all, nil
}

// buildArgs are the flags of a platform that builds.
func buildArgs(more ...string) []string {
	return append([]string{"--egress", "open", "--log", "warn", "--warm-pool", "2"}, more...)
}

// npmSecrets are how a step reaches the registry of this host. They are in no layer.
func npmSecrets(r npm.Registry) map[string]string {
	secrets := map[string]string{"npmrc": r.Config("/run/secrets/npm-authorities")}
	if len(r.Authorities) > 0 {
		secrets["npm-authorities"] = string(r.Authorities)
	}
	return secrets
}

// prepare has the base images here, and their layouts for the yardstick.
func (b *builds) prepare(ctx context.Context) error {
	if _, err := exec.LookPath("runc"); err != nil {
		b.lacks = "install runc"
	} else if _, err := os.Stat(b.yardstick()); err != nil {
		b.lacks = "make bench-build compiles the yardstick"
	}
	for i, name := range []string{"doze/slim", "doze/base-image"} {
		needed := func(s buildStep) bool {
			return b.only.MatchString(s.name) && strings.HasPrefix(s.dockerfile, "FROM "+name+"\n")
		}
		if i > 0 && !slices.ContainsFunc(buildSteps, needed) {
			continue
		}
		tag := fmt.Sprintf("bench-base-%d", i)
		context := filepath.Join(b.dir, tag)
		if err := b.write(context, "FROM "+name+"\n"); err != nil {
			return err
		}
		if _, err := b.build(ctx, b.c, tag, context, false); err != nil {
			return fmt.Errorf("load %s into the builder: %w", name, err)
		}
		if err := b.save(ctx, tag, filepath.Join(b.dir, tag+".tar")); err != nil {
			return err
		}
		b.layouts[name] = filepath.Join(b.dir, tag+".tar")
	}
	return nil
}

// save writes the layout of an image to a file.
func (b *builds) save(ctx context.Context, name, file string) (err error) {
	from, err := b.c.SaveImage(ctx, name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	to, err := os.Create(file)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	return errors.Join(err, to.Close())
}

// write makes a context with a Dockerfile.
func (b *builds) write(dir, dockerfile string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte(dockerfile), 0o600)
}

// built is what came of a build.
type built struct {
	took  time.Duration
	image string
	steps map[string]time.Duration // that ended, by name; of equal names the mean
}

// stepsOf returns the mean time of the steps that begin with some text.
func (m built) stepsOf(text string) (time.Duration, error) {
	var sum time.Duration
	n := 0
	for name, took := range m.steps {
		if strings.HasPrefix(name, text) {
			sum += took
			n++
		}
	}
	if n == 0 {
		return 0, fmt.Errorf("the build has no step %q", text)
	}
	return sum / time.Duration(n), nil
}

// failedError is a build whose Dockerfile failed.
type failedError struct{ why string }

func (e *failedError) Error() string { return e.why }

// build builds a directory from the request until the log says that the image is there.
func (b *builds) build(ctx context.Context, c *client.Client, name, dir string, noCache bool) (out built, err error) {
	var archive bytes.Buffer
	if err := packDir(&archive, dir); err != nil {
		return out, err
	}
	began := time.Now()
	order, err := c.CreateBuild(ctx, doze.BuildRequest{Name: name, NoCache: noCache, Secrets: b.secrets})
	if err != nil {
		return out, err
	}
	if err := c.UploadBuild(ctx, order, &archive); err != nil {
		return out, err
	}
	sums, counts := map[string]time.Duration{}, map[string]time.Duration{}
	for e, err := range c.BuildLog(ctx, order.ID, true) {
		if err != nil {
			return out, err
		}
		if e.State == doze.StepDone && e.Step > 0 {
			sums[e.Name] += time.Duration(e.TookMs) * time.Millisecond
			counts[e.Name]++
		}
		if e.Failure != nil {
			return out, &failedError{e.Failure.Text()}
		}
		out.image = e.Image
	}
	out.took = time.Since(began)
	if out.image == "" {
		return out, fmt.Errorf("the build %s made no image", order.ID)
	}
	out.steps = map[string]time.Duration{}
	for name, sum := range sums {
		out.steps[name] = sum / counts[name]
	}
	return out, nil
}

// packDir writes a directory as a tar.
func packDir(w io.Writer, dir string) error {
	out := tar.NewWriter(w)
	if err := out.AddFS(os.DirFS(dir)); err != nil {
		return err
	}
	return out.Close()
}

func (b *builds) yardstick() string { return filepath.Join(testkit.Root(), "bin", "yardstick") }

// measured is what the yardstick prints: see builder/yardstick.
type measured struct {
	Load  float64 `json:"loadMs"`
	Build float64 `json:"buildMs"`
	Steps []struct {
		Name  string  `json:"name"`
		State string  `json:"state"`
		Took  float64 `json:"tookMs"`
	} `json:"steps"`
}

func milliseconds(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }

// outside builds a directory with the yardstick.
func (b *builds) outside(ctx context.Context, cache, dir string, noCache bool) (load time.Duration, out built, err error) {
	args := []string{"-cache", filepath.Join(b.dir, cache)}
	if noCache {
		args = append(args, "-no-cache")
	}
	raw, err := os.ReadFile(filepath.Join(dir, "Dockerfile"))
	if err != nil {
		return 0, out, err
	}
	for name, file := range b.layouts {
		if strings.Contains(string(raw), "FROM "+name+"\n") {
			args = append(args, "-image", name+"="+file)
		}
	}
	for id, text := range b.secrets {
		file := filepath.Join(b.dir, "secret-"+id)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return 0, out, err
		}
		args = append(args, "-secret", id+"="+file)
	}
	cmd := exec.CommandContext(ctx, b.yardstick(), append(args, dir)...) //nolint:gosec // G204: our own program
	var said bytes.Buffer
	cmd.Stderr = &said
	answer, err := cmd.Output()
	if err != nil {
		return 0, out, &failedError{fmt.Sprintf("%v: %.1000s", err, said.String())}
	}
	var m measured
	if err := json.Unmarshal(answer, &m); err != nil {
		return 0, out, fmt.Errorf("the yardstick: %w", err)
	}
	sums, counts := map[string]time.Duration{}, map[string]time.Duration{}
	for _, s := range m.Steps {
		sums[s.Name] += milliseconds(s.Took)
		counts[s.Name]++
	}
	out.steps = map[string]time.Duration{}
	for name, sum := range sums {
		out.steps[name] = sum / counts[name]
	}
	out.took = milliseconds(m.Build)
	return milliseconds(m.Load), out, nil
}

// pair adds a row with its yardstick, if it is asked for.
func (b *builds) pair(name string) (runc, s *series) {
	if !b.only.MatchString(name) {
		return nil, nil
	}
	runc = &series{name: withRunc(name), unsupported: b.lacks}
	s = &series{name: name, against: runc}
	b.all = append(b.all, runc, s)
	return runc, s
}

// both takes one sample of a row and of its yardstick. Read is what counts of a build.
func (b *builds) both(ctx context.Context, runc, s *series, tag, dir string, noCache bool, read func(built) (time.Duration, error)) error {
	if runc.unsupported == "" {
		_, out, err := b.outside(ctx, "cache", dir, noCache)
		if err == nil {
			err = addRead(runc, out, read)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", runc.name, err)
		}
	}
	out, err := b.build(ctx, b.c, tag, dir, noCache)
	if err == nil {
		err = addRead(s, out, read)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	return nil
}

func addRead(s *series, out built, read func(built) (time.Duration, error)) error {
	took, err := read(out)
	if err == nil {
		s.add(took)
	}
	return err
}

func wholeOf(out built) (time.Duration, error) { return out.took, nil }

// three is a Dockerfile with three steps.
func three(last string) string {
	return "FROM doze/slim\nRUN echo one >/one\nRUN mkdir /two && echo two >/two/file\nRUN echo " + last + " >/three\n"
}

// whole measures whole builds.
func (b *builds) whole(ctx context.Context) error {
	dir := filepath.Join(b.dir, "three")
	if err := b.write(dir, three("three")); err != nil {
		return err
	}
	if err := b.fresh(ctx, dir); err != nil {
		return err
	}
	if _, err := b.build(ctx, b.c, "three", dir, false); err != nil {
		return err
	}
	if b.lacks == "" {
		if _, _, err := b.outside(ctx, "cache", dir, false); err != nil {
			return err
		}
	}
	if runc, s := b.pair(buildCached); s != nil {
		for range times(buildRounds) {
			if err := b.both(ctx, runc, s, "three", dir, false, wholeOf); err != nil {
				return err
			}
		}
	}
	runc, s := b.pair(buildChanged)
	if s == nil {
		return nil
	}
	for range times(buildRounds) {
		b.count++
		if err := b.write(dir, three(fmt.Sprint("changed ", b.count))); err != nil {
			return err
		}
		if err := b.both(ctx, runc, s, "three", dir, false, wholeOf); err != nil {
			return err
		}
	}
	return nil
}

// fresh measures the first build of a workspace, and of a new cache.
func (b *builds) fresh(ctx context.Context, dir string) error {
	runc, s := b.pair(buildNew)
	if s == nil {
		return nil
	}
	for i := range times(buildNewRounds) {
		if runc.unsupported == "" {
			cache := fmt.Sprintf("new-%d", i)
			load, out, err := b.outside(ctx, cache, dir, false)
			if err != nil {
				return fmt.Errorf("%s: %w", runc.name, err)
			}
			runc.add(load + out.took)
			if err := os.RemoveAll(filepath.Join(b.dir, cache)); err != nil {
				return err
			}
		}
		if err := b.inWorkspace(ctx, fmt.Sprintf("bench-%d", i), func(c *client.Client) error {
			out, err := b.build(ctx, c, "three", dir, false)
			if err == nil {
				s.add(out.took)
			}
			return err
		}); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

// inWorkspace calls do with a workspace of its own, which ends with its builder.
func (b *builds) inWorkspace(ctx context.Context, name string, do func(*client.Client) error) error {
	if _, err := b.c.CreateWorkspace(ctx, name); err != nil {
		return err
	}
	c, err := client.New(client.Config{Address: b.p.Address, Key: b.p.Key, Workspace: name})
	if err != nil {
		return err
	}
	return errors.Join(do(c), c.DeleteWorkspace(ctx, name))
}

// steps measures steps.
func (b *builds) steps(ctx context.Context) error {
	for i, row := range buildSteps {
		runc, s := b.pair(row.name)
		if s == nil {
			continue
		}
		dir := filepath.Join(b.dir, fmt.Sprintf("step-%d", i))
		if err := errors.Join(b.write(dir, row.dockerfile), writeFiles(filepath.Join(dir, "files"), row.files)); err != nil {
			return err
		}
		for range times(row.rounds) {
			err := b.both(ctx, runc, s, fmt.Sprintf("step-%d", i), dir, true, func(out built) (time.Duration, error) { return out.stepsOf(row.step) })
			failed, isFailed := errors.AsType[*failedError](err)
			if isFailed && row.network {
				if len(runc.samples) > len(s.samples) { // the host has the network
					s.fail(err)
				} else {
					runc.unsupported, s.unsupported = oneLine(failed.why), oneLine(failed.why)
				}
				break
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// writeFiles makes a directory with files, if there are to be any.
func writeFiles(dir string, n int) error {
	if n == 0 {
		return nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	text := noise(fmt.Sprint(n), copyBytes)
	for i := range n {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), text, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// noise is content that does not compress, the same for the same seed.
func noise(seed string, n int) []byte {
	text := make([]byte, n)
	_, _ = rand.NewChaCha8(sha256.Sum256([]byte(seed))).Read(text) // never fails
	return text
}

// archives imports archives of docker, each with other files, and unpacks the layer of each.
func (b *builds) archives(ctx context.Context) error {
	if !b.only.MatchString(buildImport) {
		return nil
	}
	unpack := &series{name: buildTar, bytes: importFiles * importBytes}
	s := &series{name: buildImport, against: unpack, bytes: importFiles * importBytes}
	b.all = append(b.all, unpack, s)
	layer, archive, tree := filepath.Join(b.dir, "layer.tar"), filepath.Join(b.dir, "docker.tar"), filepath.Join(b.dir, "tree")
	for range times(buildNewRounds) {
		// Images of this host are shared: files of an earlier run would be known.
		if err := writeDocker(layer, archive, rand.Int64()); err != nil { //nolint:gosec // G404: any number will do
			return err
		}
		if err := os.Mkdir(tree, 0o700); err != nil {
			return err
		}
		err := unpack.took(func() error {
			return exec.CommandContext(ctx, "tar", "-x", "-f", layer, "-C", tree).Run() //nolint:gosec // G204: files of our own
		})
		if err := errors.Join(err, os.RemoveAll(tree)); err != nil {
			return fmt.Errorf("%s: %w", unpack.name, err)
		}
		err = s.took(func() error {
			f, err := os.Open(archive)
			if err != nil {
				return err
			}
			defer func() { _ = f.Close() }() // it is only read
			_, err = b.c.LoadImage(ctx, "imported", f)
			return err
		})
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return errors.Join(os.Remove(layer), os.Remove(archive))
}

// writeDocker writes an archive as docker saves it, and its layer.
func writeDocker(layer, archive string, seed int64) (err error) {
	to, err := os.Create(layer)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	sum := sha256.New()
	out := tar.NewWriter(io.MultiWriter(to, sum))
	for i := range importFiles {
		text := noise(fmt.Sprint(seed, i), importBytes)
		err := out.WriteHeader(&tar.Header{Name: fmt.Sprintf("srv/%d/%d", i%100, i), Mode: 0o644, Size: importBytes, Typeflag: tar.TypeReg})
		if err == nil {
			_, err = out.Write(text)
		}
		if err != nil {
			return err
		}
	}
	if err := out.Close(); err != nil {
		return err
	}
	config, err := json.Marshal(map[string]any{
		"architecture": "amd64", "os": "linux", "config": map[string]any{},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(sum.Sum(nil))}},
	})
	if err != nil {
		return err
	}
	manifest, err := json.Marshal([]map[string]any{{"Config": "config.json", "RepoTags": []string{"bench:latest"}, "Layers": []string{"layer.tar"}}})
	if err != nil {
		return err
	}
	return packDocker(archive, map[string][]byte{"manifest.json": manifest, "config.json": config}, layer)
}

// packDocker writes small files and a layer to an archive.
func packDocker(archive string, small map[string][]byte, layer string) (err error) {
	to, err := os.Create(archive)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	out := tar.NewWriter(to)
	for name, text := range small {
		err := out.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text)), Typeflag: tar.TypeReg})
		if err == nil {
			_, err = out.Write(text)
		}
		if err != nil {
			return err
		}
	}
	from, err := os.Open(layer)
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }() // it is only read
	info, err := from.Stat()
	if err == nil {
		err = out.WriteHeader(&tar.Header{Name: "layer.tar", Mode: 0o644, Size: info.Size(), Typeflag: tar.TypeReg})
	}
	if err == nil {
		_, err = io.Copy(out, from)
	}
	return errors.Join(err, out.Close())
}

// start makes a sandbox of an image, until its first exec has ended, and deletes it.
func (b *builds) start(ctx context.Context, image string) (took time.Duration, err error) {
	b.count++
	name := fmt.Sprintf("built-%d", b.count)
	began := time.Now()
	sb, err := b.c.Create(ctx, doze.Sandbox{Metadata: doze.Metadata{Name: name}, Spec: doze.SandboxSpec{Runtime: doze.Runtime{Image: image, Memory: buildMemory}}}, false)
	if err != nil {
		return 0, err
	}
	agent, err := b.c.Agent(sb)
	if err == nil {
		err = execTrue(ctx, agent)
	}
	took = time.Since(began)
	_, gone := b.c.Delete(ctx, name)
	return took, errors.Join(err, gone)
}

// sandboxes measures starts of what was built, and rebuilds that end with a sandbox.
func (b *builds) sandboxes(ctx context.Context) error {
	if err := b.starts(ctx); err != nil {
		return err
	}
	if err := b.rebuilds(ctx, buildRebuild, func() error { return nil }); err != nil {
		return err
	}
	return b.puts(ctx)
}

// starts measures the first start of an image, and the second.
func (b *builds) starts(ctx context.Context) error {
	if !b.only.MatchString(buildFirst) {
		return nil
	}
	known := &series{name: buildKnown}
	first := &series{name: buildFirst, against: known}
	b.all = append(b.all, known, first)
	dir := filepath.Join(b.dir, "first")
	for range times(buildRounds) {
		b.count++
		if err := b.write(dir, three(fmt.Sprint("started ", b.count))); err != nil {
			return err
		}
		out, err := b.build(ctx, b.c, "first", dir, false)
		if err != nil {
			return err
		}
		for _, s := range []*series{first, known} {
			took, err := b.start(ctx, out.image)
			if err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			s.add(took)
		}
	}
	return nil
}

// rebuilds measures cached builds with a create after each. Ready is called before each.
func (b *builds) rebuilds(ctx context.Context, name string, ready func() error) error {
	if !b.only.MatchString(name) {
		return nil
	}
	s := &series{name: name, against: b.row(withRunc(buildCached))}
	b.all = append(b.all, s)
	dir := filepath.Join(b.dir, "again")
	if err := b.write(dir, three("again")); err != nil {
		return err
	}
	if _, err := b.build(ctx, b.c, "again", dir, false); err != nil {
		return err
	}
	for range times(buildRounds) {
		if err := ready(); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		out, err := b.build(ctx, b.c, "again", dir, false)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		started, err := b.start(ctx, out.image)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		s.add(out.took + started)
	}
	return nil
}

// row returns a row that was measured, or nil.
func (b *builds) row(name string) *series {
	if i := slices.IndexFunc(b.all, func(s *series) bool { return s.name == name }); i >= 0 {
		return b.all[i]
	}
	return nil
}

// puts measures cached builds of a sandbox that runs.
func (b *builds) puts(ctx context.Context) (err error) {
	if !b.only.MatchString(buildPut) {
		return nil
	}
	s := &series{name: buildPut, against: b.row(withRunc(buildCached))}
	b.all = append(b.all, s)
	dir := filepath.Join(b.dir, "put")
	if err := b.write(dir, three("put")); err != nil {
		return err
	}
	const name = "put"
	if _, err := b.c.Create(ctx, doze.Sandbox{Metadata: doze.Metadata{Name: name}, Spec: doze.SandboxSpec{Runtime: doze.Runtime{Memory: buildMemory}}}, false); err != nil {
		return err
	}
	defer func() {
		_, gone := b.c.Delete(ctx, name)
		err = errors.Join(err, gone)
	}()
	for i := range times(buildRounds) + 1 {
		took, err := b.put(ctx, name, dir)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		if i > 0 { // the first one fills the cache
			s.add(took)
		}
	}
	return nil
}

// put builds the image of a sandbox anew, as the public clients do, until an exec has ended in it.
func (b *builds) put(ctx context.Context, name, dir string) (time.Duration, error) {
	var archive bytes.Buffer
	if err := packDir(&archive, dir); err != nil {
		return 0, err
	}
	ask := &http.Client{Transport: b.p.Transport(), Timeout: settle}
	began := time.Now()
	body, err := json.Marshal(doze.Sandbox{Metadata: doze.Metadata{Name: name}, Spec: doze.SandboxSpec{Runtime: doze.Runtime{Memory: buildMemory}}})
	if err != nil {
		return 0, err
	}
	at, err := send(ctx, ask, b.p.Address+"/v0/sandboxes/"+name+"?upload=true", b.p.Key, bytes.NewReader(body))
	if err == nil {
		_, err = send(ctx, ask, at, "", &archive)
	}
	if err != nil {
		return 0, err
	}
	for {
		sb, err := b.c.Sandbox(ctx, name)
		switch {
		case err != nil:
			return 0, err
		case sb.Status == doze.BuildFailed:
			return 0, errors.New("the build failed")
		case sb.Status == doze.BuildDeployed:
			agent, err := b.c.Agent(sb)
			if err == nil {
				err = execTrue(ctx, agent)
			}
			return time.Since(began), err
		}
		select {
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		case <-time.After(buildPoll):
		}
	}
}

// send puts a body, and returns the address for an upload that the answer has.
func send(ctx context.Context, ask *http.Client, address, key string, body io.Reader) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPut, address, body)
	if err != nil {
		return "", err
	}
	if key != "" {
		r.Header.Set("Authorization", "Bearer "+key)
		r.Header.Set("Content-Type", "application/json")
	}
	resp, err := ask.Do(r)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	said, err := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
	if err == nil && resp.StatusCode >= http.StatusBadRequest {
		err = fmt.Errorf("PUT is %s: %s", resp.Status, said)
	}
	return resp.Header.Get("X-Blaxel-Upload-Url"), err
}

// asleep measures rebuilds whose builder is on disk.
func (b *builds) asleep(ctx context.Context) error {
	if !b.only.MatchString(buildAsleep) {
		return nil
	}
	if err := restart(ctx, b.p, append(buildArgs("--pause-after", "500ms", "--save-after", "0s", "--disk-after", "1s"), b.allow...)); err != nil {
		return err
	}
	return b.rebuilds(ctx, buildAsleep, func() error {
		waiting, cancel := context.WithTimeout(ctx, settle)
		defer cancel()
		return b.p.AwaitTier(waiting, "builder", "disk")
	})
}
