// Package swap finds or makes the swap of the host, to which the memory of
// sleeping sandboxes is moved.
//
// What is moved there is what sandboxes had in memory, their secrets included. A
// file that we make is encrypted with a key that exists in the kernel only and
// is gone with the next start of the machine, unless somebody says otherwise.
package swap

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"doze"
)

// Size is the host's swap, in bytes.
type Size struct{ Total, Free int64 }

// Look returns what the host has.
func Look() (Size, error) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return Size{}, fmt.Errorf("look at the host's swap: %w", err)
	}
	defer func() { _ = f.Close() }()
	return parseSize(f)
}

func parseSize(meminfo io.Reader) (s Size, err error) {
	lines := bufio.NewScanner(meminfo)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ":")
		into := map[string]*int64{"SwapTotal": &s.Total, "SwapFree": &s.Free}[name]
		if into == nil {
			continue
		}
		kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(value, "kB")), 10, 64)
		if err != nil {
			return Size{}, fmt.Errorf("look at the host's swap: %w", err)
		}
		*into = kib << 10
	}
	return s, lines.Err()
}

// mapperDir is where the kernel shows encrypted devices.
const mapperDir = "/dev/mapper"

// Encrypts reports whether this kernel can encrypt swap.
func Encrypts() bool {
	_, err := os.Stat(filepath.Join(mapperDir, "control"))
	return err == nil
}

// file is swap that we make. It stays when the process ends, as sandboxes do,
// until Remove or the next start of the machine.
type file struct {
	path   string
	mapper string // name of the encrypted device before it, if there is one
}

func at(path string) file {
	sum := sha256.Sum256([]byte(path))
	return file{path: path, mapper: "doze-swap-" + hex.EncodeToString(sum[:8])}
}

// device is what the kernel swaps to.
func (f file) device(plain bool) string {
	if plain {
		return f.path
	}
	return filepath.Join(mapperDir, f.mapper)
}

// step is one command of making swap.
type step []string

// steps make a device out of an allocated file, and turn it on.
func (f file) steps(plain bool) []step {
	device := f.device(plain)
	on := []step{{"mkswap", device}, {"swapon", device}}
	if plain {
		return on
	}
	encrypt := step{
		"cryptsetup", "open", "--type", "plain", "--cipher", "aes-xts-plain64", "--key-size", "512",
		"--key-file", "/dev/urandom", f.path, f.mapper,
	}
	return slices.Insert(on, 0, encrypt)
}

// Make makes a swap file at an absolute path and turns it on. One that is on
// already and is of the same kind and size stays; whatever else an earlier
// process left there is removed. On an error nothing is left.
func Make(ctx context.Context, path string, bytes int64, plain bool) (err error) {
	f := at(path)
	if info, err := os.Stat(path); err == nil && info.Size() == bytes && on(f.device(plain)) {
		return nil
	}
	if !plain && !Encrypts() {
		return doze.Errorf(doze.Unsupported, "this kernel has no device mapper, which encrypts swap")
	}
	if err := Remove(ctx, path); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("make swap: %w", err), Remove(ctx, path))
		}
	}()
	if err := allocate(path, bytes); err != nil {
		return err
	}
	for _, s := range f.steps(plain) {
		if err := s.run(ctx); err != nil {
			return err
		}
	}
	return nil
}

// allocate makes a file without holes, as the kernel wants it.
func allocate(path string, bytes int64) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	err = unix.Fallocate(int(f.Fd()), 0, 0, bytes)
	if err != nil {
		err = fmt.Errorf("allocate %d MB: %w", bytes>>20, err)
	}
	return errors.Join(err, f.Close())
}

// Remove turns the swap off, which brings what is in it back to memory, and
// removes the file. It finds one that is not there removed.
func Remove(ctx context.Context, path string) error {
	ctx = context.WithoutCancel(ctx) // half of it helps nobody
	f := at(path)
	for _, plain := range []bool{false, true} {
		if device := f.device(plain); on(device) {
			if err := (step{"swapoff", device}).run(ctx); err != nil {
				return err
			}
		}
	}
	if _, err := os.Stat(f.device(false)); err == nil {
		if err := (step{"cryptsetup", "close", f.mapper}).run(ctx); err != nil {
			return err
		}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove swap: %w", err)
	}
	return nil
}

// on reports whether the kernel swaps to a device or file.
func on(device string) bool {
	raw, err := os.ReadFile("/proc/swaps")
	if err != nil {
		return false
	}
	if target, err := filepath.EvalSymlinks(device); err == nil {
		device = target
	}
	device = strings.NewReplacer(" ", `\040`, "\t", `\011`, "\n", `\012`, `\`, `\134`).Replace(device) // as the kernel does
	for line := range strings.Lines(string(raw)) {
		if name, _, _ := strings.Cut(line, " "); name == device {
			return true
		}
	}
	return false
}

// programDirs are where administrators' programs are, which are not in
// everybody's PATH.
var programDirs = []string{"/usr/sbin", "/sbin", "/usr/bin", "/bin"}

// run runs the command.
func (s step) run(ctx context.Context) error {
	program := s[0]
	for _, dir := range programDirs {
		if _, err := os.Stat(filepath.Join(dir, s[0])); err == nil {
			program = filepath.Join(dir, s[0])
			break
		}
	}
	if out, err := exec.CommandContext(ctx, program, s[1:]...).CombinedOutput(); err != nil { //nolint:gosec // G204: our own table
		return fmt.Errorf("%s: %w: %s", s[0], err, strings.TrimSpace(string(out)))
	}
	return nil
}
