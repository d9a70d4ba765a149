package tool

import (
	"context"
	"errors"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/command"
	"github.com/dozehq/doze/internal/agent/output"
	"github.com/dozehq/doze/internal/agent/process"
)

const (
	// toolWaitMax is below the minute after which proxies give a call up.
	toolWaitMax = 58 * time.Second
	// toolTimeout is how many seconds a tool waits unless it is told otherwise.
	toolTimeout = 30
	// toolListMax and toolLogsMax are what a model can still make use of.
	toolListMax = 1 << 20
	toolLogsMax = 512 << 10 // of each stream
)

// none is the input of a tool that has none.
type none struct{}

// target names a process.
type target struct {
	Identifier string `json:"identifier" jsonschema:"pid or name of the process"`
}

type toolProcessList struct {
	Processes []process.Info `json:"processes"`
}

func (b *Set) toolProcesses(context.Context, none) (toolProcessList, error) {
	return toolProcessList{b.processes.Describe(toolListMax)}, nil
}

type toolExecuteIn struct {
	Command           string             `json:"command" jsonschema:"what the shell runs"`
	Name              *string            `json:"name,omitempty" jsonschema:"to find the process by; unique among those that run"`
	WorkingDir        *string            `json:"workingDir,omitempty" jsonschema:"where it starts; / by default"`
	Env               *map[string]string `json:"env,omitempty" jsonschema:"variables besides those of the sandbox"`
	WaitForCompletion *bool              `json:"waitForCompletion,omitempty" jsonschema:"answer when it has ended"`
	Timeout           *int64             `json:"timeout,omitempty" jsonschema:"seconds to wait; 30 by default, 600 with keepAlive"`
	WaitForPorts      []int              `json:"waitForPorts,omitempty" jsonschema:"answer when it serves these ports"`
	RestartOnFailure  *bool              `json:"restartOnFailure,omitempty" jsonschema:"start it again when it fails"`
	MaxRestarts       *int               `json:"maxRestarts,omitempty" jsonschema:"how often; negative means no limit"`
	KeepAlive         *bool              `json:"keepAlive,omitempty" jsonschema:"keep the sandbox awake while it runs, until timeout at most"`
}

type toolExecuteOut struct {
	PID          string         `json:"pid"`
	Name         string         `json:"name"`
	Status       process.Status `json:"status"`
	ExitCode     int            `json:"exitCode"`
	Logs         *string        `json:"logs,omitempty"`
	Message      string         `json:"message,omitempty"`
	PollRequired bool           `json:"pollRequired,omitempty"`
}

// value returns what p points to, or the zero value.
func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// command returns what POST /process would be sent.
func (in toolExecuteIn) command() command.Spec {
	c := command.Spec{
		Command:           in.Command,
		Name:              value(in.Name),
		WorkingDir:        value(in.WorkingDir),
		Env:               value(in.Env),
		WaitForCompletion: value(in.WaitForCompletion),
		Timeout:           in.Timeout,
		WaitForPorts:      in.WaitForPorts,
		RestartOnFailure:  value(in.RestartOnFailure),
		MaxRestarts:       value(in.MaxRestarts),
		KeepAlive:         value(in.KeepAlive),
	}
	if c.WorkingDir == "" {
		c.WorkingDir = "/"
	}
	if c.Timeout == nil {
		seconds := int64(toolTimeout)
		if c.KeepAlive {
			seconds = int64(command.KeepAlive / time.Second)
		}
		c.Timeout = &seconds
	}
	return c
}

// toolPatience returns how long a tool waits for a command, and whether that is
// less than it was asked for.
func toolPatience(c command.Spec) (wait time.Duration, capped bool) {
	if p := c.Patience(); p > 0 && p <= toolWaitMax {
		return p, false
	}
	return toolWaitMax, true
}

// toolExecute runs a command. A caller that wants to wait for longer than a call may
// take is told to ask again.
func (b *Set) toolExecute(ctx context.Context, in toolExecuteIn) (out toolExecuteOut, err error) {
	c := in.command()
	var wrong doze.Problems
	c.Complete(b.vars.List(), &wrong)
	if err := wrong.Err(); err != nil {
		return out, err
	}
	p, err := b.processes.Start(c)
	if err != nil {
		return out, err
	}
	patience, capped := toolPatience(c)
	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err = p.AwaitPorts(waiting)
	if err == nil && c.WaitForCompletion {
		err = p.Await(waiting, patience)
	}
	poll := err != nil && capped && errors.Is(waiting.Err(), context.DeadlineExceeded)
	if err != nil && !poll {
		return out, err
	}
	i := p.Brief()
	out = toolExecuteOut{PID: i.PID, Name: i.Name, Status: i.Status, ExitCode: i.ExitCode}
	if c.WaitForCompletion || poll {
		out.Logs = p.Info(toolLogsMax).Logs
	}
	if poll {
		out.PollRequired = true
		out.Message = "the process still runs; ask for it with processGet and processGetLogs until its status is not running"
	}
	return out, nil
}

func (b *Set) toolProcess(_ context.Context, in target) (process.Info, error) {
	p, err := b.processes.Find(in.Identifier)
	if err != nil {
		return process.Info{}, err
	}
	return p.Info(output.TailMax), nil
}

type toolLogsOut struct {
	Logs string `json:"logs"`
}

func (b *Set) toolLogs(_ context.Context, in target) (out toolLogsOut, err error) {
	p, err := b.processes.Find(in.Identifier)
	if err != nil {
		return out, err
	}
	return toolLogsOut{*p.Info(toolLogsMax).Logs}, nil
}

type toolStatus struct {
	Status process.Status `json:"status"`
}

func (b *Set) toolStop(_ context.Context, in target) (toolStatus, error) {
	return toolStatus{process.Stopped}, b.processes.Stop(in.Identifier)
}

func (b *Set) toolKill(_ context.Context, in target) (toolStatus, error) {
	return toolStatus{process.Killed}, b.processes.Kill(in.Identifier)
}
