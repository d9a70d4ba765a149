package hostnet

import (
	"fmt"

	"github.com/dozehq/doze"
)

// Traffic returns the bytes that went over the link of a lease since the link was made.
// It is zero for a link that is not there: none was leased, or the host restarted.
func (n *Net) Traffic(id string) (u doze.NetworkUsage, err error) {
	s, ok := n.Slot(id)
	if !ok {
		return u, nil
	}
	link, err := n.router.handle.LinkByName(s.hostLink())
	if notFound(err) {
		return u, nil
	}
	if err != nil {
		return u, fmt.Errorf("look at the link of a sandbox: %w", err)
	}
	if stats := link.Attrs().Statistics; stats != nil { // what the router sends, the sandbox receives
		u.ReceivedBytes, u.SentBytes = int64(stats.TxBytes), int64(stats.RxBytes) //nolint:gosec // G115: nobody sends 8 EiB
	}
	return u, nil
}
