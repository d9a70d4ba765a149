package agent

import (
	"bufio"
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"doze"
)

// portsPoll is how often /proc is searched while a call waits for ports. There
// is no event for a socket that begins to listen.
const portsPoll = 100 * time.Millisecond

// awaitPorts returns when every port that p was to serve is served by p, one
// of its descendants or a member of its process group, on an address that can
// be reached from outside. It is Unprocessable when p ends without, or when
// ctx does.
func awaitPorts(ctx context.Context, p *process) error {
	if len(p.WaitForPorts) == 0 {
		return nil
	}
	tick := time.NewTicker(portsPoll)
	defer tick.Stop()
	for {
		over := false
		select {
		case <-p.done:
			over = true
		default:
		}
		family := familyOf(p.leader(), !over, processes("/proc"))
		if served("/proc", family, p.WaitForPorts) {
			return nil
		}
		if over && len(family) == 0 {
			return doze.Errorf(doze.Unprocessable, "the process ended before it served its ports; see the logs of %s", p.Name)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return doze.Errorf(doze.Unprocessable, "process timed out waiting for ports after %d seconds; it goes on as %s", int64(p.patience().Seconds()), p.Name)
		}
	}
}

// task is what /proc/<pid>/stat says of a process.
type task struct{ pid, parent, group, session int }

// processes returns everything that runs.
func processes(proc string) (all []task) {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return nil
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile(filepath.Join(proc, e.Name(), "stat"))
		if err != nil {
			continue // it ended
		}
		if t, ok := parseStat(pid, stat); ok && !t.zombie {
			all = append(all, t.task)
		}
	}
	return all
}

type statLine struct {
	task
	zombie bool
}

// parseStat reads "pid (name) state ppid pgrp session ...". The name may have
// any character.
func parseStat(pid int, line []byte) (s statLine, ok bool) {
	end := bytes.LastIndexByte(line, ')')
	if end < 0 {
		return s, false
	}
	fields := strings.Fields(string(line[end+1:]))
	if len(fields) < 4 {
		return s, false
	}
	s.pid, s.zombie = pid, fields[0] == "Z"
	for i, field := range []*int{&s.parent, &s.group, &s.session} {
		n, err := strconv.Atoi(fields[i+1])
		if err != nil {
			return s, false
		}
		*field = n
	}
	return s, true
}

// familyOf returns the leader, its group and all their descendants that run.
// If the leader is dead and somebody has its pid, then its group is gone, too.
func familyOf(leader int, alive bool, all []task) map[int]bool {
	family := map[int]bool{}
	if !alive && slices.ContainsFunc(all, func(t task) bool { return t.pid == leader }) {
		return family
	}
	for grown := true; grown; {
		grown = false
		for _, t := range all {
			if !family[t.pid] && (t.pid == leader || t.group == leader || family[t.parent]) {
				family[t.pid], grown = true, true
			}
		}
	}
	return family
}

// States of sockets in /proc/net: a TCP socket that listens, a UDP socket that
// is bound.
const (
	tcpListen = "0A"
	udpBound  = "07"
)

// served reports whether the family has sockets for all ports.
func served(proc string, family map[int]bool, ports []int) bool {
	open := map[int][]string{} // inodes by port
	for _, table := range []struct{ name, state string }{
		{"tcp", tcpListen}, {"tcp6", tcpListen}, {"udp", udpBound}, {"udp6", udpBound},
	} {
		b, err := os.ReadFile(filepath.Join(proc, "net", table.name))
		if err == nil { // a kernel may be without IPv6
			parseSockets(b, table.state, open)
		}
	}
	for _, port := range ports {
		if len(open[port]) == 0 {
			return false // without a search through all descriptors
		}
	}
	owned := sockets(proc, family)
	for _, port := range ports {
		found := false
		for _, inode := range open[port] {
			found = found || owned[inode]
		}
		if !found {
			return false
		}
	}
	return true
}

// parseSockets adds the sockets of a /proc/net table that are in a state and
// can be reached from outside.
func parseSockets(b []byte, state string, open map[int][]string) {
	rows := bufio.NewScanner(bytes.NewReader(b))
	for rows.Scan() {
		f := strings.Fields(rows.Text())
		if len(f) < 10 || f[3] != state {
			continue
		}
		host, hex, ok := strings.Cut(f[1], ":")
		port, err := strconv.ParseUint(hex, 16, 16)
		if !ok || err != nil || loopback(host) {
			continue
		}
		open[int(port)] = append(open[int(port)], f[9])
	}
}

// loopback reads an address as /proc writes it: words in host byte order,
// which is little-endian on all that we run on.
func loopback(hex string) bool {
	const mapped = "0000000000000000FFFF0000" // an IPv4 address in an IPv6 socket
	hex = strings.TrimPrefix(hex, mapped)
	return len(hex) == 8 && strings.HasSuffix(hex, "7F") || hex == "00000000000000000000000001000000"
}

// sockets returns the inodes of all sockets that the family has open.
func sockets(proc string, family map[int]bool) map[string]bool {
	owned := map[string]bool{}
	for pid := range family {
		dir := filepath.Join(proc, strconv.Itoa(pid), "fd")
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue // it ended
		}
		for _, e := range entries {
			target, err := os.Readlink(filepath.Join(dir, e.Name()))
			if inode, ok := strings.CutPrefix(target, "socket:["); ok && err == nil {
				owned[strings.TrimSuffix(inode, "]")] = true
			}
		}
	}
	return owned
}
