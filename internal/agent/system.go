package agent

import (
	"cmp"
	"net/http"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agentapi"
	"github.com/dozehq/doze/internal/httpx"
)

// Welcome is the answer at the root.
type welcome struct {
	Message       string `json:"message"`
	Documentation string `json:"documentation"`
	Description   string `json:"description"`
}

func (*Agent) welcome(*http.Request, string) (welcome, error) {
	return welcome{
		Message:       "Welcome to your Doze sandbox",
		Documentation: "Files are at /filesystem, processes at /process, a terminal at /terminal, tools for models at /mcp.",
		Description:   "The API of one sandbox: files, processes and terminals.",
	}, nil
}

// Upgrade is the state of an upgrade in place. The agent belongs to the
// platform, which replaces it from outside; so there never is one.
type upgrade struct {
	Status      string `json:"status"`
	Step        string `json:"step"`
	Version     string `json:"version"`
	LastAttempt string `json:"lastAttempt,omitempty"`
	Error       string `json:"error,omitempty"`
}

type upgradeRequest struct {
	Version string `json:"version"`
	BaseURL string `json:"baseUrl"`
}

type upgradeAnswer struct {
	Message string `json:"message"`
	Version string `json:"version"`
	BaseURL string `json:"baseUrl"`
}

// skipUpgrade takes note that somebody wanted another agent. What a caller names
// is never fetched and never run.
func (a *Agent) skipUpgrade(w http.ResponseWriter, r *http.Request, _ string) error {
	b, err := body(w, r, smallMax)
	if err != nil {
		return err
	}
	in, _ := parse[upgradeRequest](b) // clients may send anything
	version := clip(cmp.Or(in.Version, "latest"))
	a.mu.Lock()
	a.upgrade = upgrade{
		Status:      "failed",
		Step:        "skipped",
		Version:     version,
		LastAttempt: time.Now().UTC().Format(time.RFC3339),
		Error:       "the platform replaces its agents itself",
	}
	a.mu.Unlock()
	httpx.WriteJSON(w, http.StatusOK, upgradeAnswer{"Upgrade skipped: the platform replaces its agents itself", version, in.BaseURL})
	return nil
}

type health struct {
	Status        string  `json:"status"`
	Version       string  `json:"version"`
	GitCommit     string  `json:"gitCommit"`
	BuildTime     string  `json:"buildTime"`
	GoVersion     string  `json:"goVersion"`
	OS            string  `json:"os"`
	Arch          string  `json:"arch"`
	Uptime        string  `json:"uptime"`
	UptimeSeconds float64 `json:"uptimeSeconds"`
	UpgradeCount  int     `json:"upgradeCount"`
	StartedAt     string  `json:"startedAt"`
	LastUpgrade   upgrade `json:"lastUpgrade"`

	WakeCount int       `json:"wakeCount"` // wakes from disk
	LastWake  doze.Time `json:"lastWake,omitzero"`
}

func (a *Agent) health(*http.Request, string) (health, error) {
	commit, built := revision()
	a.mu.Lock()
	defer a.mu.Unlock()
	up := time.Since(a.started)
	return health{
		Status:        "ok",
		Version:       a.version,
		GitCommit:     commit,
		BuildTime:     built,
		GoVersion:     runtime.Version(),
		OS:            runtime.GOOS,
		Arch:          runtime.GOARCH,
		Uptime:        up.Round(time.Second).String(),
		UptimeSeconds: up.Seconds(),
		StartedAt:     a.started.UTC().Format(time.RFC3339),
		LastUpgrade:   a.upgrade,
		WakeCount:     a.wakes,
		LastWake:      doze.Time{Time: a.woken},
	}, nil
}

// revision returns the commit that the agent was built from, and its time.
func revision() (commit, at string) {
	commit, at = "unknown", "unknown"
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return commit, at
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			commit = s.Value
		case "vcs.time":
			at = s.Value
		}
	}
	return commit, at
}

// state counts what must not be put to sleep: processes that want that, and
// an export, calls about drives. It also says what must not be saved alone, see
// netstate. The host asks before it suspends the sandbox, and before it ends it
// for being unused.
func (a *Agent) state(*http.Request, string) (agentapi.State, error) {
	n, last := a.processes.keptAlive()
	if a.archives.running() {
		n++
	}
	if a.drives.Busy() {
		n++
	}
	s := agentapi.State{KeepAlive: n, Blockers: readNetstate().since(a.net)}
	if !last.IsZero() {
		ago := time.Since(last).Milliseconds()
		s.KeptAgo = &ago
	}
	return s, nil
}

// wake is called by the host after the sandbox was restored from disk. All
// randomness of the agent comes from the kernel at the time of use, which the
// restore renews, so there is nothing to seed: it only notes the event.
func (a *Agent) wake(*http.Request, string) (struct{}, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.wakes++
	a.woken = time.Now()
	return struct{}{}, nil
}
