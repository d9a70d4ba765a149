package network

import (
	"bytes"
	"crypto/sha256"
	"net/netip"
	"time"

	"github.com/dozehq/doze"
)

// Address is the one that a sandbox leaves from; an invalid one if there is none. All are
// the egress IPs of its gateway that have an address, the oldest first.
//
// It is the same as long as it is there: a sandbox does not move to an address that came
// after it. Among those that were there before, each sandbox has one by chance, which its
// id decides. One that is older than all of them has the oldest.
func Address(all []doze.NetworkResource, sandbox string, created time.Time) (chosen netip.Addr) {
	var most []byte
	for i, ip := range all {
		if i > 0 && given(ip).After(created) {
			continue
		}
		address, err := netip.ParseAddr(ip.Spec.PublicIP)
		if err != nil {
			continue
		}
		// The highest weight wins (rendezvous hashing): without an address, only those
		// sandboxes move that had it.
		weight := sha256.Sum256([]byte(sandbox + "/" + ip.Spec.PublicIP))
		if old := i == 0 && given(ip).After(created); old {
			chosen = address // unless another one was there before
		} else if most == nil || bytes.Compare(weight[:], most) > 0 {
			chosen, most = address, weight[:]
		}
	}
	return chosen
}

// given is when an egress IP got its address.
func given(ip doze.NetworkResource) time.Time {
	for _, e := range ip.Events {
		if e.Status == doze.Running.Status() {
			return e.Time.Time
		}
	}
	return ip.Metadata.CreatedAt.Time
}
