// Package command checks what a caller wants to run, and finds the quickest way to
// run it.
package command

import (
	"crypto/rand"
	"maps"
	"slices"
	"strings"
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
}

// Parse reads and checks the body of POST /process and fills in the
// name. Every error is Invalid.
func Parse(b []byte, env environ.List) (Spec, error) {
	c, p, err := body.Unchecked[Spec](b)
	if err != nil {
		return c, err
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
