package node

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/durable"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/machine"
)

// saved is what the next process must know of a box. Which tier it is in, the
// driver finds out.
type saved struct {
	Order    savedOrder     `json:"order"`
	Config   machine.Config `json:"config"`
	Booted   bool           `json:"booted"` // its agent has answered once
	Image    Image          `json:"image"`
	Disabled bool           `json:"disabled"`           // it must not be woken
	Archived bool           `json:"archived"`           // its files are all that is left
	Failed   string         `json:"failed"`             // why it is beyond repair
	Blockers string         `json:"tied"`               // what a checkpoint of its last sleep would have left out
	Drives   []savedMount   `json:"drives,omitempty"`   // what is mounted
	Back     *setback       `json:"back,omitempty"`     // the last time it went back to a checkpoint
	Absent   *absence       `json:"absent,omitempty"`   // its memory is in the bucket, and nothing here counts
	Copied   time.Time      `json:"copied,omitzero"`    // of when its newest copy in the bucket is
	Sending  time.Time      `json:"sending,omitzero"`   // of when a copy is that the bucket may have, too
	Departed bool           `json:"departed,omitempty"` // another node may have it: it does not wake until Return
}

const (
	recordName = "record.json"
	// damagedName is a record that could not be read, set aside for the operator to
	// repair.
	damagedName = "record.json.damaged"

	// newSuffix is of a file that is being written.
	newSuffix = durable.NewSuffix
	// recordMode is of records and of what is beside them.
	recordMode = 0o600

	// eraName is where the sequence of reports began in the last process.
	eraName = "era"
	// eraReports is how many reports about a sandbox a process can make before
	// their sequence reaches into the next era.
	eraReports = 1 << 40
)

// idPattern is what the directory of a sandbox is named. Others, such as
// lost+found, are not ours.
var idPattern = regexp.MustCompile(`^[a-z0-9][a-z0-9-]*$`)

var errDamaged = errors.New("the record is damaged")

// save writes the record of a box that is, or is about to be, in a phase, in
// one step and durably, but for one that nobody was told of yet. It is called where
// the record changes, which is never on the way of a request. Preconditions: the turn is held, or nobody else has
// the box yet.
func (n *Node) save(b *Box, phase doze.Phase, message string) error {
	r := saved{
		Order: orderToSave(b.order), Config: b.made.config, Image: b.made.image,
		Booted: phase != doze.Starting, Disabled: phase == doze.Disabled, Archived: phase == doze.Archived,
		Blockers: b.checkpoint.noted, Drives: mountsToSave(b.mounted()), Back: b.setback(),
	}
	b.mu.Lock()
	r.Absent, r.Copied, r.Sending, r.Departed = b.absent, b.copied, b.sending, b.departed
	b.mu.Unlock()
	if phase == doze.Failed {
		r.Failed = cmp.Or(message, phase.String())
	}
	raw, err := json.Marshal(r)
	if err != nil {
		return err
	}
	dir := n.dir(b.order.UID)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if phase == doze.Starting { // a loss of power leaves nothing of it anyway
		return overwrite(filepath.Join(dir, recordName), raw)
	}
	return durable.Replace(filepath.Join(dir, recordName), raw, recordMode)
}

// overwrite writes a file so that a crash leaves the old one or the new one.
func overwrite(name string, raw []byte) error {
	if err := os.WriteFile(name+newSuffix, raw, recordMode); err != nil {
		return err
	}
	return os.Rename(name+newSuffix, name)
}

// forget removes the record.
func (n *Node) forget(uid string) error {
	for _, name := range []string{damagedName, recordName} {
		if err := os.Remove(filepath.Join(n.dir(uid), name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// beginEra returns where the sequence of reports begins in this process: above
// all earlier ones, even if the clock went back, and above those of a directory
// that was lost.
func (n *Node) beginEra() (int64, error) {
	name := filepath.Join(n.Dir, eraName)
	raw, err := os.ReadFile(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	last, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil && len(raw) > 0 {
		slog.Error("the clock replaces a damaged file", "name", eraName, "err", err)
	}
	era := max(last+eraReports, time.Now().UnixNano())
	return era, durable.Replace(name, strconv.AppendInt(nil, era, 10), recordMode)
}

// adopt takes over what an earlier process left. A sandbox that was being
// created or deleted is removed: nobody was told that it exists, or that it
// does not.
func (n *Node) adopt(ctx context.Context) error {
	entries, err := os.ReadDir(n.Dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() == eraName || e.Name() == eraName+newSuffix {
			continue
		}
		if !e.IsDir() || !idPattern.MatchString(e.Name()) {
			slog.Warn("this is no sandbox", "name", e.Name())
			continue
		}
		if err := n.adoptOne(ctx, e.Name()); err != nil {
			return fmt.Errorf("%s: %w", e.Name(), err)
		}
	}
	err = n.Driver.Sweep(ctx, func(id string) bool {
		b := n.of(id)
		if b == nil {
			return false
		}
		phase := b.phase()
		return phase != doze.Failed && phase != doze.Archived && !phase.Ended()
	})
	if err != nil {
		return err
	}
	for _, b := range n.all() {
		if b.phase() == doze.Archived {
			n.tidy(b)
		}
	}
	if err := n.sweepVolumes(); err != nil {
		return fmt.Errorf("detach volumes: %w", err)
	}
	return n.snapshots.sweep()
}

// sameDriver is Unavailable if the record of a thing names another driver than that of
// this node: only the one that made a machine or its copy can read it. Records without a
// name are from before there were two drivers.
func (n *Node) sameDriver(thing, made string) error {
	name := n.Driver.Traits().Name
	if made == "" || made == name {
		return nil
	}
	return doze.Errorf(doze.Unavailable, "%s was made by the driver %s, and this node has %s: start the node with --driver %s", thing, made, name, made)
}

func (n *Node) adoptOne(ctx context.Context, uid string) error {
	r, err := readRecord(n.dir(uid), uid)
	switch {
	case errors.Is(err, errDamaged):
		return n.setAside(uid, err)
	case err != nil:
		return err
	case !r.Booted:
		return n.discard(ctx, uid, r)
	}
	if err := n.sameDriver("the sandbox "+uid, r.Config.Driver); err != nil {
		return err
	}
	r.Config.Driver = n.Driver.Traits().Name // old records have none
	r.Config.GoBack = n.GoBack               // whatever it was before the restart
	b := n.newBox(r.Order.order(), r.Config, doze.Standby)
	b.made.image = r.Image
	b.entry.of(&r.Image, &b.order)
	b.checkpoint.adopt(r)
	b.absent, b.copied, b.sending, b.departed = r.Absent, r.Copied, r.Sending, r.Departed
	if b.departed {
		b.gate.Leave()
	}
	n.openDrives(b, savedMounts(r.Drives))
	switch {
	case r.Archived && r.Absent == nil:
		_, err = os.Stat(n.filesName(uid))
	case r.Absent != nil:
		n.wanted.Ring()
	case r.Failed == "":
		if b.machine, err = b.find(ctx); ctx.Err() != nil {
			b.life.end(context.Cause(ctx))
			return context.Cause(ctx)
		}
	}
	back := ""
	if err == nil && b.machine != nil {
		back = b.checkpoint.fallBack(b.machine, time.Now()) // save writes it down
	}
	if back != "" || errors.Is(err, machine.ErrGone) {
		var made time.Time // of what is left here
		if back != "" {
			made = b.machine.WentBack()
		}
		if newer := b.resort(made, time.Now()); newer != "" {
			back, err = newer, nil
		}
	}
	phase, message := adopted(r, b.machine, err)
	b.state.Adopt(phase, message)
	if err != nil {
		slog.Error("adopt", "sandbox", uid, "phase", phase, "err", err)
		b.machine = nil
	}
	if err := n.save(b, phase, message); err != nil {
		return err
	}
	slog.Info("adopted", "sandbox", uid, "phase", phase)
	if back != "" {
		back = "the host restarted, or its processes were killed while no dozed ran; " + back
	}
	return n.install(b, back)
}

// lost says what happened to a sandbox of which an earlier process left nothing. The
// node cannot tell a restart of the host from a kill, nor whether the sandbox was
// awake. Its record does not change when it falls asleep, except for the reason that
// kept it in memory.
func lost(blockers string) string {
	why := "there was no complete checkpoint: it was awake, had slept for less than --save-after, or its checkpoint could not be written"
	if blockers != "" {
		why = "it slept in memory only, since a checkpoint would have left out " + blockers
	}
	return "the host restarted, or its processes were killed while no dozed ran, and " + why +
		"; its memory and its files are lost: restore one of its snapshots, or delete it and create it again"
}

// adopted picks the phase of a sandbox after its machine was searched for. If the search
// failed, the sandbox sleeps: its next wake searches again.
func adopted(r saved, m machine.Machine, err error) (phase doze.Phase, message string) {
	switch {
	case r.Failed != "":
		return doze.Failed, r.Failed
	case r.Archived && errors.Is(err, fs.ErrNotExist):
		return doze.Failed, "its archive is gone from the disk of the node"
	case r.Archived:
		return doze.Archived, ""
	case errors.Is(err, machine.ErrGone):
		return doze.Failed, lost(r.Blockers)
	case r.Disabled:
		return doze.Disabled, ""
	case err == nil && m != nil && m.Tier() == machine.Awake:
		return doze.Running, ""
	default:
		return doze.Standby, ""
	}
}

// Agents returns the files with the agents that sandboxes and snapshots of this
// node were born with and need as long as they live. The root file systems of
// machines of the platform itself are among them. It reports false if it
// cannot tell of all. Preconditions: nothing is being created.
func (n *Node) Agents() (files []string, all bool) {
	for _, b := range n.all() {
		if b.made.config.Agent == "" {
			return nil, false // its record is damaged, and may be repaired
		}
		files = append(files, b.made.config.Agent)
		if b.hidden() {
			files = append(files, b.made.config.Root)
		}
	}
	err := n.snapshots.each(func(_ string, s savedSnapshot, err error) error {
		files = append(files, s.Agent)
		return err
	})
	if err != nil {
		return nil, false
	}
	slices.Sort(files)
	return slices.Compact(files), true
}

// ImageFiles returns the files of the images that sandboxes and snapshots of this
// node need, by their records: in every state, for each may boot or wake again. It
// fails if one cannot be read, for nobody knows then. What is being created now may
// be missing.
func (n *Node) ImageFiles() (files []string, err error) {
	entries, err := os.ReadDir(n.Dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if !e.IsDir() || !idPattern.MatchString(e.Name()) {
			continue
		}
		r, err := readRecord(n.dir(e.Name()), e.Name())
		if err != nil {
			return nil, fmt.Errorf("the record of %s: %w", e.Name(), err)
		}
		files = append(files, r.Image.Path, r.Config.Root)
	}
	err = n.snapshots.each(func(_ string, s savedSnapshot, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // it is being made, of a sandbox that has the image
		}
		files = append(files, s.Image.Path)
		return err
	})
	slices.Sort(files)
	return slices.DeleteFunc(slices.Compact(files), func(f string) bool { return f == "" }), err
}

// install reports an adopted box, and what it lost, if anything, and makes it known.
func (n *Node) install(b *Box, lost string) error {
	b.account()
	b.mu.Lock()
	defer b.mu.Unlock()
	n.ledger.settle(&b.order, b.state.Phase())
	b.report(b.state.Message(), false)
	if lost != "" { // control may not have heard that it was awake: its phase would be no news
		b.note(lost)
	}
	b.serveDrives()
	b.logs.serve()
	b.entry.serve()
	b.sinking.arm()
	return n.put(b)
}

// setAside makes a failed box of a sandbox whose record cannot be read. Its
// processes are ended, for we do not know their limits; its files stay until
// it is deleted.
func (n *Node) setAside(uid string, damage error) error {
	slog.Error("a record is set aside; with a repaired one the sandbox comes back at the next start", "sandbox", uid, "err", damage)
	err := os.Rename(filepath.Join(n.dir(uid), recordName), filepath.Join(n.dir(uid), damagedName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	b := n.newBox(fleet.Order{UID: uid}, n.bare(uid), doze.Failed)
	b.state.Adopt(doze.Failed, "its record on the node is damaged")
	return n.install(b, "")
}

// bare is what we know of a machine without a record: enough to end it.
func (n *Node) bare(uid string) machine.Config {
	return machine.Config{ID: uid, Dir: n.machineDir(uid)}
}

// discard removes what is left of a sandbox that was not finished. If that does
// not work, Delete tries again, and the next start of the node.
func (n *Node) discard(ctx context.Context, uid string, r saved) error {
	slog.Warn("removing a sandbox that was not finished", "sandbox", uid)
	if r.Config.ID == "" {
		r.Config = n.bare(uid)
	}
	b := n.newBox(fleet.Order{UID: uid}, r.Config, doze.Deleting)
	b.life.end(errDeleted)
	err := n.clear(ctx, b)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return err
	}
	slog.Error("it is not removed yet", "sandbox", uid, "err", err)
	return n.install(b, "")
}

// readRecord returns the record in a sandbox's directory. Without one it is of
// a sandbox that was not finished. It fails with errDamaged for one that can
// not be ours.
func readRecord(dir, uid string) (saved, error) {
	raw, err := os.ReadFile(filepath.Join(dir, recordName))
	if err == nil {
		return parseRecord(raw, uid)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return saved{}, err
	}
	_, err = os.Lstat(filepath.Join(dir, damagedName))
	switch {
	case err == nil:
		return saved{}, fmt.Errorf("%w: it was set aside before", errDamaged)
	case errors.Is(err, fs.ErrNotExist):
		return saved{}, nil
	default:
		return saved{}, err
	}
}

func parseRecord(raw []byte, uid string) (r saved, err error) {
	if err := json.Unmarshal(raw, &r); err != nil {
		return saved{}, fmt.Errorf("%w: %w", errDamaged, err)
	}
	if r.Order.UID != uid || !idPattern.MatchString(r.Config.ID) {
		return saved{}, fmt.Errorf("%w: it is of the sandbox %q", errDamaged, r.Order.UID)
	}
	return r, nil
}
