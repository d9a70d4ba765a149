package disk

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/npm"
)

// dateOfBuild is what package scripts take for today, so that two builds out
// of the same packages give the same bytes: 2024-01-01.
const dateOfBuild = "SOURCE_DATE_EPOCH=1704067200"

// unwanted are files of packages that no program in a sandbox reads.
var unwanted = []string{
	"/usr/share/doc/*", "/usr/share/info/*", "/usr/share/lintian/*", "/usr/share/locale/*", "/usr/share/man/*",
}

// scrub is removed after the build: devices, logs, caches, and what is about
// this machine and not about the image.
var scrub = []string{
	"dev/*", "run/*", "tmp/*", "var/tmp/*",
	"etc/hostname", "etc/machine-id", "etc/resolv.conf",
	"etc/apt/apt.conf.d/99mmdebstrap", "etc/apt/sources.list", "etc/apt/sources.list.d/*",
	"var/cache/apt/*", "var/cache/debconf/*-old", "var/cache/ldconfig/aux-cache",
	"var/lib/apt/lists/*", "var/lib/dpkg/*-old", "var/log/*",
}

const hosts = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"

// mergedUsr makes /bin a link before packages arrive. Without it a script does
// so afterwards, which costs seconds and 40 MB of Perl in the image.
const mergedUsr = "/usr/share/mmdebstrap/hooks/merged-usr"

// cook puts the packages of a recipe into tree, which must be empty. It takes
// them from where this machine's own packages come from.
func (r *recipe) cook(ctx context.Context, tree, suite string, report func(Progress)) (config, error) {
	begin := time.Now()
	apt, err := hostApt(ctx, suite)
	if err != nil {
		return config{}, fmt.Errorf("cook %s: %w", r.name, err)
	}
	aptConf := tree + ".apt.conf"
	if err := os.WriteFile(aptConf, []byte(apt.conf), 0o600); err != nil { // it may hold a proxy's password
		return config{}, fmt.Errorf("cook %s: %w", r.name, err)
	}
	packages := r.packages
	args := []string{
		"--mode=root", "--variant=minbase", "--format=directory", "--verbose",
		"--skip=output/dev", "--aptopt=" + aptConf,
	}
	if _, err := os.Stat(mergedUsr); err == nil {
		args = append(args, "--hook-dir="+mergedUsr)
		packages = append([]string{"usr-is-merged"}, packages...)
	}
	for _, pattern := range unwanted {
		args = append(args, "--dpkgopt=path-exclude="+pattern)
	}
	args = append(args, "--include="+strings.Join(packages, ","), apt.suite, tree)
	args = append(args, apt.files...)

	if err := bootstrap(ctx, filepath.Dir(tree), args, report); err != nil {
		return config{}, fmt.Errorf("cook %s: %w", r.name, err)
	}
	if err := r.finish(ctx, tree, report); err != nil {
		return config{}, fmt.Errorf("cook %s: %w", r.name, err)
	}
	if err := tidy(tree, apt, begin); err != nil {
		return config{}, fmt.Errorf("cook %s: %w", r.name, err)
	}
	return config{ImageConfig: doze.ImageConfig{Env: r.env, WorkDir: "/"}}, nil
}

// finish adds what is not of Debian.
func (r *recipe) finish(ctx context.Context, tree string, report func(Progress)) error {
	if len(r.programs) > 0 {
		report(Progress{Step: "installing programs", Percent: 92})
		from := npm.Find(ctx)
		for _, p := range r.programs {
			if err := p.install(ctx, from, filepath.Dir(tree), tree); err != nil {
				return err
			}
		}
	}
	root, err := os.OpenRoot(tree)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	for name, content := range r.files {
		if err := root.WriteFile(name, []byte(content), 0o644); err != nil {
			return err
		}
	}
	for name, target := range r.links {
		if err := root.Symlink(target, name); err != nil {
			return err
		}
	}
	return nil
}

// bootstrap runs mmdebstrap in process and mount namespaces of its own: when
// it ends, or we do, everything that it started or mounted is gone too.
func bootstrap(ctx context.Context, temp string, args []string, report func(Progress)) error {
	cmd, err := command(ctx, []string{dateOfBuild, "TMPDIR=" + temp, "DEBIAN_FRONTEND=noninteractive"}, "mmdebstrap", args...)
	if err != nil {
		return err
	}
	cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWPID
	cmd.SysProcAttr.Unshareflags = syscall.CLONE_NEWNS // unshared, not cloned: then Go makes all mounts private
	output, w := io.Pipe()
	cmd.Stdout, cmd.Stderr = w, w
	ended := make(chan error, 1)
	go func() {
		err := runChild(cmd)
		_ = w.Close() // never fails
		ended <- err
	}()
	last := follow(output, report)
	if err := <-ended; err != nil {
		return failure(ctx, err, "mmdebstrap", last)
	}
	return nil
}

// follow reports the steps in mmdebstrap's output and returns the last lines.
func follow(output io.Reader, report func(Progress)) string {
	var last []string
	var s stages
	lines := bufio.NewReader(output)
	for {
		chunk, _, err := lines.ReadLine() // a longer line than its buffer comes in parts
		if line := strings.TrimSpace(string(chunk)); line != "" {
			last = append(last[max(0, len(last)-15):], line[:min(len(line), 200)])
			if p, ok := s.next(line); ok {
				report(p)
			}
		}
		if err != nil {
			return strings.Join(last, "\n")
		}
	}
}

// stages turns the lines of mmdebstrap into progress.
type stages struct {
	at    int // the stage plus 1; 0 before the first
	count int // lines of packages in this stage
	total int // packages to do, as announced last
}

// stageTable is what mmdebstrap says in its order. A stage goes from its
// percentage to that of the next; units begin the lines of one package, one
// after the other.
var stageTable = []struct {
	line    string
	step    string
	percent int
	units   []string
}{
	{"I: running apt-get update", "reading package lists", 1, nil},
	{"I: downloading packages with apt", "downloading essential packages", 8, []string{"Get:"}},
	{"I: extracting archives", "extracting essential packages", 20, nil},
	{"I: installing essential packages", "installing essential packages", 24, []string{"Unpacking ", "Setting up "}},
	{"I: installing remaining packages", "installing packages", 40, []string{"Get:", "Unpacking ", "Setting up "}},
	{"I: cleaning package lists", "cleaning up", 92, nil},
	{"", "", 94, nil},
}

var announced = regexp.MustCompile(`^\d{1,6} upgraded, (\d{1,6}) newly installed`)

func (s *stages) next(line string) (Progress, bool) {
	for i, row := range stageTable {
		if row.line != "" && strings.HasPrefix(line, row.line) && i+1 > s.at {
			s.at, s.count = i+1, 0
			return Progress{row.step, row.percent}, true
		}
	}
	if m := announced.FindStringSubmatch(line); m != nil && m[1] != "0" {
		s.total, _ = strconv.Atoi(m[1])
		return Progress{}, false
	}
	if s.at == 0 || s.total == 0 {
		return Progress{}, false
	}
	row, after := stageTable[s.at-1], stageTable[s.at]
	if !slices.ContainsFunc(row.units, func(unit string) bool { return strings.HasPrefix(line, unit) }) {
		return Progress{}, false
	}
	all := s.total * len(row.units)
	s.count = min(s.count+1, all)
	return Progress{row.step, row.percent + (after.percent-row.percent)*s.count/all}, true
}

// tidy removes what must not be in the image and gives everything that the
// build itself wrote one date: that of the youngest file of a package.
func tidy(tree string, apt aptSetup, begin time.Time) error {
	root, err := os.OpenRoot(tree)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	for _, pattern := range scrub {
		names, err := fs.Glob(root.FS(), pattern)
		if err != nil {
			return err
		}
		for _, name := range names {
			if err := root.RemoveAll(name); err != nil {
				return err
			}
		}
	}
	if err := root.MkdirAll("etc/apt", 0o755); err != nil {
		return err
	}
	err = errors.Join(
		root.WriteFile("etc/hosts", []byte(hosts), 0o644),
		root.WriteFile("etc/apt/sources.list", []byte(apt.sources), 0o644),
	)
	if err != nil {
		return err
	}
	return clampTimes(tree, begin)
}

// clampTimes sets the times of files that are younger than begin to that of
// the youngest file which is not.
func clampTimes(tree string, begin time.Time) error {
	var newest time.Time
	var young []string
	err := filepath.WalkDir(tree, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		switch at := info.ModTime(); {
		case !at.Before(begin.Truncate(time.Second)):
			young = append(young, name)
		case at.After(newest):
			newest = at
		}
		return nil
	})
	if err != nil {
		return err
	}
	when := []unix.Timespec{unix.NsecToTimespec(newest.UnixNano()), unix.NsecToTimespec(newest.UnixNano())}
	if newest.IsZero() {
		when = make([]unix.Timespec, 2)
	}
	for _, name := range young {
		if err := unix.UtimesNanoAt(unix.AT_FDCWD, name, when, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return &os.PathError{Op: "utimensat", Path: name, Err: err}
		}
	}
	return nil
}

// aptSetup is where this machine's own packages come from, and how.
type aptSetup struct {
	suite   string
	files   []string // the source lists; none means the default of mmdebstrap
	conf    string   // proxies and the like
	sources string   // the list to leave in the image, without passwords
}

// hostApt asks apt. A machine that never ran apt-get update has no answer, and
// gets the defaults of its distribution.
func hostApt(ctx context.Context, suite string) (aptSetup, error) {
	if suite == "" {
		b, err := os.ReadFile("/etc/os-release")
		if err != nil {
			return aptSetup{}, fmt.Errorf("which release is this: %w", err)
		}
		if suite = codename(string(b)); suite == "" {
			return aptSetup{}, doze.Errorf(doze.Unavailable, "this machine's /etc/os-release names no release: set the suite of the images in the configuration")
		}
	}
	targets, err := run(ctx, "apt-get", "indextargets", "Created-By: Packages")
	if err != nil {
		return aptSetup{}, fmt.Errorf("read the package sources: %w", err)
	}
	dump, err := run(ctx, "apt-config", "dump", "--format", "%F \"%v\";%n", "Acquire")
	if err != nil {
		return aptSetup{}, fmt.Errorf("read the configuration of apt: %w", err)
	}
	s := sources(string(targets), suite)
	s.conf = reach(string(dump))
	return s, nil
}

var codenameLine = regexp.MustCompile(`(?m)^VERSION_CODENAME="?([a-z]+)"?$`)

// codename finds the release in the text of /etc/os-release.
func codename(release string) string {
	if m := codenameLine.FindStringSubmatch(release); m != nil {
		return m[1]
	}
	return ""
}

// sources finds the lists that lead to the main component of a suite, in what
// apt-get indextargets prints. Lists of other vendors are left out: an image
// has the same programs on every machine.
func sources(targets, suite string) aptSetup {
	s := aptSetup{suite: suite}
	var lines []string
	for stanza := range strings.SplitSeq(targets, "\n\n") {
		field := map[string]string{}
		for line := range strings.Lines(stanza) {
			if k, v, ok := strings.Cut(line, ": "); ok {
				field[k] = strings.TrimSpace(v)
			}
		}
		pocket, ok := strings.CutPrefix(field["Codename"], suite)
		if !ok || pocket != "" && pocket != "-updates" && pocket != "-security" || field["Component"] != "main" {
			continue
		}
		entry := field["Sourcesentry"]
		if i := strings.LastIndexByte(entry, ':'); i > 0 && !slices.Contains(s.files, entry[:i]) {
			s.files = append(s.files, entry[:i])
		}
		uri, err := url.Parse(field["Repo-URI"])
		if err != nil || uri.Scheme == "" || uri.Opaque != "" || strings.ContainsFunc(uri.Path, unicode.IsSpace) {
			continue
		}
		uri.User = nil
		lines = append(lines, fmt.Sprintf("deb %s %s main\n", uri, suite+pocket))
	}
	slices.Sort(lines)
	s.sources = strings.Join(slices.Compact(lines), "")
	return s
}

// reach keeps the settings that reach a mirror: proxies, certificates,
// retries. All others are about how this machine manages its own packages.
func reach(dump string) string {
	var b strings.Builder
	for line := range strings.Lines(dump) {
		for _, prefix := range []string{"Acquire::http::", "Acquire::https::", "Acquire::Check-", "Acquire::ForceIPv", "Acquire::Retries "} {
			if strings.HasPrefix(line, prefix) {
				b.WriteString(line)
			}
		}
	}
	return b.String()
}
