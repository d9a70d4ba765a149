package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"golang.org/x/sys/unix"

	"doze"
	"doze/client"
	"doze/internal/doctor"
	"doze/internal/testkit"
)

const (
	wakeRounds = 50
	settle     = 60 * time.Second // for one move to a lower tier
	lying      = 30 * time.Millisecond
	// inUse is how many requests a sandbox that is awake has answered before
	// the one that counts: the first ones after a wake from disk meet pages
	// that nobody touched yet.
	inUse = 20
)

// wakeSizes are what a process in the sandbox holds, in MB, touched and random.
var wakeSizes = []int{64, 512}

// wake asks for the agent's health, round by round in every tier, so that all
// cases meet the same host.
func wake(ctx context.Context, dir string, only *regexp.Regexp) (all []*series, err error) {
	p, err := testkit.Start(ctx, testkit.Options{
		Dir: dir, Args: []string{"--pause-after", "150ms", "--save-after", "100ms", "--disk-after", "1s", "--log", "error"},
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	for _, f := range doctor.Examine(doctor.Host{Data: dir}) {
		if f.Check == "huge pages" {
			fmt.Printf("this host's huge pages are %s\n", f.Text)
		}
	}
	for _, mb := range wakeSizes {
		rows, err := wakeSize(ctx, p, mb, only)
		if err != nil {
			return nil, fmt.Errorf("%d MB: %w", mb, err)
		}
		all = append(all, rows...)
	}
	return all, nil
}

func wakeSize(ctx context.Context, p *testkit.Platform, mb int, only *regexp.Regexp) (all []*series, err error) {
	awake := &series{name: fmt.Sprintf("awake %d MB", mb)}
	paused := &series{name: fmt.Sprintf("paused %d MB", mb), against: awake}
	disk := &series{name: fmt.Sprintf("disk %d MB", mb), against: awake}
	cold := &series{name: fmt.Sprintf("disk %d MB, not in the page cache", mb), against: awake}
	tiers := map[*series]string{awake: "running", paused: "paused", disk: "disk", cold: "disk"}
	for _, s := range []*series{awake, paused, disk, cold} {
		if s == awake || only.MatchString(s.name) {
			all = append(all, s)
		}
	}
	if len(all) == 1 {
		return nil, nil
	}
	c, err := p.Client()
	if err != nil {
		return nil, err
	}
	name := fmt.Sprintf("wake-%d", mb)
	sb, err := c.Create(ctx, doze.Sandbox{
		Metadata: doze.Metadata{Name: name},
		Spec:     doze.SandboxSpec{Runtime: doze.Runtime{Memory: 2048}},
	}, false)
	if err != nil {
		return nil, err
	}
	box, err := c.Box(sb)
	if err != nil {
		return nil, err
	}
	if err := hold(ctx, box, mb); err != nil {
		return nil, err
	}
	ask := asker(p, sb)
	for range wakeRounds {
		for _, tier := range all {
			if err := await(ctx, p, tiers[tier]); err != nil {
				return nil, fmt.Errorf("wait for %s: %w", tier.name, err)
			}
			if tier == cold {
				if err := forget(p, name); err != nil {
					return nil, fmt.Errorf("%s: %w", tier.name, err)
				}
			}
			took, err := ask(ctx)
			for range inUse {
				if tier == awake && err == nil {
					took, err = ask(ctx)
				}
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", tier.name, err)
			}
			tier.add(took)
		}
		fmt.Fprint(os.Stderr, ".")
	}
	fmt.Fprintln(os.Stderr)
	_, err = c.Delete(ctx, name)
	return all, err
}

// forget drops the files of a sandbox's checkpoint from the page cache.
func forget(p *testkit.Platform, name string) error {
	image, err := p.Image(name)
	if err != nil {
		return err
	}
	files, err := os.ReadDir(image)
	if err != nil {
		return err
	}
	for _, entry := range files {
		f, err := os.Open(filepath.Join(image, entry.Name()))
		if err != nil {
			return err
		}
		err = errors.Join(f.Sync(), unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED), f.Close())
		if err != nil {
			return err
		}
	}
	return nil
}

func await(ctx context.Context, p *testkit.Platform, tier string) error {
	ctx, cancel := context.WithTimeout(ctx, settle)
	defer cancel()
	if err := p.Await(ctx, tier); err != nil {
		return err
	}
	if tier == "disk" {
		if err := p.AwaitReady(ctx); err != nil {
			return err
		}
	}
	// A sandbox sleeps for longer than it takes to lie down: its record is
	// written, and what it was is cleared away.
	time.Sleep(lying)
	return nil
}

// hold starts a process that keeps mb megabytes of random, touched memory.
func hold(ctx context.Context, box *client.Box, mb int) error {
	script := fmt.Sprintf(`python3 -c 'import os,time; b=os.urandom(%d<<20); print("held",flush=True); time.sleep(1e9)'`, mb)
	held, err := box.Start(ctx, client.Command{Command: script})
	if err != nil {
		return err
	}
	for {
		logs, err := box.Logs(ctx, held.PID)
		if err != nil {
			return err
		}
		if logs.Stdout == "held\n" {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// asker returns a request as clients send it: over a kept connection to the
// edge. What it times ends with the last byte of the answer.
func asker(p *testkit.Platform, sb doze.Sandbox) func(context.Context) (time.Duration, error) {
	http := &http.Client{Transport: &http.Transport{}, Timeout: settle}
	return func(ctx context.Context) (time.Duration, error) {
		return timed(ctx, http, sb.Metadata.URL+"/health", p.Key)
	}
}

func timed(ctx context.Context, c *http.Client, url, key string) (time.Duration, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	r.Header.Set("Authorization", "Bearer "+key)
	start := time.Now()
	resp, err := c.Do(r)
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	took := time.Since(start)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, body)
	}
	return took, err
}
