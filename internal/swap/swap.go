// Package swap finds or makes the swap of the host, to which the memory of
// sleeping sandboxes is moved.
//
// What is moved there is what sandboxes had in memory, their secrets included.
// Compressed memory (zram) never reaches a disk. A file is encrypted with a key
// that only the kernel has until the machine restarts. A file that can be read is
// made only if the operator asks for it.
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

	"github.com/dozehq/doze"
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

// Options say where swap of our own may be, and what it may take.
type Options struct {
	Path    string // absolute, of the file; the record of a zram device is beside it
	Room    int64  // of the disk above its reserve, in bytes
	ZramMax int64  // the most of the memory that compressed memory may take, in bytes
}

// Examine returns what a plan depends on. It changes nothing.
func Examine(ctx context.Context, o Options) (Facts, error) {
	f := Facts{Memory: memory(), ZramMax: o.ZramMax, Room: o.Room, NoZram: noZram(ctx), NoEncryption: noEncryption(ctx)}
	all, err := areas()
	if err != nil {
		return Facts{}, err
	}
	mine := at(o.Path)
	devices := map[string]string{mine.device(true): Plain, mine.device(false): Encrypted}
	z := zramAt(o.Path)
	if name, state := z.find(); state == zramMade {
		devices[name.node()] = Zram
	}
	for _, a := range all {
		kind := ""
		for device, k := range devices {
			if resolved(device) == a.name {
				kind = k
			}
		}
		if kind == "" {
			f.Host += a.bytes
			continue
		}
		if f.Ours, f.OursBytes = kind, z.limit(); kind != Zram {
			info, err := os.Stat(o.Path)
			if err != nil {
				return Facts{}, fmt.Errorf("look at our swap: %w", err)
			}
			f.OursBytes = info.Size()
		}
	}
	return f, nil
}

// Provide makes sure of the swap that c allows, and returns what it is. It keeps
// what an earlier start made if that still fits, and removes it otherwise.
func Provide(ctx context.Context, c Choice, o Options) (Plan, error) {
	sweepZram(ctx)
	if err := tidy(ctx, o.Path); err != nil {
		return Plan{}, err
	}
	f, err := Examine(ctx, o)
	if err != nil {
		return Plan{}, err
	}
	for {
		p := Decide(c, f)
		err := p.make(ctx, o.Path)
		if err == nil || c.Kind != Auto || p.Kind != Zram && p.Kind != Encrypted {
			return p, err
		}
		f = f.without(p.Kind, err) // at most once for each of the two
	}
}

// make makes what a plan has, and removes what it does not have.
func (p Plan) make(ctx context.Context, path string) error {
	z := zramAt(path)
	switch p.Kind {
	case Zram:
		if err := at(path).remove(ctx); err != nil {
			return err
		}
		return z.make(ctx, p.Bytes)
	case Encrypted, Plain:
		if err := z.remove(ctx); err != nil {
			return err
		}
		return Make(ctx, path, p.Bytes, p.Kind == Plain)
	}
	return Remove(ctx, path)
}

// tidy removes what a start that was killed, or a restart of the machine, left of
// swap that the kernel does not use.
func tidy(ctx context.Context, path string) error {
	f := at(path)
	if !on(f.device(true)) && !on(f.device(false)) {
		if err := f.remove(ctx); err != nil {
			return err
		}
	}
	z := zramAt(path)
	if d, state := z.find(); state != zramMade || !on(d.node()) {
		return z.remove(ctx)
	}
	return nil
}

// Remove turns off all swap of ours, which brings what is in it back to memory,
// and removes it. It finds one that is not there removed.
func Remove(ctx context.Context, path string) error {
	return errors.Join(at(path).remove(ctx), zramAt(path).remove(ctx))
}

// memory is that of the host, in bytes.
func memory() int64 {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0
	}
	return int64(info.Totalram) * int64(info.Unit) //nolint:gosec // G115: memory is far less
}

// mapperDir is where the kernel shows encrypted devices.
const mapperDir = "/dev/mapper"

// noEncryption says why a file cannot be encrypted. It is empty if it probably can:
// only making one tells.
func noEncryption(ctx context.Context) string {
	if _, err := os.Stat(filepath.Join(mapperDir, "control")); err != nil && !loadable(ctx, "dm-crypt") {
		return "this kernel has no device mapper, which encrypts swap"
	}
	if program("cryptsetup") == "" {
		return "cryptsetup is not installed, which encrypts swap"
	}
	return ""
}

// loadable reports whether the kernel has a module that is not loaded.
func loadable(ctx context.Context, module string) bool {
	return step{"modprobe", "--dry-run", "--quiet", module}.run(ctx) == nil
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

// Which swap the kernel uses first. What the host has is below both: a file of ours
// may be encrypted, and memory is faster than every disk.
const (
	filePriority = "50"
	zramPriority = "100"
)

// steps make a device out of an allocated file, and turn it on.
func (f file) steps(plain bool) []step {
	device := f.device(plain)
	on := []step{{"mkswap", device}, {"swapon", "--priority", filePriority, device}}
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
	if why := noEncryption(ctx); !plain && why != "" {
		return doze.Errorf(doze.Unsupported, "%s", why)
	}
	if err := f.remove(ctx); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("make swap: %w", err), f.remove(ctx))
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

// remove turns the file off, which brings what is in it back to memory, and
// removes it.
func (f file) remove(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx) // half of it helps nobody
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
	if err := os.Remove(f.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove swap: %w", err)
	}
	return nil
}

// area is something that the kernel swaps to.
type area struct {
	name  string
	bytes int64
}

// areas returns all that the kernel swaps to.
func areas() ([]area, error) {
	raw, err := os.ReadFile("/proc/swaps")
	if errors.Is(err, fs.ErrNotExist) { // a kernel without swap
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look at the host's swap: %w", err)
	}
	return parseAreas(string(raw)), nil
}

// unescape undoes what the kernel does to names.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

func parseAreas(swaps string) (all []area) {
	const name, size = 0, 2 // columns; the others are its type, what is in it, and its priority
	for line := range strings.Lines(swaps) {
		fields := strings.Fields(line)
		if len(fields) <= size {
			continue
		}
		kib, err := strconv.ParseInt(fields[size], 10, 64)
		if err != nil || kib < 0 || kib > largest>>10 {
			continue // the heading
		}
		all = append(all, area{unescape.Replace(fields[name]), kib << 10})
	}
	return all
}

// on reports whether the kernel swaps to a device or file.
func on(device string) bool {
	all, err := areas()
	if err != nil {
		return false
	}
	device = resolved(device)
	return slices.ContainsFunc(all, func(a area) bool { return a.name == device })
}

// resolved is a path as the kernel shows it.
func resolved(path string) string {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		return target
	}
	return path
}

// programDirs are where administrators' programs are, which are not in
// everybody's PATH.
var programDirs = []string{"/usr/sbin", "/sbin", "/usr/bin", "/bin"}

// program returns the path of a program, or nothing if it is not installed.
func program(name string) string {
	for _, dir := range programDirs {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return ""
}

// run runs the command.
func (s step) run(ctx context.Context) error {
	path := program(s[0])
	if path == "" {
		return doze.Errorf(doze.Unsupported, "%s is not installed", s[0])
	}
	if out, err := exec.CommandContext(ctx, path, s[1:]...).CombinedOutput(); err != nil { //nolint:gosec // G204: our own table
		return fmt.Errorf("%s: %w: %s", s[0], err, strings.TrimSpace(string(out)))
	}
	return nil
}
