package metric_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/metric"
	"github.com/dozehq/doze/internal/trace"
)

func TestMetrics(t *testing.T) {
	t.Parallel()
	m := metric.New()
	m.Woke(machine.Paused, 2*time.Millisecond, nil)
	m.Woke(machine.Swapped, 12*time.Millisecond, nil)
	m.Woke(machine.Swapped, 40*time.Millisecond, nil)
	m.Woke(machine.OnDisk, time.Second, errors.New("broken"))
	m.Sank(machine.Saved, 300*time.Millisecond, nil)
	m.Sank(machine.Swapped, time.Second, errors.New("full"))

	spans := []trace.Span{{Stage: trace.Turn, Within: -1, Took: 2 * time.Millisecond}, {Stage: trace.Engine, Within: -1, Took: 40 * time.Millisecond}}
	m.Traced(trace.Record{Kind: trace.Wake, From: "saved", Status: doze.TraceDone, Waited: time.Second, Spans: spans})
	m.Traced(trace.Record{Kind: trace.Wake, From: "disk", Status: doze.TraceFailed, Spans: spans})
	m.Traced(trace.Record{Kind: trace.Create, From: trace.FromSnapshot, Status: doze.TraceDone, Waited: 90 * time.Millisecond, Spans: spans})

	m.Decided(true)
	m.Decided(true)
	m.Collected(1000)

	w := httptest.NewRecorder()
	m.Serve(w, httptest.NewRequest(http.MethodGet, "/metrics", nil), metric.Now{
		Costs: []metric.Cost{
			{Tier: machine.Awake, Stats: machine.Stats{MemoryBytes: 100}},
			{Tier: machine.Swapped, Stats: machine.Stats{MemoryBytes: 1, SwapBytes: 50, DiskBytes: 60}},
			{Tier: machine.Swapped, Stats: machine.Stats{MemoryBytes: 2, SwapBytes: 50, DiskBytes: 60}},
			{Tier: machine.OnDisk, Ready: true, Stats: machine.Stats{MemoryBytes: 10, DiskBytes: 7}},
			{Tier: machine.OnDisk, Stats: machine.Stats{DiskBytes: 7}},
		}, Memory: metric.Memory{Committed: 11, Most: 22, Limit: 33, Refusals: 44, Compressed: 55, CompressedMost: 66, Available: 111}, Warm: 99, Checkpoints: metric.Checkpoints{Oldest: 77 * time.Second, Overdue: 88},
		Packets: metric.Packets{Refused: map[string]uint64{"tcp": 3, "udp": 0}, Passed: map[string]uint64{"udp": 5}},
		Disk:    metric.Disk{Kinds: map[string]int64{"image": 9, "volume": 0}, Free: 70, Reserve: 5, Reserved: 40},
		Drops:   map[string]uint64{"full": 8},
		Nodes:   metric.Nodes{States: map[string]int64{"ready": 2, "lost": 1}, Memory: 12, Reserved: 13, Losses: 14, Rescues: map[string]uint64{"resumed": 15}, Moves: map[string]uint64{"stayed": 16}, Files: 17, FileBytes: 18, Restored: true},
		Front:   metric.Front{Open: 7, Refused: map[string]uint64{"source": 2}, Requests: map[string]uint64{"rate": 0}, Certificates: map[string]time.Time{"file": time.Unix(1e9, 0)}},
	})
	for _, line := range []string{
		`doze_sandboxes{tier="awake"} 1`,
		`doze_sandboxes{tier="paused"} 0`,
		`doze_sandboxes{tier="swapped"} 2`,
		`doze_sandboxes{tier="prepared"} 1`,
		`doze_sandboxes{tier="disk"} 1`,
		`doze_memory_bytes{tier="awake"} 100`,
		`doze_memory_bytes{tier="swapped"} 3`,
		`doze_memory_bytes{tier="prepared"} 10`,
		`doze_memory_bytes{tier="disk"} 0`,
		"doze_memory_committed_bytes 11",
		"doze_memory_committed_max_bytes 22",
		"doze_compressed_memory_bytes 55",
		"doze_checkpoint_age_seconds 77",
		"doze_checkpoints_overdue 88",
		`doze_nodes{state="ready"} 2`,
		`doze_nodes{state="lost"} 1`,
		"doze_nodes_lost_total 14",
		"doze_nodes_memory_bytes 12",
		"doze_nodes_reserved_bytes 13",
		`doze_rescues_total{result="resumed"} 15`,
		`doze_moves_total{result="stayed"} 16`,
		"doze_bucket_files_dropped_total 17",
		"doze_records_restored 1",
		"doze_bucket_files_dropped_bytes_total 18",
		"doze_compressed_memory_max_bytes 66",
		"doze_memory_limit_bytes 33",
		"doze_memory_refusals_total 44",
		`doze_swap_bytes{tier="swapped"} 100`,
		`doze_checkpoint_bytes{tier="swapped"} 120`,
		`doze_wake_seconds_bucket{tier="swapped",le="0.015"} 1`,
		`doze_wake_seconds_bucket{tier="swapped",le="0.05"} 2`,
		`doze_wake_seconds_count{tier="swapped"} 2`,
		`doze_wake_failures_total{reason="engine",tier="disk"} 1`,
		`doze_wake_failures_total{reason="memory",tier="paused"} 0`,
		"doze_warm_machines 99",
		"doze_host_memory_available_bytes 111",
		`doze_certificate_end_seconds{source="file"} 1e+09`,
		`doze_wake_stage_seconds_count{stage="turn",tier="saved"} 1`,
		`doze_wake_stage_seconds_bucket{stage="engine",tier="saved",le="0.025"} 0`,
		`doze_wake_stage_seconds_bucket{stage="engine",tier="saved",le="0.05"} 1`,
		`doze_create_stage_seconds_count{source="snapshot",stage="engine"} 1`,
		`doze_create_seconds_bucket{source="snapshot",le="0.05"} 0`,
		`doze_create_seconds_bucket{source="snapshot",le="0.1"} 1`,
		`doze_trace_drops_total{reason="full"} 8`,
		`doze_sleep_seconds_count{tier="saved"} 1`,
		`doze_egress_decisions_total{verdict="allow"} 2`,
		`doze_egress_decisions_total{verdict="deny"} 0`,
		`doze_sleep_failures_total{tier="swapped"} 1`,
		`doze_egress_refused_packets_total{protocol="tcp"} 3`,
		`doze_egress_refused_packets_total{protocol="udp"} 0`,
		`doze_egress_passed_flows_total{protocol="udp"} 5`,
		`doze_images_removed_total 1`,
		`doze_images_removed_bytes_total 1000`,
		`doze_disk_bytes{kind="image"} 9`,
		`doze_disk_bytes{kind="volume"} 0`,
		`doze_disk_free_bytes 70`,
		`doze_disk_reserve_bytes 5`,
		`doze_volume_reserved_bytes 40`,
		`doze_connections 7`,
		`doze_connections_refused_total{reason="source"} 2`,
		`doze_requests_refused_total{reason="rate"} 0`,
	} {
		if !strings.Contains(w.Body.String(), line+"\n") {
			t.Errorf("%s is missing", line)
		}
	}
	if strings.Contains(w.Body.String(), `tier="disk",le=`) || strings.Contains(w.Body.String(), `doze_wake_seconds_count{tier="disk"}`) {
		t.Error("a wake that did not work is counted among those that did")
	}
	if w.Code != http.StatusOK || !strings.HasPrefix(w.Header().Get("Content-Type"), "text/plain") {
		t.Errorf("%d, %s", w.Code, w.Header().Get("Content-Type"))
	}
}

// BenchmarkTraced is what the caller of a wake waits for its metrics.
func BenchmarkTraced(b *testing.B) {
	m := metric.New()
	r := trace.Record{Kind: trace.Wake, From: "disk", Status: doze.TraceDone}
	for s := range 12 {
		r.Spans = append(r.Spans, trace.Span{Stage: trace.Stage(s), Within: -1, Took: time.Millisecond})
	}
	for b.Loop() {
		m.Traced(r)
	}
	b.ReportMetric(100*float64(b.Elapsed())/float64(b.N)/float64(time.Millisecond), "%of1ms")
}
