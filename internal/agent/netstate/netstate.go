// Package netstate finds out whether the network was changed in a way that a
// checkpoint leaves out.
package netstate

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agentapi"
)

// A checkpoint of the sandbox leaves out what processes with the capability for
// it have changed of the network: filter rules, and links, addresses and routes.
// It leaves out the network namespaces that any process has made. The host asks
// for that before it relies on one.

// State is what a checkpoint leaves out. In all sandboxes that nobody changed
// it is the same: it says how many addresses there are, and not which.
type State struct {
	links  string
	rules  string
	nested bool // there are network namespaces besides that of this process
}

// Read returns what is now. Where nobody may change the links and rules
// of this process, they are not looked at. A namespace of his own anybody may
// make.
func Read() State {
	s := State{nested: nestedNetworks()}
	if mayAdminister() {
		s.links, s.rules = linkState()+routeState(), ruleState()
	}
	return s
}

// Since returns what has changed since an earlier state.
func (s State) Since(was State) agentapi.Blockers {
	return agentapi.Blockers{Links: s.links != was.links, Rules: s.rules != was.rules, Namespaces: s.nested}
}

// mayAdminister reports whether this process, and so what it starts, may change
// the network.
func mayAdminister() bool {
	header, data := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
	return unix.Capget(&header, &data[0]) == nil && data[0].Effective&(1<<unix.CAP_NET_ADMIN) != 0
}

// nestedNetworks asks the engine, which knows all of them. From here some could
// not be found, such as that of an open socket, and none be entered. A kernel
// that does not know may have some.
func nestedNetworks() bool {
	n, _, errno := unix.Syscall(unix.SYS_PRCTL, doze.CountNetworks, 0, 0)
	return errno != 0 || n > 0
}

// linkState is a line for each link. What cannot be read is a state too: it
// differs from one that can.
func linkState() string {
	links, err := net.Interfaces()
	if err != nil {
		return err.Error()
	}
	var s strings.Builder
	for _, l := range links {
		addresses, err := l.Addrs()
		own := 0
		for _, a := range addresses {
			if n, ok := a.(*net.IPNet); ok && !n.IP.IsLinkLocalUnicast() && !n.IP.IsLoopback() { // the kernel makes those by itself
				own++
			}
		}
		fmt.Fprintln(&s, l.Name, l.MTU, l.Flags, own, err)
	}
	return s.String()
}

// routeState is a line for each route, without the addresses in it.
func routeState() string {
	table, err := os.ReadFile("/proc/net/route")
	if err != nil {
		return err.Error()
	}
	var routes []string
	for line := range strings.Lines(string(table)) {
		const link, flags, mask, columns = 0, 3, 7, 8
		if f := strings.Fields(line); len(f) >= columns {
			routes = append(routes, f[link]+" "+f[flags]+" "+f[mask])
		}
	}
	slices.Sort(routes)
	return strings.Join(routes, "\n")
}

// ruleTables are the tables of filter rules.
var ruleTables = []string{"filter", "nat", "mangle", "raw"}

// families are those that have such tables, with the level of their options.
var families = []struct{ domain, level int }{{unix.AF_INET, unix.SOL_IP}, {unix.AF_INET6, unix.SOL_IPV6}}

// ruleState is a line for each table. A process that may not open a raw socket has no
// rules.
func ruleState() string {
	var s strings.Builder
	for _, f := range families {
		fd, err := unix.Socket(f.domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			fmt.Fprintln(&s, err)
			continue
		}
		for _, name := range ruleTables {
			rules, err := readRules(fd, f.level, name)
			fmt.Fprintf(&s, "%s %x %v\n", name, sha256.Sum256(rules), err)
		}
		_ = unix.Close(fd) // it was read
	}
	return s.String()
}

// The options by which the kernel tells the rules of one table, and what is in
// front of them (struct ipt_getinfo and ipt_get_entries; those of IPv6 are the
// same).
const (
	optInfo, optEntries   = 64, 65
	tableName             = 32
	infoLen, infoSize     = tableName + 52, tableName + 48
	entriesLen, entrySize = tableName + 8, tableName
	// rulesMax bounds the rules of one table that are compared: the kernel says
	// how many there are, and a process makes them.
	rulesMax = 16 << 20
)

// readRules returns the rules of a table in the form of the kernel.
func readRules(fd, level int, name string) ([]byte, error) {
	info := make([]byte, infoLen)
	copy(info, name)
	if err := getsockopt(fd, level, optInfo, info); err != nil {
		return nil, err
	}
	size := info[infoSize:infoLen]
	n := binary.NativeEndian.Uint32(size)
	if n > rulesMax {
		return nil, fmt.Errorf("%d bytes of rules", n)
	}
	rules := make([]byte, entriesLen+int(n))
	copy(rules, name)
	copy(rules[entrySize:], size)
	if err := getsockopt(fd, level, optEntries, rules); err != nil {
		return nil, err
	}
	return bytes.Join([][]byte{info, rules}, nil), nil
}

// getsockopt reads an option that says in its value what is wanted.
func getsockopt(fd, level, name int, value []byte) error {
	n := uint32(len(value)) //nolint:gosec // G115: at most rulesMax and a header
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name),
		uintptr(unsafe.Pointer(&value[0])), uintptr(unsafe.Pointer(&n)), 0) //nolint:gosec // G103: the kernel writes at most n bytes into value
	if errno != 0 {
		return errno
	}
	return nil
}
