package store_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/store"
)

func TestAddressesOfEgressIPs(t *testing.T) {
	onBoth(t, func(db database) {
		t := db.t
		s := db.open(t)
		for _, w := range []string{"v", "w"} {
			if err := s.InsertWorkspace(t.Context(), doze.Workspace{ID: w, Name: w}); err != nil {
				t.Fatal(err)
			}
			insertNetwork(t, s, store.Gateway, doze.DefaultVPC, w, "g", "", 0)
		}
		for i, name := range []string{"first", "second", "third"} {
			insertNetwork(t, s, store.IP, "g", "w", name, doze.IPv4, i)
		}
		insertNetwork(t, s, store.IP, "g", "v", "fourth", doze.IPv4, 4)
		insertNetwork(t, s, store.IP, "g", "v", "sixth", doze.IPv6, 0)
		for _, step := range []struct {
			name, pool, drop string
			want             map[string]string
		}{
			{"no pool", "", "", nil},
			{"too few", "203.0.113.0/31", "", map[string]string{"first": "203.0.113.0", "second": "203.0.113.1"}},
			{"again", "203.0.113.0/31", "", map[string]string{"first": "203.0.113.0", "second": "203.0.113.1"}},
			{"smaller", "203.0.113.9", "", map[string]string{"first": "203.0.113.0", "second": "203.0.113.1", "third": "203.0.113.9"}},
			{"one that the pool has no more", "203.0.113.9", "second", map[string]string{"first": "203.0.113.0", "third": "203.0.113.9"}},
			{"one comes back", "203.0.113.9", "third", map[string]string{"first": "203.0.113.0", "fourth": "203.0.113.9"}},
			{"more than are needed", "203.0.113.0/24", "first", map[string]string{"fourth": "203.0.113.9"}},
		} {
			pool, err := doze.ParseAddressPool(strings.Fields(step.pool))
			if err != nil {
				t.Fatal(err)
			}
			if step.drop != "" {
				if _, err := s.DeleteNetwork(t.Context(), "w", store.IP, step.drop); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.GiveAddresses(t.Context(), pool, epoch); err != nil {
				t.Fatal(err)
			}
			got := map[string]string{}
			for _, w := range []string{"v", "w"} {
				all, err := s.Networks(t.Context(), w, store.IP, "g")
				if err != nil {
					t.Fatal(err)
				}
				for _, ip := range all {
					if has := ip.Spec.PublicIP != ""; has != (ip.Status == "DEPLOYED") || ip.Spec.IPFamily == doze.IPv4 && (len(ip.Events) == 0 || !has && ip.Status != "FAILED") {
						t.Errorf("%s: %+v", step.name, ip)
					}
					if ip.Spec.PublicIP != "" {
						got[ip.Metadata.Name] = ip.Spec.PublicIP
					}
				}
			}
			if step.want == nil {
				step.want = map[string]string{}
			}
			if diff := cmp.Diff(step.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", step.name, diff)
			}
		}
	})
}

func insertNetwork(t *testing.T, s *store.Store, kind store.NetworkKind, parent, workspace, name, family string, minute int) {
	t.Helper()
	n := doze.NetworkResource{
		Metadata: doze.NetworkMetadata{Name: name, Workspace: workspace, VPCName: doze.DefaultVPC, CreatedAt: doze.Time{Time: epoch.Add(time.Duration(minute) * time.Minute)}},
		Spec:     doze.NetworkSpec{IPFamily: family}, Status: doze.Starting.Status(),
	}
	if err := s.InsertNetwork(t.Context(), kind, parent, n); err != nil {
		t.Fatal(err)
	}
}
