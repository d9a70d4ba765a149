package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
)

func TestSize(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]string{
		0: "0 B", 1023: "1023 B", 1536: "1.5 KB", 10 << 20: "10 MB", 4 << 30: "4.0 GB", 5 << 50: "5120 TB",
	} {
		if got := size(n); got != want {
			t.Errorf("%d is %q, want %q", n, got, want)
		}
	}
}

// TestRank: what computed most since the last look comes first, whatever it computed
// before.
func TestRank(t *testing.T) {
	t.Parallel()
	look := func(at time.Duration, seconds map[string]float64) (all []doze.SandboxUsage) {
		for _, name := range []string{"a", "b", "c"} {
			u := doze.SandboxUsage{Name: name}
			u.MeasuredAt.Time = testNow().Add(at)
			u.Processor.Seconds, u.Network.SentBytes = seconds[name], int64(at/time.Second)*1000
			u.Memory.ResidentBytes = map[string]int64{"a": 1, "b": 2, "c": 3}[name] << 20
			all = append(all, u)
		}
		return all
	}
	first := look(0, map[string]float64{"a": 100, "b": 1, "c": 1})
	order := func(rows [][]string) (names []string) {
		for _, row := range rows[1:] {
			names = append(names, row[0]+" "+row[1])
		}
		return names
	}
	// Each has its place by its mean at first: a is the oldest, and computed most in all.
	first[0].CountedSince.Time, first[1].CountedSince.Time, first[2].CountedSince.Time = testNow().Add(-time.Hour), testNow().Add(-2*time.Second), testNow().Add(-time.Minute)
	if diff := cmp.Diff([]string{"b ", "a ", "c "}, order(rank(first, nil))); diff != "" {
		t.Errorf("at first:\n%s", diff)
	}
	rows := rank(look(2*time.Second, map[string]float64{"a": 100, "b": 2, "c": 0.5}), byName(first))
	if diff := cmp.Diff([]string{"b 50.0", "c 0.0", "a 0.0"}, order(rows)); diff != "" {
		t.Errorf("then:\n%s", diff)
	}
	if got := rows[1][7]; got != "1000 B" {
		t.Errorf("it sent %s in a second", got)
	}
}

// TestRepeat: what is watched is printed when it changes, until an interrupt.
func TestRepeat(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 9*time.Second)
		defer cancel()
		var out bytes.Buffer
		a := app{out: &out}
		n := 0
		err := a.repeat(ctx, func() error {
			n++
			_, err := fmt.Fprintln(a.out, n/2)
			return err
		})
		if err != nil || out.String() != "0\n1\n2\n" || n != 5 {
			t.Errorf("%d times: %q, %v", n, out.String(), err)
		}
		broken := errors.New("broken")
		if err := a.repeat(t.Context(), func() error { return broken }); !errors.Is(err, broken) {
			t.Errorf("%v", err)
		}
	})
}

func TestMerged(t *testing.T) {
	t.Parallel()
	is := []doze.Env{{Name: "A", Value: new("1")}, {Name: "B", Value: new(doze.MaskedValue), Secret: true}, {Name: "C", Value: new("3")}}
	got := merged(is, []doze.Env{{Name: "A", Value: new("2")}, {Name: "D", Value: new("4")}}, []string{"C"})
	want := []doze.Env{{Name: "B", Value: new(doze.MaskedValue), Secret: true}, {Name: "A", Value: new("2")}, {Name: "D", Value: new("4")}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if none := merged(is[:1], nil, []string{"A"}); none == nil || len(none) != 0 {
		t.Errorf("%#v", none)
	}
}

// TestListsCanBeWatched: every command that lists records has the flag, below any noun.
func TestListsCanBeWatched(t *testing.T) {
	t.Parallel()
	a := app{getenv: func(string) string { return "" }}
	root, found := a.root(), 0
	for _, noun := range root.Commands() {
		for _, cmd := range append(noun.Commands(), noun) {
			if lists[cmd.Name()] && !cmd.HasSubCommands() {
				if found++; cmd.Flags().Lookup("watch") == nil {
					t.Errorf("%s has no --watch", cmd.CommandPath())
				}
			}
		}
	}
	if found < 20 {
		t.Errorf("%d lists are known", found)
	}
}
