package metric

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/machine"
)

// other is the label of all sandboxes together that have no metrics of their own. No
// workspace has it: the label of the workspace is empty.
const other = "other"

// A Sandbox is one with what it takes and has done.
type Sandbox struct {
	UID             string // of its machine
	Workspace, Name string
	doze.Usage
}

// Sandboxes are those of a node. Most is how many of them have metrics of their own.
type Sandboxes struct {
	Most int
	All  []Sandbox
}

// named are the sandboxes that have metrics of their own. A sandbox that has them stays
// among them until it is gone, so that its counters do not begin again. It is safe for
// concurrent use.
type named struct {
	mu   sync.Mutex
	uids map[string]bool // guarded by mu
}

// choose returns which sandboxes have metrics of their own: those that had them, and new
// ones while there is a place.
func (n *named) choose(of Sandboxes) map[string]bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	chosen := map[string]bool{}
	for _, s := range of.All {
		if n.uids[s.UID] && len(chosen) < of.Most {
			chosen[s.UID] = true
		}
	}
	for _, s := range of.All {
		if len(chosen) >= of.Most {
			break
		}
		chosen[s.UID] = true
	}
	n.uids = chosen
	return chosen
}

// perSandbox are the metrics of one sandbox.
var perSandbox = []struct {
	name, help string
	counts     bool // it is a counter
	of         func(*doze.Usage) float64
}{
	{"doze_sandbox_awake", "1 if the sandbox is awake; of other: how many are.", false, func(u *doze.Usage) float64 {
		if u.Tier == machine.Awake.String() {
			return 1
		}
		return 0
	}},
	{"doze_sandbox_memory_bytes", "Memory of the host that the sandbox takes.", false, func(u *doze.Usage) float64 { return float64(u.Memory.ResidentBytes) }},
	{"doze_sandbox_swap_bytes", "Swap of the host that the sandbox takes.", false, func(u *doze.Usage) float64 { return float64(u.Memory.SwapBytes) }},
	{"doze_sandbox_checkpoint_bytes", "Disk that the checkpoint of the sandbox takes.", false, func(u *doze.Usage) float64 { return float64(u.Disk.CheckpointBytes) }},
	{"doze_sandbox_cpu_seconds_total", "Time of processors that the sandbox used.", true, func(u *doze.Usage) float64 { return u.Processor.Seconds }},
	{"doze_sandbox_received_bytes_total", "Bytes that came over the link of the sandbox.", true, func(u *doze.Usage) float64 { return float64(u.Network.ReceivedBytes) }},
	{"doze_sandbox_sent_bytes_total", "Bytes that the sandbox sent over its link.", true, func(u *doze.Usage) float64 { return float64(u.Network.SentBytes) }},
	{"doze_sandbox_wakes_total", "Wakes of the sandbox.", true, func(u *doze.Usage) float64 { return float64(u.Wakes.Count) }},
	{"doze_sandbox_wake_failures_total", "Wakes of the sandbox that did not work.", true, func(u *doze.Usage) float64 { return float64(u.Wakes.Failures) }},
	{"doze_sandbox_sleeps_total", "Pauses of the sandbox.", true, func(u *doze.Usage) float64 { return float64(u.Sleeps) }},
}

// sandboxes are the metrics of single sandboxes, if the operator wants some.
func (m *Metrics) sandboxes(of Sandboxes) (all []prometheus.Collector) {
	if of.Most == 0 {
		return nil
	}
	chosen := m.named.choose(of)
	for _, p := range perSandbox {
		labels := []string{"workspace", "sandbox"}
		gauges := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: p.name, Help: p.help}, labels)
		counters := prometheus.NewCounterVec(prometheus.CounterOpts{Name: p.name, Help: p.help}, labels)
		for _, s := range of.All {
			workspace, name := s.Workspace, s.Name
			if !chosen[s.UID] {
				workspace, name = "", other
			}
			if p.counts {
				counters.WithLabelValues(workspace, name).Add(p.of(&s.Usage))
			} else {
				gauges.WithLabelValues(workspace, name).Add(p.of(&s.Usage))
			}
		}
		if p.counts {
			all = append(all, counters)
		} else {
			all = append(all, gauges)
		}
	}
	return all
}
