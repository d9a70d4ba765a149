package swap

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze"
)

// Where the kernel shows compressed memory, and takes orders for it.
const (
	zramControl = "/sys/class/zram-control"
	zramBlocks  = "/sys/block"
	devices     = "/dev"
)

// zramOwners is where a file for each device says whose it is. It is gone with the
// next boot, as the devices are.
const zramOwners = "/run/doze-swap"

// zramAlgorithm is what pages are compressed with, where the kernel has it: a wake
// waits for the pages that it needs, and lz4 brings them back the fastest.
const zramAlgorithm = "lz4"

const (
	// zramTries is how often a device is removed that somebody has open: udev looks
	// at every new one for a moment.
	zramTries = 20
	zramPause = 50 * time.Millisecond
)

// noZram says why this host has no compressed memory. It is empty if it probably
// has: only making a device tells.
func noZram(ctx context.Context) string {
	if _, err := os.Stat(zramControl); err != nil && !loadable(ctx, "zram") {
		return "this kernel has no compressed memory (zram)"
	}
	return ""
}

// zram is a device of compressed memory that is ours. Its swap has a label, by
// which we know it again. A record tells which device it is: it is written before
// the device holds anything, so that a crash leaves none behind.
type zram struct {
	path   string // of the file that would be in its place
	record string // path of the record
	label  string
}

func zramAt(path string) zram {
	const labelBytes = 5 // in hexadecimal with the prefix: the header has room for 16
	sum := sha256.Sum256([]byte(path))
	return zram{path: path, record: path + ".zram", label: "doze-" + hex.EncodeToString(sum[:labelBytes])}
}

// zramRecord is what is in the record.
type zramRecord struct {
	Boot   string `json:"boot"`   // devices of an earlier boot are gone
	Device int    `json:"device"` // its number
	Bytes  int64  `json:"bytes"`  // of memory that it may take
}

// zramDevice is a device of the host.
type zramDevice int

func (d zramDevice) name() string { return "zram" + strconv.Itoa(int(d)) }
func (d zramDevice) node() string { return filepath.Join(devices, d.name()) }
func (d zramDevice) file(name string) string {
	return filepath.Join(zramBlocks, d.name(), name)
}

// owner is the file that tells whose device it is.
func (d zramDevice) owner() string { return filepath.Join(zramOwners, d.name()) }

// blank reports whether nobody has given the device a size.
func (d zramDevice) blank() bool {
	raw, err := os.ReadFile(d.file("disksize"))
	return err == nil && strings.TrimSpace(string(raw)) == "0"
}

// zramState is what became of the device in the record.
type zramState int

const (
	zramNone  zramState = iota // there is none of ours
	zramBegun                  // it is ours, and holds nothing
	zramMade                   // it is ours, with our swap on it
)

// find returns our device, if there is one.
func (z zram) find() (zramDevice, zramState) {
	r, err := z.read()
	if err != nil || r.Boot != boot() {
		return 0, zramNone
	}
	d := zramDevice(r.Device)
	if d.blank() {
		return d, zramBegun
	}
	page, err := d.header()
	if err != nil {
		return 0, zramNone
	}
	switch label, ok := swapLabel(page); {
	case ok && label == z.label:
		return d, zramMade
	case len(bytes.Trim(page, "\x00")) == 0: // between its size and its swap
		return d, zramBegun
	}
	return 0, zramNone // somebody else's
}

// header returns the first page of the device.
func (d zramDevice) header() ([]byte, error) {
	f, err := os.Open(d.node())
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	page := make([]byte, os.Getpagesize())
	_, err = f.ReadAt(page, 0)
	return page, err
}

// swapLabel returns the label in the first page of swap.
func swapLabel(page []byte) (label string, ok bool) {
	const (
		magic = "SWAPSPACE2" // at the end of the page
		at    = 1024 + 3*4 + 16
		size  = 16
	)
	if len(page) < at+size+len(magic) || !bytes.HasSuffix(page, []byte(magic)) {
		return "", false
	}
	return string(bytes.TrimRight(page[at:at+size], "\x00")), true
}

func (z zram) read() (r zramRecord, err error) {
	raw, err := os.ReadFile(z.record)
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal(raw, &r)
}

// limit is how much memory our device may take, in bytes.
func (z zram) limit() int64 {
	r, _ := z.read() // the caller has found the device by it
	return r.Bytes
}

// make makes swap of compressed memory that takes so many bytes of it at most, and
// turns it on. What is on already and has that size stays. On an error nothing is
// left.
func (z zram) make(ctx context.Context, limit int64) (err error) {
	if d, state := z.find(); state == zramMade && on(d.node()) && z.limit() == limit {
		return nil
	}
	if err := z.remove(ctx); err != nil {
		return err
	}
	unlock, err := lockZram(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("make compressed memory: %w", err), z.discard(ctx))
		}
	}()
	d, err := z.claim(limit)
	if err != nil {
		return err
	}
	for _, set := range d.settings(limit) {
		err := os.WriteFile(d.file(set.file), []byte(set.value), 0)
		if errors.Is(err, unix.EBUSY) { // another program was faster: the device is not ours to remove
			return errors.Join(err, os.Remove(z.record))
		}
		if err != nil {
			return err
		}
	}
	for _, s := range z.steps(d) {
		if err := s.run(ctx); err != nil {
			return err
		}
	}
	return nil
}

// zramSetting is a value in a file of a device.
type zramSetting struct{ file, value string }

// settings configure a blank device, in this order: what it compresses with cannot
// change once it has a size.
func (d zramDevice) settings(limit int64) (all []zramSetting) {
	known, err := os.ReadFile(d.file("comp_algorithm"))
	if err == nil && slices.Contains(strings.Fields(string(known)), zramAlgorithm) {
		all = append(all, zramSetting{"comp_algorithm", zramAlgorithm})
	}
	return append(all,
		zramSetting{"disksize", strconv.FormatInt(limit*zramRatio, 10)},
		zramSetting{"mem_limit", strconv.FormatInt(limit, 10)})
}

// steps make swap of a device that has its size.
func (z zram) steps(d zramDevice) []step {
	return []step{{"mkswap", "--label", z.label, d.node()}, {"swapon", "--priority", zramPriority, d.node()}}
}

// claim takes a device that nobody uses, or has the kernel make one. The first one
// of the host is left alone: it is what other programs configure.
func (z zram) claim(limit int64) (zramDevice, error) {
	found, _ := filepath.Glob(filepath.Join(zramBlocks, "zram*")) // the pattern is well formed
	number := 0
	for _, path := range found {
		n, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(path), "zram"))
		if err == nil && n > 0 && zramDevice(n).blank() {
			number = n
		}
	}
	for number == 0 { // the kernel begins with it where nothing else did
		raw, err := os.ReadFile(filepath.Join(zramControl, "hot_add"))
		if err != nil {
			return 0, err
		}
		if number, err = strconv.Atoi(strings.TrimSpace(string(raw))); err != nil {
			return 0, err
		}
	}
	raw, err := json.Marshal(zramRecord{Boot: boot(), Device: number, Bytes: limit})
	if err != nil {
		return 0, err
	}
	d := zramDevice(number)
	if err := os.MkdirAll(zramOwners, 0o700); err != nil {
		return 0, err
	}
	if err := os.WriteFile(d.owner(), []byte(z.path), 0o600); err != nil {
		return 0, err
	}
	return d, os.WriteFile(z.record, append(raw, '\n'), 0o600)
}

// remove turns our device off and removes it.
func (z zram) remove(ctx context.Context) error {
	if _, err := os.Stat(z.record); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if _, state := z.find(); state == zramNone { // the machine restarted
		return os.Remove(z.record)
	}
	ctx = context.WithoutCancel(ctx) // half of it helps nobody
	unlock, err := lockZram(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	return z.discard(ctx)
}

// discard removes our device, whatever is left of it. Preconditions: the devices
// are locked.
func (z zram) discard(ctx context.Context) error {
	d, state := z.find()
	if state != zramNone {
		if on(d.node()) {
			if err := (step{"swapoff", d.node()}).run(ctx); err != nil {
				return err
			}
		}
		if err := d.remove(); err != nil {
			return fmt.Errorf("remove compressed memory: %w", err)
		}
		if err := os.RemoveAll(d.owner()); err != nil {
			return err
		}
	}
	if err := os.Remove(z.record); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// remove gives the device and its memory back to the kernel.
func (d zramDevice) remove() (err error) {
	for range zramTries {
		err = os.WriteFile(filepath.Join(zramControl, "hot_remove"), []byte(strconv.Itoa(int(d))), 0)
		if !errors.Is(err, unix.EBUSY) {
			break
		}
		time.Sleep(zramPause)
	}
	if errors.Is(err, unix.ENODEV) { // it is gone already
		return nil
	}
	return err
}

// sweepZram removes the devices of data directories that somebody removed with their
// records: nobody else would, until the next boot. One that cannot be removed now is
// tried again by the next start.
func sweepZram(ctx context.Context) {
	owners, _ := filepath.Glob(filepath.Join(zramOwners, "zram*")) // the pattern is well formed
	if len(owners) == 0 {
		return
	}
	unlock, err := lockZram(ctx)
	if err != nil {
		return
	}
	defer unlock()
	for _, name := range owners {
		raw, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		z := zramAt(string(raw))
		if _, err := os.Lstat(filepath.Dir(z.path)); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		n, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(name), "zram"))
		if err != nil {
			continue
		}
		if err := z.disown(ctx, zramDevice(n)); err != nil {
			slog.WarnContext(ctx, "swap of a removed data directory stays", "device", zramDevice(n).node(), "data", filepath.Dir(z.path), "err", err)
		}
	}
}

// disown removes a device whose record is gone, if it is still that of z.
// Preconditions: the devices are locked.
func (z zram) disown(ctx context.Context, d zramDevice) error {
	page, err := d.header()
	if label, ok := swapLabel(page); err == nil && ok && label == z.label {
		slog.InfoContext(ctx, "removing swap of a data directory that was removed", "device", d.node(), "data", filepath.Dir(z.path))
		if on(d.node()) {
			if err := (step{"swapoff", d.node()}).run(ctx); err != nil {
				return err
			}
		}
		if err := d.remove(); err != nil {
			return err
		}
	}
	return os.RemoveAll(d.owner())
}

// lockZram keeps others of our kind from taking the same device. Other programs do
// not know of it: for them, the kernel refuses a second size.
func lockZram(ctx context.Context) (unlock func(), err error) {
	dir, err := os.Open(zramControl)
	if errors.Is(err, fs.ErrNotExist) {
		// A module would make a device that nobody asked for.
		if err := (step{"modprobe", "zram", "num_devices=0"}).run(ctx); err != nil {
			return nil, doze.Wrap(err, doze.Unsupported, "this kernel has no compressed memory (zram)")
		}
		dir, err = os.Open(zramControl)
	}
	if err != nil {
		return nil, fmt.Errorf("open the control of compressed memory: %w", err)
	}
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("lock compressed memory: %w", err), dir.Close())
	}
	return func() { _ = dir.Close() }, nil
}

// Compressed returns how much memory the compressed swap of a path takes now, in
// bytes.
func Compressed(path string) int64 {
	d, state := zramAt(path).find()
	if state != zramMade {
		return 0
	}
	raw, err := os.ReadFile(d.file("mm_stat"))
	if err != nil {
		return 0
	}
	return parseCompressed(string(raw))
}

// parseCompressed reads the third number: what is stored, its size as compressed,
// and what that takes with its surroundings.
func parseCompressed(stat string) int64 {
	const column = 2
	fields := strings.Fields(stat)
	if len(fields) <= column {
		return 0
	}
	n, _ := strconv.ParseInt(fields[column], 10, 64) // 0 for what is no number
	return max(0, n)
}

// boot is the id of this start of the machine.
func boot() string {
	raw, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(raw))
}
