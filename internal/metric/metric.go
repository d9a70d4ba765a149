// Package metric counts how the sandboxes of a node sleep and wake and what they
// take of the host, and shows it as Prometheus reads it. It names a sandbox and its
// workspace only if the operator wants that.
package metric

import (
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/trace"
)

// prepared is how a machine on disk is called whose next process waits.
const prepared = "prepared"

// asleep are the tiers that a wake begins in.
var asleep = []machine.Tier{machine.Paused, machine.Saved, machine.Swapped, machine.OnDisk}

// tiers are the values of the label, in the order of [machine.Tier].
var tiers = []string{
	machine.Awake.String(), machine.Paused.String(), machine.Saved.String(), machine.Swapped.String(), prepared, machine.OnDisk.String(),
}

// Tiers are where the memory of sandboxes is, as the label tier says it.
func Tiers() []string { return slices.Clone(tiers) }

// SleepTiers are those that a wake begins in.
func SleepTiers() (names []string) {
	for _, t := range asleep {
		names = append(names, t.String())
	}
	return names
}

// LatencyBuckets are the upper bounds of doze_wake_seconds and doze_create_seconds.
func LatencyBuckets() []float64 { return slices.Clone(wakeBuckets) }

// Verdicts are what the egress rules say, as the label verdict has it.
func Verdicts() []string { return []string{verdicts[true], verdicts[false]} }

// wakeBuckets are seconds: what we aim for is 25 ms, and a large sandbox on a
// slow disk takes some seconds.
var wakeBuckets = []float64{.001, .0025, .005, .01, .015, .025, .05, .1, .25, .5, 1, 2.5, 5, 15, 60}

// stageBuckets are seconds: most stages take less than a millisecond.
var stageBuckets = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10, 60}

// Cost is what one sandbox takes of the host.
type Cost struct {
	Tier  machine.Tier
	Ready bool // on disk, with a process that waits for the next wake
	machine.Stats
}

func (c Cost) tier() string {
	if c.Ready {
		return prepared
	}
	return c.Tier.String()
}

// Metrics are the counts of one process since it started.
type Metrics struct {
	named        named // sandboxes with metrics of their own
	registry     *prometheus.Registry
	wakes        *prometheus.HistogramVec
	wakeFailures *prometheus.CounterVec
	wakeStages   *prometheus.HistogramVec
	creates      *prometheus.HistogramVec
	createStages *prometheus.HistogramVec
	moves        *prometheus.HistogramVec
	moveFailures *prometheus.CounterVec
	decisions    *prometheus.CounterVec
	refusals     *prometheus.CounterVec
	images       prometheus.Counter
	imageBytes   prometheus.Counter
}

// New returns metrics that count nothing yet.
func New() *Metrics {
	label := []string{"tier"}
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		wakes: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "doze_wake_seconds", Buckets: wakeBuckets,
			Help: "How long wakes took from the request until the sandbox ran, by the tier that it slept in.",
		}, label),
		wakeFailures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "doze_wake_failures_total", Help: "Wakes that did not work, by the tier that the sandbox sleeps in, and why.",
		}, []string{"tier", "reason"}),
		wakeStages: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "doze_wake_stage_seconds", Buckets: stageBuckets,
			Help: "How long the stages of wakes took, by the tier that the sandbox slept in. Some stages are within others, or run at the same time.",
		}, []string{"stage", "tier"}),
		creates: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "doze_create_seconds", Buckets: wakeBuckets,
			Help: "How long creates took from the request until the sandbox was ready, by what its machine is made of.",
		}, []string{"source"}),
		createStages: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "doze_create_stage_seconds", Buckets: stageBuckets,
			Help: "How long the stages of creates took, by what the machine is made of. Some stages are within others, or run at the same time.",
		}, []string{"stage", "source"}),
		moves: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "doze_sleep_seconds", Buckets: wakeBuckets,
			Help: "How long moves to a lower tier took, by that tier.",
		}, label),
		moveFailures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "doze_sleep_failures_total", Help: "Moves to a lower tier that did not work, by that tier.",
		}, label),
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "doze_egress_decisions_total", Help: "Connections and requests of sandboxes to the outside, but for those that go straight out, by what the rules said.",
		}, []string{"verdict"}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "doze_quota_refusals_total", Help: "Calls that a quota of a workspace, or the limit of a credential, refused, by its name.",
		}, []string{"quota"}),
		images: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "doze_images_removed_total", Help: "Images that were removed because nothing needed them.",
		}),
		imageBytes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "doze_images_removed_bytes_total", Help: "Bytes of these images.",
		}),
	}
	for _, tier := range asleep {
		for _, r := range Reasons() { // 0 before the first one, so that its increase is seen
			m.wakeFailures.WithLabelValues(tier.String(), r)
		}
	}
	for _, v := range verdicts {
		m.decisions.WithLabelValues(v)
	}
	m.registry.MustRegister(
		m.wakes, m.wakeFailures, m.wakeStages, m.creates, m.createStages, m.moves, m.moveFailures, m.decisions, m.refusals, m.images, m.imageBytes,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return m
}

// Woke counts a wake.
func (m *Metrics) Woke(from machine.Tier, took time.Duration, err error) {
	if err != nil {
		m.wakeFailures.WithLabelValues(from.String(), reason(err)).Inc()
		return
	}
	m.wakes.WithLabelValues(from.String()).Observe(took.Seconds())
}

// Traced counts the stages of a wake or create that worked.
func (m *Metrics) Traced(r trace.Record) {
	if r.Status != doze.TraceDone || r.From == "" {
		return
	}
	stages := m.wakeStages
	if r.Kind == trace.Create {
		stages = m.createStages
		m.creates.WithLabelValues(r.From).Observe(r.Waited.Seconds())
	}
	for _, s := range r.Spans {
		stages.WithLabelValues(s.Stage.String(), r.From).Observe(s.Took.Seconds())
	}
}

// Sank counts a move to a lower tier.
func (m *Metrics) Sank(to machine.Tier, took time.Duration, err error) {
	if err != nil {
		m.moveFailures.WithLabelValues(to.String()).Inc()
		return
	}
	m.moves.WithLabelValues(to.String()).Observe(took.Seconds())
}

// Collected counts an image that was removed because nothing needed it.
func (m *Metrics) Collected(bytes int64) {
	m.images.Inc()
	m.imageBytes.Add(float64(bytes))
}

// verdicts are the values of the label.
var verdicts = map[bool]string{true: "allow", false: "deny"}

// Decided counts a connection or a request of a sandbox to the outside.
func (m *Metrics) Decided(allow bool) { m.decisions.WithLabelValues(verdicts[allow]).Inc() }

// Refused counts a call that a quota refused.
func (m *Metrics) Refused(quota string) { m.refusals.WithLabelValues(quota).Inc() }

// Packets are what the kernel has counted of sandboxes, by protocol.
type Packets struct {
	Refused map[string]uint64
	Passed  map[string]uint64 // the first ones of flows
}

// Disk is how full the disk of the data is, in bytes.
type Disk struct {
	Kinds                   map[string]int64 // by what takes them
	Free, Reserve, Reserved int64            // Reserved is the sum of the sizes of volumes
}

// Memory is what the node reserves of its memory, in bytes.
type Memory struct {
	Committed, Most, Limit int64
	Refusals               uint64
	// Compressed is what compressed swap takes, and CompressedMost what it may.
	Compressed, CompressedMost int64
	Available                  int64 // of the host, without swapping
}

// reservations shows what is reserved. No limit shows 0.
func reservations(m Memory) (all []prometheus.Collector) {
	for _, g := range []struct {
		name, help string
		value      int64
	}{
		{"doze_memory_committed_bytes", "Memory that sandboxes which are not asleep on disk or in swap may take.", m.Committed},
		{"doze_memory_committed_max_bytes", "Memory that sandboxes may reserve; creates, forks and wakes over it are refused.", m.Most},
		{"doze_memory_limit_bytes", "Memory that all sandboxes can take together.", m.Limit},
		{"doze_host_memory_available_bytes", "Memory of the host that can be taken without swapping.", m.Available},
		{"doze_compressed_memory_bytes", "Memory that compressed swap of the platform takes.", m.Compressed},
		{"doze_compressed_memory_max_bytes", "Memory that compressed swap of the platform may take; sandboxes do not get it.", m.CompressedMost},
	} {
		all = append(all, gauge(g.name, g.help, g.value))
	}
	refusals := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "doze_memory_refusals_total", Help: "Creates, forks and wakes that were refused because all memory was reserved.",
	})
	refusals.Add(float64(m.Refusals))
	return append(all, refusals)
}

// Front is what clients did to the listeners, by reason.
type Front struct {
	Open     int               // connections, now
	Refused  map[string]uint64 // connections
	Requests map[string]uint64 // that were refused, or ended before their time
	// Certificates are the earliest ends of certificates, by their source.
	Certificates map[string]time.Time
}

// With adds ends of certificates to those that f has.
func (f Front) With(ends map[string]time.Time) Front {
	all := maps.Clone(ends)
	maps.Copy(all, f.Certificates)
	f.Certificates = all
	return f
}

// ends shows the earliest ends of certificates. Without a certificate there is none.
func (f Front) ends() prometheus.Collector {
	vec := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "doze_certificate_end_seconds", Help: "Unix time at which the first of the certificates that clients got ends, by source: file or authority. In a fleet, also those of control, edge, node/<id>, and of roles, the authority of these.",
	}, []string{"source"})
	for source, at := range f.Certificates {
		vec.WithLabelValues(source).Set(float64(at.Unix()))
	}
	return vec
}

// Checkpoints are the last ones of the sandboxes that run.
type Checkpoints struct {
	Oldest  time.Duration
	Overdue int // how many could not be renewed in time
}

// Nodes are those of a fleet, and what became of sandboxes that had to leave one.
type Nodes struct {
	States           map[string]int64 // how many are in each state
	Memory, Reserved int64            // bytes, of those that are here
	Losses           uint64
	Rescues, Moves   map[string]uint64 // sandboxes, by result
	Files, FileBytes uint64            // that were dropped from the bucket
	Restored         bool              // the records were restored, and nobody has settled them
}

// gauges are none where there is no fleet.
func (n Nodes) gauges() []prometheus.Collector {
	if n.States == nil {
		return nil
	}
	states := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "doze_nodes", Help: "Nodes on record, by state. One that is away keeps its lease, or has none."}, []string{"state"})
	for state, many := range n.States {
		states.WithLabelValues(state).Set(float64(many))
	}
	losses := prometheus.NewCounter(prometheus.CounterOpts{Name: "doze_nodes_lost_total", Help: "Leases of nodes that ended."})
	losses.Add(float64(n.Losses))
	files := prometheus.NewCounter(prometheus.CounterOpts{Name: "doze_bucket_files_dropped_total", Help: "Root file systems and agents that were dropped from the bucket, since no copy needed them."})
	files.Add(float64(n.Files))
	bytes := prometheus.NewCounter(prometheus.CounterOpts{Name: "doze_bucket_files_dropped_bytes_total", Help: "What these took there."})
	bytes.Add(float64(n.FileBytes))
	restored := int64(0)
	if n.Restored {
		restored = 1
	}
	return []prometheus.Collector{
		states, losses, files, bytes,
		gauge("doze_records_restored", "1 while the records were restored, and doze node settle is outstanding.", restored),
		gauge("doze_nodes_memory_bytes", "Memory that sandboxes can have on all nodes that are here.", n.Memory),
		gauge("doze_nodes_reserved_bytes", "Of this memory, what awake sandboxes may use.", n.Reserved),
		counts("doze_rescues_total", "Sandboxes of lost nodes, by what became of them: resumed elsewhere, or failed.", "result", n.Rescues),
		counts("doze_moves_total", "Sandboxes that were to move to another node, by what became of them: moved, or stayed.", "result", n.Moves),
	}
}

// Now is what others know at the moment of an answer.
type Now struct {
	Costs     []Cost // of sandboxes
	Sandboxes Sandboxes
	Memory    Memory
	Warm      int // machines that have booted and belong to no sandbox
	Packets   Packets
	Disk      Disk
	Front     Front
	Drops     map[string]uint64 // traces that were not exported, by reason

	Checkpoints Checkpoints
	Nodes       Nodes
}

// gatherer is everything that this process counts, and what is known now.
func (m *Metrics) gatherer(is Now) prometheus.Gatherer {
	now := prometheus.NewRegistry()
	now.MustRegister(gauges(is.Costs)...)
	now.MustRegister(m.sandboxes(is.Sandboxes)...)
	now.MustRegister(is.Disk.gauges()...)
	now.MustRegister(reservations(is.Memory)...)
	now.MustRegister(is.Nodes.gauges()...)
	now.MustRegister(
		gauge("doze_checkpoint_age_seconds", "Age of the oldest last checkpoint of a sandbox that runs: what a crash would lose at most, of those that have one.", int64(is.Checkpoints.Oldest.Seconds())),
		gauge("doze_checkpoints_overdue", "Sandboxes that run whose last checkpoint is older than --checkpoint-every.", int64(is.Checkpoints.Overdue)),
		gauge("doze_warm_machines", "Machines that have booted and belong to no sandbox.", int64(is.Warm)),
		is.Front.ends(),
		gauge("doze_connections", "Connections of clients that are open.", int64(is.Front.Open)),
		counts("doze_connections_refused_total", "Connections of clients that were refused, or closed before their time, by reason.", "reason", is.Front.Refused),
		counts("doze_requests_refused_total", "Requests of clients that were refused, or ended before their time, by reason.", "reason", is.Front.Requests),
		counts("doze_trace_drops_total", "Traces that were not exported, by reason.", "reason", is.Drops),
		counts("doze_egress_refused_packets_total", "Packets of sandboxes that the filter refused, by protocol; none of them is among the decisions.", "protocol", is.Packets.Refused),
		counts("doze_egress_passed_flows_total", "Flows of sandboxes that the filter let past the proxy, by protocol; none of them is among the decisions.", "protocol", is.Packets.Passed),
	)
	return prometheus.Gatherers{m.registry, now}
}

// Serve answers with all metrics, and with what others know now.
func (m *Metrics) Serve(w http.ResponseWriter, r *http.Request, is Now) {
	promhttp.HandlerFor(m.gatherer(is), promhttp.HandlerOpts{}).ServeHTTP(w, r)
}

// gauges are those of the disk.
func (d Disk) gauges() []prometheus.Collector {
	kinds := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "doze_disk_bytes", Help: "Disk that images, checkpoints, volumes and the rest take, by kind.",
	}, []string{"kind"})
	for kind, n := range d.Kinds {
		kinds.WithLabelValues(kind).Set(float64(n))
	}
	all := []prometheus.Collector{kinds}
	for _, g := range []struct {
		name, help string
		value      int64
	}{
		{"doze_disk_free_bytes", "Disk that is free.", d.Free},
		{"doze_disk_reserve_bytes", "Disk that is kept free.", d.Reserve},
		{"doze_volume_reserved_bytes", "Sizes of all volumes, which their sandboxes may fill.", d.Reserved},
	} {
		all = append(all, gauge(g.name, g.help, g.value))
		if old := renamed[g.name]; old != "" {
			all = append(all, gauge(old, "deprecated: "+g.name+" is the same.", g.value))
		}
	}
	return all
}

// renamed are the names that metrics had in the version before, by their names now.
// Both are shown for one version, so that dashboards can follow.
var renamed = map[string]string{
	"doze_volume_reserved_bytes": "doze_volume_promised_bytes",
}

// counts are what was counted elsewhere, by a label.
func counts(name, help, label string, of map[string]uint64) prometheus.Collector {
	vec := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
	for value, n := range of {
		vec.WithLabelValues(value).Add(float64(n))
	}
	return vec
}

// gauge is one number.
func gauge(name, help string, n int64) prometheus.Collector {
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	g.Set(float64(n))
	return g
}

// gauges adds up what sandboxes take, by tier. A tier without any shows 0.
func gauges(costs []Cost) (all []prometheus.Collector) {
	for _, g := range []struct {
		name, help string
		of         func(Cost) int64
	}{
		{"doze_sandboxes", "Sandboxes, by where their memory is.", func(Cost) int64 { return 1 }},
		{"doze_memory_bytes", "Memory of the host that sandboxes take.", func(c Cost) int64 { return c.MemoryBytes }},
		{"doze_swap_bytes", "Swap of the host that sandboxes take.", func(c Cost) int64 { return c.SwapBytes }},
		{"doze_checkpoint_bytes", "Disk that the checkpoints of sandboxes take.", func(c Cost) int64 { return c.DiskBytes }},
		{"doze_storage_bytes", "Disk that the files of sandboxes take that are on disk.", func(c Cost) int64 { return c.StorageBytes }},
	} {
		vec := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: g.name, Help: g.help}, []string{"tier"})
		for _, t := range tiers {
			vec.WithLabelValues(t)
		}
		for _, c := range costs {
			vec.WithLabelValues(c.tier()).Add(float64(g.of(c)))
		}
		all = append(all, vec)
	}
	return all
}
