package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
	"github.com/dozehq/doze/internal/testkit"
	"github.com/dozehq/doze/internal/testkit/bucket"
)

const (
	driveMount = "/mnt/drive"
	ownFiles   = "/root"
	// driveMemory holds the files of the yardstick, which are in memory.
	driveMemory = 4096
	driveRounds = 5
)

// driveSteps are done on a drive, and in the sandbox's own files. Each ends when its files
// are closed.
var driveSteps = []struct {
	name    string
	bytes   int64
	before  string // which is not measured
	command string // in the directory
}{
	{"write 8 MB, 4 KB at a time", 8 << 20, "rm -f small", "dd if=/dev/zero of=small bs=4k count=2048 status=none"},
	{"write 1 GB, 1 MB at a time", 1 << 30, "rm -f large", "dd if=/dev/zero of=large bs=1M count=1024 status=none"},
	{"read 1 GB, 1 MB at a time", 1 << 30, ":", "dd if=large of=/dev/null bs=1M status=none"},
	{
		"git init and a commit of 100 files", 0, "rm -rf repository; mkdir repository; for i in $(seq 100); do echo $i >repository/$i; done",
		"cd repository && git init -q . && git add . && git -c user.name=a -c user.email=a commit -qm first",
	},
}

func ownCase(name string) string { return name + ", own files" }

func driveCase(name string) string { return name + ", drive" }

// driveCases names all rows of the benchmark.
func driveCases() (names []string) {
	for _, s := range driveSteps {
		names = append(names, ownCase(s.name), driveCase(s.name))
	}
	return names
}

// drives does the same on a drive, whose bucket is an S3 server on this machine, and in the
// files of the sandbox.
func drives(ctx context.Context, dir string, only *regexp.Regexp) (_ table, err error) {
	shared, err := bucket.Open(dir)
	if err != nil {
		return latencies(nil), err
	}
	defer shared.Close()
	p, err := testkit.Start(ctx, testkit.Options{Dir: dir, Fast: true, Args: []string{
		"--log", "warn", "--pause-after", "1h", "--drives", shared.URL, "--drives-credentials", shared.Credentials,
	}})
	if err != nil {
		return latencies(nil), err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	c, err := p.Client()
	if err != nil {
		return latencies(nil), err
	}
	agent, err := driven(ctx, c)
	if err != nil {
		return latencies(nil), err
	}
	var all latencies
	for _, step := range driveSteps {
		if !only.MatchString(step.name) {
			continue
		}
		own := &series{name: ownCase(step.name), bytes: step.bytes}
		onDrive := &series{name: driveCase(step.name), bytes: step.bytes, against: own}
		all = append(all, own, onDrive)
		for range times(driveRounds) {
			for at, s := range map[string]*series{ownFiles: own, driveMount: onDrive} {
				if _, err := inside(ctx, agent, at, step.before); err != nil {
					return all, err
				}
				took, err := inside(ctx, agent, at, step.command)
				if err != nil {
					return all, fmt.Errorf("%s: %w", s.name, err)
				}
				s.add(took)
			}
		}
	}
	return all, nil
}

// driven makes a sandbox with a drive.
func driven(ctx context.Context, c *client.Client) (*client.Agent, error) {
	if _, err := c.CreateDrive(ctx, doze.Drive{Metadata: doze.Metadata{Name: "shared"}}); err != nil {
		return nil, err
	}
	_, agent, err := testkit.Create(ctx, c, "drive", driveMemory)
	if err != nil {
		return nil, err
	}
	_, err = agent.MountDrive(ctx, doze.DriveMount{Drive: "shared", MountPath: driveMount})
	return agent, err
}

// inside runs a command in a directory of the sandbox, and returns how long it took.
func inside(ctx context.Context, agent *client.Agent, dir, command string) (time.Duration, error) {
	began := time.Now()
	ran, err := agent.Start(ctx, client.Command{Command: "cd " + dir + " && " + command, Wait: true})
	took := time.Since(began)
	if err == nil && ran.ExitCode != 0 {
		err = fmt.Errorf("exit code %d: %s", ran.ExitCode, ran.Stderr)
	}
	return took, err
}
