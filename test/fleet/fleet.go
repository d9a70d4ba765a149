package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
	"github.com/dozehq/doze/internal/machine/gvisor"
	"github.com/dozehq/doze/internal/teardown"
	"github.com/dozehq/doze/internal/testkit"
)

const (
	// nodes is how many a fleet has, and controls and edges.
	nodes, controls, edges = 3, 2, 2
	// readyTime bounds the start of a fleet, and of a node after a fault.
	readyTime = 2 * time.Minute
	// stopTime is what processes get to end by themselves.
	stopTime = 30 * time.Second
	poll     = 50 * time.Millisecond
	// idleTime is how long clients keep connections. An edge that ends waits for them.
	idleTime = 10 * time.Second

	controlPort, nodePort, edgePort, previewPort, bucketPort, recorderPort = "7911", "7921", "7960", "7961", "7970", "7980"
	// objectsPort is where the bucket is, behind its gate.
	objectsPort, recordsPort = "7971", "5432"

	accessKey, secretKey = "fleet", "canary-of-the-fleet-51c0"

	controlHost, standbyHost, bucketHost, recordsHost = "control", "standby", "bucket", "records"
)

// nodeLease is that of a fleet: short, so that many faults fit into an hour. A host that others
// keep busy needs a longer one.
var nodeLease = 4 * time.Second

// A process is a role of the fleet, the bucket, or the database server.
type process struct {
	host    string
	program string
	args    []string
	log     string

	cmd   *exec.Cmd
	ended chan struct{}
}

// A fleet is two controls, nodes, edges, a bucket and a database server, each on a host of
// its own.
type fleet struct {
	wire    *wire
	gate    *gate  // before the bucket
	dir     string // for all data
	records string // for the database
	run     string // for run state, in memory
	bin     string
	extra   []string // more flags of nodes
	turn    atomic.Uint64
	clock   time.Duration // by how much the clock of this host is wrong during some faults

	all map[string]*process // by name
	ids map[string]string   // ids of nodes, by name
	key string
	// client asks the first edge that answers.
	client *client.Client
	http   *http.Client
}

func nodeName(i int) string { return "node" + strconv.Itoa(i) }
func edgeName(i int) string { return "edge" + strconv.Itoa(i) }

// controlNames are those of both controls. The first one is active at first.
func controlNames() []string { return []string{controlHost, standbyHost} }

func nodeNames() (names []string) {
	for i := range nodes {
		names = append(names, nodeName(i))
	}
	return names
}

func edgeNames() (names []string) {
	for i := range edges {
		names = append(names, edgeName(i))
	}
	return names
}

// start starts a fleet in an empty directory, and waits until all nodes have joined.
func start(ctx context.Context, dir string, extra ...string) (*fleet, error) {
	return startWith(ctx, dir, func(*fleet) error { return nil }, extra...)
}

// startApart is start of nodes that share no images.
func startApart(ctx context.Context, dir string, extra ...string) (*fleet, error) {
	return startWith(ctx, dir, (*fleet).shelves, extra...)
}

// startWith is start with a last word about the plan.
func startWith(ctx context.Context, dir string, change func(*fleet) error, extra ...string) (f *fleet, err error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("real sandboxes need root")
	}
	f = &fleet{dir: dir, bin: filepath.Join(testkit.Root(), "bin"), extra: extra, all: map[string]*process{}, ids: map[string]string{}}
	if f.run, err = os.MkdirTemp("/run", "doze-fleet-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.close())
		}
	}()
	if f.wire, err = openWire(ctx); err != nil {
		return f, err
	}
	if err := f.plug(ctx); err != nil {
		return f, err
	}
	if err := errors.Join(f.plan(ctx), change(f)); err != nil {
		return f, err
	}
	if err := errors.Join(f.begin(bucketHost), f.begin(recordsHost), f.recorded(ctx, answers)); err != nil {
		return f, err
	}
	for _, name := range []string{controlHost, nodeName(0)} {
		if err := f.begin(name); err != nil {
			return f, err
		}
	}
	// What one node seals, all can open.
	egress := filepath.Join(f.data(nodeName(0)), "egress.key")
	if err := until(ctx, readyTime, func() error { return f.copyKey(egress) }); err != nil {
		return f, fmt.Errorf("%w: %s", err, f.tail(nodeName(0)))
	}
	for _, name := range slices.Concat(nodeNames()[1:], edgeNames()) {
		if err := f.begin(name); err != nil {
			return f, err
		}
	}
	if err := until(ctx, readyTime, f.readKey); err != nil {
		return f, fmt.Errorf("%w: %s", err, f.tail(controlHost))
	}
	if err := errors.Join(f.copyFile("seal.key", controlHost, standbyHost), f.begin(standbyHost)); err != nil {
		return f, err
	}
	f.http = &http.Client{Transport: &http.Transport{DialContext: f.dialEdge, MaxIdleConnsPerHost: 64, IdleConnTimeout: idleTime}}
	if f.client, err = client.New(client.Config{Address: f.url(), Key: f.key, Transport: f.http.Transport}); err != nil {
		return f, err
	}
	return f, f.settle(ctx)
}

// plug makes the hosts.
func (f *fleet) plug(ctx context.Context) error {
	last := 10
	for _, name := range slices.Concat(controlNames(), []string{bucketHost, recordsHost}, edgeNames(), nodeNames()) {
		if err := f.wire.plug(ctx, name, fmt.Sprintf("%s.%d", f.wire.subnet(), last)); err != nil {
			return err
		}
		last++
	}
	return nil
}

// at is the address of a port of a host.
func (f *fleet) at(host, port string) string { return net.JoinHostPort(f.wire.hosts[host], port) }

// url is the public address: that of the first edge. All of them answer to it.
func (f *fleet) url() string { return "http://" + f.at(edgeName(0), edgePort) }

// previewURL is the same for previews.
func (f *fleet) previewURL() string { return "http://" + f.at(edgeName(0), previewPort) }

func (f *fleet) data(name string) string { return filepath.Join(f.dir, name) }

// plan says what each process is.
func (f *fleet) plan(ctx context.Context) error {
	credentials := filepath.Join(f.dir, "credentials")
	text := fmt.Sprintf("[default]\naws_access_key_id = %s\naws_secret_access_key = %s\n", accessKey, secretKey)
	objects := filepath.Join(f.dir, "objects")
	keys := filepath.Join(f.data(controlHost), "fleet")
	err := errors.Join(os.MkdirAll(filepath.Join(objects, "checkpoints"), 0o700), os.WriteFile(credentials, []byte(text), 0o600))
	if err != nil {
		return err
	}
	dozed := filepath.Join(f.bin, "dozed")
	if err := one(ctx, []string{dozed, "certificates", "--data", f.data(controlHost), "--fleet-keys", keys}); err != nil {
		return err
	}
	add := func(name, program string, args ...string) {
		f.all[name] = &process{host: name, program: program, args: args, log: filepath.Join(f.dir, name+".log")}
	}
	add(bucketHost, filepath.Join(f.bin, "versitygw"), "--quiet", "--port", f.at(bucketHost, objectsPort), "--access", accessKey, "--secret", secretKey, "posix", objects)
	if f.gate, err = f.wire.openGate(ctx, bucketHost, bucketPort, objectsPort); err != nil {
		return err
	}
	if err := f.planRecords(ctx); err != nil {
		return err
	}
	remote := []string{"--remote", "http://" + f.at(bucketHost, bucketPort) + "/checkpoints", "--remote-credentials", credentials}
	var controls []string
	for _, name := range controlNames() {
		controls = append(controls, "https://"+f.at(name, controlPort))
	}
	role := func(role, name string, args ...string) {
		add(name, dozed, slices.Concat([]string{
			role, "--data", f.data(name), "--run", filepath.Join(f.run, name), "--control", strings.Join(controls, ","), "--fleet-keys", keys,
		}, args)...)
	}
	for _, name := range controlNames() {
		role("control", name, slices.Concat(remote, []string{
			"--standby", "--database", f.database(), "--control-listen", f.at(name, controlPort), "--public-url", f.url(), "--preview-url", f.previewURL(),
			"--lease", nodeLease.String(), "--lease-grace", nodeLease.String(), "--key-requests", "0", "--quotas", "sandboxes=1000",
		})...)
	}
	for _, name := range nodeNames() {
		role("node", name, slices.Concat(remote, []string{
			"--node-listen", f.at(name, nodePort), "--cgroup", f.cgroup(name), "--images-dir", testkit.Images, "--swap", "off",
			"--egress", "open", "--egress-allow", f.wire.here() + "/32", "--warm-pool", "0", "--warm-pool-max", "0", "--idle-cpu", "0", "--ready", "0",
		}, f.extra)...)
	}
	for _, name := range edgeNames() {
		role("edge", name, "--listen", f.at(name, edgePort), "--preview-listen", f.at(name, previewPort), "--public-url", f.url(), "--preview-url", f.previewURL(), "--key-requests", "0", "--source-rate", "off")
	}
	return nil
}

func (f *fleet) cgroup(name string) string { return fmt.Sprintf("doze-fleet-%d-%s", f.wire.slot, name) }

// copyKey gives the key of the first node to the others.
func (f *fleet) copyKey(from string) error {
	raw, err := os.ReadFile(from)
	if err == nil && len(raw) == 0 {
		err = errors.New("the key is empty")
	}
	for _, name := range nodeNames()[1:] {
		if err == nil {
			err = os.MkdirAll(f.data(name), 0o700)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(f.data(name), "egress.key"), raw, 0o600) //nolint:gosec // G703: a directory of ours
		}
	}
	return err
}

// copyFile copies a file of the data directory of one process to that of another one.
func (f *fleet) copyFile(file, from, to string) error {
	raw, err := os.ReadFile(filepath.Join(f.data(from), file))
	if err == nil {
		err = os.MkdirAll(f.data(to), 0o700)
	}
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(f.data(to), file), raw, 0o600) //nolint:gosec // G703: a directory of ours
}

func (f *fleet) readKey() error {
	raw, err := os.ReadFile(filepath.Join(f.data(controlHost), "admin.key"))
	if f.key = strings.TrimSpace(string(raw)); err == nil && f.key == "" {
		err = errors.New("the admin key is empty")
	}
	return err
}

// dialEdge reaches one of the edges that let callers in, each in its turn.
func (f *fleet) dialEdge(ctx context.Context, _, address string) (c net.Conn, err error) {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	names, first := edgeNames(), int(f.turn.Add(1)%edges)
	for i := range names {
		if c, err = new(net.Dialer).DialContext(ctx, "tcp", f.at(names[(first+i)%edges], port)); err == nil {
			return c, nil
		}
	}
	return nil, err
}

// listening are the controls that let others in.
func (f *fleet) listening() (names []string) {
	for _, name := range controlNames() {
		if c, err := (&net.Dialer{Timeout: time.Second}).DialContext(context.Background(), "tcp", f.at(name, controlPort)); err == nil {
			_ = c.Close()
			names = append(names, name)
		}
	}
	return names
}

// active is the control that lets others in, or the first one.
func (f *fleet) active() string { return append(f.listening(), controlHost)[0] }

// idle is the control that is not active.
func (f *fleet) idle() string {
	if f.active() == controlHost {
		return standbyHost
	}
	return controlHost
}

// begin starts a process, unless it runs.
func (f *fleet) begin(name string) error {
	p := f.all[name]
	if p.runs() {
		return nil
	}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // the process has it
	cmd := f.wire.command(p.host, p.program, p.args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // an interrupt of the run is not for it
	if err := cmd.Start(); err != nil {
		return err
	}
	p.cmd, p.ended = cmd, make(chan struct{})
	go func(ended chan struct{}) { // ends with the process
		_ = cmd.Wait()
		close(ended)
	}(p.ended)
	return nil
}

// runs reports whether a process was started, and has not ended.
func (p *process) runs() bool {
	if p.cmd == nil {
		return false
	}
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// signal sends a signal to a process, if it runs.
func (p *process) signal(s syscall.Signal) error {
	if !p.runs() {
		return nil
	}
	if err := p.cmd.Process.Signal(s); !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// kill ends a process as a crash does, and waits until it is gone.
func (f *fleet) kill(name string) error {
	p := f.all[name]
	if err := p.signal(syscall.SIGKILL); err != nil || p.cmd == nil {
		return err
	}
	<-p.ended
	return nil
}

func (f *fleet) teardown(name string) teardown.Platform {
	return teardown.Platform{Run: filepath.Join(f.run, name), Cgroup: f.cgroup(name), Data: f.data(name), Programs: gvisor.Processes()}
}

// launchers are the launchers of a node; machines are all other processes of its sandboxes.
func (f *fleet) launchers(name string) (launchers, machines []int) {
	for _, pid := range f.teardown(name).Processes() {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		switch {
		case err != nil:
		case bytes.Contains(raw, []byte("\x00-socket\x00")):
			launchers = append(launchers, pid)
		default:
			machines = append(machines, pid)
		}
	}
	return launchers, machines
}

// signalAll sends a signal to processes, which may have ended.
func signalAll(pids []int, s syscall.Signal) {
	for _, pid := range pids {
		_ = unix.Kill(pid, s) // it may have ended
	}
}

// killNode ends everything of a node, as a loss of its power does. What its memory had is
// gone: run state, mounts and groups.
func (f *fleet) killNode(name string) error {
	signalAll([]int{f.pid(name)}, syscall.SIGSTOP) // it starts nothing meanwhile
	f.shoot(name)
	if err := f.kill(name); err != nil {
		return err
	}
	return f.teardown(name).Clear()
}

// shoot kills the launcher and all machines of a node. The launcher goes first: it has what has
// no lease stand still again, and what stands still does not end.
func (f *fleet) shoot(name string) {
	launchers, machines := f.launchers(name)
	signalAll(launchers, syscall.SIGKILL)
	signalAll(machines, syscall.SIGKILL)
	f.thaw(name)
}

// pid is that of a process, or 0, which is no process that a signal could reach.
func (f *fleet) pid(name string) int {
	if p := f.all[name]; p.runs() {
		return p.cmd.Process.Pid
	}
	return 1 << 30
}

// thaw lets what is frozen go on: it could not end otherwise.
func (f *fleet) thaw(name string) {
	for pattern, word := range map[string]string{"/sys/fs/cgroup/freezer/%s/freezer.state": "THAWED", "/sys/fs/cgroup/%s/cgroup.freeze": "0"} {
		file := fmt.Sprintf(pattern, f.cgroup(name))
		if _, err := os.Stat(file); err == nil {
			_ = os.WriteFile(file, []byte(word), 0) // then Clear says what does not end
		}
	}
}

// close ends everything of the fleet.
func (f *fleet) close() error {
	var errs []error
	var tasks sync.WaitGroup
	if f.http != nil {
		f.http.CloseIdleConnections() // edges wait for that
	}
	for _, p := range f.all {
		_ = p.signal(syscall.SIGCONT)
		errs = append(errs, p.signal(syscall.SIGTERM))
	}
	for _, p := range f.all {
		if p.cmd == nil {
			continue
		}
		tasks.Go(func() {
			select {
			case <-p.ended:
			case <-time.After(stopTime):
				_ = p.signal(syscall.SIGKILL) // it was told
				<-p.ended
			}
		})
	}
	tasks.Wait()
	for _, name := range nodeNames() {
		f.shoot(name)
		errs = append(errs, f.unclaim(name), f.teardown(name).Clear())
	}
	if f.gate != nil {
		errs = append(errs, f.gate.close())
	}
	if f.wire != nil {
		errs = append(errs, f.wire.close())
	}
	errs = append(errs, os.RemoveAll(f.run))
	if f.records != "" {
		errs = append(errs, os.RemoveAll(f.records))
	}
	return errors.Join(errs...)
}

// unclaim removes what a node claims of the images, which all platforms of a host share.
func (f *fleet) unclaim(name string) error {
	claims, err := filepath.Glob(filepath.Join(testkit.Images, "users", "*.json"))
	for _, c := range claims {
		if raw, none := os.ReadFile(c); none == nil && bytes.Contains(raw, []byte(strconv.Quote(f.data(name)))) {
			err = errors.Join(err, os.Remove(c))
		}
	}
	return err
}

// tail is the end of a log.
func (f *fleet) tail(name string) string {
	raw, _ := os.ReadFile(f.all[name].log) // a process that never began has none
	return string(raw[max(0, len(raw)-4096):])
}

// ask asks the control API, and decodes the answer into out.
func (f *fleet) ask(ctx context.Context, method, path string, out any) error {
	r, err := http.NewRequestWithContext(ctx, method, f.url()+"/v0"+path, http.NoBody)
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer "+f.key)
	resp, err := f.http.Do(r)
	if err != nil {
		return err
	}
	raw, err := io.ReadAll(io.LimitReader(resp.Body, answerMax))
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		return err
	}
	if resp.StatusCode >= http.StatusMultipleChoices {
		return fmt.Errorf("%s %s: %s: %.500s", method, path, resp.Status, raw)
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(raw, out)
}

// answerMax bounds an answer, in bytes.
const answerMax = 16 << 20

// list returns the nodes as control sees them, by name.
func (f *fleet) list(ctx context.Context) (map[string]doze.Node, error) {
	var all []doze.Node
	if err := f.ask(ctx, http.MethodGet, "/platform/nodes", &all); err != nil {
		return nil, err
	}
	by := map[string]doze.Node{}
	for _, name := range nodeNames() {
		for _, n := range all {
			if n.URL == "https://"+f.at(name, nodePort) {
				by[name], f.ids[name] = n, n.ID
			}
		}
	}
	return by, nil
}

// controlled starts a control again that ended by itself, since the other one took over, as systemd
// does.
func (f *fleet) controlled() error {
	for _, name := range controlNames() {
		if err := f.begin(name); err != nil {
			return err
		}
	}
	return nil
}

// settle waits until all nodes have joined, and are ready.
func (f *fleet) settle(ctx context.Context) error {
	if err := f.controlled(); err != nil {
		return err
	}
	return until(ctx, readyTime, func() error {
		bounded, cancel := context.WithTimeout(ctx, askTime)
		defer cancel()
		all, err := f.list(bounded)
		if err != nil {
			return err
		}
		for _, name := range nodeNames() {
			if n := all[name]; !n.Present || n.State != doze.NodeReady {
				return fmt.Errorf("%s is not ready: %+v: %s", name, n, f.tail(name))
			}
		}
		return nil
	})
}

// askTime bounds one question of many.
const askTime = 5 * time.Second

// until asks until there is no error, or time is over.
func until(ctx context.Context, most time.Duration, check func() error) error {
	over := time.NewTimer(most)
	defer over.Stop()
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		case <-over.C:
			return fmt.Errorf("after %s: %w", most, err)
		case <-time.After(poll):
		}
	}
}

// has returns the sandboxes that a node has on its disk: their machines, by name.
func (f *fleet) has(node string) map[string]string {
	records, _ := filepath.Glob(filepath.Join(f.data(node), "sandboxes", "*", "record.json")) // the pattern is well formed
	by := map[string]string{}
	for _, file := range records {
		var record struct {
			Order struct{ UID, Name string } `json:"order"`
		}
		if raw, err := os.ReadFile(file); err == nil && json.Unmarshal(raw, &record) == nil { // or it was removed just now
			by[record.Order.Name] = record.Order.UID
		}
	}
	return by
}

// copied reports whether the bucket has a copy of a sandbox.
func (f *fleet) copied(name string) bool { return f.newest(name) != "" }

// newest is the generation of the newest copy of a sandbox in the bucket, or empty.
func (f *fleet) newest(name string) string {
	for _, node := range nodeNames() {
		if uid := f.has(node)[name]; uid != "" {
			found, _ := filepath.Glob(filepath.Join(f.dir, "objects", "checkpoints", uid, "m", "*")) // the pattern is well formed
			if len(found) > 0 {
				return filepath.Base(found[len(found)-1]) // a generation has as many digits as any other
			}
		}
	}
	return ""
}
