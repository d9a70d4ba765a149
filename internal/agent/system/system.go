// Package system says what an agent is: its version, its health and how often it
// woke.
package system

import (
	"cmp"
	"net/http"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/body"
	"github.com/dozehq/doze/internal/agent/mistake"
	"github.com/dozehq/doze/internal/httpx"
)

// System is what an agent says of itself.
type System struct {
	version string

	mu       sync.Mutex
	started  time.Time   // guarded by mu
	wakes    int         // guarded by mu
	woken    time.Time   // guarded by mu
	upgrades int         // guarded by mu: how many were asked for
	upgrade  LastUpgrade // guarded by mu: the last of them
}

// New returns what an agent of a version says that starts now.
func New(version string) *System {
	s := &System{version: version}
	s.Renew()
	return s
}

// Renew forgets the past: the agent is that of another sandbox now.
func (s *System) Renew() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.started, s.wakes, s.woken = time.Now(), 0, time.Time{}
	s.upgrades, s.upgrade = 0, LastUpgrade{Status: "idle", Step: "none", Version: s.version}
}

// Greeting is the answer at the root.
type Greeting struct {
	Message       string `json:"message"`
	Documentation string `json:"documentation"`
	Description   string `json:"description"`
}

// Welcome says where to begin.
func (*System) Welcome(*http.Request, string) (Greeting, error) {
	return Greeting{
		Message:       "Welcome to your Doze sandbox",
		Documentation: "Files are at /filesystem, processes at /process, a terminal at /terminal, tools for models at /mcp.",
		Description:   "The API of one sandbox: files, processes and terminals.",
	}, nil
}

// LastUpgrade is the state of an upgrade in place. The agent belongs to the
// platform, which replaces it from outside; so there never is one.
type LastUpgrade struct {
	Status      string `json:"status"`
	Step        string `json:"step"`
	Version     string `json:"version"`
	LastAttempt string `json:"lastAttempt,omitempty"`
}

// UpgradeRequest is what clients ask for, in vain.
type UpgradeRequest struct {
	Version string `json:"version"`
	BaseURL string `json:"baseUrl"`
}

// UpgradeAnswer says that nothing is to be done.
type UpgradeAnswer struct {
	Message string `json:"message"`
	Version string `json:"version"`
	BaseURL string `json:"baseUrl"`
}

// Upgrade has nothing to do, since the platform replaces its agents itself. It counts
// as completed: clients wait for that. The agent never fetches or runs what a caller names.
func (s *System) Upgrade(w http.ResponseWriter, r *http.Request, _ string) error {
	b, err := body.Read(w, r, body.Small)
	if err != nil {
		return err
	}
	in, _ := body.Parse[UpgradeRequest](b) // clients may send anything
	s.mu.Lock()
	s.upgrades++
	s.upgrade = LastUpgrade{Status: "completed", Step: "completed", Version: s.version, LastAttempt: time.Now().UTC().Format(time.RFC3339)}
	s.mu.Unlock()
	httpx.WriteJSON(w, http.StatusOK, UpgradeAnswer{
		"Nothing to upgrade: the platform replaces its agents itself", mistake.Clip(cmp.Or(in.Version, "latest")), in.BaseURL,
	})
	return nil
}

// Health is how an agent is, and since when.
type Health struct {
	Status        string      `json:"status"`
	Version       string      `json:"version"`
	GitCommit     string      `json:"gitCommit"`
	BuildTime     string      `json:"buildTime"`
	GoVersion     string      `json:"goVersion"`
	OS            string      `json:"os"`
	Arch          string      `json:"arch"`
	Uptime        string      `json:"uptime"`
	UptimeSeconds float64     `json:"uptimeSeconds"`
	UpgradeCount  int         `json:"upgradeCount"`
	StartedAt     string      `json:"startedAt"`
	LastUpgrade   LastUpgrade `json:"lastUpgrade"`

	WakeCount int       `json:"wakeCount"` // wakes from disk
	LastWake  doze.Time `json:"lastWake,omitzero"`

	// HealthCheck is how the health check of the image went; nil if there is none, or
	// its process is over.
	HealthCheck *Check `json:"healthCheck,omitempty"`
}

// Check is how the health check of an image went.
type Check struct {
	Status   string    `json:"status"`   // starting, healthy or unhealthy
	Failures int       `json:"failures"` // in a row
	ExitCode int       `json:"exitCode"` // of the last one; -1 if it did not end by itself
	Output   string    `json:"output"`   // the end of what the last one wrote
	At       doze.Time `json:"at,omitzero"`
}

// Health says that the agent answers, and which one it is.
func (s *System) Health(*http.Request, string) (Health, error) {
	commit, built := revision()
	s.mu.Lock()
	defer s.mu.Unlock()
	up := time.Since(s.started)
	return Health{
		Status:        "ok",
		Version:       s.version,
		GitCommit:     commit,
		BuildTime:     built,
		GoVersion:     runtime.Version(),
		OS:            runtime.GOOS,
		Arch:          runtime.GOARCH,
		Uptime:        up.Round(time.Second).String(),
		UptimeSeconds: up.Seconds(),
		UpgradeCount:  s.upgrades,
		StartedAt:     s.started.UTC().Format(time.RFC3339),
		LastUpgrade:   s.upgrade,
		WakeCount:     s.wakes,
		LastWake:      doze.Time{Time: s.woken},
	}, nil
}

// revision returns the commit that the agent was built from, and its time.
func revision() (commit, at string) {
	commit, at = "unknown", "unknown"
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return commit, at
	}
	for _, setting := range info.Settings {
		switch setting.Key {
		case "vcs.revision":
			commit = setting.Value
		case "vcs.time":
			at = setting.Value
		}
	}
	return commit, at
}

// Wake is called by the host after the sandbox was restored from disk. All
// randomness of the agent comes from the kernel at the time of use, which the
// restore renews, so there is nothing to seed: it only notes the event.
func (s *System) Wake(*http.Request, string) (struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wakes++
	s.woken = time.Now()
	return struct{}{}, nil
}
