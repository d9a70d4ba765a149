package control_test

import (
	"cmp"
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/fleet/fleettest"
)

// node is a host with machines in memory. It keeps the promises of
// [fleet.Node], reports like a real one, and fails when told to.
type node struct {
	report func(fleet.Report)
	hook   func() // if set, called at the begin and the end of each order

	mu       sync.Mutex
	machines map[string]*machine           // guarded by mu
	disks    map[string]disk               // guarded by mu; by id
	kept     map[string]string             // guarded by mu; by id of a snapshot: the memory in it
	creates  []fleet.Order                 // guarded by mu
	mounted  map[string][]fleet.DriveMount // guarded by mu; by machine
	fail     map[string]error              // guarded by mu; by call: create, delete, disable, enable, snapshot, drop, archive, unarchive, start, volume, resize, usage, network
	starts   []started                     // guarded by mu
	freed    []string                      // guarded by mu; images of which no record is left
	consults int                           // guarded by mu; of machines that run
	refuse   int                           // guarded by mu; if set, the status with which processes are refused
	block    chan struct{}                 // guarded by mu; if set, creates wait until it is closed
	limits   map[string]doze.Limits        // guarded by mu; by workspace
	claims   map[string]fleet.Order        // guarded by mu; by machine: it counts as awake
}

// started is a process that somebody submitted to a machine.
type started struct {
	uid, body string
	at        time.Time
}

// Transport keeps the promises of [fleet.Gate] for the start of processes.
func (n *node) Transport(uid string, port uint16) http.RoundTripper {
	return trip(func(r *http.Request) (*http.Response, error) {
		defer n.around()()
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		n.mu.Lock()
		block := n.block
		n.mu.Unlock()
		if block != nil {
			select {
			case <-block:
			case <-r.Context().Done():
				return nil, r.Context().Err()
			}
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		m := n.machines[uid]
		switch {
		case n.fail["start"] != nil:
			return nil, n.fail["start"]
		case m == nil:
			return nil, doze.Errorf(doze.NotFound, "no such machine")
		case m.retired:
			return nil, doze.Errorf(doze.Unavailable, "it is being deleted")
		case r.Method != http.MethodPost || r.URL.Path != "/process" || port != doze.AgentPort:
			return nil, errors.New("a request that machines do not know")
		}
		w := httptest.NewRecorder()
		if n.refuse != 0 {
			w.WriteHeader(n.refuse)
			_, err = w.WriteString(`{"error":"not today"}`)
			return w.Result(), err
		}
		m.lastUsed = time.Now()
		n.starts = append(n.starts, started{uid, string(body), time.Now()})
		_, err = w.WriteString(`{"pid":"7","name":"proc-7"}`)
		return w.Result(), err
	})
}

// trip is a function that is a [http.RoundTripper].
type trip func(*http.Request) (*http.Response, error)

func (t trip) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }

type machine struct {
	order    fleet.Order
	phase    doze.Phase
	seq      uint64
	lastUsed time.Time
	inUse    bool
	kept     bool      // as far as it is known
	alive    time.Time // until when a keepAlive process runs
	retired  bool
	setback  *fleet.Setback
	memory   string // what a snapshot keeps; a fresh machine has none
}

func newNode() *node {
	return &node{limits: map[string]doze.Limits{}, claims: map[string]fleet.Order{}, mounted: map[string][]fleet.DriveMount{}, disks: map[string]disk{}, machines: map[string]*machine{}, kept: map[string]string{}, fail: map[string]error{}}
}

func (n *node) CheckImage(_ context.Context, ref string) error {
	if strings.ContainsAny(ref, " ") || strings.Contains(ref, "nonsense") || strings.HasPrefix(strings.TrimPrefix(ref, "sandbox/"), "own-") {
		return &doze.Error{Kind: doze.Invalid, Name: "INVALID_IMAGE", Message: "the image " + ref + " cannot be run"}
	}
	return nil
}

// FetchImage fails as it is told to.
func (n *node) FetchImage(ctx context.Context, ref string, _ *fleet.Login) error {
	defer n.around()()
	n.mu.Lock()
	defer n.mu.Unlock()
	return cmp.Or(n.fail["fetch"], n.CheckImage(ctx, ref))
}

// PinImage knows every registry; its images are for who says "word".
func (n *node) PinImage(ctx context.Context, ref string, login *fleet.Login) (fleet.Pinned, error) {
	defer n.around()()
	if err := n.CheckImage(ctx, ref); err != nil {
		return fleet.Pinned{}, err
	}
	if strings.Contains(ref, "private") && (login == nil || login.Password != "word") {
		return fleet.Pinned{}, &doze.Error{Kind: doze.Invalid, Name: "INVALID_IMAGE", Message: "credentials are missing"}
	}
	repository, tag, _ := strings.Cut(ref, ":")
	return fleet.Pinned{Ref: repository + "@sha256:" + tag, Bytes: 1000}, nil
}

// ReleaseImage implements [fleet.Node].
func (n *node) ReleaseImage(_ context.Context, ref string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.freed = append(n.freed, ref)
	return nil
}

// released are the images of which no record is left.
func (n *node) released() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.freed)
}

// around calls the hook; its result calls it again.
func (n *node) around() func() {
	if n.hook == nil {
		return func() {}
	}
	n.hook()
	return n.hook
}

func (n *node) Create(ctx context.Context, o fleet.Order) error {
	defer n.around()()
	n.mu.Lock()
	n.creates = append(n.creates, o)
	err, block := n.fail["create"], n.block
	n.mu.Unlock()
	if block != nil {
		select {
		case <-block:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.machines[o.UID] != nil {
		return doze.Errorf(doze.Conflict, "created twice")
	}
	if err := n.admit(o, ""); err != nil {
		return err
	}
	memory, there := n.kept[o.From]
	if o.From != "" && !there {
		return doze.Errorf(doze.NotFound, "no such snapshot")
	}
	n.machines[o.UID] = &machine{order: o, lastUsed: time.Now(), memory: memory}
	n.move(o.UID, doze.Running, "")
	return nil
}

func (n *node) Delete(ctx context.Context, uid string) error {
	defer n.around()()
	if err := n.part(ctx, uid); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.fail["delete"]; err != nil {
		return err
	}
	delete(n.claims, uid)
	if n.machines[uid] != nil {
		n.move(uid, doze.Terminated, "")
		delete(n.machines, uid)
	}
	return nil
}

// part waits as long as the processes of a machine may take to end.
func (n *node) part(ctx context.Context, uid string) error {
	n.mu.Lock()
	var grace time.Duration
	if m := n.machines[uid]; m != nil {
		grace = m.order.Grace
	}
	n.mu.Unlock()
	end := time.NewTimer(grace)
	defer end.Stop()
	select {
	case <-end.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (n *node) Disable(_ context.Context, uid string) error {
	return n.turn("disable", uid, doze.Disabled)
}

func (n *node) Enable(_ context.Context, uid string) error {
	return n.turn("enable", uid, doze.Standby)
}

func (n *node) turn(call, uid string, to doze.Phase) error {
	defer n.around()()
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.fail[call]; err != nil {
		return err
	}
	if n.machines[uid] == nil {
		return doze.Errorf(doze.NotFound, "no such machine")
	}
	n.move(uid, to, "")
	return nil
}

// sizeKept is the size of each snapshot and archive.
const sizeKept = 1000

func (n *node) Snapshot(ctx context.Context, uid, id string) (int64, error) {
	defer n.around()()
	n.mu.Lock()
	err, block := n.fail["snapshot"], n.block
	n.mu.Unlock()
	if block != nil {
		select {
		case <-block:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	m := n.machines[uid]
	switch {
	case err != nil:
		return 0, err
	case m == nil:
		return 0, doze.Errorf(doze.NotFound, "no such machine")
	}
	n.kept[id] = m.memory
	return sizeKept, nil
}

func (n *node) DropSnapshot(_ context.Context, id string) error {
	defer n.around()()
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.fail["drop"]; err != nil {
		return err
	}
	delete(n.kept, id)
	return nil
}

func (n *node) Snapshots(context.Context) (map[string]int64, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := map[string]int64{}
	for id := range n.kept {
		all[id] = sizeKept
	}
	return all, nil
}

// disk is a volume, or what one can begin with.
type disk struct {
	size    doze.Megabytes
	content string
}

func (n *node) MakeVolume(_ context.Context, id string, size doze.Megabytes, from string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	source, there := n.disks[from]
	switch {
	case n.fail["volume"] != nil:
		return n.fail["volume"]
	case from != "" && !there:
		return doze.Errorf(doze.NotFound, "no such disk")
	case source.size > size:
		return doze.Errorf(doze.Invalid, "too small")
	}
	n.disks[id] = disk{size, source.content}
	return nil
}

func (n *node) ImportVolume(_ context.Context, id string, size doze.Megabytes, archive io.Reader) (int64, error) {
	var raw strings.Builder
	bytes, err := fleettest.ReadTar(io.TeeReader(archive, &raw))
	if err != nil {
		return 0, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.disks[id] = disk{size, raw.String()}
	return bytes, nil
}

func (n *node) ResizeVolume(_ context.Context, id string, size doze.Megabytes) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	d, there := n.disks[id]
	if !there {
		return doze.Errorf(doze.NotFound, "no such disk")
	}
	if err := n.fail["resize"]; err != nil {
		return err
	}
	d.size = max(d.size, size)
	n.disks[id] = d
	return nil
}

func (n *node) DropVolume(_ context.Context, id string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.disks, id)
	return nil
}

func (n *node) Volumes(context.Context) ([]string, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Collect(maps.Keys(n.disks)), nil
}

func (n *node) Archive(_ context.Context, uid string) (int64, error) {
	return sizeKept, n.pack("archive", uid, doze.Archived, func(m *machine) { m.memory = "" })
}

func (n *node) Unarchive(_ context.Context, o fleet.Order) error {
	return n.pack("unarchive", o.UID, doze.Running, func(m *machine) { m.order = o })
}

// pack moves a machine into its archive or out of it, if it is not there yet.
func (n *node) pack(call, uid string, to doze.Phase, do func(*machine)) error {
	defer n.around()()
	n.mu.Lock()
	defer n.mu.Unlock()
	m, err := n.machines[uid], n.fail[call]
	switch {
	case err != nil:
		return err
	case m == nil:
		return doze.Errorf(doze.NotFound, "no such machine")
	case m.phase != to:
		do(m)
		n.move(uid, to, "")
	}
	return nil
}

// forget makes the node one that was told of no network.
func (n *node) forget() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, m := range n.machines {
		m.order.Network = nil
	}
}

func (n *node) SetGrace(_ context.Context, uid string, grace time.Duration) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if m := n.machines[uid]; m != nil {
		m.order.Grace = grace
	}
	return nil
}

func (n *node) SetNetwork(_ context.Context, uid string, network *doze.Network) error {
	defer n.around()()
	n.mu.Lock()
	defer n.mu.Unlock()
	m := n.machines[uid]
	if m == nil {
		return doze.Errorf(doze.NotFound, "no such machine")
	}
	if err := n.fail["network"]; err != nil {
		return err
	}
	m.order.Network = network
	return nil
}

// Traces says that every machine was created in a millisecond.
func (n *node) Traces(_ context.Context, uid string) ([]doze.Trace, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.machines[uid] == nil {
		return []doze.Trace{}, nil
	}
	return []doze.Trace{{
		Kind: doze.TraceCreate, From: "image", Status: doze.TraceDone, WaitedUs: 1000,
		Stages: []doze.TraceStage{{Name: "launch", TookUs: 900}, {Name: "engine", Within: "launch", StartUs: 100, TookUs: 500}},
	}}, nil
}

// SetLimits notes limits; Claim and Create refuse more awake machines than
// those allow.
func (n *node) SetLimits(_ context.Context, workspace string, l doze.Limits) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.limits[workspace] = l
	return nil
}

func (n *node) Claim(_ context.Context, o fleet.Order, instead string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.admit(o, instead)
}

// admit counts a machine as awake, if it may be. Preconditions: mu is held.
func (n *node) admit(o fleet.Order, instead string) error {
	if _, claimed := n.claims[o.UID]; claimed {
		return nil
	}
	used, memory := 0, doze.Megabytes(0)
	for uid, other := range n.awake(o.Workspace) {
		if uid != instead {
			used++
			memory += other.Memory
		}
	}
	if most := n.limits[o.Workspace].Of(doze.QuotaMemoryAwake, n.limits[""]); int64(memory+o.Memory) > most {
		return doze.QuotaExceeded(doze.QuotaMemoryAwake, int64(memory), most)
	}
	if most := n.limits[o.Workspace].Of(doze.QuotaSandboxesAwake, n.limits[""]); int64(used) >= most {
		return doze.QuotaExceeded(doze.QuotaSandboxesAwake, int64(used), most)
	}
	n.claims[o.UID] = o
	return nil
}

// awake are the machines of a workspace that run, and those that are about to.
// Preconditions: mu is held.
func (n *node) awake(workspace string) map[string]fleet.Order {
	all := map[string]fleet.Order{}
	for uid, m := range n.machines {
		if m.order.Workspace == workspace && m.phase == doze.Running {
			all[uid] = m.order
		}
	}
	for uid, o := range n.claims {
		if o.Workspace == workspace && n.machines[uid] == nil {
			all[uid] = o
		}
	}
	return all
}

func (n *node) Awake(_ context.Context, workspace string) (now fleet.Awake, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, o := range n.awake(workspace) {
		now.Sandboxes++
		now.Memory += o.Memory
	}
	return now, nil
}

// Statuses implements [fleet.Node].
func (n *node) Statuses(_ context.Context, uids []string) (map[string]fleet.Status, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := map[string]fleet.Status{}
	for _, uid := range uids {
		m := n.machines[uid]
		if m == nil {
			continue
		}
		st := fleet.Status{Phase: m.phase, LastUsed: m.lastUsed, InUse: m.inUse || m.kept, Setback: m.setback}
		if st.InUse {
			st.LastUsed = time.Now()
		}
		all[uid] = st
	}
	return all, n.fail["statuses"]
}

// Consult finds out about keepAlive processes, which Statuses does not know of.
func (n *node) Consult(_ context.Context, uid string) error {
	defer n.around()()
	n.mu.Lock()
	defer n.mu.Unlock()
	if m := n.machines[uid]; m != nil && m.phase == doze.Running {
		n.consults++
		if m.kept = m.alive.After(time.Now()); !m.kept && m.alive.After(m.lastUsed) {
			m.lastUsed = m.alive
		}
	}
	return n.fail["consult"]
}

func (n *node) Retire(_ context.Context, uid string, since time.Time) (bool, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	m := n.machines[uid]
	if m != nil {
		m.retired = !m.inUse && !m.kept && !m.lastUsed.After(since)
	}
	return m == nil || m.retired, n.fail["retire"]
}

func (n *node) Reinstate(_ context.Context, uid string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if m := n.machines[uid]; m != nil {
		m.retired = false
	}
	return nil
}

// move changes a phase and reports it. Preconditions: mu is held.
func (n *node) move(uid string, to doze.Phase, message string) {
	m := n.machines[uid]
	m.phase = to
	m.seq++
	n.report(fleet.Report{UID: uid, Seq: m.seq, Phase: to, Message: message, At: time.Now(), LastUsed: m.lastUsed})
}

// set makes call fail with err from now on; nil heals it.
func (n *node) set(call string, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.fail[call] = err
}

// hold makes creates wait until the returned function is called.
func (n *node) hold() (release func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	block := make(chan struct{})
	n.block = block
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.block = nil
		close(block)
	}
}

// with calls fn on the machine of a name, if there is one.
func (n *node) with(name string, fn func(uid string, m *machine)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for uid, m := range n.machines {
		if m.order.Name == name {
			fn(uid, m)
			return
		}
	}
}

func (n *node) count() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.machines)
}

// clone is the host as it is now. Preconditions: mu is held.
func (n *node) clone() *node {
	c := newNode()
	for uid, m := range n.machines {
		copied := *m
		c.machines[uid] = &copied
	}
	maps.Copy(c.kept, n.kept)
	return c
}

func (n *node) orders() []fleet.Order {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.creates)
}

func (n *node) ordered() int { return len(n.orders()) }

// asked is how often machines were consulted.
func (n *node) asked() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.consults
}

// Usage implements [fleet.Node]: the checkpoint of each machine, each snapshot and
// each disk takes [sizeKept].
func (n *node) Usage(context.Context) (fleet.Usage, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	u := fleet.Usage{At: time.Now()}
	for uid, m := range n.machines {
		u.Uses = append(u.Uses, fleet.DiskUse{Kind: fleet.DiskCheckpoint, ID: uid, Workspace: m.order.Workspace, Bytes: sizeKept})
	}
	for id := range n.kept {
		u.Uses = append(u.Uses, fleet.DiskUse{Kind: fleet.DiskSnapshot, ID: id, Bytes: sizeKept})
	}
	for id, d := range n.disks {
		u.Uses = append(u.Uses, fleet.DiskUse{Kind: fleet.DiskVolume, ID: id, Bytes: sizeKept, Reserved: d.size.Bytes()})
	}
	return u, n.fail["usage"]
}

// MountDrive implements [fleet.Node].
func (n *node) MountDrive(_ context.Context, uid string, m fleet.DriveMount) (fleet.DriveMount, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mounted[uid] = append(n.mounted[uid], m)
	return m, nil
}

// UnmountDrive implements [fleet.Node].
func (n *node) UnmountDrive(_ context.Context, uid, path string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	was := len(n.mounted[uid])
	n.mounted[uid] = slices.DeleteFunc(n.mounted[uid], func(m fleet.DriveMount) bool { return m.MountPath == path })
	if len(n.mounted[uid]) == was {
		return doze.Errorf(doze.Internal, "no drive is mounted on %s", path)
	}
	return nil
}

// DriveMounts implements [fleet.Node].
func (n *node) DriveMounts(_ context.Context, uid string) ([]fleet.DriveMount, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.mounted[uid]), nil
}

// DriveUsers implements [fleet.Node].
func (n *node) DriveUsers(_ context.Context, drive string) (uids []string, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for uid, all := range n.mounted {
		if slices.ContainsFunc(all, func(m fleet.DriveMount) bool { return m.DriveID == drive }) {
			uids = append(uids, uid)
		}
	}
	return uids, nil
}
