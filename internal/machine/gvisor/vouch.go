package gvisor

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

// An image is vouched for from the moment when it was written or checked until
// the machine restarts or somebody touches one of its files. As long as it is,
// a wake need not read all of it before the first instruction: what it loads is
// compared piece by piece, and between then and now only the hardware could
// have altered it. An image that turns out to be bad all the same ends the
// machine, is vouched for no longer, and the next wake reads it whole.
//
// Vouchers are files in the run directory. They name the boot, since not every
// run directory goes away with it.

const dirVouched = "vouched"

// A voucher is for the image in one directory.
type voucher struct {
	Dir   string `json:"dir"`
	Print string `json:"print"` // of the boot and the files, see fingerprint
}

func (d *Driver) voucher(dir string) string { return VoucherFile(d.run, dir) }

// VoucherFile is where the image in dir is vouched for, in the run directory of an
// engine.
func VoucherFile(run, dir string) string {
	return filepath.Join(run, dirVouched, fmt.Sprintf("%x", sha256.Sum256([]byte(dir))))
}

// vouch says that the image in dir is what its manifest says. Without a voucher
// the next wake is slower and otherwise the same.
func (d *Driver) vouch(dir string) error {
	now, err := fingerprint(dir)
	if err != nil {
		return fmt.Errorf("vouch for the image: %w", err)
	}
	raw, err := json.Marshal(voucher{dir, now})
	if err != nil {
		return fmt.Errorf("vouch for the image: %w", err)
	}
	if err := os.MkdirAll(filepath.Join(d.run, dirVouched), 0o700); err != nil {
		return fmt.Errorf("vouch for the image: %w", err)
	}
	if err := os.WriteFile(d.voucher(dir), raw, 0o600); err != nil {
		return errors.Join(fmt.Errorf("vouch for the image: %w", err), d.doubt(dir))
	}
	return nil
}

// vouched reports whether nothing happened to the image in dir since vouch.
func (d *Driver) vouched(dir string) bool {
	raw, err := os.ReadFile(d.voucher(dir))
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

// vouchMoved vouches for an image that was renamed, if it was vouched for before
// and nobody has touched it since.
func (d *Driver) vouchMoved(from, to string) error {
	var then voucher
	raw, err := os.ReadFile(d.voucher(from))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // nobody vouched for it
	}
	if err != nil {
		return fmt.Errorf("vouch for the image: %w", err)
	}
	now, err := fingerprint(to)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it was not kept
	}
	if err != nil {
		return fmt.Errorf("vouch for the image: %w", err)
	}
	if json.Unmarshal(raw, &then) != nil || then.Dir != from || then.Print != now {
		return nil //nolint:nilerr // it is another one, or none
	}
	return d.vouch(to)
}

// doubt takes a voucher back.
func (d *Driver) doubt(dir string) error {
	if err := os.Remove(d.voucher(dir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// sweepVouchers removes those for images that are not there any more.
func (d *Driver) sweepVouchers() error {
	names, err := filepath.Glob(filepath.Join(d.run, dirVouched, "*"))
	for _, name := range names {
		raw, failed := os.ReadFile(name)
		var v voucher
		if failed == nil && json.Unmarshal(raw, &v) == nil && d.vouched(v.Dir) {
			continue
		}
		err = errors.Join(err, os.Remove(name))
	}
	return err
}

// fingerprint tells the boot and the files of an image from all others. Who
// writes to a file by accident changes its time of modification; a second name
// for it, such as a copy of the machine has, changes nothing.
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
