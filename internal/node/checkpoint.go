package node

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agentapi"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/node/renewal"
)

// checkpoint is what is known of the checkpoint of a box: how old it is, whether the
// box went back to it, and what it leaves out. The lock of the box guards it.
//
// Checkpoint blockers are changes that processes made to the network inside, and that a
// checkpoint of a driver without [machine.Traits.Network] leaves out. They are changes
// to the network of the sandbox, where processes may make some (see [machine.Config]),
// and network namespaces, which every process may make. A sandbox with a blocker sleeps
// in memory only, and is not copied. Its agent names them while it is awake.
type checkpoint struct {
	network  bool // constant: the driver leaves nothing of the network out
	age      renewal.Age
	blockers string          // what it would leave out, when the agent was asked
	noted    string          // guarded by the turn instead: what the record says that it would leave out
	back     *setback        // the last time the box went back to it; nil if it never did
	fell     machine.Machine // whose setback that is
}

// newCheckpoint is that of a box which boots now, or has booted.
func newCheckpoint(now time.Time, t machine.Traits) checkpoint {
	return checkpoint{network: t.Network, age: renewal.Since(now)}
}

// adopt takes over what an earlier process wrote down. Nobody else has the box yet.
func (c *checkpoint) adopt(r saved) {
	c.noted, c.blockers, c.back, c.age = r.Blockers, r.Blockers, r.Back, renewal.Since(time.Time{})
}

// blocked returns what a checkpoint would leave out, as far as that is known.
func (c *checkpoint) blocked() string {
	if c.network {
		return ""
	}
	return c.blockers
}

// blockedAt is blocked for a machine in a tier: one that has a checkpoint left
// nothing out.
func (c *checkpoint) blockedAt(t machine.Tier) string {
	if t > machine.Paused {
		return ""
	}
	return c.blocked()
}

// setback is the last time that a box went back to a checkpoint, as its record
// has it.
type setback struct {
	fleet.Setback

	Told bool `json:"told"` // to a client, with an answer
}

// fallBack takes note of a machine that went back to its last checkpoint, and
// returns what it lost. It returns nothing for one that did not, or whose setback
// is known. The caller has writeDown write it down.
func (c *checkpoint) fallBack(m machine.Machine, now time.Time) (lost string) {
	made := m.WentBack()
	if made.IsZero() || c.fell == m && c.back != nil && c.back.Checkpoint.Equal(made) {
		return ""
	}
	return c.goBack(m, made, now)
}

// goBack takes note of a return to a checkpoint of a moment, and returns what is lost.
func (c *checkpoint) goBack(m machine.Machine, made, now time.Time) (lost string) {
	c.age.Save(made)
	c.fell, c.back = m, &setback{Setback: fleet.Setback{Checkpoint: made, At: now}}
	return fmt.Sprintf("it goes on from its checkpoint of %s, %s ago, and what it did since is lost",
		made.UTC().Format(time.RFC3339), now.Sub(made).Round(time.Second))
}

// settled are the phases in which the record of a box says what the box is. In
// the others somebody is about to write it, and it will have the setback.
var settled = []doze.Phase{doze.Running, doze.Suspending, doze.Standby, doze.Waking, doze.Disabled, doze.Archived, doze.Failed}

// writeDown writes the record of a box after something of it changed that is no phase.
func (b *Box) writeDown() {
	if err := b.tryToWriteDown(); err != nil {
		slog.Error("write a record", "sandbox", b.order.UID, "err", err)
	}
}

func (b *Box) tryToWriteDown() error {
	if b.turn.take(b.life) != nil {
		return nil // it is being deleted
	}
	defer b.unlock()
	b.mu.Lock()
	phase, message := b.state.Phase(), b.state.Message()
	b.mu.Unlock()
	if !slices.Contains(settled, phase) {
		return nil
	}
	return b.n.save(b, phase, message)
}

// setback returns the setback as the record has it.
func (b *Box) setback() *setback {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.checkpoint.back == nil {
		return nil
	}
	return new(*b.checkpoint.back)
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
	back := b.checkpoint.back
	if back == nil || back.Told {
		return 0, false
	}
	back.Told = true
	b.life.spawn(b.writeDown)
	return max(0, time.Since(back.Checkpoint)), true
}

// blockersText is the public text of blockers.
func blockersText(by agentapi.Blockers) string {
	var all []string
	if by.Links {
		all = append(all, "its network links, addresses and routes")
	}
	if by.Rules {
		all = append(all, "its filter rules")
	}
	if by.Namespaces {
		all = append(all, "network namespaces that its processes have made")
	}
	return strings.Join(all, " and ")
}

// unknownBlockers is the same when the agent does not say.
const unknownBlockers = "what it may have changed of its network"

// learn takes note of what the agent of an awake machine said, or of why it said
// nothing. Without an answer, a sandbox that may change its network counts as changed:
// the engine leaves that out and says nothing. With namespaces it refuses to make a
// checkpoint. Preconditions: mu is held.
func (b *Box) learn(m machine.Machine, in agentapi.State, err error) {
	c := &b.checkpoint
	was := c.blockers
	if c.blockers = blockersText(in.Blockers); err != nil && b.order.ChangesNetwork() {
		c.blockers = unknownBlockers
	}
	if now := c.blockedAt(m.Tier()); now != "" && now != was {
		b.note("while it sleeps it stays in memory, and a restart of the host loses it: a checkpoint would leave out " + now)
	}
}

// saveBlockers writes down what a checkpoint of a machine that is about to fall
// asleep would leave out: the next process cannot ask, and must not make one.
// Preconditions: the turn is held.
func (b *Box) saveBlockers(m machine.Machine) error {
	b.mu.Lock()
	blocked := b.checkpoint.blockedAt(m.Tier())
	b.mu.Unlock()
	was := b.checkpoint.noted
	if blocked == was {
		return nil
	}
	b.checkpoint.noted = blocked
	if err := b.n.save(b, doze.Standby, ""); err != nil {
		b.checkpoint.noted = was
		return fmt.Errorf("write the record: %w", err)
	}
	return nil
}

// survey returns what blockedAt does, and asks the agent of a machine that is awake.
// Preconditions: the turn is held.
func (b *Box) survey(m machine.Machine) (blocked string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if m.Tier() == machine.Awake && !b.state.Is(doze.Suspending) { // where it was asked just now
		b.mu.Unlock()
		in, err := intend(b.life, b.agent())
		if err != nil {
			slog.Warn("an agent does not say what a checkpoint would leave out", "sandbox", b.order.UID, "err", err)
		}
		b.mu.Lock()
		b.learn(m, in, err)
	}
	return b.checkpoint.blockedAt(m.Tier())
}

// CheckpointAge is how old the last checkpoints are of the sandboxes that run: the age
// of the oldest, and how many are older than they should be. If an earlier process left
// a sandbox awake, its checkpoint is at least as old as this process. Without a
// checkpoint, the age begins at the boot.
type CheckpointAge struct {
	Oldest  time.Duration
	Overdue int
}

// CheckpointAge returns how old the last checkpoints are now.
func (n *Node) CheckpointAge() (a CheckpointAge) {
	for _, b := range n.all() {
		b.mu.Lock()
		running, its := b.state.Is(doze.Running) && !b.hidden(), b.checkpoint.age
		b.mu.Unlock()
		if !running {
			continue
		}
		age := its.At(time.Now(), n.began)
		a.Oldest = max(a.Oldest, age)
		if renewal.Overdue(age, n.CheckpointEvery) {
			a.Overdue++
		}
	}
	return a
}
