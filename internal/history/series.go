package history

import (
	"math"
	"slices"

	dto "github.com/prometheus/client_model/go"

	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/metric"
	"github.com/dozehq/doze/internal/trace"
)

// kind is how the values of a series become those of a longer time.
type kind int

const (
	gauge   kind = iota // the mean
	count               // the sum
	latency             // the sum of each bucket of a histogram
)

// series is a row of the table: numbers of one metric.
type series struct {
	name, unit string
	kind       kind
	metric     string   // as /metrics has it; all its other labels are added up
	label      string   // empty: the series has one number
	values     []string // of the label
}

// quantiles are those of a latency, by the suffixes of their names. Callers get these and
// the count, never buckets.
var quantiles = []struct {
	suffix string
	of     float64
}{{"_p50", .5}, {"_p99", .99}}

// table are all series, in the order of answers.
var table = []series{
	{"sandboxes", "", gauge, "doze_sandboxes", "tier", metric.Tiers()},
	{"memory", "bytes", gauge, "doze_memory_bytes", "tier", metric.Tiers()},
	{"swap", "bytes", gauge, "doze_swap_bytes", "", nil},
	{"checkpoints", "bytes", gauge, "doze_checkpoint_bytes", "", nil},
	{"memory_committed", "bytes", gauge, "doze_memory_committed_bytes", "", nil},
	{"memory_committed_max", "bytes", gauge, "doze_memory_committed_max_bytes", "", nil},
	{"host_memory_available", "bytes", gauge, "doze_host_memory_available_bytes", "", nil},
	{"disk", "bytes", gauge, "doze_disk_bytes", "kind", diskKinds()},
	{"disk_free", "bytes", gauge, "doze_disk_free_bytes", "", nil},
	{"disk_reserve", "bytes", gauge, "doze_disk_reserve_bytes", "", nil},
	{"warm_machines", "", gauge, "doze_warm_machines", "", nil},
	{"creates", "seconds", latency, "doze_create_seconds", "source", trace.Sources},
	{"wakes", "seconds", latency, "doze_wake_seconds", "tier", metric.SleepTiers()},
	{"wake_failures", "", count, "doze_wake_failures_total", "reason", metric.Reasons()},
	{"sleep_failures", "", count, "doze_sleep_failures_total", "", nil},
	{"memory_refusals", "", count, "doze_memory_refusals_total", "", nil},
	{"quota_refusals", "", count, "doze_quota_refusals_total", "", nil},
	{"egress_decisions", "", count, "doze_egress_decisions_total", "verdict", metric.Verdicts()},
}

func diskKinds() (names []string) {
	for _, k := range fleet.DiskKinds {
		names = append(names, string(k))
	}
	return names
}

// bounds are the upper ones of the buckets of a latency, in seconds. The last bucket has
// what took longer.
var bounds = metric.LatencyBuckets()

// width is how many columns one value of the label takes.
func (s series) width() int {
	if s.kind == latency {
		return len(bounds) + 1
	}
	return 1
}

// labels are the values of the label; a series without a label has one number.
func (s series) labels() []string {
	if s.label == "" {
		return []string{""}
	}
	return s.values
}

// names are what callers may ask for.
func (s series) names() []string {
	if s.kind != latency {
		return []string{s.name}
	}
	names := []string{s.name}
	for _, q := range quantiles {
		names = append(names, s.name+q.suffix)
	}
	return names
}

// Names are all series that callers may ask for.
func Names() (names []string) {
	for _, s := range table {
		names = append(names, s.names()...)
	}
	return names
}

// column is one number of a record. A file names its columns, so that a later version
// with other series finds them.
type column struct {
	key  string
	kind kind
}

// columns are those of a record, in their order.
var columns = columnsOf(table)

func columnsOf(table []series) (all []column) {
	for _, s := range table {
		for _, label := range s.labels() {
			if s.kind != latency {
				all = append(all, column{s.name + "/" + label, s.kind})
				continue
			}
			for _, le := range slices.Concat(bounds, []float64{math.Inf(1)}) {
				all = append(all, column{s.name + "/" + label + "/" + text(le), s.kind})
			}
		}
	}
	return all
}

// totals reads the columns out of metrics. Those of counts are what was counted since
// the process that counts has started. A metric that is missing is NaN.
func totals(families map[string]*dto.MetricFamily) []float64 {
	var all []float64
	for _, s := range table {
		family := families[s.metric]
		for _, label := range s.labels() {
			all = append(all, s.total(family, label)...)
		}
	}
	return all
}

// total are the columns of one value of the label.
func (s series) total(family *dto.MetricFamily, label string) []float64 {
	sums := make([]float64, s.width())
	if family == nil && s.kind == gauge {
		return fill(sums, math.NaN())
	}
	for _, m := range family.GetMetric() {
		if s.label != "" && labelOf(m, s.label) != label {
			continue
		}
		switch s.kind {
		case latency:
			var below uint64
			for i, b := range m.GetHistogram().GetBucket()[:min(len(bounds), len(m.GetHistogram().GetBucket()))] {
				sums[i] += float64(b.GetCumulativeCount() - below)
				below = b.GetCumulativeCount()
			}
			sums[len(bounds)] += float64(m.GetHistogram().GetSampleCount() - below)
		case count:
			sums[0] += m.GetCounter().GetValue()
		case gauge:
			sums[0] += m.GetGauge().GetValue()
		}
	}
	return sums
}

func labelOf(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

func fill(all []float64, with float64) []float64 {
	for i := range all {
		all[i] = with
	}
	return all
}

// since are the values of a step: gauges as they are, and of counts what came since the
// totals before. Less than before means that the process began anew.
func since(before, now []float64) []float64 {
	step := slices.Clone(now)
	for i, c := range columns {
		switch {
		case c.kind == gauge:
		case before == nil:
			step[i] = math.NaN()
		case now[i] >= before[i]:
			step[i] = now[i] - before[i]
		}
	}
	return step
}

// fold makes the values of a longer time: means of gauges, and sums of counts. NaN are
// left out; without a value the longer time is NaN.
type fold struct {
	sums []float64
	n    []int
}

func newFold() *fold { return &fold{make([]float64, len(columns)), make([]int, len(columns))} }

func (f *fold) add(values []float64) {
	for i, v := range values {
		if !math.IsNaN(v) {
			f.sums[i] += v
			f.n[i]++
		}
	}
}

// empty reports whether nothing was added.
func (f *fold) empty() bool {
	return !slices.ContainsFunc(f.n, func(n int) bool { return n > 0 })
}

func (f *fold) values() []float64 {
	all := make([]float64, len(f.sums))
	for i, c := range columns {
		switch {
		case f.n[i] == 0:
			all[i] = math.NaN()
		case c.kind == gauge:
			all[i] = f.sums[i] / float64(f.n[i])
		default:
			all[i] = f.sums[i]
		}
	}
	return all
}

// quantile is the value below which a part of what the buckets count is, in seconds: NaN
// without any. Within a bucket it is interpolated, as Prometheus does it. What took longer
// than all bounds is at the last one.
func quantile(part float64, buckets []float64) float64 {
	var sum float64
	for _, n := range buckets {
		sum += n
	}
	if !(sum > 0) { // NaN too
		return math.NaN()
	}
	rank, below, low := part*sum, 0., 0.
	for i, n := range buckets[:len(bounds)] {
		if below+n >= rank && n > 0 {
			return low + (bounds[i]-low)*(rank-below)/n
		}
		below, low = below+n, bounds[i]
	}
	return low
}
