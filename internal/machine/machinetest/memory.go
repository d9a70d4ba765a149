package machinetest

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/dozehq/doze/internal/machine"
)

// firstChild is the process id of a fake guest's first child.
const firstChild = 2

// memory implements [World] for a fake machine. What is exported goes into the
// checkpoint.
type memory struct {
	env *environment

	mu       sync.Mutex
	since    time.Time // guarded by mu; of the last resume; zero while paused
	Ran      time.Duration
	Began    time.Time
	Pattern  []byte // one byte for each megabyte
	Files    map[string]string
	Unlinked *string
	Born     map[int]time.Duration // children, by how long the guest had run
	Timers   []time.Time
	Host     string
	Renamed  bool // Host is not what the configuration says
	Vars     []string
}

func newMemory(c machine.Config) *memory {
	return &memory{
		Began: time.Now(), Files: map[string]string{}, Born: map[int]time.Duration{},
		Host: c.Hostname, Vars: c.Env,
	}
}

func (m *memory) pause() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.Ran, m.since = m.ran(), time.Time{}
}

func (m *memory) resume() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.since = time.Now()
}

// ran returns for how long the guest ran. Preconditions: mu is held.
func (m *memory) ran() time.Duration {
	if m.since.IsZero() {
		return m.Ran
	}
	return m.Ran + time.Since(m.since)
}

func (m *memory) size() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return int64(1+len(m.Pattern)) << 20
}

// stored is how many bytes the files have.
func (m *memory) stored() (bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, text := range m.Files {
		bytes += int64(len(text))
	}
	return bytes
}

func (m *memory) Count() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ran().Milliseconds()
}

func (m *memory) Alloc(megabytes int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for range megabytes {
		m.Pattern = append(m.Pattern, byte(len(m.Pattern)&0xff))
	}
	return nil
}

func (m *memory) Change(from, megabytes int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range megabytes {
		m.Pattern[(from+i)%len(m.Pattern)]++
	}
	return nil
}

func (m *memory) Sum() uint32 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return crc32.ChecksumIEEE(m.Pattern)
}

func (m *memory) Uptime() time.Duration { return time.Since(m.Began) }

func (m *memory) Random() string {
	raw := make([]byte, 16)
	_, _ = rand.Read(raw) // never fails
	return hex.EncodeToString(raw)
}

func (m *memory) WriteFile(name, text string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if v, file, ok := m.onHost(name); ok {
		if v.ReadOnly {
			return &fs.PathError{Op: "open", Path: name, Err: syscall.EROFS}
		}
		return os.WriteFile(file, []byte(text), 0o600) //nolint:gosec // G703: the suite's own directory
	}
	m.Files[name] = text
	return nil
}

// onHost finds the file of the host that a name in a volume stands for.
func (m *memory) onHost(name string) (v machine.Volume, file string, ok bool) {
	for _, v := range m.env.config.Volumes {
		if rest, ok := strings.CutPrefix(name, v.Path+"/"); ok {
			return v, filepath.Join(v.Source, rest), true
		}
	}
	return v, "", false
}

func (m *memory) ReadFile(name string) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, file, ok := m.onHost(name); ok {
		raw, err := os.ReadFile(file) //nolint:gosec // G703: the suite's own directory
		return string(raw), err
	}
	text, ok := m.Files[name]
	if !ok {
		return "", &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return text, nil
}

// archive returns the files as a tar.
func (m *memory) archive() ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, name := range slices.Sorted(maps.Keys(m.Files)) {
		h := &tar.Header{Name: strings.TrimPrefix(name, "/"), Mode: 0o600, Size: int64(len(m.Files[name]))}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := io.WriteString(w, m.Files[name]); err != nil {
			return nil, err
		}
	}
	err := w.Close() // it writes the end
	return out.Bytes(), err
}

func (m *memory) Env() []string { return m.Vars }

func (m *memory) Hostname() (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.Host, nil
}

func (m *memory) rename(hostname string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.Host, m.Renamed = hostname, true
}

func (m *memory) Spawn(n int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for range n {
		m.Born[firstChild+len(m.Born)] = m.ran()
	}
	return nil
}

func (m *memory) Children() map[int]int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	counts := map[int]int64{}
	for pid, born := range m.Born {
		counts[pid] = (m.ran() - born).Milliseconds() / 10
	}
	return counts
}

func (m *memory) Reap() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.Born)
}

func (m *memory) Timer(after time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.Timers = append(m.Timers, time.Now().Add(after))
}

func (m *memory) Fired() (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, at := range m.Timers {
		if !time.Now().Before(at) {
			n++
		}
	}
	return n
}

func (m *memory) Hold(text string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.Unlinked = &text
	return nil
}

func (m *memory) Held() (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.Unlinked == nil {
		return "", fs.ErrClosed
	}
	return *m.Unlinked, nil
}

func (m *memory) Eat(megabytes int) (string, error) {
	if m.size()+int64(megabytes)<<20 <= m.env.config.Memory {
		return "exit status 0", nil
	}
	m.env.f.OutOfMemory(m.env.config.ID, false)
	return "signal: killed", nil
}

func (m *memory) Spin(_ int, d time.Duration) { time.Sleep(d) }

func (m *memory) Print(string) {}

func (m *memory) Exit() { m.env.f.Kill(m.env.config.ID) }

// The checkpoints of the fake have the same life as those of a real driver: made in
// one directory, published by one rename, retired by another.
const (
	dirCheckpoint = "image"
	dirMaking     = "image.making"
	dirStale      = "image.stale"
	dirLast       = "image.last"

	fileMemory   = "memory.json"
	fileManifest = "manifest.json"
)

// card is the manifest of a fake checkpoint.
type card struct {
	Engine, ID, Root, Agent string
	Disk                    bool
	Sum                     uint32 // of the memory
	Seal                    uint32 // of the above
}

func (c card) seal() uint32 {
	c.Seal = 0
	return crc32.ChecksumIEEE(fmt.Append(nil, c))
}

func cardOf(c machine.Config, engine string, memory []byte) card {
	k := card{
		Engine: engine, ID: c.ID, Root: filepath.Base(c.Root), Agent: filepath.Base(c.Agent),
		Disk: c.Disk > 0, Sum: crc32.ChecksumIEEE(memory),
	}
	k.Seal = k.seal()
	return k
}

func commit(ctx context.Context, c machine.Config, engine string, m *memory) error {
	if err := errors.Join(retire(c), sweepCheckpoints(c)); err != nil { // it is older than what ran since
		return err
	}
	return errors.Join(publish(ctx, checkpointDir(c), c, engine, m), sweepCheckpoints(c))
}

// goBack makes the last checkpoint of c its checkpoint again, and returns when it was made.
func goBack(c machine.Config) (made time.Time, err error) {
	last := filepath.Join(c.Dir, dirLast)
	info, err := os.Stat(filepath.Join(last, fileManifest))
	if err != nil || !c.GoBack {
		return made, machine.ErrGone
	}
	return info.ModTime(), os.Rename(last, checkpointDir(c))
}

// publish makes a checkpoint of c in dir.
func publish(ctx context.Context, dir string, c machine.Config, engine string, m *memory) (err error) {
	m.mu.Lock()
	raw, err := json.Marshal(m)
	m.mu.Unlock()
	if err != nil {
		return err
	}
	sealed, err := json.Marshal(cardOf(c, engine, raw))
	if err != nil {
		return err
	}
	making := dir + ".making"
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(making))
		}
	}()
	for _, step := range []func() error{
		func() error { return os.Mkdir(making, 0o700) },
		func() error { return os.WriteFile(filepath.Join(making, fileMemory), raw, 0o600) },
		func() error { return os.WriteFile(filepath.Join(making, fileManifest), sealed, 0o600) },
		func() error { return os.Chtimes(filepath.Join(making, fileManifest), time.Time{}, time.Now()) }, // of the bubble
		ctx.Err,
		func() error { return os.Rename(making, dir) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func checkpointDir(c machine.Config) string { return filepath.Join(c.Dir, dirCheckpoint) }

// Forge makes the checkpoint of c one of another engine, and sound otherwise.
func (f *Fake) Forge(c machine.Config, engine string) error {
	raw, err := os.ReadFile(filepath.Join(c.Dir, dirCheckpoint, fileMemory))
	if err != nil {
		return err
	}
	sealed, err := json.Marshal(cardOf(c, engine, raw))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(c.Dir, dirCheckpoint, fileManifest), sealed, 0o600) //nolint:gosec // G703: the test's own directory
}

// load reads the checkpoint in dir, of c or, without an ID, of any machine that is
// like c. It never changes it.
func load(dir string, c machine.Config, engine string) (*memory, error) {
	raw, err := os.ReadFile(filepath.Join(dir, fileMemory))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", machine.ErrDamaged, err)
	}
	sealed, err := os.ReadFile(filepath.Join(dir, fileManifest))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", machine.ErrDamaged, err)
	}
	var is card
	if err := json.Unmarshal(sealed, &is); err != nil {
		return nil, fmt.Errorf("%w: %w", machine.ErrDamaged, err)
	}
	c.ID = cmp.Or(c.ID, is.ID)
	want, err := json.Marshal(cardOf(c, is.Engine, raw))
	if err != nil {
		return nil, err
	}
	if string(sealed) != string(want) {
		return nil, fmt.Errorf("%w: it is not what its manifest says", machine.ErrDamaged)
	}
	if is.Engine != engine {
		return nil, fmt.Errorf("%w: the engine %q is not installed", machine.ErrNoEngine, is.Engine)
	}
	m := &memory{}
	if err := json.Unmarshal(raw, m); err != nil {
		return nil, fmt.Errorf("%w: %w", machine.ErrDamaged, err)
	}
	m.Files, m.Born = maps.Clone(m.Files), maps.Clone(m.Born)
	return m, nil
}

func hasCheckpoint(c machine.Config) bool {
	_, err := os.Stat(filepath.Join(c.Dir, dirCheckpoint, fileManifest))
	return err == nil
}

func checkpointBytes(c machine.Config) (bytes int64) {
	for _, dir := range []string{dirCheckpoint, dirLast} {
		for _, name := range []string{fileMemory, fileManifest} {
			if info, err := os.Stat(filepath.Join(c.Dir, dir, name)); err == nil {
				bytes += info.Size()
			}
		}
	}
	return bytes
}

func retire(c machine.Config) error {
	to := dirStale
	if c.GoBack && hasCheckpoint(c) {
		to = dirLast
		if err := os.RemoveAll(filepath.Join(c.Dir, dirLast)); err != nil {
			return err
		}
	}
	if err := os.Rename(filepath.Join(c.Dir, dirCheckpoint), filepath.Join(c.Dir, to)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.RemoveAll(filepath.Join(c.Dir, dirStale))
}

func sweepCheckpoints(c machine.Config) error {
	if hasCheckpoint(c) || !c.GoBack {
		if err := os.RemoveAll(filepath.Join(c.Dir, dirLast)); err != nil {
			return err
		}
	}
	return errors.Join(os.RemoveAll(filepath.Join(c.Dir, dirStale)), os.RemoveAll(filepath.Join(c.Dir, dirMaking)))
}
