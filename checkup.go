package doze

// Checkup is what dozed finds amiss with the host that it runs on.
type Checkup struct {
	// Host is the name of the host. If control runs in a process of its own, it is that
	// host, which need not be the one of the sandboxes.
	Host string `json:"host"`
	// Sandboxes says whether the checks for sandboxes are among those that ran. They run
	// where control and node are one process.
	Sandboxes bool `json:"sandboxes"`
	CheckedAt Time `json:"checkedAt"`
	// Findings are warnings and errors, and none if all is well.
	Findings []Finding `json:"findings"`
}

// Severities of a finding.
const (
	SeverityWarning = "warning" // sandboxes run, but less well
	SeverityError   = "error"   // sandboxes do not run
)

// Finding is something that is amiss with a host.
type Finding struct {
	Name     string `json:"name"`     // of the check, as dozed doctor prints it
	Severity string `json:"severity"` // warning or error
	Found    string `json:"found"`
	Remedy   string `json:"remedy"` // what to do
}
