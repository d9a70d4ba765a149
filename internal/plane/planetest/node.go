package planetest

import (
	"cmp"
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/fleet/fleettest"
)

// Node is a host with machines in memory. It implements
// [fleet.Node], reports as a real one does, and fails when told to.
type Node struct {
	*fleettest.Builder // builds images

	Report func(fleet.Report)
	Shelf  *Shelf // set before the first call; nil: machines do not move
	Hook   func() // if set, called at the begin and the end of each order
	began  time.Time

	Mu       sync.Mutex
	Machines map[string]*Machine           // guarded by mu
	Disks    map[string]Disk               // guarded by mu; by id
	Saved    map[string]string             // guarded by mu; by id of a snapshot: the memory in it
	Creates  []fleet.Order                 // guarded by mu
	mounted  map[string][]fleet.DriveMount // guarded by mu; by machine
	Config   doze.ImageConfig              // guarded by Mu; of every image of a registry
	fail     map[string]error              // guarded by mu; by call: create, delete, disable, enable, snapshot, drop, archive, unarchive, start, volume, resize, usage, network, consumption, logs
	starts   []Started                     // guarded by mu
	freed    []string                      // guarded by mu; images of which no record is left
	consults int                           // guarded by mu; of machines that run
	Refuse   int                           // guarded by mu; if set, the status with which processes are refused
	Block    chan struct{}                 // guarded by mu; if set, creates wait until it is closed
	Limits   map[string]doze.Limits        // guarded by mu; by workspace
	claims   map[string]fleet.Order        // guarded by mu; by machine: it counts as awake
	usage    fleet.Usage                   // guarded by mu; as it was reported last
	logs     map[logName][]fleet.LogLine   // guarded by mu
}

// Started is a process that somebody submitted to a machine.
type Started struct {
	uid, Body string
	At        time.Time
}

// Transport implements [fleet.Gate] for the start of processes.
func (n *Node) Transport(uid string, port uint16) http.RoundTripper {
	return trip(func(r *http.Request) (*http.Response, error) {
		defer n.around()()
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		n.Mu.Lock()
		block := n.Block
		n.Mu.Unlock()
		if block != nil {
			select {
			case <-block:
			case <-r.Context().Done():
				return nil, r.Context().Err()
			}
		}
		n.Mu.Lock()
		defer n.Mu.Unlock()
		m := n.Machines[uid]
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
		if n.Refuse != 0 {
			w.WriteHeader(n.Refuse)
			_, err = w.WriteString(`{"error":"not today"}`)
			return w.Result(), err
		}
		m.LastUsed = time.Now()
		n.starts = append(n.starts, Started{uid, string(body), time.Now()})
		_, err = w.WriteString(`{"pid":"7","name":"proc-7"}`)
		return w.Result(), err
	})
}

// trip is a function that is a [http.RoundTripper].
type trip func(*http.Request) (*http.Response, error)

func (t trip) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }

// Machine is what a node knows of a machine that it runs.
type Machine struct {
	Order    fleet.Order
	Phase    doze.Phase
	seq      uint64
	LastUsed time.Time
	InUse    bool
	asked    bool      // as far as it is known
	Alive    time.Time // until when a keepAlive process runs
	retired  bool
	shallow  bool // it sleeps in memory
	Setback  *fleet.Setback
	Entry    *doze.Entrypoint
	Memory   string // what a snapshot keeps; a fresh machine has none
}

// NewNode returns a node without machines.
func NewNode() *Node {
	return &Node{began: time.Now(), Builder: new(fleettest.Builder), Limits: map[string]doze.Limits{}, claims: map[string]fleet.Order{}, mounted: map[string][]fleet.DriveMount{}, Disks: map[string]Disk{}, Machines: map[string]*Machine{}, Saved: map[string]string{}, fail: map[string]error{}}
}

func (n *Node) CheckImage(_ context.Context, ref string) error {
	if strings.ContainsAny(ref, " ") || strings.Contains(ref, "nonsense") || strings.HasPrefix(strings.TrimPrefix(ref, "sandbox/"), "own-") {
		return &doze.Error{Kind: doze.Invalid, Name: "INVALID_IMAGE", Message: "the image " + ref + " cannot be run"}
	}
	return nil
}

// FetchImage fails as it is told to.
func (n *Node) FetchImage(ctx context.Context, ref string, login *fleet.Login) error {
	defer n.around()()
	n.Mu.Lock()
	defer n.Mu.Unlock()
	return cmp.Or(n.fail["fetch"], n.CheckImage(ctx, ref), fleettest.CheckLogin(ref, login))
}

// PinImage knows every registry.
func (n *Node) PinImage(ctx context.Context, ref string, login *fleet.Login) (fleet.Pinned, error) {
	defer n.around()()
	if err := cmp.Or(n.CheckImage(ctx, ref), fleettest.CheckLogin(ref, login)); err != nil {
		return fleet.Pinned{}, err
	}
	n.Mu.Lock()
	defer n.Mu.Unlock()
	repository, tag, _ := strings.Cut(ref, ":")
	return fleet.Pinned{Ref: repository + "@sha256:" + tag, Bytes: 1000, Config: n.Config}, nil
}

// ReleaseImage implements [fleet.Node].
func (n *Node) ReleaseImage(_ context.Context, ref string) error {
	n.Mu.Lock()
	defer n.Mu.Unlock()
	n.freed = append(n.freed, ref)
	return nil
}

// Released are the images of which no record is left.
func (n *Node) Released() []string {
	n.Mu.Lock()
	defer n.Mu.Unlock()
	return slices.Clone(n.freed)
}

// around calls the hook; its result calls it again.
func (n *Node) around() func() {
	if n.Hook == nil {
		return func() {}
	}
	n.Hook()
	return n.Hook
}

func (n *Node) Create(ctx context.Context, o fleet.Order) error {
	defer n.around()()
	n.Mu.Lock()
	n.Creates = append(n.Creates, o)
	err, block := n.fail["create"], n.Block
	n.Mu.Unlock()
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
	n.Mu.Lock()
	defer n.Mu.Unlock()
	if n.Machines[o.UID] != nil {
		return doze.Errorf(doze.Conflict, "created twice")
	}
	if err := n.admit(o, ""); err != nil {
		return err
	}
	n.arrive(&o)
	n.arriveSnapshot(&o)
	if o.From == "" {
		if err := n.brought(o.Image); err != nil {
			return err
		}
	}
	memory, there := n.Saved[o.From]
	if o.From != "" && !there {
		return doze.Errorf(doze.NotFound, "no such snapshot")
	}
	n.Machines[o.UID] = &Machine{Order: o, LastUsed: time.Now(), Memory: memory}
	n.Move(o.UID, doze.Running, "")
	return nil
}

func (n *Node) Delete(ctx context.Context, uid string) error {
	defer n.around()()
	if err := n.part(ctx, uid); err != nil {
		return err
	}
	n.Mu.Lock()
	defer n.Mu.Unlock()
	if err := n.fail["delete"]; err != nil {
		return err
	}
	delete(n.claims, uid)
	delete(n.mounted, uid)
	if n.Machines[uid] != nil {
		n.Move(uid, doze.Terminated, "")
		delete(n.Machines, uid)
	}
	return nil
}

// part waits as long as the processes of a machine may take to end.
func (n *Node) part(ctx context.Context, uid string) error {
	n.Mu.Lock()
	var grace time.Duration
	if m := n.Machines[uid]; m != nil {
		grace = m.Order.Grace
	}
	n.Mu.Unlock()
	end := time.NewTimer(grace)
	defer end.Stop()
	select {
	case <-end.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (n *Node) Disable(_ context.Context, uid string) error {
	return n.turn("disable", uid, doze.Disabled)
}

func (n *Node) Enable(_ context.Context, uid string) error {
	return n.turn("enable", uid, doze.Standby)
}

func (n *Node) turn(call, uid string, to doze.Phase) error {
	defer n.around()()
	n.Mu.Lock()
	defer n.Mu.Unlock()
	if err := n.fail[call]; err != nil {
		return err
	}
	if n.Machines[uid] == nil {
		return doze.Errorf(doze.NotFound, "no such machine")
	}
	n.Move(uid, to, "")
	return nil
}

// CheckpointSize is the size of each snapshot and archive.
const CheckpointSize = 1000

func (n *Node) Snapshot(ctx context.Context, uid, id string) (int64, error) {
	defer n.around()()
	n.Mu.Lock()
	err, block := n.fail["snapshot"], n.Block
	n.Mu.Unlock()
	if block != nil {
		select {
		case <-block:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
	n.Mu.Lock()
	defer n.Mu.Unlock()
	m := n.Machines[uid]
	switch {
	case err != nil:
		return 0, err
	case m == nil:
		return 0, doze.Errorf(doze.NotFound, "no such machine")
	}
	n.Saved[id] = m.Memory
	return CheckpointSize, nil
}

func (n *Node) DropSnapshot(_ context.Context, id string) error {
	defer n.around()()
	n.Mu.Lock()
	defer n.Mu.Unlock()
	if err := n.fail["drop"]; err != nil {
		return err
	}
	delete(n.Saved, id)
	return nil
}

func (n *Node) Snapshots(context.Context) (map[string]int64, error) {
	n.Mu.Lock()
	defer n.Mu.Unlock()
	all := map[string]int64{}
	for id := range n.Saved {
		all[id] = CheckpointSize
	}
	return all, nil
}

// Disk is a volume, or what one can begin with.
type Disk struct {
	Size    doze.Megabytes
	Content string
	Epoch   uint64 // in which it came from another node
}

func (n *Node) MakeVolume(_ context.Context, id string, size doze.Megabytes, from string) error {
	n.Mu.Lock()
	defer n.Mu.Unlock()
	n.arriveTemplate(from)
	source, there := n.Disks[from]
	switch {
	case n.fail["volume"] != nil:
		return n.fail["volume"]
	case from != "" && !there:
		return doze.Errorf(doze.NotFound, "no such disk")
	case source.Size > size:
		return doze.Errorf(doze.Invalid, "too small")
	}
	n.Disks[id] = Disk{Size: size, Content: source.Content}
	return nil
}

func (n *Node) ImportVolume(_ context.Context, id string, size doze.Megabytes, archive io.Reader) (int64, error) {
	var raw strings.Builder
	bytes, err := fleettest.ReadTar(io.TeeReader(archive, &raw))
	if err != nil {
		return 0, err
	}
	n.Mu.Lock()
	defer n.Mu.Unlock()
	n.Disks[id] = Disk{Size: size, Content: raw.String()}
	return bytes, nil
}

func (n *Node) ResizeVolume(_ context.Context, id string, size doze.Megabytes) error {
	n.Mu.Lock()
	defer n.Mu.Unlock()
	d, there := n.Disks[id]
	if !there {
		return doze.Errorf(doze.NotFound, "no such disk")
	}
	if err := n.fail["resize"]; err != nil {
		return err
	}
	d.Size = max(d.Size, size)
	n.Disks[id] = d
	return nil
}

func (n *Node) DropVolume(_ context.Context, id string) error {
	n.Mu.Lock()
	defer n.Mu.Unlock()
	delete(n.Disks, id)
	return nil
}

func (n *Node) Volumes(context.Context) ([]string, error) {
	n.Mu.Lock()
	defer n.Mu.Unlock()
	return slices.Collect(maps.Keys(n.Disks)), nil
}

func (n *Node) Archive(_ context.Context, uid string) (int64, error) {
	return CheckpointSize, n.pack("archive", uid, doze.Archived, func(m *Machine) { m.Memory = "" })
}

func (n *Node) Unarchive(_ context.Context, o fleet.Order) error {
	return n.pack("unarchive", o.UID, doze.Running, func(m *Machine) { m.Order = o })
}

// pack moves a machine into its archive or out of it, if it is not there yet.
func (n *Node) pack(call, uid string, to doze.Phase, do func(*Machine)) error {
	defer n.around()()
	n.Mu.Lock()
	defer n.Mu.Unlock()
	m, err := n.Machines[uid], n.fail[call]
	switch {
	case err != nil:
		return err
	case m == nil:
		return doze.Errorf(doze.NotFound, "no such machine")
	case m.Phase != to:
		do(m)
		n.Move(uid, to, "")
	}
	return nil
}

// Forget makes the node one that has just started: it was told no limits, no
// networks and no grace periods.
func (n *Node) Forget() {
	n.Mu.Lock()
	defer n.Mu.Unlock()
	n.Limits = map[string]doze.Limits{}
	for _, m := range n.Machines {
		m.Order.Network, m.Order.Grace = nil, 0
	}
}

func (n *Node) SetGrace(_ context.Context, uid string, grace time.Duration) error {
	n.Mu.Lock()
	defer n.Mu.Unlock()
	if m := n.Machines[uid]; m != nil {
		m.Order.Grace = grace
	}
	return nil
}

func (n *Node) SetNetwork(_ context.Context, uid string, network *doze.Network) error {
	defer n.around()()
	n.Mu.Lock()
	defer n.Mu.Unlock()
	m := n.Machines[uid]
	if m == nil {
		return doze.Errorf(doze.NotFound, "no such machine")
	}
	if err := n.fail["network"]; err != nil {
		return err
	}
	m.Order.Network = network
	return nil
}

// Traces says that every machine was created in a millisecond.
func (n *Node) Traces(_ context.Context, uid string) ([]doze.Trace, error) {
	n.Mu.Lock()
	defer n.Mu.Unlock()
	if n.Machines[uid] == nil {
		return []doze.Trace{}, nil
	}
	return []doze.Trace{{
		Kind: doze.TraceCreate, From: "image", Status: doze.TraceDone, WaitedUs: 1000,
		Stages: []doze.TraceStage{{Name: "launch", TookUs: 900}, {Name: "engine", Within: "launch", StartUs: 100, TookUs: 500}},
	}}, nil
}

// Egress says that every machine connected to one name, and was refused another.
func (n *Node) Egress(_ context.Context, uid string) (doze.EgressSummary, error) {
	n.Mu.Lock()
	defer n.Mu.Unlock()
	if n.Machines[uid] == nil {
		return doze.EgressSummary{Destinations: []doze.EgressDestination{}}, nil
	}
	at := doze.Time{Time: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)}
	return doze.EgressSummary{Since: at, Destinations: []doze.EgressDestination{
		{Protocol: "tcp", Host: "b.test", Port: 443, Verdict: doze.EgressDenied, Rule: "allowedDomains", Reason: "change spec.network", Count: 2, FirstAt: at, LastAt: at},
		{Protocol: "tcp", Host: "a.test", Port: 443, Verdict: doze.EgressAllowed, Rule: "allowedDomains[0]", Count: 1, FirstAt: at, LastAt: at},
	}}, nil
}

// Consumption says that the machines that run take all of their memory.
func (n *Node) Consumption(ctx context.Context, uids []string) (map[string]doze.Usage, error) {
	if err := ctx.Err(); err != nil {
		return nil, errors.Join(fleet.ErrUnreachable, err)
	}
	n.Mu.Lock()
	defer n.Mu.Unlock()
	if err := n.fail["consumption"]; err != nil {
		return nil, err
	}
	all, now := map[string]doze.Usage{}, doze.Time{Time: time.Now()}
	for _, uid := range uids {
		m := n.Machines[uid]
		if m == nil {
			continue
		}
		u := doze.Usage{MeasuredAt: now, CountedSince: doze.Time{Time: n.began}, Tier: tierOf(m)}
		if m.Phase == doze.Running {
			u.Memory.ResidentBytes = m.Order.Memory.Bytes()
		}
		all[uid] = u
	}
	return all, nil
}

// tierOf is where the memory of a machine is.
func tierOf(m *Machine) string {
	switch {
	case m.Phase == doze.Running:
		return "awake"
	case m.shallow:
		return "paused"
	default:
		return "disk"
	}
}

// Sleep implements [fleet.Node].
func (n *Node) Sleep(_ context.Context, uid string, deep bool) error {
	return n.call(uid, doze.Standby, func(m *Machine) error {
		if m.InUse {
			return doze.Errorf(doze.Conflict, "the sandbox is in use and stays awake")
		}
		m.shallow = !deep && (m.Phase == doze.Running || m.shallow)
		return nil
	})
}

// Wake implements [fleet.Node].
func (n *Node) Wake(_ context.Context, uid string) error {
	return n.call(uid, doze.Running, func(*Machine) error { return nil })
}

// call moves a machine that runs or sleeps to a phase, unless it is there.
func (n *Node) call(uid string, to doze.Phase, may func(*Machine) error) error {
	defer n.around()()
	n.Mu.Lock()
	defer n.Mu.Unlock()
	m := n.Machines[uid]
	switch {
	case m == nil:
		return doze.Wrap(fleet.ErrMoved, doze.NotFound, "no such machine")
	case m.Phase != doze.Running && m.Phase != doze.Standby:
		return doze.Errorf(doze.Conflict, "the machine is %s", m.Phase)
	}
	if err := may(m); err != nil {
		return err
	}
	if m.Phase != to {
		n.Move(uid, to, "")
	}
	return nil
}

// SetLimits notes limits; Claim and Create refuse more awake machines than
// those allow.
func (n *Node) SetLimits(_ context.Context, workspace string, l doze.Limits) error {
	n.Mu.Lock()
	defer n.Mu.Unlock()
	n.Limits[workspace] = l
	return nil
}

func (n *Node) Claim(_ context.Context, o fleet.Order, instead string) error {
	n.Mu.Lock()
	defer n.Mu.Unlock()
	return n.admit(o, instead)
}

// admit counts a machine as awake, if it may be. Preconditions: mu is held.
func (n *Node) admit(o fleet.Order, instead string) error {
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
	if most := n.Limits[o.Workspace].Of(doze.QuotaMemoryAwake, n.Limits[""]); int64(memory+o.Memory) > most {
		return doze.QuotaExceeded(doze.QuotaMemoryAwake, int64(memory), most)
	}
	if most := n.Limits[o.Workspace].Of(doze.QuotaSandboxesAwake, n.Limits[""]); int64(used) >= most {
		return doze.QuotaExceeded(doze.QuotaSandboxesAwake, int64(used), most)
	}
	n.claims[o.UID] = o
	return nil
}

// awake are the machines of a workspace that run, and those that are about to.
// Preconditions: mu is held.
func (n *Node) awake(workspace string) map[string]fleet.Order {
	all := map[string]fleet.Order{}
	for uid, m := range n.Machines {
		if m.Order.Workspace == workspace && m.Phase == doze.Running {
			all[uid] = m.Order
		}
	}
	for uid, o := range n.claims {
		if o.Workspace == workspace && n.Machines[uid] == nil {
			all[uid] = o
		}
	}
	return all
}

func (n *Node) Awake(_ context.Context, workspace string) (now fleet.Awake, err error) {
	n.Mu.Lock()
	defer n.Mu.Unlock()
	for _, o := range n.awake(workspace) {
		now.Sandboxes++
		now.Memory += o.Memory
	}
	return now, nil
}

// Statuses implements [fleet.Node].
func (n *Node) Statuses(ctx context.Context, uids []string) (map[string]fleet.Status, error) {
	n.Mu.Lock()
	defer n.Mu.Unlock()
	if err := n.fail["statuses, late"]; err != nil { // as a node does whose packets are lost
		n.Mu.Unlock()
		<-ctx.Done()
		n.Mu.Lock()
		return nil, err
	}
	all, err := map[string]fleet.Status{}, n.fail["statuses"]
	for _, uid := range uids {
		if away := n.fail["statuses "+uid]; away != nil { // as that of another node than the rest
			err = errors.Join(err, away)
			continue
		}
		m := n.Machines[uid]
		if m == nil {
			continue
		}
		st := fleet.Status{Phase: m.Phase, Tier: tierOf(m), LastUsed: m.LastUsed, InUse: m.InUse || m.asked, Setback: m.Setback, Entrypoint: m.Entry}
		if st.InUse {
			st.LastUsed = time.Now()
		}
		all[uid] = st
	}
	return all, err
}

// Consult finds out about keepAlive processes, which Statuses does not know of.
func (n *Node) Consult(_ context.Context, uid string) error {
	defer n.around()()
	n.Mu.Lock()
	defer n.Mu.Unlock()
	if m := n.Machines[uid]; m != nil && m.Phase == doze.Running {
		n.consults++
		if m.asked = m.Alive.After(time.Now()); !m.asked && m.Alive.After(m.LastUsed) {
			m.LastUsed = m.Alive
		}
	}
	return n.fail["consult"]
}

func (n *Node) Retire(_ context.Context, uid string, since time.Time) (bool, error) {
	n.Mu.Lock()
	defer n.Mu.Unlock()
	m := n.Machines[uid]
	if m != nil {
		m.retired = !m.InUse && !m.asked && !m.LastUsed.After(since)
	}
	return m == nil || m.retired, n.fail["retire"]
}

func (n *Node) Reinstate(_ context.Context, uid string) error {
	n.Mu.Lock()
	defer n.Mu.Unlock()
	if m := n.Machines[uid]; m != nil {
		m.retired = false
	}
	return nil
}

// Move changes a phase and reports it. Preconditions: mu is held.
func (n *Node) Move(uid string, to doze.Phase, message string) {
	m := n.Machines[uid]
	m.Phase = to
	m.seq++
	n.Report(fleet.Report{UID: uid, Seq: m.seq, Phase: to, Message: message, At: time.Now(), LastUsed: m.LastUsed})
}

// Set makes call fail with err from now on; nil heals it.
func (n *Node) Set(call string, err error) {
	n.Mu.Lock()
	defer n.Mu.Unlock()
	n.fail[call] = err
}

// Hold makes creates wait until the returned function is called.
func (n *Node) Hold() (release func()) {
	n.Mu.Lock()
	defer n.Mu.Unlock()
	block := make(chan struct{})
	n.Block = block
	return func() {
		n.Mu.Lock()
		defer n.Mu.Unlock()
		n.Block = nil
		close(block)
	}
}

// With calls fn on the machine of a name, if there is one.
func (n *Node) With(name string, fn func(uid string, m *Machine)) {
	n.Mu.Lock()
	defer n.Mu.Unlock()
	for uid, m := range n.Machines {
		if m.Order.Name == name {
			fn(uid, m)
			return
		}
	}
}

// Count returns how many machines there are.
func (n *Node) Count() int {
	n.Mu.Lock()
	defer n.Mu.Unlock()
	return len(n.Machines)
}

// Clone is the host as it is now. Preconditions: mu is held.
func (n *Node) Clone() *Node {
	c := NewNode()
	for uid, m := range n.Machines {
		copied := *m
		c.Machines[uid] = &copied
	}
	maps.Copy(c.Saved, n.Saved)
	c.Builder = n.Builder
	return c
}

// Orders returns those of all machines that were created.
func (n *Node) Orders() []fleet.Order {
	n.Mu.Lock()
	defer n.Mu.Unlock()
	return slices.Clone(n.Creates)
}

// Ordered returns how many machines were created.
func (n *Node) Ordered() int { return len(n.Orders()) }

// Asked is how often machines were consulted.
func (n *Node) Asked() int {
	n.Mu.Lock()
	defer n.Mu.Unlock()
	return n.consults
}

// Usage implements [fleet.Node]: the checkpoint of each machine, each snapshot and
// each disk takes [CheckpointSize]. It is as old as the last change.
func (n *Node) Usage(context.Context) (fleet.Usage, error) {
	n.Mu.Lock()
	defer n.Mu.Unlock()
	var uses []fleet.DiskUse
	for uid, m := range n.Machines {
		uses = append(uses, fleet.DiskUse{Kind: fleet.DiskCheckpoint, ID: uid, Workspace: m.Order.Workspace, Bytes: CheckpointSize})
	}
	for id := range n.Saved {
		uses = append(uses, fleet.DiskUse{Kind: fleet.DiskSnapshot, ID: id, Bytes: CheckpointSize})
	}
	for id, d := range n.Disks {
		uses = append(uses, fleet.DiskUse{Kind: fleet.DiskVolume, ID: id, Bytes: CheckpointSize, Reserved: d.Size.Bytes()})
	}
	slices.SortFunc(uses, func(a, b fleet.DiskUse) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.ID, b.ID)) })
	if n.usage.At.IsZero() || !reflect.DeepEqual(uses, n.usage.Uses) {
		n.usage = fleet.Usage{At: time.Now(), Uses: uses}
	}
	return n.usage, n.fail["usage"]
}

// MountDrive implements [fleet.Node].
func (n *Node) MountDrive(_ context.Context, uid string, m fleet.DriveMount) (fleet.DriveMount, error) {
	n.Mu.Lock()
	defer n.Mu.Unlock()
	if n.Machines[uid] == nil {
		return m, doze.Errorf(doze.NotFound, "no such machine")
	}
	for _, other := range n.mounted[uid] {
		switch {
		case other.DriveMount == m.DriveMount && other.DriveID == m.DriveID:
			return other, nil
		case m.Overlaps(other.MountPath):
			return m, doze.Errorf(doze.Conflict, "%s has a drive", other.MountPath)
		}
	}
	n.mounted[uid] = append(n.mounted[uid], m)
	return m, nil
}

// UnmountDrive implements [fleet.Node].
func (n *Node) UnmountDrive(_ context.Context, uid, path string) error {
	n.Mu.Lock()
	defer n.Mu.Unlock()
	was := len(n.mounted[uid])
	n.mounted[uid] = slices.DeleteFunc(n.mounted[uid], func(m fleet.DriveMount) bool { return m.MountPath == path })
	if len(n.mounted[uid]) == was {
		return doze.Errorf(doze.Internal, "no drive is mounted on %s", path)
	}
	return nil
}

// DriveMounts implements [fleet.Node].
func (n *Node) DriveMounts(_ context.Context, uid string) ([]fleet.DriveMount, error) {
	n.Mu.Lock()
	defer n.Mu.Unlock()
	return slices.Clone(n.mounted[uid]), nil
}

// DriveUsers implements [fleet.Node].
func (n *Node) DriveUsers(_ context.Context, drive string) (uids []string, err error) {
	n.Mu.Lock()
	defer n.Mu.Unlock()
	for uid, all := range n.mounted {
		if slices.ContainsFunc(all, func(m fleet.DriveMount) bool { return m.DriveID == drive }) {
			uids = append(uids, uid)
		}
	}
	return uids, nil
}
