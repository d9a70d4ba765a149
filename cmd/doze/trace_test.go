package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
)

func TestTraceRows(t *testing.T) {
	t.Parallel()
	got := traceRows([]doze.Trace{
		{Kind: doze.TraceWake, From: "paused", Status: doze.TraceDone, WaitedUs: 2105, Stages: []doze.TraceStage{
			{Name: "admit", TookUs: 60},
			{Name: "launch", StartUs: 100, TookUs: 1500},
			{Name: "engine", Within: "launch", StartUs: 300, TookUs: 900},
			{Name: "connect", StartUs: 1600, TookUs: 12_000},
		}},
		{Kind: doze.TraceWake, Status: doze.TraceFailed, Error: "the disk of the node is full", Stages: []doze.TraceStage{{Name: "turn", TookUs: 9}}},
	})
	want := [][]string{
		{"STARTED", "KIND", "FROM", "STATUS", "WAITED", "STAGES"},
		{"", "wake", "paused", "done", "2.10", "admit 0.06, launch 1.50 (engine 0.90), connect 12.00"},
		{"", "wake", "", "failed", "0.00", "turn 0.00: the disk of the node is full"},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}
