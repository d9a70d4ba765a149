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
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	// maxFleets is how many fleets one host can have at a time.
	maxFleets = 8
	// firstNetwork is the third byte of the network of the first of them.
	firstNetwork = 77
)

// A wire is a network of hosts on this machine. Each has a namespace and one link to a
// switch, which is in a namespace too. Packets between two hosts can be dropped there, each
// direction by itself, and no sender hears of it. It is safe for concurrent use.
type wire struct {
	mu    sync.Mutex
	hosts map[string]string // guarded by mu; their addresses, by name
	cuts  map[[2]string]int // guarded by mu; the preference of the filter, by sender and receiver
	last  int               // guarded by mu; preference that was given last
	slot  int               // from 0: decides all names and addresses
	lock  *os.File          // of the slot; held
}

// subnet is the network of the fleet without its last byte. This process has a link to it, too.
func (w *wire) subnet() string { return fmt.Sprintf("10.213.%d", firstNetwork+w.slot) }

// here is the address of this process.
func (w *wire) here() string { return w.subnet() + ".254" }

// prefix begins all names of namespaces and links.
func (w *wire) prefix() string { return fmt.Sprintf("dzft%d-", w.slot) }

func (w *wire) switchName() string { return w.prefix() + "switch" }

// takeSlot takes a slot that no other fleet of this host has.
func takeSlot() (*wire, error) {
	for slot := range maxFleets {
		lock, err := os.OpenFile(fmt.Sprintf("/run/doze-fleet-%d.lock", slot), os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return nil, err
		}
		if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
			return &wire{hosts: map[string]string{}, cuts: map[[2]string]int{}, slot: slot, lock: lock}, nil
		} else if err = errors.Join(err, lock.Close()); !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, err
		}
	}
	return nil, fmt.Errorf("this host has %d fleets already", maxFleets)
}

// openWire makes a switch, and a link of this process to it. What an earlier wire left, it
// removes.
func openWire(ctx context.Context) (*wire, error) {
	w, err := takeSlot()
	if err != nil {
		return nil, err
	}
	if err := w.clear(); err != nil {
		return nil, errors.Join(err, w.lock.Close())
	}
	switchName, link := w.switchName(), w.prefix()+"host"
	return w, run(ctx,
		"ip netns add "+switchName,
		"ip -n "+switchName+" link add br0 type bridge",
		"ip -n "+switchName+" link set br0 up",
		"ip link add "+link+" type veth peer name host netns "+switchName,
		"ip -n "+switchName+" link set host master br0 up",
		"ip addr add "+w.here()+"/24 dev "+link,
		"ip link set "+link+" up",
	)
}

// close removes all of it, and lets others have a fleet.
func (w *wire) close() error { return errors.Join(w.clear(), w.lock.Close()) }

func (w *wire) clear() error {
	names, err := filepath.Glob("/run/netns/" + w.prefix() + "*")
	for _, name := range names {
		err = errors.Join(err, run(context.Background(), "ip netns del "+filepath.Base(name)))
	}
	if _, none := net.InterfaceByName(w.prefix() + "host"); none == nil {
		err = errors.Join(err, run(context.Background(), "ip link del "+w.prefix()+"host"))
	}
	return err
}

// plug makes a host with an address. In another network than ours, it has no way out.
func (w *wire) plug(ctx context.Context, name, address string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hosts[name] = address
	space, switchName := w.prefix()+name, w.switchName()
	out := "default via " + w.here()
	if !strings.HasPrefix(address, w.subnet()+".") {
		out = "unreachable default"
	}
	return run(ctx,
		"ip netns add "+space,
		"ip link add "+name+" netns "+switchName+" type veth peer name eth0 netns "+space,
		"ip -n "+switchName+" link set "+name+" master br0 up",
		"ip netns exec "+switchName+" tc qdisc add dev "+name+" clsact",
		"ip -n "+space+" addr add "+address+"/24 dev eth0",
		"ip -n "+space+" link set eth0 up",
		"ip -n "+space+" link set lo up",
		"ip -n "+space+" route add "+out,
	)
}

// command is one that runs on a host. It changes no namespace besides that of the network.
func (w *wire) command(host, program string, args ...string) *exec.Cmd {
	return exec.Command("nsenter", append([]string{"--net=/run/netns/" + w.prefix() + host, program}, args...)...) //nolint:gosec,noctx // G204: our own binary; it ends when it is told
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
	return w.tc(ctx, "filter", "add", "dev", from, "ingress", "pref", fmt.Sprint(w.last), "bpf", "da", "bytecode",
		fmt.Sprintf("4,32 0 0 30,21 0 1 %d,6 0 0 2,6 0 0 4294967295", address))
}

// heal lets pass what was cut from the first host of each pair to the second one. Without a pair, it
// lets everything pass.
func (w *wire) heal(ctx context.Context, pairs ...[2]string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	var errs []error
	for pair, pref := range w.cuts {
		if len(pairs) > 0 && !slices.Contains(pairs, pair) {
			continue
		}
		errs = append(errs, w.tc(ctx, "filter", "del", "dev", pair[0], "ingress", "pref", fmt.Sprint(pref)))
		delete(w.cuts, pair)
	}
	return errors.Join(errs...)
}

// tc changes the switch.
func (w *wire) tc(ctx context.Context, args ...string) error {
	return one(ctx, append([]string{"ip", "netns", "exec", w.switchName(), "tc"}, args...))
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
