package gvisor

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The platforms of gVisor that a host may ask for: how it intercepts the system calls of a sandbox.
const (
	PlatformAuto    = "auto" // the best of those that are proved
	PlatformSystrap = "systrap"
	PlatformKVM     = "kvm" // needs /dev/kvm; see docs/design/0128-platforms.md
)

// Platforms are the names that [Choose] knows.
func Platforms() []string { return []string{PlatformAuto, PlatformSystrap, PlatformKVM} }

// measureTime bounds a measurement, whose calls take less than a second.
const measureTime = 20 * time.Second

// saidMost is how much an error has of what a measurement printed.
const saidMost = 300

// Choose returns the platform that machines run on, and why. The engine is the path of doze-sentry. It refuses a platform that
// does not work on this host, and one that was never proved.
func Choose(ctx context.Context, engine, wanted string) (name, why string, err error) {
	switch wanted {
	case PlatformAuto, "":
		return PlatformSystrap, "auto: no other platform is proved to sleep and wake", nil
	case PlatformSystrap:
		return PlatformSystrap, "as set", nil
	case PlatformKVM:
		took, err := Measure(ctx, engine, PlatformKVM)
		if err != nil {
			return "", "", fmt.Errorf("--platform %s does not work on this host: %w", wanted, err)
		}
		return "", "", fmt.Errorf("--platform %s is not supported: it works on this host, and a system call takes %v. But no sandbox ever slept and woke with it: use %s", wanted, took, PlatformSystrap)
	}
	return "", "", fmt.Errorf("there is no platform %q: --platform must be %s", wanted, strings.Join(Platforms(), ", "))
}

// Measure returns what one intercepted system call takes on a platform of this host. Its error says
// why the platform does not work here.
func Measure(ctx context.Context, engine, name string) (time.Duration, error) {
	if !slices.Contains([]string{PlatformSystrap, PlatformKVM}, name) {
		return 0, fmt.Errorf("there is no platform %q to measure", name)
	}
	ctx, cancel := context.WithTimeout(ctx, measureTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, engine, "-measure", name) //nolint:gosec // G204: our own binary
	if os.Geteuid() == 0 {                                    // its guests end with it, at once, and not a while later
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}
	}
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		if ctx.Err() != nil {
			return 0, fmt.Errorf("it did not answer within %v", measureTime)
		}
		// What gVisor gives up with is followed by stacks.
		text, _, _ := strings.Cut(strings.TrimSpace(strings.TrimPrefix(said.String(), Program+":")), "\n")
		if text == "" {
			return 0, err
		}
		return 0, fmt.Errorf("%.*s", saidMost, text)
	}
	return time.ParseDuration(strings.TrimSpace(string(out)))
}
