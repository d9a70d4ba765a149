package history

import (
	"context"
	"errors"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/metric"
	"github.com/dozehq/doze/internal/trace"
)

// families are the metrics of a process, as /metrics shows them.
func families(tb testing.TB, m *metric.Metrics, now metric.Now) map[string]*dto.MetricFamily {
	tb.Helper()
	page := metric.Page{Metrics: m, Now: func(context.Context) metric.Now { return now }}
	all, err := page.Families(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	return all
}

// busy are metrics that have counted something of each kind.
func busy() (*metric.Metrics, metric.Now) {
	m := metric.New()
	for _, tier := range []machine.Tier{machine.Paused, machine.Saved, machine.Swapped, machine.OnDisk} {
		m.Woke(tier, time.Millisecond, nil)
		m.Sank(tier, 0, errors.New("full"))
	}
	for _, from := range trace.Sources {
		m.Traced(trace.Record{Kind: trace.Create, From: from, Status: doze.TraceDone, Waited: time.Millisecond})
	}
	m.Refused("sandboxes")
	now := metric.Now{Disk: metric.Disk{Kinds: map[string]int64{}}}
	for _, k := range fleet.DiskKinds {
		now.Disk.Kinds[string(k)] = 1
	}
	return m, now
}

// TestTable: each series has a metric of its kind, and each value of a label that the
// metric has is a number of the series.
func TestTable(t *testing.T) {
	t.Parallel()
	kinds := map[kind]dto.MetricType{gauge: dto.MetricType_GAUGE, count: dto.MetricType_COUNTER, latency: dto.MetricType_HISTOGRAM}
	m, now := busy()
	all := families(t, m, now)
	for _, s := range table {
		f := all[s.metric]
		if f.GetType() != kinds[s.kind] || len(f.GetMetric()) == 0 {
			t.Errorf("%s: /metrics has no such %v: %v", s.name, kinds[s.kind], s.metric)
			continue
		}
		seen := map[string]bool{}
		for _, one := range f.GetMetric() {
			seen[labelOf(one, s.label)] = true
			if s.label != "" && !slices.Contains(s.values, labelOf(one, s.label)) {
				t.Errorf("%s: %s=%q is left out", s.name, s.label, labelOf(one, s.label))
			}
			if s.kind == latency && len(one.GetHistogram().GetBucket()) != len(bounds) {
				t.Errorf("%s has %d buckets", s.metric, len(one.GetHistogram().GetBucket()))
			}
		}
		for _, v := range s.values {
			if !seen[v] {
				t.Errorf("%s: no metric has %s=%q", s.name, s.label, v)
			}
		}
	}
	keys := map[string]bool{}
	for _, c := range columns {
		if len(c.key) > keyMax || keys[c.key] {
			t.Errorf("the column %q is there twice, or too long", c.key)
		}
		keys[c.key] = true
	}
	if len(columns) > columnsMax || len(totals(all)) != len(columns) || len((layout{DetailStep, 1, columnKeys()}).encode()) > headerMax {
		t.Errorf("%d columns, %d totals", len(columns), len(totals(all)))
	}
}

func columnKeys() (keys []string) {
	for _, c := range columns {
		keys = append(keys, c.key)
	}
	return keys
}

// values of the one series with a name and a value of its label; -1 stands for null.
func values(t *testing.T, h doze.History, name, label string) (all []float64) {
	t.Helper()
	for _, s := range h.Series {
		match := label == "" && len(s.Labels) == 0
		for _, v := range s.Labels {
			match = match || v == label
		}
		if s.Name != name || !match {
			continue
		}
		for _, v := range s.Values {
			if v == nil {
				all = append(all, -1)
				continue
			}
			all = append(all, *v)
		}
		return all
	}
	t.Fatalf("there is no series %s %s", name, label)
	return nil
}

func read(t *testing.T, h *History, query string) doze.History {
	t.Helper()
	v, err := url.ParseQuery(query)
	if err != nil {
		t.Fatal(err)
	}
	q, err := parse(v, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return h.Read(q)
}

// TestHistoryIsRead: what was counted in two days is there, in detail and coarsely, over
// a restart and a time without metrics. The loop ends with its context.
func TestHistoryIsRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now().UTC() // 2000-01-01, midnight
		dir := t.TempDir()
		m := metric.New()
		var broken error
		source := func(context.Context) (map[string]*dto.MetricFamily, error) {
			return families(t, m, metric.Now{Warm: 3, Memory: metric.Memory{Available: 7 << 30}}), broken
		}
		run := func(took time.Duration, each func()) {
			h, err := Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			if other, err := Open(dir); err == nil {
				t.Error("two processes write it", other.Close())
			}
			ctx, stop := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() { defer close(done); _ = h.Run(ctx, source) }()
			for end := time.Now().Add(took); time.Now().Before(end); time.Sleep(5 * time.Minute) {
				each()
			}
			stop()
			<-done
			if err := h.Close(); err != nil {
				t.Error(err)
			}
		}
		wake := func() { m.Woke(machine.Paused, 3*time.Millisecond, nil) }
		time.Sleep(time.Second)
		run(25*time.Hour, wake)
		broken = errors.New("no node")
		run(time.Hour, wake)
		broken, m = nil, metric.New()
		run(time.Hour, wake) // its counters begin again

		h, err := Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = h.Close() }()
		at := func(d time.Duration) string { return begin.Add(d).Format(time.RFC3339) }
		// In detail, of the last day. The first wake of a step of five minutes is in its first record.
		got := read(t, h, "series=wakes,wakes_p99,warm_machines&from="+at(20*time.Hour)+"&to="+at(20*time.Hour+10*time.Minute)+"&step=5m")
		if v := values(t, got, "wakes", "paused"); !slices.Equal(v, []float64{1, 1}) || got.Step != 300 || len(got.Series) != 9 {
			t.Errorf("wakes %v in steps of %d s, %d series", v, got.Step, len(got.Series))
		}
		if v := values(t, got, "wakes_p99", "paused"); v[0] < .0025 || v[0] > .005 {
			t.Errorf("p99 is %v, want 3 ms by its bucket", v)
		}
		if v := values(t, got, "wakes_p99", "disk"); !slices.Equal(v, []float64{-1, -1}) {
			t.Errorf("without a wake p99 is %v", v)
		}
		if v := values(t, got, "warm_machines", ""); !slices.Equal(v, []float64{3, 3}) {
			t.Errorf("warm machines: %v", v)
		}
		// Coarsely, of the day before.
		got = read(t, h, "from="+at(time.Hour)+"&to="+at(2*time.Hour)+"&step=30m")
		if v := values(t, got, "wakes", "paused"); !slices.Equal(v, []float64{6, 6}) {
			t.Errorf("coarse wakes: %v", v)
		}
		if v := values(t, got, "host_memory_available", ""); !slices.Equal(v, []float64{7 << 30, 7 << 30}) {
			t.Errorf("coarse memory: %v", v)
		}
		// While there were no metrics, and after it.
		got = read(t, h, "series=wakes&from="+at(25*time.Hour)+"&to="+at(27*time.Hour)+"&step=30m")
		if v := values(t, got, "wakes", "paused"); len(v) != 4 || !slices.Equal(v[:2], []float64{-1, -1}) || v[2] < 5 || v[3] != 6 {
			t.Errorf("after a gap: %v", v)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) != 2 {
			t.Errorf("files: %v, %v", left, err)
		}
	})
}

// TestRound: a ring has its last steps, and no longer those before.
func TestRound(t *testing.T) {
	t.Parallel()
	r, err := openRing(filepath.Join(t.TempDir(), "ring"), layout{time.Second, 5, []string{"a"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.f.Close() }()
	begin := time.Unix(1_000_003, 0)
	for i := range 12 {
		if err := r.write(begin.Add(time.Duration(i)*time.Second), []float64{float64(i)}); err != nil {
			t.Fatal(err)
		}
	}
	var got []float64
	for _, v := range r.between(begin, begin.Add(time.Minute)) {
		got = append(got, v[0])
	}
	if len(got) != 0 { // the last five steps of that minute are not there yet
		t.Errorf("of the future: %v", got)
	}
	for _, v := range r.between(begin, begin.Add(12*time.Second)) {
		got = append(got, v[0])
	}
	if !slices.Equal(got, []float64{7, 8, 9, 10, 11}) {
		t.Errorf("got %v", got)
	}
}

// TestTorn: a record that was written in part is left out, and the others are there.
func TestTorn(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "ring")
	l := layout{time.Second, 5, []string{"a", "b"}}
	r, err := openRing(name, l)
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Unix(1_000_000, 0)
	for i := range 5 {
		if err := r.write(begin.Add(time.Duration(i)*time.Second), []float64{float64(i), math.NaN()}); err != nil {
			t.Fatal(err)
		}
	}
	torn := encodeRecord(begin.Add(7*time.Second), []float64{7, 7})
	if _, err := r.f.WriteAt(torn[:len(torn)/2], r.begin+r.slot(begin.Add(7*time.Second))*int64(len(torn))); err != nil {
		t.Fatal(err)
	}
	if err := r.f.Close(); err != nil {
		t.Fatal(err)
	}
	// Another version has other columns.
	r, err = openRing(name, layout{time.Second, 5, []string{"new", "a"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.f.Close() }()
	var got []float64
	for _, v := range r.between(begin, begin.Add(5*time.Second)) {
		if !math.IsNaN(v[0]) {
			t.Errorf("a new column is %v", v[0])
		}
		got = append(got, v[1])
	}
	if !slices.Equal(got, []float64{0, 1, 3, 4}) {
		t.Errorf("got %v", got)
	}
}

func TestMistakes(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	for query, want := range map[string]string{
		"series=nonsense":                    `no series "nonsense": choose of sandboxes`,
		"from=yesterday":                     "is not a time",
		"from=2026-11-27T13:00:00Z":          "must be before to",
		"from=2026-10-01T00:00:00Z":          "more than 30 days ago",
		"step=15s":                           "must be a multiple of 10s",
		"from=2026-11-20T12:00:00Z&step=1m":  "must be a multiple of 10m",
		"from=2026-11-26T13:00:00Z&step=10s": "at most 1440 steps, so ask for step=1m or more",
		"step=soon":                          "is not a duration",
	} {
		v, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = parse(v, now); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", query, err, want)
		}
	}
	for _, query := range []string{"", "from=2026-10-29T12:00:00Z", "from=2026-11-26T12:00:00Z&step=1m", "step=10s"} {
		v, _ := url.ParseQuery(query)
		q, err := parse(v, now)
		if points := q.To.Sub(q.From) / q.Step; err != nil || points < 1 || points > PointsMax+1 {
			t.Errorf("%s: %d points, %v", query, points, err)
		}
	}
}

func TestQuantile(t *testing.T) {
	t.Parallel()
	buckets := make([]float64, len(bounds)+1)
	if v := quantile(.5, buckets); !math.IsNaN(v) {
		t.Errorf("of nothing: %v", v)
	}
	buckets[2] = 10 // from 2.5 to 5 ms
	if v := quantile(.5, buckets); math.Abs(v-.00375) > 1e-9 {
		t.Errorf("p50 is %v", v)
	}
	buckets[len(bounds)] = 90
	if v := quantile(.99, buckets); v != bounds[len(bounds)-1] {
		t.Errorf("p99 is %v", v)
	}
}

// FuzzRing: whatever a file has, it becomes a history that can be written.
func FuzzRing(f *testing.F) {
	l := layout{time.Second, 3, []string{"a"}}
	good := append(l.encode(), encodeRecord(time.Unix(3, 0), []float64{1})...)
	f.Add(good)
	f.Add(good[:len(good)-1])
	f.Add([]byte(magic))
	f.Add((layout{time.Second, 9, []string{"b", "a"}}).encode())
	f.Fuzz(func(t *testing.T, raw []byte) {
		name := filepath.Join(t.TempDir(), "ring")
		if err := os.WriteFile(name, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := openRing(name, l)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = r.f.Close() }()
		for _, v := range r.all() {
			if len(v) != 1 {
				t.Fatalf("a record has %d columns", len(v))
			}
		}
		at := time.Unix(1_000_000_000, 0)
		if err := r.write(at, []float64{5}); err != nil || !r.has(at) {
			t.Fatalf("a record is lost: %v", err)
		}
	})
}

// BenchmarkStep is what one step of the history costs, without the question for metrics.
func BenchmarkStep(b *testing.B) {
	h, err := Open(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = h.Close() }()
	m, now := busy()
	all := families(b, m, now)
	before, at := totals(all), time.Unix(1_000_000_000, 0)
	for b.Loop() {
		at = at.Add(DetailStep)
		if err := h.record(at, since(before, totals(all))); err != nil {
			b.Fatal(err)
		}
	}
}
