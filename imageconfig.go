package doze

import (
	"path"
	"slices"
	"strconv"
	"strings"
)

// EntrypointProcess is the name of the process that an image says to run in a sandbox.
const EntrypointProcess = "entrypoint"

// EntrypointDisabled is the status of that process in a sandbox whose owner wants none.
const EntrypointDisabled = "disabled"

// Entrypoint is how the process of an image was when its sandbox was last awake.
type Entrypoint struct {
	// Status is running, completed, failed, stopped or killed, as of every process. It is
	// disabled if the caller wants none, and absent while nobody knows.
	Status       string `json:"status,omitempty"`
	ExitCode     int    `json:"exitCode,omitempty"`
	RestartCount int    `json:"restartCount,omitempty"`
	Message      string `json:"message,omitempty"` // why it could not be started
	// Health is starting, healthy or unhealthy, and absent if nothing is checked.
	Health       string   `json:"health,omitempty"`
	HealthOutput string   `json:"healthOutput,omitempty"` // the end of what the last check wrote
	Ports        []string `json:"ports,omitempty"`        // that the image exposes, as in 80/tcp
}

// agentProgram is the name of the agent of other platforms. Images that were made for
// them start it: here that means the agent of this platform, which runs anyway.
const agentProgram = "sandbox-api"

// ImageConfig is what the maker of an image says about the process in it.
type ImageConfig struct {
	Env     []string `json:"env,omitempty"`     // NAME=value
	User    string   `json:"user,omitempty"`    // name or id, with an optional :group; empty means root
	WorkDir string   `json:"workDir,omitempty"` // empty means /
	// Entrypoint and Cmd are a program with its arguments, one after the other. Either
	// may be empty, and both.
	Entrypoint []string          `json:"entrypoint,omitempty"`
	Cmd        []string          `json:"cmd,omitempty"`
	Ports      []string          `json:"ports,omitempty"` // as in 80/tcp, each once, by number
	Labels     map[string]string `json:"labels,omitempty"`
	StopSignal string            `json:"stopSignal,omitempty"` // SIGINT or 2; empty means SIGTERM
	Health     *ImageHealth      `json:"health,omitempty"`     // nil: nothing is checked
}

// ImageHealth is a check that the maker of an image has for its process. A number that
// is 0 has the default of the platform.
type ImageHealth struct {
	Test          []string `json:"test"` // CMD and a program with its arguments, or CMD-SHELL and a line
	Interval      float64  `json:"intervalSeconds,omitempty"`
	Timeout       float64  `json:"timeoutSeconds,omitempty"`
	StartPeriod   float64  `json:"startPeriodSeconds,omitempty"`
	StartInterval float64  `json:"startIntervalSeconds,omitempty"` // while the start period lasts
	Retries       int      `json:"retries,omitempty"`
}

// Program is the program that the image runs, with its arguments. It is empty for an
// image that has none, and for one that starts an agent and nothing else.
func (c *ImageConfig) Program() []string {
	argv := slices.Concat(c.Entrypoint, c.Cmd)
	if len(argv) == 1 && path.Base(argv[0]) == agentProgram {
		return nil
	}
	return argv
}

// signals are the numbers of signals on Linux, by name without SIG.
var signals = map[string]int{
	"HUP": 1, "INT": 2, "QUIT": 3, "ILL": 4, "TRAP": 5, "ABRT": 6, "IOT": 6, "BUS": 7, "FPE": 8, "KILL": 9, "USR1": 10,
	"SEGV": 11, "USR2": 12, "PIPE": 13, "ALRM": 14, "TERM": 15, "STKFLT": 16, "CHLD": 17, "CONT": 18, "STOP": 19,
	"TSTP": 20, "TTIN": 21, "TTOU": 22, "URG": 23, "XCPU": 24, "XFSZ": 25, "VTALRM": 26, "PROF": 27, "WINCH": 28,
	"IO": 29, "POLL": 29, "PWR": 30, "SYS": 31, "RTMIN": signalRTMin, "RTMAX": SignalMax,
}

const (
	// SignalMax is the number of the last signal.
	SignalMax = 64
	// signalRTMin is the first of the real-time signals that programs can use.
	signalRTMin = 34
)

// ParseSignal returns the number of a signal as images name it: SIGINT, INT, 2 or
// SIGRTMIN+3, in letters of any size.
func ParseSignal(name string) (n int, ok bool) {
	if n, err := strconv.Atoi(name); err == nil {
		return n, n >= 1 && n <= SignalMax
	}
	base := strings.TrimPrefix(strings.ToUpper(name), "SIG")
	at := strings.IndexAny(base, "+-")
	if at < 0 {
		n, ok = signals[base]
		return n, ok
	}
	from, known := signals[base[:at]]
	distance, err := strconv.ParseInt(base[at:], 10, 8)
	n = from + int(distance)
	return n, known && err == nil && from >= signalRTMin && n >= signalRTMin && n <= SignalMax
}
