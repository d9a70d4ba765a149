// Package hostnet leases an address and the network behind it.
//
// The host ends of all links live in one network namespace of their own, the router,
// and never in that of the machine. So no address of ours can collide with the
// operator's network, and a sandbox has no route anywhere. Only connections that
// [Net.Dial] opens inside the router reach a sandbox.
package hostnet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/durable"
)

// What is in the directory of a Net.
const (
	routerFile = "router" // the router's namespace is mounted here
	slotDir    = "ns"     // and those of sandboxes here, by index
	leaseDir   = "leases" // by index: the id that has it
	uplinkFile = "uplink" // what was changed in the machine's namespace
	lockFile   = "lock"

	addressFile = "addresses" // what was added to an interface of the machine
)

// Options are the operator's choices.
type Options struct {
	// OpenEgress lets sandboxes in mode [Direct] reach the public internet,
	// through the address of this machine. Without it they reach nothing. Private, link-local and
	// reserved networks and the machine itself stay closed. It adds a link and
	// a packet filter to the machine's network namespace and switches on
	// net.ipv4.ip_forward there; [Net.Destroy] takes all of it back. A
	// firewall of the operator that forbids forwarding stays in force.
	//
	// Names are then resolved by the servers that [Net.Resolvers] returns.
	OpenEgress bool

	// OpenDatagrams lets [Net.Datagrams] open a way for UDP, in the same manner.
	OpenDatagrams bool

	// Opened are networks that sandboxes in mode [Proxied] may reach, although they
	// are not public: their connections are led to the proxy, as all others. It decides.
	Opened []netip.Prefix

	// EgressLink is the machine's network interface that [Net.Dedicate] adds
	// addresses to.
	EgressLink string

	// machine is the file of the namespace to use as the machine's, so that
	// tests change nothing else. Empty means that of the process.
	machine string
	// resolvConf is the file with the machine's name servers. Empty means the usual one.
	resolvConf string
}

// uplinked reports whether anything that sandboxes send is forwarded.
func (o Options) uplinked() bool { return o.OpenEgress || o.OpenDatagrams }

// Net has the addresses of one data directory. It is safe for concurrent use.
type Net struct {
	dir     string
	o       Options
	lock    *os.File
	home    netns // the namespace of this process
	machine netns // where an uplink leads
	router  *router

	mu     sync.Mutex
	leases map[string]*lease // guarded by mu; by id
	used   map[int]*lease    // guarded by mu; by index
	next   int               // guarded by mu; where to look for a free index

	went map[int]bool // guarded by mu; the indexes of links that had a way out since Open

	subnets    map[string]*subnet // guarded by mu; those that have members
	lastSubnet uint32             // guarded by mu; no number is used again

	addresses sync.Mutex            // held while addresses of the machine change
	added     added                 // guarded by addresses
	dedicated map[string]netip.Addr // guarded by addresses; by lease
	swept     bool                  // guarded by addresses; it is known who wants what

	outside     changer                 // of the machine's namespace
	uplink      string                  // name of the machine's end, and of the table there; empty without one
	sources     sync.Mutex              // held while stand-ins change
	standIns    map[netip.Addr]*standIn // guarded by sources; by dedicated address
	guard       *guard                  // of the machine; nil without an uplink
	guards      []string                // guarded by sources; see guarded
	nextStandIn uint32                  // guarded by sources; where to look for a free one
	oldStandIns bool                    // guarded by sources; all have been in use since Open
}

// A lease is one slot in use. Only the holder of the turn may change it.
type lease struct {
	slot  Slot
	turn  chan struct{} // holds one token
	ready bool          // needs the turn; the slot is wired and the lease is on disk
	stale bool          // needs the turn; something of the slot may be there
	gone  bool          // needs the turn; the lease has ended
	mode  Mode          // needs the turn; as the kernel has it

	subnet string     // likewise
	source netip.Addr // likewise; that its UDP leaves from

	omitted atomic.Uint64 // packets of the link that nobody will be told of, or was already
}

func newLease(s Slot) *lease {
	l := &lease{slot: s, turn: make(chan struct{}, 1)}
	l.turn <- struct{}{}
	return l
}

// idForm is what may be the id of a lease.
var idForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// Open takes over the network of dir: the router and the slots that an earlier
// process left, if the machine was not restarted since, and in any case the
// leases. It removes what belongs to no lease. One process at a time may have
// a directory open; a second one gets a Conflict.
func Open(dir string, o Options) (_ *Net, err error) {
	dir, err = filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("open the network: %w", err)
	}
	for _, d := range []string{dir, filepath.Join(dir, slotDir), filepath.Join(dir, leaseDir)} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, fmt.Errorf("open the network: %w", err)
		}
	}
	n := &Net{dir: dir, o: o, leases: map[string]*lease{}, used: map[int]*lease{}, went: map[int]bool{}, dedicated: map[string]netip.Addr{}, subnets: map[string]*subnet{}, standIns: map[netip.Addr]*standIn{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.Close())
		}
	}()
	if err := n.claim(); err != nil {
		return nil, err
	}
	if err := n.openNamespaces(); err != nil {
		return nil, fmt.Errorf("open the network: %w", err)
	}
	if err := n.load(); err != nil {
		return nil, fmt.Errorf("read the leases: %w", err)
	}
	if err := n.sweepOrphans(); err != nil {
		return nil, fmt.Errorf("remove what no lease has: %w", err)
	}
	if err := n.loadAddresses(); err != nil {
		return nil, fmt.Errorf("read the addresses of the machine that are ours: %w", err)
	}
	if o.OpenDatagrams {
		if err := n.forgetAllFlows(); err != nil {
			return nil, fmt.Errorf("forget what sandboxes sent to an earlier process: %w", err)
		}
	}
	if o.uplinked() {
		err = n.openUplink()
	} else {
		err = n.closeUplink()
	}
	if err != nil {
		return nil, err
	}
	return n, nil
}

// claim keeps other processes out.
func (n *Net) claim() (err error) {
	n.lock, err = os.OpenFile(filepath.Join(n.dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("open the network: %w", err)
	}
	if err := unix.Flock(int(n.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return doze.Wrap(err, doze.Conflict, "the network in %s belongs to another process", n.dir)
	}
	return nil
}

func (n *Net) openNamespaces() (err error) {
	if n.home, err = here(); err != nil {
		return err
	}
	if n.o.machine == "" {
		n.machine, err = here()
	} else {
		n.machine, err = openNetns(n.o.machine)
	}
	if err != nil {
		return err
	}
	n.outside.ns = n.machine
	n.router, err = openRouter(n.dir, n.o)
	return err
}

// load reads the leases. The slots of a machine that was restarted are gone;
// [Net.Lease] makes them again when they are needed.
func (n *Net) load() error {
	entries, err := os.ReadDir(filepath.Join(n.dir, leaseDir))
	if err != nil {
		return err
	}
	for _, e := range entries {
		index, err := parseIndex(e.Name())
		if err != nil {
			return err
		}
		file := filepath.Join(n.dir, leaseDir, e.Name())
		id, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if !idForm.Match(id) || n.leases[string(id)] != nil {
			// The machine stopped before this lease was given to anybody.
			if err := os.Remove(file); err != nil {
				return err
			}
			continue
		}
		l := newLease(newSlot(n.dir, string(id), index))
		l.stale = true
		n.leases[l.slot.ID], n.used[index] = l, l
	}
	return nil
}

// sweepOrphans removes slots that were made or taken apart when an earlier
// process died.
func (n *Net) sweepOrphans() error {
	entries, err := os.ReadDir(filepath.Join(n.dir, slotDir))
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		index, err := parseIndex(e.Name())
		if err == nil && n.used[index] == nil {
			err = dropNetns(filepath.Join(n.dir, slotDir, e.Name()))
		}
		errs = append(errs, err)
	}
	links, err := whole(n.router.handle.LinkList)
	errs = append(errs, err)
	for _, l := range links {
		number, ours := strings.CutPrefix(l.Attrs().Name, hostLinkPrefix)
		if index, err := parseIndex(number); ours && err == nil && n.used[index] == nil {
			errs = append(errs, n.router.unlink(l.Attrs().Name))
		}
	}
	return errors.Join(errs...)
}

// Close gives up the directory and leaves all leases and links in place, for
// the next [Open]. Preconditions: no other call is under way.
func (n *Net) Close() error {
	errs := []error{n.guard.close()}
	n.guard = nil
	if n.router != nil {
		errs = append(errs, n.router.close())
	}
	errs = append(errs, n.outside.close())
	for _, ns := range []netns{n.home, n.machine} {
		if ns.file != nil {
			errs = append(errs, ns.Close())
		}
	}
	if n.lock != nil {
		errs = append(errs, n.lock.Close())
	}
	return errors.Join(errs...)
}

// Destroy ends all leases, removes everything that Open and Lease made, the
// directory included, and closes n.
func (n *Net) Destroy() error {
	err := errors.Join(
		n.Sweep(func(string) bool { return false }),
		n.closeUplink(),
		n.removeAddresses(),
		dropNetns(filepath.Join(n.dir, routerFile)),
		n.Close(),
	)
	if err != nil {
		return fmt.Errorf("remove the network: %w", err)
	}
	return os.RemoveAll(n.dir)
}

// Leases returns all slots in use, by index.
func (n *Net) Leases() []Slot {
	n.mu.Lock()
	defer n.mu.Unlock()
	var slots []Slot
	for _, index := range slices.Sorted(maps.Keys(n.used)) {
		slots = append(slots, n.used[index].slot)
	}
	return slots
}

// Slot returns the slot of id, if it has one.
func (n *Net) Slot(id string) (Slot, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := n.leases[id]
	if l == nil {
		return Slot{}, false
	}
	return l.slot, true
}

// Lease returns the slot of id and makes it if needed. A second call returns
// the same slot. On an error nothing new is left; Exhausted means that all
// addresses are in use.
func (n *Net) Lease(ctx context.Context, id string) (Slot, error) {
	if !idForm.MatchString(id) {
		return Slot{}, doze.Errorf(doze.Invalid, "%.140q cannot be the id of a lease", id)
	}
	for {
		l, err := n.find(id)
		if err != nil {
			return Slot{}, err
		}
		select {
		case <-l.turn:
		case <-ctx.Done():
			return Slot{}, context.Cause(ctx)
		}
		slot, err := n.prepare(l)
		gone := l.gone
		l.turn <- struct{}{}
		if err != nil {
			return Slot{}, fmt.Errorf("lease an address: %w", err)
		}
		if !gone {
			return slot, nil
		}
	}
}

// prepare makes the slot of l. Preconditions: the caller has the turn.
func (n *Net) prepare(l *lease) (Slot, error) {
	if l.gone || l.ready {
		return l.slot, nil
	}
	fresh := !l.stale
	err := n.connect(l)
	if err == nil {
		l.ready, l.stale = true, false
		return l.slot, nil
	}
	if fresh {
		n.forget(l)
	}
	return Slot{}, err
}

// connect wires the slot and writes the lease down, in this order.
func (n *Net) connect(l *lease) (err error) {
	if l.stale {
		if n.router.wired(l.slot) {
			return nil
		}
		if err := n.router.unwire(l.slot); err != nil {
			return err
		}
	}
	if err := n.router.wire(l.slot); err != nil {
		return err
	}
	if err := n.writeLease(l.slot); err != nil {
		return errors.Join(err, n.removeLease(l.slot), n.router.unwire(l.slot))
	}
	return nil
}

// Release ends the lease of id and removes its slot. No lease is no error.
func (n *Net) Release(id string) error {
	n.mu.Lock()
	l := n.leases[id]
	n.mu.Unlock()
	if l == nil {
		return nil
	}
	<-l.turn
	defer func() { l.turn <- struct{}{} }()
	if l.gone {
		return nil
	}
	if err := errors.Join(n.admit(l, Closed), n.join(l, ""), n.datagrams(l, netip.Addr{})); err != nil { // the next owner of the index begins closed
		return err
	}
	l.ready, l.stale = false, true
	if err := errors.Join(n.removeLease(l.slot), n.router.unwire(l.slot), n.router.omitNothing(l.slot)); err != nil {
		return fmt.Errorf("release the address of %s: %w", id, err)
	}
	n.forget(l)
	return n.Dedicate(id, netip.Addr{})
}

// Sweep releases all leases whose id keep does not want.
func (n *Net) Sweep(live func(id string) bool) error {
	var errs []error
	for _, s := range n.Leases() {
		if !live(s.ID) {
			errs = append(errs, n.Release(s.ID))
		}
	}
	return errors.Join(errs...)
}

// find returns the lease of id and gives it an index if it is new. Indexes go
// round, so that an address rests before it is used again.
func (n *Net) find(id string) (*lease, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if l := n.leases[id]; l != nil {
		return l, nil
	}
	if len(n.used) >= slotsMax {
		return nil, doze.Errorf(doze.Exhausted, "all %d addresses of this machine are in use", slotsMax)
	}
	for n.used[n.next] != nil {
		n.next = (n.next + 1) % slotsMax
	}
	l := newLease(newSlot(n.dir, id, n.next))
	n.leases[id], n.used[n.next] = l, l
	n.next = (n.next + 1) % slotsMax
	return l, nil
}

// forget ends a lease. Preconditions: the caller has the turn.
func (n *Net) forget(l *lease) {
	l.gone = true
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.leases, l.slot.ID)
	delete(n.used, l.slot.Index)
}

func (n *Net) leaseFile(s Slot) string {
	return filepath.Join(n.dir, leaseDir, strconv.Itoa(s.Index))
}

// writeLease is done when the lease would survive a loss of power: a sandbox
// that sleeps on disk has its address in its memory.
func (n *Net) writeLease(s Slot) error {
	f, err := os.OpenFile(n.leaseFile(s), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(s.ID)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return durable.Sync(filepath.Join(n.dir, leaseDir))
}

func (n *Net) removeLease(s Slot) error {
	if err := os.Remove(n.leaseFile(s)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
