package gvisor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze/internal/durable"
	"github.com/dozehq/doze/internal/failpoint"
	"github.com/dozehq/doze/internal/machine"
)

const (
	// launchTime bounds the start of a launcher, which adopts what it finds,
	// and its end, which has nothing to do.
	launchTime = 30 * time.Second
	launchPoll = 5 * time.Millisecond
	// lockTime is how long a process that was killed may take to be gone.
	lockTime = 2 * time.Second
)

// Names in the directory of an engine's run state, and in the one of a version
// that is installed.
const (
	fileSocket  = "launcher.sock"
	fileVersion = "version" // what the engine calls itself
	dirBundles  = "bundles" // of the machines that have run state, by id
	unmade      = ".making" // behind the name of an engine that is being copied
)

// sentryMode is that of an installed doze-sentry. The process of each machine has
// a user of its own, which must be able to execute it. Its directory is root's.
const sentryMode = 0o755

// versionMost is how long the version of an engine may be.
const versionMost = 128

// versionForm is what an engine may call itself: it is the name of a directory.
// A bound on the length in here would cost every process of an engine half a
// millisecond: see [validVersion].
var versionForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+-]*$`)

func validVersion(v string) bool { return len(v) <= versionMost && versionForm.MatchString(v) }

// engine is one version of the engine with its launcher. A machine stays in the
// one that it was booted in: no other can read its checkpoint.
type engine struct {
	version string
	sentry  string // path of its doze-sentry
	run     string // directory of its run state
	args    []string
	memory  int64 // what all machines of all engines may take together; 0 is no limit
	client  *client
	start   sync.Mutex // held while a launcher is started
	limited bool       // guarded by start; the launcher knows memory

	once sync.Once
	used chan struct{} // closed when its launcher answered first
	gone chan struct{} // closed when it was removed
}

// engineAt returns the engine of a version, installed or not.
func (o Options) engineAt(version string) *engine {
	run := filepath.Join(o.Run, fmt.Sprintf("%08x", crc32.ChecksumIEEE([]byte(version)))) // socket paths are short
	socket := filepath.Join(run, fileSocket)
	e := &engine{
		// Engines of earlier releases know the limit of a pause by its old name.
		version: version, run: run, memory: o.Memory, sentry: filepath.Join(o.Engines, version, Program), client: newClient(socket),
		args: []string{"-run", run, "-cgroup", o.Cgroup, "-socket", socket, "-flip-limit", cmp.Or(o.PauseLimit, LimitPause).String()},
		used: make(chan struct{}), gone: make(chan struct{}),
	}
	if o.Processes > 0 { // engines of earlier releases do not know it
		e.args = append(e.args, "-processes", strconv.FormatInt(o.Processes, 10))
	}
	if o.Platform != "" && o.Platform != PlatformSystrap { // likewise
		e.args = append(e.args, "-platform", o.Platform)
	}
	return e
}

// engines returns the version that new machines get, which it installs, and all
// that are installed or have run state, by version.
func (o Options) engines(ctx context.Context) (current *engine, all map[string]*engine, err error) {
	out, err := exec.CommandContext(ctx, o.Sentry, "-version").Output() //nolint:gosec // G204: our own binary
	if err != nil {
		return nil, nil, fmt.Errorf("ask %s for its version: %w", o.Sentry, err)
	}
	version := strings.TrimSpace(string(out))
	if !validVersion(version) {
		return nil, nil, fmt.Errorf("%s calls itself %q: build it with make build", o.Sentry, version)
	}
	current = o.engineAt(version)
	if err := install(o.Sentry, current.sentry); err != nil {
		return nil, nil, fmt.Errorf("install the engine in %s: %w", o.Engines, err)
	}
	versions, err := o.versions()
	if err != nil {
		return nil, nil, fmt.Errorf("look for engines: %w", err)
	}
	all = map[string]*engine{version: current}
	for _, v := range versions {
		if all[v] == nil && validVersion(v) { // or it is not ours
			all[v] = o.engineAt(v)
		}
	}
	return current, all, nil
}

// versions returns those that are installed, wholly or in part, or have run state.
func (o Options) versions() (list []string, err error) {
	installed, err := os.ReadDir(o.Engines)
	if err != nil {
		return nil, err
	}
	for _, e := range installed {
		list = append(list, e.Name())
	}
	running, err := os.ReadDir(o.Run)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range running {
		raw, err := os.ReadFile(filepath.Join(o.Run, e.Name(), fileVersion))
		switch {
		case err == nil:
			list = append(list, string(raw))
		case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR):
			return nil, err
		}
	}
	return list, nil
}

// install copies a binary, in one step, unless it is there. It is a copy and no link: a
// replaced original must not change the program that machines run in.
func install(from, to string) (err error) {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = source.Close() }()
	want, err := source.Stat()
	if err != nil {
		return err
	}
	if have, err := os.Stat(to); err == nil && have.Size() == want.Size() && have.ModTime().Equal(want.ModTime()) {
		return os.Chmod(to, sentryMode) // one that an older release installed was root's alone
	}
	dir := filepath.Dir(to)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	made, err := os.OpenFile(to+unmade, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600) // over what a crash left
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(made.Name()))
		}
	}()
	_, err = io.Copy(made, source)
	if err := errors.Join(err, made.Chmod(sentryMode), made.Sync(), made.Close()); err != nil {
		return fmt.Errorf("copy %d MB: %w", want.Size()>>20, err)
	}
	if err := os.Chtimes(made.Name(), time.Time{}, want.ModTime()); err != nil {
		return err
	}
	if err := os.Rename(made.Name(), to); err != nil {
		return err
	}
	// With the names of the directories, which may be new.
	return errors.Join(durable.Sync(dir), durable.Sync(filepath.Dir(dir)), durable.Sync(filepath.Dir(filepath.Dir(dir))))
}

// ensure starts a launcher unless one answers. It is a process of its own
// session: it stays when we go. One that was killed just now may still have the
// lock that its successor needs.
func (e *engine) ensure(ctx context.Context) (err error) {
	e.start.Lock()
	defer e.start.Unlock()
	defer func() {
		if err == nil {
			e.once.Do(func() { close(e.used) })
		}
	}()
	for began := time.Now(); ; time.Sleep(launchPoll) {
		if e.client.ping(ctx) == nil {
			return e.limit(ctx)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		e.limited = false
		err := e.launch(ctx)
		if err == nil {
			err = e.limit(ctx)
		}
		if !errors.Is(err, errEnded) || time.Since(began) > lockTime {
			return err
		}
	}
}

// limit tells the launcher once what all machines may take together. One of an
// older build does not watch over it. Preconditions: start is held.
func (e *engine) limit(ctx context.Context) error {
	if e.memory == 0 || e.limited {
		return nil
	}
	err := e.client.post(ctx, PathLimit, Ceiling{Memory: e.memory}, nil)
	if errors.Is(err, errOld) {
		var v Version
		err = e.client.get(ctx, PathVersion, &v)
		slog.Warn("a launcher of an older build runs, and does not bound the memory of its sandboxes together: end it, and the next one takes them over", "pid", v.PID, "engine", e.version)
	}
	if err != nil {
		return fmt.Errorf("limit the memory of all sandboxes: %w", err)
	}
	e.limited = true
	return nil
}

// errEnded is what launch returns for a launcher that does not stay.
var errEnded = errors.New("the launcher ended at once")

// launch starts a launcher and waits until it answers. Preconditions: start is
// held.
func (e *engine) launch(ctx context.Context) error {
	if _, err := os.Stat(e.sentry); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: the engine %q is not installed: put its doze-sentry back as %s", machine.ErrNoEngine, e.version, e.sentry)
	}
	if err := os.MkdirAll(e.run, 0o700); err != nil {
		return fmt.Errorf("make the run directory: %w", err)
	}
	if err := os.WriteFile(filepath.Join(e.run, fileVersion), []byte(e.version), 0o600); err != nil {
		return fmt.Errorf("write the version of the engine: %w", err)
	}
	log, err := os.OpenFile(filepath.Join(e.run, "launcher.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open the launcher's log: %w", err)
	}
	defer func() { _ = log.Close() }()
	cmd, err := e.execute(ctx, log)
	if err != nil {
		return fmt.Errorf("start the launcher: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }() // ends with the launcher, or with us
	slog.Info("started a launcher", "pid", cmd.Process.Pid, "engine", e.version)

	deadline := time.NewTimer(launchTime)
	defer deadline.Stop()
	for {
		if e.client.ping(ctx) == nil {
			return nil
		}
		select {
		case err := <-ended:
			return fmt.Errorf("%w (%w): see %s", errEnded, errors.Join(err), log.Name())
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-deadline.C:
			return fmt.Errorf("the launcher does not answer: see %s", log.Name())
		case <-time.After(launchPoll):
		}
	}
}

// execute starts the program of the launcher. If that was copied just now, and
// another program is being started, it is busy until that one has left behind
// the file in which we wrote the copy.
func (e *engine) execute(ctx context.Context, log *os.File) (*exec.Cmd, error) {
	for deadline := time.Now().Add(launchTime); ; {
		cmd := exec.Command(e.sentry, e.args...) //nolint:gosec,noctx // G204: our own binary; it must outlive every context of ours
		cmd.Stdout, cmd.Stderr = log, log
		cmd.Env = append(failpoint.Environ(), "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		err := cmd.Start()
		if !errors.Is(err, syscall.ETXTBSY) || time.Now().After(deadline) {
			return cmd, err
		}
		select {
		case <-time.After(launchPoll):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// repeatable are the calls that a launcher's successor may be asked for again
// when nobody knows how far the launcher came: it finds the work done.
var repeatable = map[string]bool{PathPause: true, PathResume: true, PathKill: true, PathStats: true, PathLoaded: true}

// call asks the launcher, and asks its successor if it has died.
func (e *engine) call(ctx context.Context, path string, in, out any) error {
	return e.insist(ctx, repeatable[path], func() error { return e.client.post(ctx, path, in, out) })
}

// halting asks the launcher to do what ends early and is waited for when ctx
// ends.
func (e *engine) halting(ctx context.Context, path string, in, out any) error {
	return e.insist(ctx, false, func() error { return e.client.do(ctx, halt, http.MethodPost, path, in, out) })
}

// insist asks a second time, with a launcher that is there, if there was none. What
// can be repeated is asked again, too, if the launcher died while it was asked.
func (e *engine) insist(ctx context.Context, repeat bool, ask func() error) error {
	err := ask()
	died := errors.Is(err, errCut) && repeat && ctx.Err() == nil
	if !died && !errors.Is(err, errNoLauncher) {
		return err
	}
	if err := e.ensure(ctx); err != nil {
		return err
	}
	return ask()
}

// mounts fails if the launcher would leave out the volumes or the disk of a machine.
func (e *engine) mounts(ctx context.Context, c Config) error {
	if len(c.Volumes) == 0 && c.Disk == 0 {
		return nil
	}
	if err := e.ensure(ctx); err != nil {
		return err
	}
	var v Version
	if err := e.client.get(ctx, PathVersion, &v); err != nil {
		return err
	}
	const next = "%w: end the launcher %d, and the next one takes over its machines"
	if !v.Volumes && len(c.Volumes) > 0 {
		return fmt.Errorf(next, machine.ErrNoVolumes, v.PID)
	}
	if !v.Disks && c.Disk > 0 {
		return fmt.Errorf(next, machine.ErrNoDisks, v.PID)
	}
	return nil
}

// find returns the state of a machine in the launcher, or nothing. It is asked in
// every sleep, and so asks for that one only.
func (e *engine) find(ctx context.Context, id string) (string, error) {
	select {
	case <-e.used:
	default: // the first call looks after the launcher
		if err := e.ensure(ctx); err != nil {
			return "", fmt.Errorf("find the machine: %w", err)
		}
	}
	var found []Found
	err := e.insist(ctx, true, func() error {
		return e.client.get(ctx, PathMachines+"?"+url.Values{QueryID: {id}}.Encode(), &found)
	})
	if err != nil {
		return "", fmt.Errorf("find the machine: %w", err)
	}
	for _, f := range found { // an older launcher returns all
		if f.ID == id {
			return f.State, nil
		}
	}
	return "", nil
}

func (e *engine) list(ctx context.Context) (map[string]string, error) {
	if err := e.ensure(ctx); err != nil {
		return nil, err
	}
	var found []Found
	if err := e.client.get(ctx, PathMachines, &found); err != nil {
		return nil, fmt.Errorf("list machines: %w", err)
	}
	states := map[string]string{}
	for _, f := range found {
		states[f.ID] = f.State
	}
	return states, nil
}

// has reports whether there is run state of a machine.
func (e *engine) has(id string) bool {
	_, err := os.Lstat(filepath.Join(e.run, dirBundles, id))
	return err == nil
}

// busy reports whether there is run state of any machine.
func (e *engine) busy() bool {
	bundles, err := os.ReadDir(filepath.Join(e.run, dirBundles))
	return len(bundles) > 0 || err != nil && !errors.Is(err, fs.ErrNotExist)
}

// remove ends the launcher of an engine that no machine needs and removes all of
// it. What it leaves if it fails is removed by the next start.
func (e *engine) remove(ctx context.Context) error {
	close(e.gone)
	if err := e.stop(ctx); err != nil {
		return fmt.Errorf("end the launcher: %w", err)
	}
	return cmp.Or(os.RemoveAll(filepath.Dir(e.sentry)), os.RemoveAll(e.run))
}

// stop ends the launcher, if there is one.
func (e *engine) stop(ctx context.Context) error {
	defer e.client.hangUp()
	for began := time.Now(); time.Since(began) < launchTime; time.Sleep(launchPoll) {
		var v Version
		err := e.client.get(ctx, PathVersion, &v)
		switch {
		case errors.Is(err, errNoLauncher):
			return nil
		case errors.Is(err, errCut): // it is about to be gone
		case err != nil:
			return err
		default:
			if err := unix.Kill(v.PID, unix.SIGTERM); err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
		}
	}
	return fmt.Errorf("it still answers after %v", launchTime)
}
