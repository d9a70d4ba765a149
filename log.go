package doze

const (
	// LogWorkloadsMax bounds the workloads of one question for logs: each is a look
	// at its record.
	LogWorkloadsMax = 50
	// LogLinesMax bounds the lines of each workload in an answer.
	LogLinesMax = 1000
	// LogLineMax bounds one line of output, in bytes. A longer one becomes several.
	LogLineMax = 8 << 10
	// LogSearchMax bounds the text that is looked for, in bytes.
	LogSearchMax = 256
)

// Severities of lines of a log.
const (
	LogInfo    = "INFO"    // an event, or a line of stdout
	LogWarning = "WARNING" // a notice
	LogError   = "ERROR"   // the sandbox failed, or a line of stderr
)

// LogSeverities are all of them.
var LogSeverities = []string{LogInfo, LogWarning, LogError}

// Types of lines of a log.
const (
	LogProcess = "process" // what a process wrote
	LogEvent   = "event"   // what the platform says
	LogBuild   = "build"   // what the builds of its image said
)

// Log is what a workload wrote and what the platform says about it, the newest first
// unless asked otherwise.
type Log struct {
	Lines []LogLine `json:"logs"`
	Total int       `json:"totalCount"` // lines in this answer
	// Next is the cursor of the lines after these. It is there if there are more, and
	// always if the oldest come first.
	Next string `json:"nextCursor,omitempty"`
}

// LogLine is one thing that happened.
type LogLine struct {
	Timestamp Time   `json:"timestamp"`
	Message   string `json:"message"`
	Severity  string `json:"severity"`
	TraceID   string `json:"trace_id"` // empty: nothing is traced
	// Process and Stream are of a line that a process wrote.
	Process string `json:"process,omitempty"`
	Stream  string `json:"stream,omitempty"`
}
