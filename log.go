package doze

// LogWorkloadsMax bounds the workloads of one question for logs: each is a look
// at its record.
const LogWorkloadsMax = 50

// Severities of what the platform says about a workload.
const (
	LogInfo    = "INFO"
	LogWarning = "WARNING"
	LogError   = "ERROR"
)

// Log is what the platform says about a workload, the newest first.
type Log struct {
	Lines []LogLine `json:"logs"`
	Total int       `json:"totalCount"`
}

// LogLine is one thing that happened.
type LogLine struct {
	Timestamp Time   `json:"timestamp"`
	Message   string `json:"message"`
	Severity  string `json:"severity"`
	TraceID   string `json:"trace_id"` // empty: nothing is traced
}
