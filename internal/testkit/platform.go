// Package testkit starts the real platform for tests and benchmarks: the built
// binaries, on loopback, with a data directory of its own. It ends all of it again, and
// never fakes anything.
package testkit

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze/client"
	"github.com/dozehq/doze/internal/machine/gvisor"
	"github.com/dozehq/doze/internal/swap"
	"github.com/dozehq/doze/internal/teardown"
	"github.com/dozehq/doze/internal/testkit/freeport"
)

const (
	// readyTime bounds a start. The first one on a machine makes an image.
	readyTime = 10 * time.Minute
	stopTime  = 30 * time.Second

	// Images are shared by all platforms of a machine: making one takes a
	// minute. What builds leave there, test/room removes.
	Images = "/var/cache/doze/images"

	// diskReserve is how many megabytes stay free of the disk. The share of a large disk that
	// platforms of users leave free is more than a host of tests may have.
	diskReserve = "256"
)

// Options are what a test wants different from the defaults.
type Options struct {
	Bin  string // directory of the binaries; by default bin/ of this module
	Dir  string // directory for everything of this platform; must be empty
	Data string // data directory; by default one in Dir
	// Fast has the run state in a tmpfs below /run, where a platform of users has it. Without
	// it, the state is in Dir: a wake changes files in it, and waits for a busy disk.
	Fast bool
	Args []string // more flags for dozed all
	Env  []string // more of its environment

	// Roles has control, node and edge run as three processes. So does the environment
	// variable DOZE_TEST_ROLES, for every platform.
	Roles bool
	// Programs are the paths of dozed for roles that run another one than that in Bin.
	Programs map[string]string

	// Account has the platform's time of processors counted, which on a host with
	// cgroup v2 alone includes the group of its sandboxes: see [Platform.Used].
	Account bool
	// WarmPool has dozed keep as many machines started ahead as it does for users.
	// Without it there are none, and what is there is what a test has asked for.
	WarmPool bool

	// Of a platform that speaks TLS: the address that it listens on, the name
	// that the world knows, and who vouches for that.
	Listen string
	Host   string
	Roots  *x509.CertPool
}

// Platform is a running dozed with its launcher and sandboxes.
type Platform struct {
	Address string // http://127.0.0.1:port
	// Previews is where previews are by path: http://127.0.0.1:port, or nothing
	// with a domain.
	Previews string
	Key      string // admin key
	Data     string // data directory
	RunDir   string // run state
	Log      string // file with everything that dozed printed

	options   Options
	listen    string
	previews  string            // address of previews by path; empty with a domain
	transport http.RoundTripper // nil is that of net/http
	account   *Account          // of dozed and its children; may be nil
	roles     []string          // commands of dozed that run; the last one listens
	control   string            // address of the role, if it is a process of its own
	node      string            // the same
	processes map[string]*process
}

// process is one dozed.
type process struct {
	*exec.Cmd

	ended chan struct{}
}

// RolesEnv is the environment variable that is as [Options.Roles].
const RolesEnv = "DOZE_TEST_ROLES"

// The roles of a platform whose roles are processes of their own, in the order in
// which they start.
const (
	Control = "control"
	Node    = "node"
	Edge    = "edge"
)

// Root returns the directory of this module: that of the working directory, or above
// it, which has the file go.mod.
func Root() string {
	dir, err := os.Getwd()
	for err == nil && dir != "/" {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		dir = filepath.Dir(dir)
	}
	return "." // where nothing will be found
}

// Start starts a platform and waits until it answers.
func Start(ctx context.Context, o Options) (*Platform, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("real sandboxes need root")
	}
	if o.Bin == "" {
		o.Bin = filepath.Join(Root(), "bin")
	}
	if o.Listen == "" {
		var err error
		if o.Listen, err = freeport.Address(ctx); err != nil {
			return nil, err
		}
	}
	run := filepath.Join(o.Dir, "run")
	if o.Fast {
		var err error
		if run, err = os.MkdirTemp("/run", "doze-test-"); err != nil {
			return nil, fmt.Errorf("make the directory of run state: %w", err)
		}
	}
	p := &Platform{
		processes: map[string]*process{}, roles: []string{"all"},
		options: o, listen: o.Listen, Address: "http://" + o.Listen,
		Data: cmp.Or(o.Data, filepath.Join(o.Dir, "data")), RunDir: run, Log: filepath.Join(o.Dir, "dozed.log"),
	}
	if !slices.Contains(o.Args, "--domain") {
		// Not the next port, which another platform may have.
		var err error
		if p.previews, err = freeport.Address(ctx); err != nil {
			return nil, err
		}
		p.Previews = "http://" + p.previews
	}
	if o.Host != "" {
		_, port, err := net.SplitHostPort(o.Listen)
		if err != nil {
			return nil, err
		}
		p.Address, p.transport = "https://"+net.JoinHostPort(o.Host, port), p.secure()
	}
	if o.Roles || os.Getenv(RolesEnv) != "" { //nolint:forbidigo // the environment of the tests says how
		if err := p.Split(ctx); err != nil {
			return nil, err
		}
	}
	return p, p.Restart(ctx)
}

// Split has the roles be processes of their own from the next start on. Nothing may run.
func (p *Platform) Split(ctx context.Context) (err error) {
	p.roles = []string{Control, Node, Edge}
	clear(p.processes)
	for _, to := range []*string{&p.control, &p.node} {
		if *to, err = freeport.Address(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Join is the opposite of Split. Nothing may run.
func (p *Platform) Join() {
	p.roles, p.control, p.node = []string{"all"}, "", ""
	clear(p.processes)
}

// secure speaks TLS with this platform, whatever the name.
func (p *Platform) secure() http.RoundTripper {
	return &http.Transport{
		ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: p.options.Roots, MinVersion: tls.VersionTLS12},
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, p.listen)
		},
	}
}

// Transport reaches this platform, whatever the name, if it speaks TLS.
func (p *Platform) Transport() http.RoundTripper { return p.transport }

// Restart starts dozed again, after Stop, Kill or Reboot.
func (p *Platform) Restart(ctx context.Context) error {
	if p.options.Account && p.account == nil {
		var err error
		if p.account, err = OpenAccount(p.cgroup()+"-account", p.cgroup()); err != nil {
			return err
		}
	}
	if err := p.certify(ctx); err != nil {
		return err
	}
	for _, role := range p.roles {
		if err := p.StartRole(role); err != nil {
			return err
		}
	}
	if err := p.Ready(ctx); err != nil {
		return err
	}
	key, err := os.ReadFile(filepath.Join(p.Data, "admin.key"))
	p.Key = strings.TrimSpace(string(key))
	if err == nil && p.Key == "" {
		err = errors.New("the admin key is gone")
	}
	if err != nil || p.control == "" {
		return err
	}
	c, err := p.Client()
	if err != nil {
		return err
	}
	for _, err := range c.Sandboxes(ctx, client.Filter{}) { // waits until the roles have found each other
		return err
	}
	return nil
}

// certify makes the certificates of roles that are processes of their own.
func (p *Platform) certify(ctx context.Context) error {
	if _, err := os.Stat(filepath.Join(p.Data, "fleet", "ca.crt")); p.control == "" || err == nil {
		return nil // whatever is wrong with them, the roles say
	}
	out, err := exec.CommandContext(ctx, filepath.Join(p.options.Bin, "dozed"), "certificates", "--data", p.Data).CombinedOutput() //nolint:gosec // G204: our own binary
	if err != nil {
		return fmt.Errorf("make the certificates of the roles: %w: %s", err, out)
	}
	return nil
}

// StartRole starts one process of a platform, and does not wait until it answers.
func (p *Platform) StartRole(role string) error {
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	program := cmp.Or(p.options.Programs[role], filepath.Join(p.options.Bin, "dozed"))
	cmd := exec.Command(program, p.arguments(role)...) //nolint:gosec,noctx // G204: our own binary; it ends by Stop or Kill
	if p.account != nil {
		cmd = p.account.Command(cmd)
	}
	cmd.Stdout, cmd.Stderr = log, log
	// The clients of tests keep their connections.
	cmd.Env = slices.Concat(os.Environ(), []string{"DOZED_LEAVE_IDLE=0"}, p.options.Env)
	if err := cmd.Start(); err != nil {
		return err
	}
	started := &process{cmd, make(chan struct{})}
	p.processes[role] = started
	go func() { // ends with the process
		_ = cmd.Wait()
		close(started.ended)
	}()
	return nil
}

// Another starts one more process of a role beside the platform, which has to refuse,
// and returns what it said.
func (p *Platform) Another(ctx context.Context, role string) error {
	ctx, cancel := context.WithTimeout(ctx, stopTime)
	defer cancel()
	out, err := exec.CommandContext(ctx, filepath.Join(p.options.Bin, "dozed"), p.arguments(role)...).CombinedOutput() //nolint:gosec // G204: our own binary
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// arguments are those of one process.
func (p *Platform) arguments(role string) []string {
	args := []string{
		role, "--data", p.Data, "--run", p.RunDir, "--listen", p.listen, "--images-dir", Images, "--cgroup", p.cgroup(),
		"--disk-reserve-mb", diskReserve,
		"--swap", "host", // by itself, each platform would take memory of the host
		"--egress", "closed",
		"--idle-cpu", "0", // with pauses this short, the end of a wake would count
	}
	if p.control != "" {
		args = append(args, "--control-listen", p.control, "--node-listen", p.node)
	}
	if !p.options.WarmPool {
		args = append(args, "--warm-pool", "0", "--warm-pool-max", "0")
	}
	args = append(args, p.options.Args...)
	if p.previews != "" {
		args = append(args, "--preview-listen", p.previews)
	}
	return args
}

// Ready waits until the platform answers.
func (p *Platform) Ready(ctx context.Context) error {
	ready := time.NewTimer(readyTime)
	defer ready.Stop()
	for !p.healthy(ctx) {
		for role, one := range p.processes {
			select {
			case <-one.ended:
				return fmt.Errorf("dozed ended, the process %s: %s", role, p.Tail())
			default:
			}
		}
		select {
		case <-ready.C:
			return fmt.Errorf("dozed is not ready: %s", p.Tail())
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(5 * time.Millisecond):
		}
	}
	return nil
}

func (p *Platform) healthy(ctx context.Context) bool {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, p.Address+"/health", nil)
	if err != nil {
		return false
	}
	resp, err := (&http.Client{Timeout: time.Second, Transport: p.transport}).Do(r)
	if err != nil {
		return false
	}
	return resp.Body.Close() == nil && resp.StatusCode == http.StatusOK
}

// Printed returns everything that dozed printed.
func (p *Platform) Printed() string {
	raw, _ := os.ReadFile(p.Log) // without the file it printed nothing
	return string(raw)
}

// Tail returns the end of what dozed printed.
func (p *Platform) Tail() string {
	all := p.Printed()
	return all[max(0, len(all)-4096):]
}

// Client returns a client with the admin key.
func (p *Platform) Client() (*client.Client, error) {
	return client.New(client.Config{Address: p.Address, Key: p.Key, Transport: p.transport})
}

// listener is the process that callers reach.
func (p *Platform) listener() *process { return p.processes[p.roles[len(p.roles)-1]] }

// PID returns the process id of the dozed that callers reach.
func (p *Platform) PID() int { return p.listener().Process.Pid }

// PIDOf returns the process id of a role that is a process of its own.
func (p *Platform) PIDOf(role string) int { return p.processes[role].Process.Pid }

// At returns the address of control or the node, if they are processes of their own.
func (p *Platform) At(role string) string {
	if role == Control {
		return p.control
	}
	return p.node
}

// Stop ends dozed as an operator does. Launcher and sandboxes stay.
func (p *Platform) Stop() error { return p.end(syscall.SIGTERM) }

// Replace ends dozed as an operator does who is about to start another one. Of the
// roles, the edge alone has callers who would notice.
func (p *Platform) Replace() error {
	return errors.Join(p.signal(p.listener(), syscall.SIGUSR2), p.Wait())
}

func (p *Platform) end(s syscall.Signal) error {
	var errs []error
	for _, one := range p.processes {
		errs = append(errs, p.signal(one, s))
	}
	return errors.Join(append(errs, p.Wait())...)
}

func (p *Platform) signal(one *process, s syscall.Signal) error {
	if err := one.Process.Signal(s); !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// Wait returns when dozed has ended, which somebody told it to. One that does
// not end is killed. Roles behind the one that callers reach are told here.
func (p *Platform) Wait() error {
	errs := []error{p.wait(p.listener())}
	for _, one := range p.processes {
		errs = append(errs, p.signal(one, syscall.SIGTERM), p.wait(one))
	}
	return errors.Join(errs...)
}

func (p *Platform) wait(one *process) error {
	select {
	case <-one.ended:
		return nil
	case <-time.After(stopTime):
		return errors.Join(errors.New("dozed does not stop"), p.Kill())
	}
}

// Kill ends dozed as a crash does. Launcher and sandboxes stay.
func (p *Platform) Kill() error {
	var errs []error
	for _, role := range p.roles {
		if p.processes[role] != nil {
			errs = append(errs, p.KillRole(role))
		}
	}
	return errors.Join(errs...)
}

// KillRole ends one process of a platform as a crash does.
func (p *Platform) KillRole(role string) error {
	one := p.processes[role]
	if err := one.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-one.ended
	return nil
}

// Quit ends dozed as a fault in it does: what its goroutines are doing is in the
// log. It reports whether that left a core dump, which nothing but dozed itself
// forbids.
func (p *Platform) Quit() (dumped bool, err error) {
	unlimited := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	for _, one := range p.processes {
		if err := unix.Prlimit(one.Process.Pid, unix.RLIMIT_CORE, &unlimited, nil); err != nil {
			return false, err
		}
	}
	if err := p.end(syscall.SIGQUIT); err != nil {
		return false, err
	}
	for _, one := range p.processes {
		status, ok := one.ProcessState.Sys().(syscall.WaitStatus)
		dumped = dumped || ok && status.CoreDump()
	}
	return dumped, nil
}

// Reboot ends everything as a power failure does, and loses the run state.
func (p *Platform) Reboot() error {
	return errors.Join(p.Kill(), p.wipe())
}

// Close ends everything, and reports what could not be removed.
func (p *Platform) Close() error {
	err := errors.Join(p.Stop(), p.wipe())
	if p.options.Fast {
		err = errors.Join(err, os.RemoveAll(p.RunDir))
	}
	return err
}

// wipe ends the launcher and every sandbox and removes namespaces, mounts,
// cgroups and swap of this platform.
func (p *Platform) wipe() error {
	// The images are shared with other platforms: what this one claims of them goes.
	claims, _ := filepath.Glob(filepath.Join(Images, "users", "*.json")) // the pattern is well formed
	for _, c := range claims {
		b, err := os.ReadFile(c)
		if err == nil && (bytes.Contains(b, []byte(strconv.Quote(p.Data))) || bytes.Contains(b, []byte(`"data":"`+p.options.Dir+"/"))) { // it may have had another directory before
			_ = os.Remove(c) // or another platform does
		}
	}
	if err := p.teardown().Clear(); err != nil {
		return err
	}
	if err := swap.Remove(context.Background(), filepath.Join(p.Data, "swap")); err != nil { //nolint:forbidigo // as long as it takes
		return err
	}
	account := p.account
	if p.account = nil; account != nil {
		return account.Close()
	}
	return nil
}

// Used returns the time of processors that the platform has used: dozed, the
// launcher, sandboxes, and all of their children. It must have an account.
func (p *Platform) Used() (time.Duration, error) { return p.account.Used() }

// Rest waits until the platform has nothing left to do, and returns what it had
// used by then. It must have an account.
func (p *Platform) Rest(ctx context.Context) (time.Duration, error) { return p.account.Rest(ctx) }

func (p *Platform) teardown() teardown.Platform {
	return teardown.Platform{Run: p.RunDir, Cgroup: p.cgroup(), Data: p.Data, Programs: gvisor.Processes()}
}

// Leaks names what there is of this platform besides dozed and its launcher.
// After the last sandbox was deleted there must be nothing.
func (p *Platform) Leaks() (leaks []string) {
	for _, pid := range p.teardown().Processes() {
		raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if !bytes.Contains(raw, []byte("-socket")) {
			leaks = append(leaks, fmt.Sprintf("process %d: %s", pid, bytes.ReplaceAll(raw, []byte{0}, []byte(" "))))
		}
	}
	for _, g := range p.teardown().Groups() {
		if inside, _ := filepath.Glob(g + "/*/cgroup.procs"); len(inside) > 0 { // the pattern is well formed
			leaks = append(leaks, inside...)
		}
	}
	for _, m := range p.teardown().Mounts() {
		if filepath.Base(m) != "router" {
			leaks = append(leaks, "mount "+m)
		}
	}
	for _, dir := range []string{"sandboxes", "snapshots", "net/leases", "net/ns"} {
		entries, _ := os.ReadDir(filepath.Join(p.Data, dir)) // a platform that never ran has none
		for _, e := range entries {
			if e.IsDir() || dir != "sandboxes" { // files beside the sandboxes are the node's own
				leaks = append(leaks, "file "+filepath.Join(dir, e.Name()))
			}
		}
	}
	return leaks
}

func (p *Platform) cgroup() string {
	return "doze-test-" + strings.ReplaceAll(strings.Trim(p.options.Dir, "/"), "/", "-")
}

// Machines returns the state of every machine whose memory is in processes, by
// the identity of its sandbox, as the launcher knows it.
func (p *Platform) Machines(ctx context.Context) (map[string]string, error) {
	found, err := p.found(ctx)
	states := map[string]string{}
	for _, f := range found {
		if f.State != gvisor.StateCreated { // a process that waits for the next wake
			states[f.ID] = f.State
		}
	}
	return states, err
}

// found asks all launchers for their machines.
func (p *Platform) found(ctx context.Context) (found []gvisor.Found, err error) {
	sockets, err := filepath.Glob(filepath.Join(p.RunDir, "*", "launcher.sock"))
	if err != nil || len(sockets) == 0 {
		return nil, errors.Join(err, errors.New("no launcher"))
	}
	for _, socket := range sockets { // one for each version of the engine
		some, err := ask(ctx, socket)
		if err != nil {
			return nil, err
		}
		found = append(found, some...)
	}
	return found, nil
}

// ask asks one launcher for its machines.
func ask(ctx context.Context, socket string) (found []gvisor.Found, err error) {
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		},
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://launcher"+gvisor.PathMachines, nil)
	if err != nil {
		return nil, err
	}
	resp, err := transport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	return found, json.NewDecoder(resp.Body).Decode(&found)
}

// Tier is where the memory of a platform's only sandbox is: running, paused,
// swapped or disk.
func (p *Platform) Tier(ctx context.Context) (string, error) {
	states, err := p.Machines(ctx)
	if err != nil {
		return "", err
	}
	for _, s := range states {
		return s, nil
	}
	return "disk", nil
}

// Await waits until the platform's only sandbox is in a tier.
func (p *Platform) Await(ctx context.Context, tier string) error {
	return until(ctx, func() error {
		return inTier(tier)(p.Tier(ctx))
	})
}

// AwaitWarmPool waits until so many machines wait for their sandboxes.
func (p *Platform) AwaitWarmPool(ctx context.Context, want int) error {
	return until(ctx, func() error {
		n := want
		states, err := p.Machines(ctx)
		for id, state := range states {
			if strings.HasPrefix(id, "spare-") && state == gvisor.StatePaused {
				n--
			}
		}
		if err == nil && n > 0 {
			err = waitError(fmt.Sprintf("%d spare machines are missing", n))
		}
		return err
	})
}

// inTier returns a check that what a look at the tier returned is tier.
func inTier(tier string) func(now string, err error) error {
	return func(now string, err error) error {
		if err == nil && now != tier {
			err = waitError("the sandbox is " + now + ", not " + tier)
		}
		return err
	}
}

// waitError is what a check returns while waiting can help.
type waitError string

func (n waitError) Error() string { return string(n) }

// until repeats a check until it returns something other than waitError. Its pauses grow: a
// check asks the launcher, and would take its processors from what it waits for.
func until(ctx context.Context, check func() error) error {
	for pause := awaitPoll; ; pause = min(pause*5/4, awaitPollMost) {
		err := check()
		if _, wait := errors.AsType[waitError](err); !wait {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", err, context.Cause(ctx))
		case <-time.After(pause):
		}
	}
}

// Binaries replaces the directory of the binaries of the next Restart.
func (p *Platform) Binaries(dir string) { p.options.Bin = dir }

// Arguments replaces the flags of the next Restart.
func (p *Platform) Arguments(args ...string) { p.options.Args = args }

// AwaitReady waits until a process waits for the next wake from disk.
func (p *Platform) AwaitReady(ctx context.Context) error {
	return until(ctx, func() error {
		found, err := p.found(ctx)
		if err == nil && !slices.ContainsFunc(found, func(f gvisor.Found) bool { return f.State == gvisor.StateCreated }) {
			err = waitError("no process is ready")
		}
		return err
	})
}
