package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	// subnet is the network of the fleet, to which this process has a link, too.
	subnet = "10.213.77"
	// hostAddress is that of this process.
	hostAddress = subnet + ".254"
	prefix      = "dzft-" // of all names of namespaces and links
	switchName  = prefix + "switch"
	lockFile    = "/run/doze-fleet.lock"
)

// A wire is a network of hosts on this machine. Each has a namespace and one link to a
// switch, which is in a namespace too. Packets between two hosts can be dropped there, each
// direction by itself, and no sender hears of it. It is safe for concurrent use.
type wire struct {
	mu    sync.Mutex
	hosts map[string]string // guarded by mu; their addresses, by name
	cuts  map[[2]string]int // guarded by mu; the preference of the filter, by sender and receiver
	last  int               // guarded by mu; preference that was given last
	lock  *os.File          // held: names and addresses are fixed, so a host has one fleet
}

// openWire makes a switch, and a link of this process to it. What an earlier wire left, it
// removes.
func openWire(ctx context.Context) (*wire, error) {
	lock, err := os.OpenFile(lockFile, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("another fleet runs on this host: %w", err), lock.Close())
	}
	w := &wire{hosts: map[string]string{}, cuts: map[[2]string]int{}, lock: lock}
	if err := w.clear(); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return w, run(ctx,
		"ip netns add "+switchName,
		"ip -n "+switchName+" link add br0 type bridge",
		"ip -n "+switchName+" link set br0 up",
		"ip link add "+prefix+"host type veth peer name host netns "+switchName,
		"ip -n "+switchName+" link set host master br0 up",
		"ip addr add "+hostAddress+"/24 dev "+prefix+"host",
		"ip link set "+prefix+"host up",
	)
}

// close removes all of it, and lets others have a fleet.
func (w *wire) close() error { return errors.Join(w.clear(), w.lock.Close()) }

func (w *wire) clear() error {
	names, err := filepath.Glob("/run/netns/" + prefix + "*")
	for _, name := range names {
		err = errors.Join(err, run(context.Background(), "ip netns del "+filepath.Base(name)))
	}
	if _, none := net.InterfaceByName(prefix + "host"); none == nil {
		err = errors.Join(err, run(context.Background(), "ip link del "+prefix+"host"))
	}
	return err
}

// plug makes a host with an address.
func (w *wire) plug(ctx context.Context, name, address string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hosts[name] = address
	space := prefix + name
	return run(ctx,
		"ip netns add "+space,
		"ip link add "+name+" netns "+switchName+" type veth peer name eth0 netns "+space,
		"ip -n "+switchName+" link set "+name+" master br0 up",
		"ip netns exec "+switchName+" tc qdisc add dev "+name+" clsact",
		"ip -n "+space+" addr add "+address+"/24 dev eth0",
		"ip -n "+space+" link set eth0 up",
		"ip -n "+space+" link set lo up",
		"ip -n "+space+" route add default via "+hostAddress,
	)
}

// command is one that runs on a host. It changes no namespace besides that of the network.
func (w *wire) command(host, program string, args ...string) *exec.Cmd {
	return exec.Command("nsenter", append([]string{"--net=/run/netns/" + prefix + host, program}, args...)...) //nolint:gosec,noctx // G204: our own binary; it ends when it is told
}

// cut drops what one host sends to another from now on.
func (w *wire) cut(ctx context.Context, from, to string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cuts[[2]string{from, to}] != 0 {
		return nil
	}
	w.last++
	w.cuts[[2]string{from, to}] = w.last
	// Load the destination of an IPv4 packet. If it is the host, 2 (drop), or else -1 (go on).
	address := binary.BigEndian.Uint32(net.ParseIP(w.hosts[to]).To4())
	return tc(ctx, "filter", "add", "dev", from, "ingress", "pref", fmt.Sprint(w.last), "bpf", "da", "bytecode",
		fmt.Sprintf("4,32 0 0 30,21 0 1 %d,6 0 0 2,6 0 0 4294967295", address))
}

// heal lets everything pass.
func (w *wire) heal(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	var errs []error
	for pair, pref := range w.cuts {
		errs = append(errs, tc(ctx, "filter", "del", "dev", pair[0], "ingress", "pref", fmt.Sprint(pref)))
		delete(w.cuts, pair)
	}
	return errors.Join(errs...)
}

// tc changes the switch.
func tc(ctx context.Context, args ...string) error {
	return one(ctx, append([]string{"ip", "netns", "exec", switchName, "tc"}, args...))
}

// run runs commands, one after the other.
func run(ctx context.Context, lines ...string) error {
	for _, line := range lines {
		if err := one(ctx, strings.Fields(line)); err != nil {
			return err
		}
	}
	return nil
}

func one(ctx context.Context, args []string) error {
	c := exec.CommandContext(ctx, args[0], args[1:]...) //nolint:gosec // G204: ip and tc
	c.Env = os.Environ()
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}
