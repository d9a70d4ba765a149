// Command compat runs software in sandboxes, each of which falls asleep on disk while it
// works, and makes a page of what came of it.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
	"github.com/dozehq/doze/internal/npm"
	"github.com/dozehq/doze/internal/testkit"
)

const (
	// memory of a sandbox: half of it can be files, and Chromium with its libraries is
	// among them.
	memory doze.Megabytes = 6144
	// installing is how long packages may take.
	installing = 10 * time.Minute
	// patience is how long something may take until it works.
	patience = 90 * time.Second
	// again is the pause between two looks.
	again = time.Second
	// told is how many lines an error has.
	told = 3
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	only := flag.String("only", "", "`pattern` of the names of what is run; all by default")
	page := flag.String("page", "", "`file` to write the page to")
	flag.Parse()
	if err := run(ctx, *only, *page); err != nil {
		fmt.Fprintln(os.Stderr, "compat:", err)
		stop()
		os.Exit(1) //nolint:gocritic // stop has run
	}
}

// run runs all that the pattern chooses, and writes the page.
func run(ctx context.Context, only, page string) (err error) {
	chosen, err := regexp.Compile(only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	registry := npm.Find(ctx)
	args := append([]string{"--egress", "open", "--pause-after", "2s", "--save-after", "200ms", "--disk-after", "2s", "--swap", "off"}, testkit.Mirrors(ctx, registry)...)
	dir, err := os.MkdirTemp("/var/tmp", "doze-compat-")
	if err != nil {
		return fmt.Errorf("make a directory for the platform: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	p, err := testkit.Start(ctx, testkit.Options{Dir: dir, Args: args})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	c, err := p.Client()
	if err != nil {
		return err
	}
	var made []result
	for i, s := range all {
		if !chosen.MatchString(s.name) {
			continue
		}
		r := try(ctx, p, c, registry, fmt.Sprintf("compat-%d", i), s)
		fmt.Printf("%-24s %-14s %s %s\n", s.name, r.version, cmp.Or(r.runs, "runs"), cmp.Or(r.sleeps, "and goes on after a sleep"))
		made = append(made, r)
		if r.runs != "" || r.sleeps != "" {
			err = errors.Join(err, fmt.Errorf("%s: %s %s", s.name, r.runs, r.sleeps))
		}
	}
	if page != "" {
		err = errors.Join(err, os.WriteFile(page, []byte(written(made)), 0o644)) //nolint:gosec // G306: a page of the documentation
	}
	return err
}

// result is what came of one: nothing, or what did not work.
type result struct {
	software

	version string
	runs    string
	sleeps  string
}

// try runs one in a sandbox of its own.
func try(ctx context.Context, p *testkit.Platform, c *client.Client, registry npm.Registry, name string, s software) (r result) {
	r = result{software: s, sleeps: "not tried"}
	sb, err := c.Create(ctx, doze.Sandbox{
		Metadata: doze.Metadata{Name: name},
		Spec:     doze.SandboxSpec{Runtime: doze.Runtime{Memory: memory, ExtraArgs: s.extra}},
	}, false)
	if err != nil {
		r.runs = err.Error()
		return r
	}
	defer func() { _, _ = c.Delete(context.WithoutCancel(ctx), name) }() // the platform ends soon
	agent, err := c.Agent(sb)
	if err == nil {
		err = begin(ctx, agent, registry, s)
	}
	if err == nil {
		r.version, err = shell(ctx, agent, s.version)
	}
	if err == nil {
		_, err = works(ctx, agent, s.before)
	}
	if err != nil {
		r.runs = err.Error()
		return r
	}
	if err := p.AwaitTier(ctx, name, "disk"); err != nil {
		r.sleeps = err.Error()
		return r
	}
	if _, err := works(ctx, agent, s.after); err != nil {
		r.sleeps = err.Error()
		return r
	}
	r.sleeps = ""
	return r
}

// begin installs it, and starts what goes on.
func begin(ctx context.Context, agent *client.Agent, registry npm.Registry, s software) error {
	ctx, cancel := context.WithTimeout(ctx, installing)
	defer cancel()
	for name, text := range map[string]string{"/root/.npmrc": registry.Config("/root/.npm-authorities"), "/root/.npm-authorities": string(registry.Authorities)} {
		if _, err := agent.WriteFile(ctx, name, strings.NewReader(text), ""); err != nil {
			return err
		}
	}
	if len(s.packages) > 0 {
		install := "apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends " + strings.Join(s.packages, " ") + " && apt-get clean"
		if _, err := shell(ctx, agent, install); err != nil {
			return err
		}
	}
	if s.prepare != "" {
		if _, err := shell(ctx, agent, s.prepare); err != nil {
			return err
		}
	}
	if s.during == "" {
		return nil
	}
	_, err := agent.Start(ctx, client.Command{Command: s.during, WorkingDir: "/root"})
	return err
}

// works runs a command until it succeeds.
func works(ctx context.Context, agent *client.Agent, command string) (said string, err error) {
	for end := time.Now().Add(patience); ; {
		if said, err = shell(ctx, agent, command); err == nil || ctx.Err() != nil || time.Now().After(end) {
			return said, err
		}
		select {
		case <-ctx.Done():
		case <-time.After(again):
		}
	}
}

// shell runs a command to its end, and returns what it printed. Its error has the last
// lines of what it said.
func shell(ctx context.Context, agent *client.Agent, command string) (string, error) {
	p, err := agent.Start(ctx, client.Command{Command: command, Wait: true, WorkingDir: "/root"})
	if err != nil {
		return "", err
	}
	if p.ExitCode != 0 {
		lines := strings.Split(strings.TrimSpace(p.Stdout+p.Stderr), "\n")
		return "", fmt.Errorf("exit code %d: %s", p.ExitCode, strings.Join(lines[max(0, len(lines)-told):], " "))
	}
	return strings.TrimSpace(p.Stdout), nil
}

// written is the page.
func written(made []result) string {
	var page strings.Builder
	page.WriteString(`# What runs in a sandbox

` + "`make compatibility`" + ` makes this page: do not edit it. Each row was installed in a sandbox of the base image, and worked. The sandbox then fell asleep
on disk with everything in it, and the next request woke it. What ran before went on. What a row starts and looks at is in
` + "`test/compat/software.go`" + `.

| Software | Version | Runs | Goes on after a sleep on disk | Remark |
|---|---|---|---|---|
`)
	yes := func(wrong string) string { return cmp.Or(strings.ReplaceAll(wrong, "|", "\\|"), "yes") }
	for _, r := range made {
		fmt.Fprintf(&page, "| %s | %s | %s | %s | %s |\n", r.name, r.version, yes(r.runs), yes(r.sleeps), r.remark)
	}
	page.WriteString(limits)
	return page.String()
}

// limits is what does not run, and why.
const limits = `
## What does not

| What | Why |
|---|---|
| Containers without ` + "`extraArgs.containers`" + ` | They need rights inside that other sandboxes do not have. A failing engine says so. |
| Networks of containers | The sandbox has no bridge: use ` + "`--network host`" + `. |
| KVM, GPUs, kernel modules, eBPF | The kernel of a sandbox is gVisor, in user space. |
| Shared mappings of a drive that write | Drives map files to read, and private ones: see the guide. |
| Connections to the outside, across a sleep on disk | The other side sees its end, and connects again. |
`
