package store_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/listing"
	"github.com/dozehq/doze/internal/store"
)

// TestSearch compares what is found with what a look at each record finds, while
// records come, change and go.
func TestSearch(t *testing.T) {
	onBoth(t, func(d database) {
		t := d.t
		s := d.open(t)
		const odd = "\U0010ffff"
		long := strings.Repeat("lorem ipsum ", 40) // more pieces than the index has of one
		there := map[string]store.Sandbox{}
		add := func(name, display string, labels ...string) {
			there[name] = insert(t, s, name, func(sb *store.Sandbox) {
				sb.Metadata.DisplayName, sb.Metadata.Labels = display, map[string]string{}
				for pair := range slices.Chunk(labels, 2) {
					sb.Metadata.Labels[pair[0]] = pair[1]
				}
				sb.Metadata.CreatedAt.Time = epoch.Add(time.Duration(len(there)) * time.Second)
			})
		}
		add("web-1", "Weiß Ärger", "Env", "Production", "team", "a%b_c\\d")
		add("web-2", "", "env", "production")
		add("worker", "WEB", "k", strings.Repeat("x", 70)+"end")
		add("a", odd+"b"+odd)
		add("long", "", "text", long)
		searches := []string{
			"web", "eb-", "b-1", "production", "ENV", "ärger", "ß ä", "%b", "_c", `\d`, "xx", "xend", strings.Repeat("x", 65) + "e", strings.Repeat("x", 71), "m ip",
			long[:200], odd + "b", "b" + odd, odd, "web-1weiß", "none", "kx", "rk", "'",
		}
		check := func(when string) {
			for _, text := range searches {
				var want []string
				for name, sb := range there {
					values := []string{name, sb.Metadata.DisplayName}
					for k, v := range sb.Metadata.Labels {
						values = append(values, k, v)
					}
					if slices.ContainsFunc(values, func(v string) bool { return strings.Contains(strings.ToLower(v), strings.ToLower(text)) }) {
						want = append(want, name)
					}
				}
				slices.Sort(want)
				got := walk(t, s, listing.Query{Workspace: "w", Text: text, Sort: listing.NameUp, Limit: 1})
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("%s: %q: %s", when, text, diff)
				}
			}
			if got := walk(t, s, listing.Query{Workspace: "other", Text: "web", Limit: 9}); len(got) > 0 {
				t.Errorf("%s: another workspace finds %q", when, got)
			}
		}
		check("at first")

		sb := there["web-2"]
		sb.Metadata.DisplayName, sb.Metadata.Labels = "xend", map[string]string{"text": long}
		sb, err := s.Update(t.Context(), sb)
		if err != nil {
			t.Fatal(err)
		}
		there["web-2"] = sb
		check("with other labels")
		sb.Metadata.Labels = nil
		if there["web-2"], err = s.Update(t.Context(), sb); err != nil {
			t.Fatal(err)
		}
		check("without labels")

		if err := s.Remove(t.Context(), there["a"].UID); err != nil {
			t.Fatal(err)
		}
		delete(there, "a")
		check("without a")
		for _, sb := range there {
			apply(t, s, sb.UID, doze.Delete, doze.Gone)
		}
		if n, err := s.Purge(t.Context(), epoch.Add(time.Hour), 9); n != len(there) || err != nil {
			t.Fatalf("%d purged, %v", n, err)
		}
		clear(there)
		check("when all have gone")
		if n, err := s.Pieces(t.Context()); n != 0 || err != nil {
			t.Errorf("%d rows of the index are left, %v", n, err)
		}
	})
}

// TestSearchOfMany: what many have is found among the first ones, what few have
// in the index, wherever they are; pages are those of the list without a search.
func TestSearchOfMany(t *testing.T) {
	t.Parallel()
	s := database{t, t.TempDir() + "/doze.db", t.TempDir() + "/key"}.open(t)
	const all = 600 // more than are looked at before the index is
	for i := range all {
		insert(t, s, fmt.Sprintf("record-%03d", i), func(sb *store.Sandbox) {
			sb.Metadata.CreatedAt.Time = epoch.Add(time.Duration(i) * time.Second)
		})
	}
	for text, find := range map[string]func(int) bool{
		"record":     func(int) bool { return true },
		"-00":        func(i int) bool { return i < 10 },
		"9":          func(i int) bool { return strings.Contains(fmt.Sprintf("%03d", i), "9") },
		"record-599": func(i int) bool { return i == 599 },
		"none":       func(int) bool { return false },
	} {
		var want []string
		for i := range all {
			if find(i) {
				want = append(want, fmt.Sprintf("record-%03d", i))
			}
		}
		for _, sort := range []listing.Sort{listing.OldestFirst, listing.NewestFirst, listing.NameUp, listing.NameDown} {
			if diff := cmp.Diff(want, walk(t, s, listing.Query{Workspace: "w", Text: text, Sort: sort, Limit: 7})); diff != "" {
				t.Errorf("%s of %q: %s", sort, text, diff)
			}
			slices.Reverse(want) // for the next, which is the other way round
		}
		got := walk(t, s, listing.Query{Workspace: "w", Text: text, Sort: listing.OldestFirst, Limit: 7, Tail: true})
		if diff := cmp.Diff(want[max(len(want)-7, 0):], got); diff != "" {
			t.Errorf("the end of %q: %s", text, diff)
		}
	}
}
