package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
)

// TestHome: a fleet that was drained onto one node becomes a platform of one process. A sandbox
// that came from another node goes on there with its memory, and needs neither lease nor bucket.
func TestHome(t *testing.T) {
	ctx, f := t.Context(), begin(t)
	must := fatal(t)
	w, err := f.witness(ctx, "origin", rareWrites)
	must(err)
	home := nodeName(0)
	if f.holder("origin") == home {
		home = nodeName(1)
	}
	must(f.cordon(ctx, home, "cordon"))
	migrate := func() error {
		return one(ctx, []string{filepath.Join(f.bin, "dozed"), "migrate", "--data", f.data(home), "--run", filepath.Join(f.run, home), "--cgroup", f.cgroup(home), "--database", f.database(), "--to", "sqlite"})
	}
	for _, name := range nodeNames() {
		if name == home {
			continue
		}
		var got doze.Drained
		must(f.ask(ctx, http.MethodPost, "/platform/nodes/"+f.ids[name]+"/drain", &got))
		must(f.end(name))
	}
	for _, key := range []string{"seal.key", "admin.key"} {
		must(f.copyFile(key, controlHost, home))
	}
	rest := append(append(controlNames(), edgeNames()...), home)
	stop := func() {
		for _, name := range rest {
			must(f.end(name))
		}
	}
	remove := func() error {
		for _, name := range nodeNames() {
			if name == home {
				continue
			}
			if err := f.ask(ctx, http.MethodDelete, "/platform/nodes/"+f.ids[name], nil); err != nil && !strings.Contains(err.Error(), "404") {
				return err
			}
		}
		return nil
	}
	must(until(ctx, readyTime, remove)) // once their leases are over
	stop()
	must(migrate())

	address := f.at(home, edgePort)
	f.all["home"] = &process{host: home, program: filepath.Join(f.bin, "dozed"), log: f.all[home].log, args: append([]string{
		"all", "--listen", address, "--preview-listen", f.at(home, previewPort), "--public-url", f.url(), "--preview-url", f.previewURL(), "--key-requests", "0",
	}, f.nodeFlags(home)...)}
	must(f.begin("home"))
	f.http = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", address)
	}}}
	f.client, err = client.New(client.Config{Address: f.url(), Key: f.key, Transport: f.http.Transport})
	must(err)
	err = until(ctx, readyTime, func() error { return f.same(ctx, "origin", w.born) })
	if err != nil {
		t.Fatalf("%v: %s", err, f.tail(home))
	}
}

// nodeFlags are those flags of a node that say where it is.
func (f *fleet) nodeFlags(name string) []string {
	var flags []string
	args := f.all[name].args
	for i := 1; i+1 < len(args); i += 2 {
		switch args[i] {
		case "--data", "--run", "--cgroup", "--images-dir", "--swap", "--egress", "--egress-allow", "--warm-pool", "--warm-pool-max", "--idle-cpu", "--ready":
			flags = append(flags, args[i], args[i+1])
		}
	}
	return flags
}

// end ends a process as an operator does, and waits for it.
func (f *fleet) end(name string) error {
	p := f.all[name]
	if err := p.signal(syscall.SIGTERM); err != nil || p.cmd == nil {
		return err
	}
	return until(context.Background(), stopTime, func() error {
		if p.runs() {
			return errors.New(fmt.Sprint(name, " does not end"))
		}
		return nil
	})
}
