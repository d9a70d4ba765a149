package gvisor

import (
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

func (d *Driver) voucher(c Config) string { return filepath.Join(d.run, dirVouched, c.ID) }

// vouch says that the image of c is what its manifest says. Without a voucher
// the next wake is slower and otherwise the same.
func (d *Driver) vouch(c Config) error {
	now, err := fingerprint(c)
	if err != nil {
		return fmt.Errorf("vouch for the image: %w", err)
	}
	if err := os.MkdirAll(filepath.Join(d.run, dirVouched), 0o700); err != nil {
		return fmt.Errorf("vouch for the image: %w", err)
	}
	if err := os.WriteFile(d.voucher(c), []byte(now), 0o600); err != nil {
		return errors.Join(fmt.Errorf("vouch for the image: %w", err), d.doubt(c))
	}
	return nil
}

// vouched reports whether nothing happened to the image of c since vouch.
func (d *Driver) vouched(c Config) bool {
	then, err := os.ReadFile(d.voucher(c))
	if err != nil {
		return false
	}
	now, err := fingerprint(c)
	return err == nil && now == string(then)
}

// doubt takes a voucher back.
func (d *Driver) doubt(c Config) error {
	if err := os.Remove(d.voucher(c)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// sweepVouchers removes those of machines that nobody knows.
func (d *Driver) sweepVouchers(keep func(id string) bool) error {
	entries, err := os.ReadDir(filepath.Join(d.run, dirVouched))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if !keep(e.Name()) {
			err = errors.Join(err, d.doubt(Config{ID: e.Name()}))
		}
	}
	return err
}

// fingerprint tells the boot and the files of an image from all others. Whoever
// writes to a file changes its ctime, which nobody can set.
func fingerprint(c Config) (string, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	var id strings.Builder
	id.Write(boot)
	for _, name := range append([]string{FileManifest}, files...) {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(c.Dir, dirImage, name), &st); err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
		fmt.Fprintln(&id, name, st.Dev, st.Ino, st.Size, st.Mtim.Nano(), st.Ctim.Nano())
	}
	return id.String(), nil
}
