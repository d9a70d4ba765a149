package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// row is one case of one benchmark. Times are in milliseconds.
type row struct {
	Bench string  `json:"bench"`
	Case  string  `json:"case"`
	N     int     `json:"n"`
	Min   float64 `json:"min_ms"`
	P50   float64 `json:"p50_ms"`
	P99   float64 `json:"p99_ms"`
	Max   float64 `json:"max_ms"`
	// Vs is the p50 from the same run of the yardstick that has that name, if the case
	// has one.
	Vs        float64 `json:"vs_ms,omitempty"`
	Yardstick string  `json:"yardstick,omitempty"`
	// Unsupported says why the host cannot do it; then there are no times.
	Unsupported string `json:"unsupported,omitempty"`
	// Rate is how many bytes the case moves in its p50, in MB/s; 0 if it moves none.
	Rate float64 `json:"mb_per_s,omitempty"`
	// Answer is the p50 of the processor time that the whole platform takes for a
	// sample until its answer is there, Cost until its work is over; each is 0 if
	// nobody looked.
	Answer float64 `json:"answer_cpu_ms,omitempty"`
	Cost   float64 `json:"cpu_ms,omitempty"`
	// Cycle is the mean of the same, with all that follows until the platform rests.
	Cycle float64 `json:"cycle_cpu_ms,omitempty"`
	// Failed is how many samples have no time, since they failed.
	Failed int `json:"failed,omitempty"`
	// Wire is the p50 of what a sample sends and receives, in kB; 0 if nobody looked.
	Wire float64 `json:"wire_kb,omitempty"`
	// PerSecond is of cases that count how often something can be done.
	PerSecond float64 `json:"per_second,omitempty"`
	memory
}

// memory is what one sandbox takes of the host, on average, in MB.
type memory struct {
	// PSS is what its processes have mapped, each page divided by how many have
	// it; Charged what its cgroup is charged for, mapped or not.
	PSS     float64 `json:"pss_mb,omitempty"`
	Charged float64 `json:"charged_mb,omitempty"`
	Swap    float64 `json:"swap_mb,omitempty"`
	Disk    float64 `json:"disk_mb,omitempty"`
	// Compressed is what its memory takes in compressed swap, which is memory.
	Compressed float64 `json:"compressed_mb,omitempty"`
	// VsPSS is that of the yardstick.
	VsPSS float64 `json:"vs_pss_mb,omitempty"`
}

// ratio is how many times its yardstick a case takes; 0 without a yardstick.
func (r row) ratio() float64 {
	switch {
	case r.Vs > 0:
		return r.P50 / r.Vs
	case r.VsPSS > 0:
		return r.PSS / r.VsPSS
	}
	return 0
}

// series collects the samples of one case.
type series struct {
	name    string
	against *series // the yardstick; may be nil
	bytes   int64   // that a sample moves, if it is about that
	samples []time.Duration
	// unsupported says why this host cannot do it; empty if it can.
	unsupported string
	answers     []time.Duration // of the processors, until the answer; nil if nobody looked
	costs       []time.Duration // of the processors, until the work was over; nil if nobody looked
	wire        []int64         // bytes that each sample sent and received; nil if nobody looked
	cycle       time.Duration   // of the processors, with all that follows a sample; 0 if nobody looked
	failed      int
	failure     error // the first one
}

func (s *series) add(d time.Duration) { s.samples = append(s.samples, d) }

// fail counts a sample that has no time.
func (s *series) fail(err error) {
	s.failed++
	if s.failure == nil {
		s.failure = err
	}
}

func (s *series) quantile(q float64) float64 { return quantile(s.samples, q) }

// quantile returns the smallest sample that q of all do not exceed, in
// milliseconds.
func quantile(samples []time.Duration, q float64) float64 {
	if len(samples) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(samples))
	i := min(len(sorted)-1, max(0, int(float64(len(sorted))*q+0.999999)-1))
	return float64(sorted[i].Microseconds()) / 1000
}

func (s *series) row(bench string) row {
	r := row{Bench: bench, Case: s.name, N: len(s.samples), Min: s.quantile(0), P50: s.quantile(0.5), P99: s.quantile(0.99), Max: s.quantile(1), Unsupported: s.unsupported}
	if s.against != nil {
		r.Vs, r.Yardstick = s.against.quantile(0.5), s.against.name
	}
	if len(s.wire) > 0 {
		r.Wire = float64(slices.Sorted(slices.Values(s.wire))[len(s.wire)/2]) / 1000
	}
	if r.P50 > 0 {
		r.Rate = float64(s.bytes) / 1000 / r.P50
	}
	r.Answer, r.Cost, r.Cycle, r.Failed = quantile(s.answers, 0.5), quantile(s.costs, 0.5), float64(s.cycle.Microseconds())/1000, s.failed
	return r
}

// latencies are the cases of a benchmark that takes times.
type latencies []*series

// report implements [table].
func (all latencies) report(people, machine io.Writer, bench string) error {
	out := tabwriter.NewWriter(people, 0, 0, 2, ' ', tabwriter.AlignRight)
	var reasons strings.Builder
	fmt.Fprintln(out, "case\tn\tmin ms\tp50 ms\tp99 ms\tmax ms\tMB/s\tkB\tanswer cpu ms\tcpu ms\tcycle cpu ms\tp50 / yardstick\t")
	for _, s := range all {
		r := s.row(bench)
		ratio := ""
		if r.Vs > 0 {
			ratio = fmt.Sprintf("%.1f × %s", r.ratio(), r.Yardstick)
		}
		if s.unsupported != "" {
			ratio = "unsupported"
			fmt.Fprintf(&reasons, "%s: unsupported here: %s\n", s.name, s.unsupported)
		}
		if s.failed > 0 {
			fmt.Fprintf(&reasons, "%s: %d of %d failed, the first one with: %v\n", s.name, s.failed, s.failed+len(s.samples), s.failure)
		}
		fmt.Fprintf(out, "%s\t%d\t%.2f\t%.2f\t%.2f\t%.2f\t%s\t%s\t%s\t%s\t%s\t%s\t\n", r.Case, r.N, r.Min, r.P50, r.P99, r.Max, some(r.Rate), some(r.Wire), some(r.Answer), some(r.Cost), some(r.Cycle), ratio)
		if machine != nil {
			if err := json.NewEncoder(machine).Encode(r); err != nil {
				return err
			}
		}
	}
	if err := out.Flush(); err != nil {
		return err
	}
	_, err := io.WriteString(people, reasons.String())
	return err
}

// some shows a figure that a case may not have.
func some(x float64) string {
	if x == 0 {
		return ""
	}
	return fmt.Sprintf("%.0f", x)
}
