package doze

import (
	"strings"
	"time"
)

// Limits and defaults of schedules (section 9 of the public API).
const (
	SchedulesMax      = 100 // of a sandbox
	ExecutionsDefault = 100 // kept of a schedule
	ExecutionsMax     = 1000
	// ExecutionsPerSandbox bounds those of a sandbox: schedules of the type at are
	// gone after one.
	ExecutionsPerSandbox = SchedulesMax * ExecutionsDefault
	// CommandMax is below the longest argument that Linux takes.
	CommandMax        = 100 << 10
	WorkingDirMax     = 4 << 10 // as the longest path
	ProcessNameMax    = 256
	RunTimeoutDefault = 600             // seconds
	RunTimeoutMax     = 366 * 24 * 3600 // seconds; as processes have it
)

// The types of a schedule. One of the type sleep is kept as one of the type at.
const (
	ScheduleCron  = "cron"  // five fields, in UTC: see [Cron]
	ScheduleAt    = "at"    // RFC 3339, once
	ScheduleSleep = "sleep" // a duration from now, once
)

// Schedule starts a process in its sandbox at certain times, and wakes it for
// that.
type Schedule struct {
	ID            string        `json:"id"` // unique in its sandbox
	Sandbox       string        `json:"sandbox,omitempty"`
	Type          string        `json:"type"`
	Value         string        `json:"value"`
	Input         ScheduleInput `json:"input"`
	MaxExecutions int           `json:"maxExecutions,omitempty"` // 0 is the default
	CreatedAt     Time          `json:"createdAt,omitzero"`
}

// ScheduleInput is the process. Values of Env are masked in answers.
type ScheduleInput struct {
	Command    string            `json:"command"`
	Name       string            `json:"name,omitempty"`
	Env        map[string]string `json:"env,omitempty"`
	WorkingDir string            `json:"workingDir,omitempty"`
	KeepAlive  *bool             `json:"keepAlive,omitempty"` // nil is true
	Timeout    *int              `json:"timeout,omitempty"`   // seconds; 0 is none, nil the default
}

// Execution is one process that a schedule started, or could not start. How the
// process ended is not in it.
type Execution struct {
	ID          string          `json:"id"` // grows with each of its sandbox
	ScheduleID  string          `json:"scheduleId"`
	Sandbox     string          `json:"sandbox"`
	ExecutedAt  Time            `json:"executedAt,omitzero"`
	StatusCode  int             `json:"statusCode"` // of the sandbox's answer; 0 if there was none
	Status      ExecutionStatus `json:"status"`
	ProcessName string          `json:"processName,omitempty"`
	Timeout     int             `json:"timeout"` // seconds; 0 is none
	Error       string          `json:"error,omitempty"`
	CreatedAt   Time            `json:"createdAt,omitzero"`
}

// ExecutionStatus says whether a sandbox took a process.
type ExecutionStatus string

// The statuses of an execution.
const (
	ExecutionPending   ExecutionStatus = "pending" // being submitted; no caller sees it
	ExecutionSucceeded ExecutionStatus = "succeeded"
	ExecutionFailed    ExecutionStatus = "failed"
)

// ScheduleMetrics counts the executions from Since, inclusive, to Until,
// exclusive, that are still kept.
type ScheduleMetrics struct {
	Schedules          int                     `json:"schedules"`
	Sandboxes          int                     `json:"sandboxes"`
	Executions         int                     `json:"executions"`
	ExecutionsByStatus map[ExecutionStatus]int `json:"executionsByStatus"`
	Since              Time                    `json:"since"`
	Until              Time                    `json:"until"`
}

// Default fills in what a caller left out.
func (s *Schedule) Default() {
	if s.MaxExecutions == 0 {
		s.MaxExecutions = ExecutionsDefault
	}
	if s.Input.KeepAlive == nil {
		s.Input.KeepAlive = new(true)
	}
	if s.Input.Timeout == nil {
		s.Input.Timeout = new(RunTimeoutDefault)
	}
}

// Resolve makes one of the type sleep one of the type at.
func (s *Schedule) Resolve(now time.Time) {
	if d, err := ParseDuration(s.Value); err == nil && s.Type == ScheduleSleep {
		s.Type, s.Value = ScheduleAt, now.Add(d).UTC().Truncate(time.Millisecond).Format(time.RFC3339Nano)
	}
}

// Next is when s is due first after now; the zero time is never.
func (s *Schedule) Next(now time.Time) time.Time {
	if c, err := ParseCron(s.Value); err == nil && s.Type == ScheduleCron {
		return c.Next(now)
	}
	if at, err := ParseTime(s.Value); err == nil && s.Type == ScheduleAt && at.After(now) {
		return at
	}
	return time.Time{}
}

// Check adds the mistakes in what a caller may set; a moment before now is one.
func (s *Schedule) Check(p *Problems, now time.Time) {
	CheckName(p, "id", s.ID)
	switch s.Type {
	case ScheduleCron:
		if _, err := ParseCron(s.Value); err != nil {
			p.Add("value", "%v", err)
		}
	case ScheduleAt:
		if at, err := ParseTime(s.Value); err != nil {
			p.Add("value", "%v", err)
		} else if !at.After(now) {
			p.Add("value", "is in the past")
		}
	case ScheduleSleep:
		if _, err := ParseDuration(s.Value); err != nil {
			p.Add("value", "%v", err)
		}
	default:
		p.Add("type", "must be %s, %s or %s", ScheduleCron, ScheduleAt, ScheduleSleep)
	}
	if s.MaxExecutions < 0 || s.MaxExecutions > ExecutionsMax {
		p.Add("maxExecutions", "is %d; it must be 0 to %d", s.MaxExecutions, ExecutionsMax)
	}
	s.Input.check(p)
}

func (in *ScheduleInput) check(p *Problems) {
	switch {
	case strings.TrimSpace(in.Command) == "":
		p.Add("input.command", "is required")
	case len(in.Command) > CommandMax:
		p.Add("input.command", "is %d bytes long; at most %d are allowed", len(in.Command), CommandMax)
	}
	if len(in.Name) > ProcessNameMax {
		p.Add("input.name", "is %d bytes long; at most %d are allowed", len(in.Name), ProcessNameMax)
	}
	if len(in.WorkingDir) > WorkingDirMax {
		p.Add("input.workingDir", "is %d bytes long; at most %d are allowed", len(in.WorkingDir), WorkingDirMax)
	}
	if strings.ContainsRune(in.Command+in.Name+in.WorkingDir, 0) {
		p.Add("input", "must have no NUL byte in command, name and workingDir")
	}
	if t := in.Timeout; t != nil && (*t < 0 || *t > RunTimeoutMax) {
		p.Add("input.timeout", "is %d; it must be 0 to %d seconds", *t, RunTimeoutMax)
	}
	if len(in.Env) > EnvsMax {
		p.Add("input.env", "has %d entries; at most %d are allowed", len(in.Env), EnvsMax)
	}
	bytes := 0
	for k, v := range in.Env {
		bytes += len(k) + len(v)
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.ContainsRune(v, 0) {
			p.Add("input.env", "has the entry %q; a name must not be empty or have a =, and neither part a NUL byte", clip(k))
		}
	}
	if bytes > EnvBytesMax {
		p.Add("input.env", "has %d bytes; at most %d are allowed", bytes, EnvBytesMax)
	}
}
