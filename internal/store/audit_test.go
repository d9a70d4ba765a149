package store_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/audit"
	"github.com/dozehq/doze/internal/listing"
)

// TestAuditLog: lines are added, settled once, and removed by age and by number.
func TestAuditLog(t *testing.T) {
	onBoth(t, func(d database) {
		t, s := d.t, d.open(d.t)
		ctx := t.Context()
		if last, err := s.LastAudit(ctx); last != "" || err != nil {
			t.Errorf("%q, %v", last, err)
		}
		var add []audit.Record
		for n := range 100 {
			add = append(add, audit.Record{AuditLine: doze.AuditLine{
				ID: fmt.Sprintf("%016x", n+1), Time: doze.Time{Time: epoch.Add(time.Duration(n) * time.Minute)}, Workspace: "w", Outcome: doze.AuditBegun,
				Actor: doze.AuditActor{Sub: "ann"}, Action: "a.create", Object: doze.AuditObject{Name: "o"}, Source: "192.0.2.1",
			}, Class: audit.Change})
		}
		add = append(add, audit.Record{AuditLine: doze.AuditLine{ID: "ff", Time: doze.Time{Time: epoch}, Outcome: doze.AuditDenied}, Class: audit.Stranger})
		if err := s.WriteAudit(ctx, add, nil); err != nil {
			t.Fatal(err)
		}
		settled := add[99].AuditLine
		settled.Outcome, settled.Status = doze.AuditDone, 200
		again := settled
		again.Outcome = doze.AuditFailed
		if err := s.WriteAudit(ctx, nil, []doze.AuditLine{settled, again}); err != nil {
			t.Fatal(err)
		}
		page, err := s.ListAudit(ctx, listing.Query{Workspace: "w", Limit: 2, Phases: []string{doze.AuditDone}}, epoch)
		if err != nil || len(page.Records) != 1 || page.Records[0] != settled || page.Total != 100 {
			t.Errorf("%+v, %v", page, err)
		}
		if last, err := s.LastAudit(ctx); last != "ff" || err != nil {
			t.Errorf("%q, %v", last, err)
		}
		if err := s.TrimAudit(ctx, epoch.Add(10*time.Minute), map[audit.Shelf]int{{Workspace: "w", Class: audit.Change}: 50, {Class: audit.Stranger}: 5}); err != nil {
			t.Fatal(err)
		}
		n, first := 0, ""
		err = s.EachAudit(ctx, listing.Query{Workspace: "w", Sort: listing.OldestFirst}, epoch, func(some []doze.AuditLine) error {
			if n += len(some); first == "" {
				first = some[0].ID
			}
			return nil
		})
		if err != nil || n != 50 || first != fmt.Sprintf("%016x", 51) {
			t.Errorf("%d lines from %s on, %v", n, first, err)
		}
		if page, err := s.ListAudit(ctx, listing.Query{Limit: 2}, epoch); err != nil || len(page.Records) != 0 {
			t.Errorf("what is too old: %+v, %v", page, err)
		}
	})
}
