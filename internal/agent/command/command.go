// Package command checks what a caller wants to run, and finds the quickest way to
// run it.
package command

import (
	"crypto/rand"
	"maps"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/body"
	"github.com/dozehq/doze/internal/agent/environ"
	"github.com/dozehq/doze/internal/agent/mistake"
)

const (
	nameMax    = 256
	portsMax   = 64
	envMax     = 4096 // variables of one request
	timeoutMax = 366 * 24 * time.Hour
	// noKeepAliveEnv is the variable that refuses processes that keep the
	// sandbox awake.
	noKeepAliveEnv = "BL_DISABLE_KEEPALIVE"
	// KeepAlive ends a process that keeps the sandbox awake, unless the
	// caller asks for another time.
	KeepAlive = 600 * time.Second
)

// Spec is what a caller wants to run: the body of POST /process.
type Spec struct {
	Command           string            `json:"command"`
	Name              string            `json:"name"`
	WorkingDir        string            `json:"workingDir"`
	Env               map[string]string `json:"env"`
	WaitForCompletion bool              `json:"waitForCompletion"`
	Timeout           *int64            `json:"timeout"` // seconds
	WaitForPorts      []int             `json:"waitForPorts"`
	RestartOnFailure  bool              `json:"restartOnFailure"`
	MaxRestarts       int               `json:"maxRestarts"` // negative means no limit
	KeepAlive         bool              `json:"keepAlive"`
	Stdin             bool              `json:"stdin"`

	// Image has what an image says besides, of the process that it has; nil for all
	// others. No caller can say it.
	Image *Image `json:"-"`
}

// Image is how the process of an image runs.
type Image struct {
	Argv       []string       // runs without a shell
	StopSignal syscall.Signal // asks it to end; 0 means SIGTERM
}

// restartsMax is how often in a row the process of an image fails until it is not
// started again. With its pauses that takes five minutes.
const restartsMax = 10

// ForImage returns how the process of an image runs: it starts again when it fails.
func ForImage(i Image) Spec {
	return Spec{Name: doze.EntrypointProcess, Command: Quote(i.Argv), RestartOnFailure: true, MaxRestarts: restartsMax, Image: &i}
}

// fill makes c, which has its name and no command, the process of an image. The rest of c
// is as its caller wants it.
func (c *Spec) fill(image *Spec) {
	c.Command, c.Image = image.Command, image.Image
	if !c.RestartOnFailure {
		c.RestartOnFailure, c.MaxRestarts = image.RestartOnFailure, image.MaxRestarts
	}
}

// StopSignal is what asks the process to end.
func (c *Spec) StopSignal() syscall.Signal {
	if c.Image == nil || c.Image.StopSignal == 0 {
		return syscall.SIGTERM
	}
	return c.Image.StopSignal
}

// Quote writes a program and its arguments as a line for a shell that means the same.
func Quote(argv []string) string {
	words := make([]string, len(argv))
	for i, word := range argv {
		words[i] = word
		if word == "" || strings.Trim(word, plain) != "" {
			words[i] = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
		}
	}
	return strings.Join(words, " ")
}

// Parse reads and checks the body of POST /process and fills in the
// name. A body with the name of the process of the image, and without a command, means
// that process; image is nil if there is none. Every error is Invalid.
func Parse(b []byte, env environ.List, image *Spec) (Spec, error) {
	c, p, err := body.Unchecked[Spec](b)
	if err != nil {
		return c, err
	}
	if image != nil && c.Name == image.Name && c.Command == "" {
		c.fill(image)
	}
	c.Complete(env, &p)
	return c, p.Err()
}

// Complete checks c and fills in the name.
func (c *Spec) Complete(env environ.List, p *doze.Problems) {
	if c.WorkingDir == "~" || strings.HasPrefix(c.WorkingDir, "~/") {
		c.WorkingDir = env.Get("HOME") + c.WorkingDir[1:]
	}
	if c.Name == "" {
		c.Name = "proc-" + strings.ToLower(rand.Text()[:8])
	}
	if strings.TrimSpace(c.Command) == "" {
		p.Missing("command")
	}
	if strings.ContainsRune(c.Command+c.Name+c.WorkingDir, 0) {
		p.Add("command, name and workingDir", "must not have a NUL byte")
	}
	if c.KeepAlive && (env.Get(noKeepAliveEnv) == "true" || env.Get(noKeepAliveEnv) == "1") {
		p.Add("keepAlive", "is switched off in this sandbox")
	}
	if len(c.Name) > nameMax {
		p.Add("name", "has %d bytes; at most %d are allowed", len(c.Name), nameMax)
	}
	c.checkEnv(p)
	c.checkPorts(p)
}

func (c *Spec) checkEnv(p *doze.Problems) {
	if len(c.Env) > envMax {
		p.Add("env", "has %d variables; at most %d are allowed", len(c.Env), envMax)
		return
	}
	for _, k := range slices.Sorted(maps.Keys(c.Env)) {
		if len(*p) < mistake.Max && (k == "" || strings.ContainsAny(k, "=\x00") || strings.ContainsRune(c.Env[k], 0)) {
			p.Add("env", "has the entry %q; a name must not be empty or have a =, and neither part a NUL byte", mistake.Clip(k))
		}
	}
}

func (c *Spec) checkPorts(p *doze.Problems) {
	if len(c.WaitForPorts) > portsMax {
		p.Add("waitForPorts", "has %d entries; at most %d are allowed", len(c.WaitForPorts), portsMax)
		return
	}
	for _, port := range c.WaitForPorts {
		if port < 1 || port > 65535 {
			p.Add("waitForPorts", "has the port %d; it must be 1 to 65535", port)
		}
	}
}

// Patience returns how long the call may wait; 0 means for ever.
func (c *Spec) Patience() time.Duration {
	if c.Timeout == nil || *c.Timeout <= 0 {
		return 0
	}
	return time.Duration(min(*c.Timeout, int64(timeoutMax/time.Second))) * time.Second
}

// Lifetime returns when a process that keeps the sandbox awake is killed; 0
// means never.
func (c *Spec) Lifetime() time.Duration {
	switch {
	case !c.KeepAlive || c.Timeout != nil && *c.Timeout == 0:
		return 0
	case c.Patience() == 0:
		return KeepAlive
	}
	return c.Patience()
}

// Restarts reports whether a failure is followed by attempt n+1.
func (c *Spec) Restarts(n int) bool {
	return c.RestartOnFailure && (c.MaxRestarts < 0 || n < c.MaxRestarts)
}
