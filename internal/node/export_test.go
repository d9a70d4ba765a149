package node

import "context"

// Hold holds a sandbox, as a request does.
func (n *Node) Hold(ctx context.Context, uid string) (release func(), err error) {
	_, release, err = gate{n.box, uid, 0}.hold(ctx)
	return release, err
}

// Holds returns how many requests are in flight.
func (n *Node) Holds(uid string) int {
	b := n.box(uid)
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.use.Holds()
}

// Conns returns how many connections into a machine are open.
func (n *Node) Conns(uid string) int {
	b := n.box(uid)
	return b.conns.Len()
}

// ParseRecord reports whether raw is a record of uid.
func ParseRecord(raw []byte, uid string) bool {
	r, err := parseRecord(raw, uid)
	return err == nil && r.Order.UID == uid && r.Config.ID == uid
}

// HiddenSchedule is the schedule of the machines of the platform itself.
var HiddenSchedule = hiddenSchedule

// WakeTurn bounds how long a wake from disk has its turn.
const WakeTurn = wakeTurn

// WakeAtATime has so many wake from disk at a time while the processors are all in use.
func (n *Node) WakeAtATime(most int) { n.wakes.most = most }
