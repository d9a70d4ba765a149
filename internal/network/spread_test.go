package network_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/dozehq/doze"
	networks "github.com/dozehq/doze/internal/network"
)

// TestAddress: sandboxes are spread over the addresses of a gateway, and one moves only
// when its address is gone.
func TestAddress(t *testing.T) {
	t.Parallel()
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	ip := func(address string, minute int) (n network) {
		n.Spec.PublicIP = address
		n.Events = []doze.Event{{Status: "FAILED"}, {Status: "DEPLOYED", Time: doze.Time{Time: now.Add(time.Duration(minute) * time.Minute)}}}
		return n
	}
	all := []network{ip("203.0.113.1", 0), ip("203.0.113.2", 1), ip("203.0.113.3", 2)}
	later := append(all[:3:3], ip("203.0.113.4", 20))
	const sandboxes = 3000
	count, moved := map[string]int{}, 0
	for i := range sandboxes {
		uid, created := fmt.Sprint("sandbox", i), now.Add(10*time.Minute)
		a := networks.Address(all, uid, created)
		count[a.String()]++
		if b := networks.Address(later, uid, created); b != a {
			t.Fatalf("%s moves from %s to %s, which came after it", uid, a, b)
		}
		without := networks.Address(all[1:], uid, created)
		if a.String() != all[0].Spec.PublicIP && without != a {
			t.Fatalf("%s moves from %s to %s, because another one is gone", uid, a, without)
		}
		if without != a {
			moved++
		}
		if got := networks.Address(all, uid, now.Add(-time.Minute)); got.String() != "203.0.113.1" {
			t.Fatalf("one that is older than all addresses has %s", got)
		}
		if got := networks.Address(all, uid, now); got.String() != "203.0.113.1" {
			t.Fatalf("one that is older than all but one has %s", got)
		}
	}
	for _, ip := range all {
		if n := count[ip.Spec.PublicIP]; n < sandboxes/4 || n > sandboxes/2 {
			t.Errorf("of %d sandboxes, %d have %s", sandboxes, n, ip.Spec.PublicIP)
		}
	}
	if moved != count["203.0.113.1"] {
		t.Errorf("%d move, and %d had the address", moved, count["203.0.113.1"])
	}
	if got := networks.Address(nil, "a", now); got.IsValid() {
		t.Errorf("of none there is %s", got)
	}
}
