package node

import (
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/machine"
)

// setback is the last time that a box went back to a checkpoint, as its record
// has it.
type setback struct {
	fleet.Setback

	Told bool `json:"told"` // to a client, with an answer
}

// fallBack takes note of a machine that went back to its last checkpoint, and
// returns what it lost. It returns nothing for one that did not, or whose setback
// is known. The caller has keepSetback write it down. Preconditions: mu is held.
func (b *Box) fallBack(m machine.Machine) (lost string) {
	made := m.WentBack()
	if made.IsZero() || b.fell == m && b.back != nil && b.back.Checkpoint.Equal(made) {
		return ""
	}
	now := time.Now()
	b.saved = made
	b.fell, b.back = m, &setback{Setback: fleet.Setback{Checkpoint: made, At: now}}
	return fmt.Sprintf("it goes on from its checkpoint of %s, %s ago, and what it did since is lost",
		made.UTC().Format(time.RFC3339), now.Sub(made).Round(time.Second))
}

// settled are the phases in which the record of a box says what the box is. In
// the others somebody is about to write it, and it will have the setback.
var settled = []doze.Phase{doze.Running, doze.Suspending, doze.Standby, doze.Waking, doze.Disabled, doze.Failed}

// keepSetback writes the record of a box after its setback changed.
func (b *Box) keepSetback() {
	if b.lock(b.life) != nil {
		return // it is being deleted
	}
	defer b.unlock()
	b.mu.Lock()
	phase, message := b.phase, b.message
	b.mu.Unlock()
	if !slices.Contains(settled, phase) {
		return
	}
	if err := b.n.keep(b, phase, message); err != nil {
		slog.Error("write a record", "sandbox", b.order.UID, "err", err)
	}
}

// setback returns the setback as the record has it.
func (b *Box) setback() *setback {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.back == nil {
		return nil
	}
	return new(*b.back)
}

// StateAge returns how old the state is that a sandbox went on from when it went
// back to its last checkpoint, for the first answer after that. It reports false
// for a sandbox that never did, and once somebody was told. It does not block.
func (n *Node) StateAge(uid string) (age time.Duration, ok bool) {
	b := n.box(uid)
	if b == nil {
		return 0, false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.back == nil || b.back.Told {
		return 0, false
	}
	b.back.Told = true
	b.spawn(b.keepSetback)
	return max(0, time.Since(b.back.Checkpoint)), true
}
