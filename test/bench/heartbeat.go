package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/fleet/mtls"
	"github.com/dozehq/doze/internal/seal"
	"github.com/dozehq/doze/internal/testkit"
	"github.com/dozehq/doze/internal/testkit/bucket"
)

const (
	// beatNodes is how many nodes a control has. Each of them renews a lease of 30 seconds every
	// five, and tells of traffic every second. A sample is what all of them do in a second.
	beatNodes    = 1000
	beatRenewals = beatNodes / 5
	beatRounds   = 30
	// beatImages and beatWorkspaces are how many of each a node names.
	beatImages, beatWorkspaces = 50, 50
	// beatLinks is how many connections the nodes have, and as many call at the same time.
	beatLinks = 8
)

var (
	beatControl = fmt.Sprintf("a second of %d nodes: %d renewals and %d tellings of traffic, control", beatNodes, beatRenewals, beatNodes)
	beatOfNodes = fmt.Sprintf("a second of %d nodes: the same, all nodes together", beatNodes)
)

// heartbeats measures what idle nodes cost control, and what it costs them, over mutual TLS. Control
// is a real one with a real node. This process speaks for the other nodes.
func heartbeats(ctx context.Context, dir string) (all latencies, err error) {
	copies, err := bucket.Open(dir)
	if err != nil {
		return nil, err
	}
	defer copies.Close()
	p, err := testkit.Start(ctx, testkit.Options{Dir: dir, Fast: true, Roles: true, Args: []string{
		"--log", "warn", "--remote", copies.URL, "--remote-credentials", copies.Credentials, // without a bucket there are no leases
	}})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	identity, err := mtls.Open(filepath.Join(p.Data, "fleet"), mtls.Node)
	if err != nil {
		return nil, err
	}
	var wire atomic.Int64
	links := make([]*fleet.ControlClient, beatLinks)
	for i := range links {
		t := identity.Transport(mtls.Control)
		dial := t.DialContext
		t.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := dial(ctx, network, address)
			return counted{c, &wire}, err
		}
		links[i] = fleet.NewControlClient("https://"+p.At(testkit.Control), t)
	}
	beats, err := joinMany(ctx, p, links)
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, p.Tail())
	}
	control, own := &series{name: beatControl}, &series{name: beatOfNodes}
	pid := p.PIDOf(testkit.Control)
	for round := range times(beatRounds) {
		was, wasOwn, sent := cpuOf(pid), cpuOf(os.Getpid()), wire.Load()
		began := time.Now()
		if err := beats.second(ctx, round); err != nil {
			return latencies{control, own}, err
		}
		for _, s := range []*series{control, own} {
			s.add(time.Since(began))
		}
		control.costs = append(control.costs, cpuOf(pid)-was)
		own.costs = append(own.costs, cpuOf(os.Getpid())-wasOwn)
		own.wire = append(own.wire, wire.Load()-sent)
	}
	return latencies{control, own}, nil
}

// A beating is the heartbeats of many nodes.
type beating struct {
	links  []*fleet.ControlClient
	leases []fleet.Lease
	load   fleet.Load
	bytes  map[string]uint64
}

func beatName(n int) string { return "beat" + strconv.Itoa(n) }

// joinMany has nodes join at the address of the real one, which is where control asks for them.
func joinMany(ctx context.Context, p *testkit.Platform, links []*fleet.ControlClient) (*beating, error) {
	key, err := seal.Key(filepath.Join(p.Data, "egress.key"))
	if err != nil {
		return nil, err
	}
	opener, err := seal.NewOpener(key)
	if err != nil {
		return nil, err
	}
	b := &beating{links: links, leases: make([]fleet.Lease, beatNodes), load: fleet.Load{
		Driver: "gvisor", Memory: 28_000, Disk: 400_000, Processors: 8, Sandboxes: 100, Workspaces: map[string]fleet.Awake{},
	}, bytes: map[string]uint64{}}
	for i := range beatImages {
		b.load.Images = append(b.load.Images, fmt.Sprintf("registry.example.com/team/image-%02d@sha256:%064d", i, i))
	}
	for i := range beatWorkspaces {
		b.load.Workspaces["workspace-"+strconv.Itoa(i)] = fleet.Awake{Sandboxes: i % 3, Memory: 4096 * doze.Megabytes(i%3)}
		b.bytes["workspace-"+strconv.Itoa(i)] = uint64(i) << 30
	}
	err = b.each(ctx, beatNodes, func(ctx context.Context, c *fleet.ControlClient, n int) (err error) {
		b.leases[n], err = c.Join(ctx, fleet.NodeInfo{
			ID: beatName(n), Incarnation: "1", URL: "https://" + p.At(testkit.Node), Version: "bench", Memory: 28_000, Proxy: true,
			SealKey: opener.Sealer().Key(), Driver: "gvisor", Leased: true,
		})
		return err
	})
	return b, err
}

// each does something for so many nodes, over all connections at the same time.
func (b *beating) each(ctx context.Context, many int, do func(ctx context.Context, c *fleet.ControlClient, n int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	for i, c := range b.links {
		group.Go(func() error {
			for n := i; n < many; n += len(b.links) {
				if err := do(ctx, c, n); err != nil {
					return fmt.Errorf("the node %s: %w", beatName(n), err)
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// second is what all nodes do in a second. Other ones renew in each round.
func (b *beating) second(ctx context.Context, round int) error {
	err := b.each(ctx, beatRenewals, func(ctx context.Context, c *fleet.ControlClient, n int) error {
		n = (n + round*beatRenewals) % beatNodes
		l, err := c.Renew(ctx, fleet.Renewal{
			Node: beatName(n), Incarnation: "1", Epoch: b.leases[n].Epoch, Seq: uint64(round + 1), Leased: true, Load: b.load, //nolint:gosec // G115: it counts rounds
		})
		if err == nil && l.TTL == 0 {
			return errors.New("the lease is for ever")
		}
		return err
	})
	if err != nil {
		return err
	}
	return b.each(ctx, beatNodes, func(ctx context.Context, c *fleet.ControlClient, n int) error {
		_, err := c.Traffic(ctx, beatName(n), "1", b.bytes)
		return err
	})
}

// counted is a connection whose bytes are counted.
type counted struct {
	net.Conn

	sum *atomic.Int64
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.sum.Add(int64(n))
	return n, err
}

func (c counted) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.sum.Add(int64(n))
	return n, err
}

// cpuOf is what the threads of a process have had of processors.
func cpuOf(pid int) (sum time.Duration) {
	dir := fmt.Sprintf("/proc/%d/task", pid)
	threads, _ := os.ReadDir(dir) // none is 0, which is seen
	for _, one := range threads {
		raw, _ := os.ReadFile(filepath.Join(dir, one.Name(), "schedstat")) // it may have ended
		first, _, _ := strings.Cut(string(raw), " ")
		ns, _ := strconv.ParseInt(first, 10, 64)
		sum += time.Duration(ns)
	}
	return sum
}
