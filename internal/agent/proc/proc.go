// Package proc reads what runs, who serves which port and what is mounted from /proc. It runs no
// program of the image and keeps nothing: every call looks anew.
package proc

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Dir is a directory like /proc.
type Dir string

// Root is the one of this system.
const Root Dir = "/proc"

// Task is a process.
type Task struct {
	PID, Parent, Group, Session int
	Name                        string // of its program, at most 15 bytes
	zombie                      bool
}

// Tasks returns everything that runs.
func (d Dir) Tasks() (all []Task) {
	entries, err := os.ReadDir(string(d))
	if err != nil {
		return nil
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if t, ok := d.Task(pid); ok {
			all = append(all, t)
		}
	}
	return all
}

// Task returns one process, if it runs.
func (d Dir) Task(pid int) (t Task, ok bool) {
	stat, err := os.ReadFile(filepath.Join(string(d), strconv.Itoa(pid), "stat"))
	if err != nil {
		return t, false
	}
	t, ok = parseStat(pid, stat)
	return t, ok && !t.zombie
}

// parseStat reads "pid (name) state ppid pgrp session ...". The name may have
// any character.
func parseStat(pid int, line []byte) (t Task, ok bool) {
	begin, end := bytes.IndexByte(line, '('), bytes.LastIndexByte(line, ')')
	if begin < 0 || end < begin {
		return t, false
	}
	fields := strings.Fields(string(line[end+1:]))
	if len(fields) < 4 {
		return t, false
	}
	t.PID, t.Name, t.zombie = pid, string(line[begin+1:end]), fields[0] == "Z"
	for i, field := range []*int{&t.Parent, &t.Group, &t.Session} {
		n, err := strconv.Atoi(fields[i+1])
		if err != nil {
			return t, false
		}
		*field = n
	}
	return t, true
}

// Family returns the leader, its group and all their descendants, by pid. If
// the leader is not alive and somebody has its pid, then its group is gone, too.
func Family(leader int, alive bool, all []Task) map[int]Task {
	family := map[int]Task{}
	if !alive && slices.ContainsFunc(all, func(t Task) bool { return t.PID == leader }) {
		return family
	}
	for grown := true; grown; {
		grown = false
		for _, t := range all {
			if _, known := family[t.PID]; known {
				continue
			}
			if _, child := family[t.Parent]; child || t.PID == leader || t.Group == leader {
				family[t.PID], grown = t, true
			}
		}
	}
	return family
}

// Socket is an internet socket.
type Socket struct {
	Protocol      string // tcp or udp
	Local, Remote netip.AddrPort
	State         string // LISTEN, ESTAB and so on; UNCONN for UDP that is bound
	ID            string // of the socket, for as long as it is open
}

// Serves reports whether the socket takes connections or packets of others.
func (s Socket) Serves() bool {
	return s.Protocol == "tcp" && s.State == "LISTEN" || s.Protocol == "udp" && s.State == "UNCONN"
}

// Reachable reports whether its address can be reached from outside.
func (s Socket) Reachable() bool { return !s.Local.Addr().IsLoopback() }

// states names the states of /proc/net as ss does.
var states = [...]string{
	1: "ESTAB", 2: "SYN-SENT", 3: "SYN-RECV", 4: "FIN-WAIT-1", 5: "FIN-WAIT-2", 6: "TIME-WAIT",
	7: "UNCONN", 8: "CLOSE-WAIT", 9: "LAST-ACK", 10: "LISTEN", 11: "CLOSING",
}

// Sockets returns the sockets of the system. Without any table it is an error; a
// kernel may be without IPv6.
func (d Dir) Sockets() (all []Socket, err error) {
	found := false
	for _, table := range []string{"tcp", "tcp6", "udp", "udp6"} {
		b, e := os.ReadFile(filepath.Join(string(d), "net", table))
		if e == nil {
			found = true
			all = append(all, parseSockets(b, table[:3])...)
		}
		err = cmp.Or(err, e)
	}
	if found {
		err = nil
	}
	return all, err
}

// parseSockets reads a table of /proc/net. Lines that are none are left out.
func parseSockets(b []byte, protocol string) (all []Socket) {
	for line := range bytes.Lines(b) {
		f := strings.Fields(string(line))
		if len(f) < 10 {
			continue
		}
		local, ok := parseAddress(f[1])
		remote, ok2 := parseAddress(f[2])
		state, err := strconv.ParseUint(f[3], 16, 8)
		if !ok || !ok2 || err != nil || state == 0 || int(state) >= len(states) {
			continue
		}
		all = append(all, Socket{protocol, local, remote, states[state], f[9]})
	}
	return all
}

// parseAddress reads an address as /proc writes it: words in host byte order,
// and a port.
func parseAddress(s string) (a netip.AddrPort, ok bool) {
	host, digits, ok := strings.Cut(s, ":")
	port, err := strconv.ParseUint(digits, 16, 16)
	b, e := hex.DecodeString(host)
	if !ok || err != nil || e != nil || len(b) != 4 && len(b) != 16 {
		return a, false
	}
	for i := 0; i < len(b); i += 4 {
		binary.NativeEndian.PutUint32(b[i:], binary.BigEndian.Uint32(b[i:]))
	}
	addr, ok := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(addr.Unmap(), uint16(port)), ok
}

// Owned returns the sockets that processes of the family have open, by pid.
func (d Dir) Owned(family map[int]Task, all []Socket) map[int][]Socket {
	byInode := make(map[string]Socket, len(all))
	for _, s := range all {
		byInode[s.ID] = s
	}
	owned := map[int][]Socket{}
	for pid := range family {
		dir := filepath.Join(string(d), strconv.Itoa(pid), "fd")
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue // it ended
		}
		for _, e := range entries {
			target, err := os.Readlink(filepath.Join(dir, e.Name()))
			inode, ok := strings.CutPrefix(target, "socket:[")
			if err != nil || !ok {
				continue
			}
			if s, ok := byInode[strings.TrimSuffix(inode, "]")]; ok {
				owned[pid] = append(owned[pid], s)
			}
		}
	}
	return owned
}
