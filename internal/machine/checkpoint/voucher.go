package checkpoint

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// A checkpoint is vouched for from the moment when it was written or checked until the
// machine restarts or somebody touches one of its files. As long as it is, a wake need
// not read all of it before the first instruction. The wake compares each piece that it
// loads, and only the hardware could have altered it since. If a piece is bad all the
// same, the machine ends. The checkpoint is vouched for no longer, and the next wake
// reads it whole.
//
// Vouchers are files in the run directory. They name the boot, since not every
// run directory goes away with it.

const dirVouched = "vouched"

// A voucher is for the checkpoint in one directory.
type voucher struct {
	Dir   string `json:"dir"`
	Print string `json:"print"` // of the boot and the files, see fingerprint
}

// Vouchers are those of one driver.
type Vouchers struct{ run string }

// VouchersIn returns those that are in a driver's run directory.
func VouchersIn(run string) Vouchers { return Vouchers{run} }

func (all Vouchers) file(dir string) string { return VoucherFile(all.run, dir) }

// VoucherFile is where the checkpoint in dir is vouched for, in the run directory of a
// driver.
func VoucherFile(run, dir string) string {
	return filepath.Join(run, dirVouched, fmt.Sprintf("%x", sha256.Sum256([]byte(dir))))
}

// Vouch says that the checkpoint in dir is what its manifest says. Without a voucher
// the next wake is slower and otherwise the same.
func (all Vouchers) Vouch(dir string) error {
	now, err := fingerprint(dir)
	if err != nil {
		return fmt.Errorf("vouch for the checkpoint: %w", err)
	}
	raw, err := json.Marshal(voucher{dir, now})
	if err != nil {
		return fmt.Errorf("vouch for the checkpoint: %w", err)
	}
	if err := os.MkdirAll(filepath.Join(all.run, dirVouched), 0o700); err != nil {
		return fmt.Errorf("vouch for the checkpoint: %w", err)
	}
	if err := os.WriteFile(all.file(dir), raw, 0o600); err != nil {
		return errors.Join(fmt.Errorf("vouch for the checkpoint: %w", err), all.Doubt(dir))
	}
	return nil
}

// Vouched reports whether nothing happened to the checkpoint in dir since Vouch.
func (all Vouchers) Vouched(dir string) bool {
	raw, err := os.ReadFile(all.file(dir))
	if err != nil {
		return false
	}
	var then voucher
	if json.Unmarshal(raw, &then) != nil || then.Dir != dir {
		return false
	}
	now, err := fingerprint(dir)
	return err == nil && now == then.Print
}

// Moved vouches for a checkpoint that was renamed, if it was vouched for before
// and nobody has touched it since.
func (all Vouchers) Moved(from, to string) error {
	var then voucher
	raw, err := os.ReadFile(all.file(from))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // nobody vouched for it
	}
	if err != nil {
		return fmt.Errorf("vouch for the checkpoint: %w", err)
	}
	now, err := fingerprint(to)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it was not kept
	}
	if err != nil {
		return fmt.Errorf("vouch for the checkpoint: %w", err)
	}
	if json.Unmarshal(raw, &then) != nil || then.Dir != from || then.Print != now {
		return nil //nolint:nilerr // it is another one, or none
	}
	return all.Vouch(to)
}

// Doubt takes a voucher back.
func (all Vouchers) Doubt(dir string) error {
	if err := os.Remove(all.file(dir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Sweep removes those for checkpoints that are not there any more.
func (all Vouchers) Sweep() error {
	names, err := filepath.Glob(filepath.Join(all.run, dirVouched, "*"))
	for _, name := range names {
		raw, failed := os.ReadFile(name)
		var v voucher
		if failed == nil && json.Unmarshal(raw, &v) == nil && all.Vouched(v.Dir) {
			continue
		}
		err = errors.Join(err, os.Remove(name))
	}
	return err
}

// fingerprint tells the boot and the files of a checkpoint from all others. An
// accidental write changes the time of modification. A second name for a file, such as
// a copy of the machine has, changes nothing.
func fingerprint(dir string) (string, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	names, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	var id strings.Builder
	id.Write(boot)
	for _, entry := range names {
		name := entry.Name()
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(dir, name), &st); err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
		fmt.Fprintln(&id, name, st.Dev, st.Ino, st.Size, st.Mtim.Nano())
	}
	return id.String(), nil
}
