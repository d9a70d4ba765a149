package store_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/store"
	"github.com/dozehq/doze/internal/testkit/postgres"
)

// everything makes a database with rows in every table, and returns how many each has.
func everything(t *testing.T, address string) (counts map[string]int) {
	t.Helper()
	err := store.Climb(t.Context(), address, history, func(_ int64, _, after map[string]int) { counts = after })
	if err != nil {
		t.Fatal(err)
	}
	for table, rows := range counts {
		if rows == 0 {
			t.Errorf("the table %s has no row: add one to history", table)
		}
	}
	return counts
}

// odd adds values that databases write in different ways, and more than one batch.
func odd(t *testing.T, address string) {
	t.Helper()
	s := database{t, address, filepath.Join(t.TempDir(), "key")}.open(t)
	for i, v := range []string{"", "NULL", "'; DROP TABLE settings; --", "ä\u2028\U0010FFFF", "\r\n\t\\N", strings.Repeat("x", 2<<20), `{"a":1.0}`} {
		if err := s.SetSetting(t.Context(), fmt.Sprint("odd", i), v); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 250 {
		if err := s.SetSetting(t.Context(), fmt.Sprint("many", i), fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func copyOf(t *testing.T, from, to string) []store.Sum {
	t.Helper()
	sums, err := store.Copying{From: from, To: to, Alone: true}.Do(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return sums
}

// TestCopyThereAndBack: from a file to a server and back, every row of every table is the
// same. What the tables are, the schema says.
func TestCopyThereAndBack(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, last := filepath.Join(dir, "first.db"), filepath.Join(dir, "last.db")
	counts := everything(t, first)
	odd(t, first)
	server := postgres.Database(t)
	var heard []store.Sum
	there, err := store.Copying{From: first, To: server, Alone: true, Copied: func(s store.Sum) { heard = append(heard, s) }}.Do(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(there, heard); diff != "" {
		t.Error("heard of others:", diff)
	}
	if diff := cmp.Diff(there, copyOf(t, server, last)); diff != "" {
		t.Error("there and back:", diff)
	}
	if diff := cmp.Diff(there, copyOf(t, first, filepath.Join(dir, "other.db"))); diff != "" {
		t.Error("the first one changed:", diff)
	}
	var copied []string
	for _, s := range there {
		copied = append(copied, s.Table)
		if want := int64(counts[s.Table]); s.Table != "settings" && s.Rows != want {
			t.Errorf("%s has %d rows, want %d", s.Table, s.Rows, want)
		}
	}
	var all []string
	for table := range counts {
		all = append(all, table)
	}
	slices.Sort(all)
	slices.Sort(copied)
	if diff := cmp.Diff(all, copied); diff != "" {
		t.Error("tables:", diff)
	}
}

// TestCopyRefuses: other records stay as they are, and the same ones are no mistake.
func TestCopyRefuses(t *testing.T) {
	onBoth(t, func(d database) {
		t := d.t
		dir := t.TempDir()
		first, second := filepath.Join(dir, "first.db"), filepath.Join(dir, "second.db")
		everything(t, first)
		everything(t, second)
		odd(t, second)
		want := copyOf(t, first, d.address)
		if diff := cmp.Diff(want, copyOf(t, first, d.address)); diff != "" {
			t.Error("again:", diff)
		}
		_, err := store.Copying{From: second, To: d.address}.Do(t.Context())
		if kind(err) != doze.Conflict || !strings.Contains(err.Error(), "name an empty database") {
			t.Errorf("over others: %v", err)
		}
		if diff := cmp.Diff(want, copyOf(t, first, d.address)); diff != "" {
			t.Error("after a refusal:", diff)
		}
		if _, err := (store.Copying{From: filepath.Join(dir, "none.db"), To: d.address}).Do(t.Context()); err == nil {
			t.Error("nothing is copied")
		}
		if _, err := os.Stat(filepath.Join(dir, "none.db")); err == nil {
			t.Error("a source was made")
		}
	})
}

// TestCopyIsWholeOrNothing: one that is cut short leaves a place for the next one.
func TestCopyIsWholeOrNothing(t *testing.T) {
	onBoth(t, func(d database) {
		t := d.t
		first := filepath.Join(t.TempDir(), "first.db")
		everything(t, first)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		n := 0
		_, err := store.Copying{From: first, To: d.address, Copied: func(store.Sum) {
			if n++; n == 20 {
				cancel()
			}
		}}.Do(ctx)
		if err == nil {
			t.Fatal("it was not cut short")
		}
		copyOf(t, first, d.address)
	})
}

// TestCopyOfRecordsInUse: a copy of what a store uses is one moment of it, and a copy that
// wants it alone is refused on a server.
func TestCopyOfRecordsInUse(t *testing.T) {
	onBoth(t, func(d database) {
		t := d.t
		s := d.open(t)
		if err := s.SetSetting(t.Context(), "k", "v"); err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(t.TempDir(), "copy.db")
		sums, err := store.Copying{From: d.address, To: to, Copied: func(store.Sum) {
			if err := s.SetSetting(t.Context(), "k", "later"); err != nil {
				t.Error(err)
			}
		}}.Do(t.Context())
		if err != nil || len(sums) == 0 {
			t.Fatal(err)
		}
		got, err := database{t, to, d.key}.open(t).Setting(t.Context(), "k")
		if err != nil || got != "v" {
			t.Errorf("%q, %v", got, err)
		}
		if strings.HasPrefix(d.address, "postgres:") {
			_, err := store.Copying{From: d.address, To: filepath.Join(t.TempDir(), "alone.db"), Alone: true}.Do(t.Context())
			if kind(err) != doze.Unavailable {
				t.Errorf("alone: %v", err)
			}
		}
	})
}

func TestNamedIn(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "doze.db")
	everything(t, file)
	n, err := store.NamedIn(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(store.Named{Sandboxes: []string{"alive"}, Snapshots: []string{"n"}, Volumes: []string{"tv", "v"}}, n); diff != "" {
		t.Error(diff)
	}
}
