package store_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/store"
)

// buildAt is a build that began some minutes after the epoch.
func buildAt(workspace, id string, minute int) store.Build {
	return store.Build{
		Build: doze.Build{
			ID: id, Workspace: workspace, Name: "app", Tag: "latest", Status: doze.BuildUploading,
			CreatedAt: doze.Time{Time: epoch.Add(time.Duration(minute) * time.Minute)},
		},
		Phase: store.BuildOffered, Token: []byte("hash"), Hidden: store.Hidden{Secrets: map[string]string{"s": "hunter2"}, Change: []byte(`{"a":1}`)},
	}
}

func TestBuilds(t *testing.T) {
	onBoth(t, func(db database) {
		t := db.t
		s := db.open(t)
		for _, w := range []string{"v", "w"} {
			if err := s.InsertWorkspace(t.Context(), doze.Workspace{ID: w, Name: w}); err != nil {
				t.Fatal(err)
			}
		}
		want := buildAt("w", "first", 0)
		if _, err := s.InsertBuild(t.Context(), want); err != nil {
			t.Fatal(err)
		}
		if _, err := s.InsertBuild(t.Context(), buildAt("v", "other", 0)); err != nil {
			t.Fatal(err)
		}
		got, err := s.Build(t.Context(), "first")
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%v %s", err, diff)
		}
		if _, err := s.Build(t.Context(), "none"); doze.Public(err).Kind != doze.NotFound {
			t.Error(err)
		}
		end := func(b *store.Build) error {
			b.Phase, b.Status = store.BuildEnded, doze.BuildBuilt
			return nil
		}
		got, err = s.ChangeBuild(t.Context(), "first", end)
		if err != nil || got.Hidden.Secrets != nil || got.Token != nil {
			t.Errorf("%+v, %v", got, err)
		}
		if got, err := s.Build(t.Context(), "first"); err != nil || got.Phase != store.BuildEnded || got.Hidden.Secrets != nil || got.Hidden.Change != nil {
			t.Errorf("%+v, %v", got, err)
		}
		if _, err := s.ChangeBuild(t.Context(), "first", end); doze.Public(err).Kind != doze.Conflict || !strings.Contains(err.Error(), doze.BuildBuilt) {
			t.Error(err)
		}
		if all, err := s.UnfinishedBuilds(t.Context()); err != nil || len(all) != 1 || all[0].ID != "other" {
			t.Errorf("%+v, %v", all, err)
		}

		// The oldest that ended are forgotten, and those of others are not.
		for i := range doze.BuildsMax + 3 {
			id := fmt.Sprint("b", i)
			forgotten, err := s.InsertBuild(t.Context(), buildAt("w", id, i+1))
			if err != nil {
				t.Fatal(err)
			}
			if wants := i > doze.BuildsMax-1; wants != (len(forgotten) == 1) {
				t.Fatalf("%d: forgotten are %v", i, forgotten)
			}
			if _, err := s.ChangeBuild(t.Context(), id, end); err != nil {
				t.Fatal(err)
			}
		}
		all, err := s.Builds(t.Context(), "w")
		if err != nil || len(all) != doze.BuildsMax+1 || all[0].ID != fmt.Sprint("b", doze.BuildsMax+2) {
			t.Errorf("%d of them, %v", len(all), err)
		}
		if ids, err := s.BuildIDs(t.Context()); err != nil || !ids["other"] || ids["first"] {
			t.Errorf("%v, %v", ids, err)
		}
		for i := range doze.BuildsWaitingMax {
			if _, err := s.InsertBuild(t.Context(), buildAt("w", fmt.Sprint("open", i), 1000+i)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := s.InsertBuild(t.Context(), buildAt("w", "more", 2000)); doze.Public(err).Kind != doze.Exhausted {
			t.Error(err)
		}
		if of, err := s.BuildsOf(t.Context(), "w", "none"); err != nil || len(of) != 0 {
			t.Errorf("%+v, %v", of, err)
		}

		// An archive counts as disk of the workspace until its build has ended.
		if _, err := s.SetLimits(t.Context(), "w", map[string]*int64{doze.QuotaDisk: new(int64(8))}); err != nil {
			t.Fatal(err)
		}
		arrive := func(megabytes int64) func(*store.Build) error {
			return func(b *store.Build) error {
				b.Phase, b.Archive = store.BuildQueued, megabytes<<20
				return nil
			}
		}
		if _, err := s.ChangeBuild(t.Context(), "open0", arrive(5)); err != nil {
			t.Error(err)
		}
		if _, err := s.ChangeBuild(t.Context(), "open1", arrive(5)); doze.Public(err).Name != doze.NameQuotaExceeded {
			t.Error(err)
		}
		if _, err := s.ChangeBuild(t.Context(), "open0", end); err != nil {
			t.Error(err)
		}
		if _, err := s.ChangeBuild(t.Context(), "open1", arrive(5)); err != nil {
			t.Error(err)
		}
		if _, err := s.DeleteWorkspace(t.Context(), "w"); err != nil {
			t.Fatal(err)
		}
		if all, err := s.Builds(t.Context(), "w"); err != nil || len(all) != 0 {
			t.Errorf("%d are left, %v", len(all), err)
		}
	})
}
