package space_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/space"
)

const mega = 1 << 20

// small mounts a file system of so many MB, and leaves nothing of it.
func small(t *testing.T, megabytes int64) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: a file system of its own needs root")
	}
	dir := t.TempDir()
	file, at := filepath.Join(dir, "disk"), filepath.Join(dir, "at")
	f, err := os.Create(file)
	if err := errors.Join(err, f.Truncate(megabytes*mega), f.Close(), os.Mkdir(at, 0o700)); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"mkfs.ext4", "-q", "-F", "-m", "0", file}, {"mount", "-o", "loop", file, at}} {
		if out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Skipf("SKIPPED: no file system of its own: %v: %s", err, out)
		}
	}
	t.Cleanup(func() {
		if err := unix.Unmount(at, 0); err != nil {
			t.Error(err)
		}
	})
	return at
}

func open(t *testing.T, dir string, o space.Options) *space.Disk {
	t.Helper()
	d, err := space.Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func exhausted(t *testing.T, err error, says ...string) {
	t.Helper()
	if doze.Public(err).Kind != doze.Exhausted {
		t.Errorf("it is %v", err)
		return
	}
	for _, s := range says {
		if !strings.Contains(doze.Public(err).Message, s) {
			t.Errorf("%q does not say %q", doze.Public(err).Message, s)
		}
	}
}

// write writes n MB to a new file.
func write(dir, name string, n int) error {
	return os.WriteFile(filepath.Join(dir, name), make([]byte, n*mega), 0o600)
}

// TestReserve fills a real file system: tenants leave the reserve, sleep leaves the
// floor, and what is written counts once.
func TestReserve(t *testing.T) {
	t.Parallel()
	dir := small(t, 200)
	d := open(t, dir, space.Options{Reserve: 40 * mega})
	n := 0
	for ; ; n++ {
		release, err := d.Claim(10 * mega)
		if err != nil {
			exhausted(t, err, "10 MB more", "40 MB stay free")
			break
		}
		if err := write(dir, fmt.Sprint(n), 10); err != nil {
			t.Fatal(err)
		}
		release()
		release() // is no second one
	}
	s, err := d.State()
	if err != nil || s.Free < 40*mega || s.Free > 51*mega {
		t.Errorf("%d MB are left, %v", s.Free/mega, err)
	}
	release, err := d.ClaimSleep(s.Free - 10*mega)
	if err != nil {
		t.Errorf("sleep: %v", err)
	}
	_, err = d.ClaimSleep(1 * mega) // beside the other, below the floor
	exhausted(t, err, "10 MB stay free")
	release()
	if err := os.Remove(filepath.Join(dir, "0")); err != nil {
		t.Fatal(err)
	}
	if release, err = d.Claim(1 * mega); err != nil {
		t.Errorf("after a removal: %v", err)
	} else {
		release()
	}
}

// TestRace has many claim at once: together they leave the reserve.
func TestRace(t *testing.T) {
	t.Parallel()
	dir := small(t, 200)
	d := open(t, dir, space.Options{Reserve: 100 * mega})
	begin, err := d.State()
	if err != nil {
		t.Fatal(err)
	}
	var claims, reservations atomic.Int64
	var all sync.WaitGroup
	for i := range 64 {
		all.Go(func() {
			if i%2 == 0 {
				if _, err := d.Claim(5 * mega); err == nil {
					claims.Add(1)
				}
			} else if err := d.Reserve(fmt.Sprint(i), 5*mega); err == nil {
				reservations.Add(1)
			}
		})
	}
	all.Wait()
	if got, most := (claims.Load()+reservations.Load())*5*mega, begin.Free-100*mega; got > most || got < most-10*mega {
		t.Errorf("%d claims and %d reservations of 5 MB, with room for %d MB", claims.Load(), reservations.Load(), most/mega)
	}
}

// TestReserveVolumes reserves no more for volumes than the disk could hold, and keeps it
// for them while they are empty.
func TestReserveVolumes(t *testing.T) {
	t.Parallel()
	dir := small(t, 200)
	var written atomic.Int64
	for overcommit, most := range map[float64]int64{1: 100, 1.5: 150} {
		d := open(t, dir, space.Options{Reserve: 60 * mega, Overcommit: overcommit})
		d.Written(written.Load)
		s, err := d.State()
		if err != nil {
			t.Fatal(err)
		}
		exhausted(t, d.Reserve("huge", 4<<40), "4194304 MB more", fmt.Sprintf("%d MB free", s.Free/mega), "60 MB stay free")
		if err := d.Reserve("a", most*mega); err != nil {
			t.Errorf("%v: %v", overcommit, err)
		}
		exhausted(t, d.Reserve("b", 100*mega), "reserved for other volumes")
		if err := d.Reserve("a", most*mega); err != nil {
			t.Errorf("the same again: %v", err)
		}
		exhausted(t, d.Reserve("a", 10*most*mega))
		_, err = d.Claim(60 * mega)
		exhausted(t, err, "reserved for volumes")
		if release, err := d.ClaimSleep(60 * mega); err != nil {
			t.Errorf("sleep beside a volume: %v", err)
		} else {
			release()
		}
		d.Forget("a")
		if err := d.Reserve("b", most*mega); err != nil {
			t.Errorf("after a removal: %v", err)
		}
		d.Record("c", 1<<40) // of an earlier process
		if s, err = d.State(); err != nil || s.Reserved != 1<<40+most*mega {
			t.Errorf("%+v, %v", s, err)
		}
	}
}

func TestAuto(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	d := open(t, dir, space.Options{Reserve: space.Auto})
	s, err := d.State()
	if err != nil || s.Reserve < 1<<30 || s.Reserve > 20<<30 {
		t.Errorf("%+v, %v", s, err)
	}
	if same, err := d.Same(dir); !same || err != nil {
		t.Errorf("another disk: %v", err)
	}
	if same, err := d.Same("/proc"); same || err != nil {
		t.Errorf("the same disk: %v", err)
	}
	if _, err := space.Open(filepath.Join(dir, "none"), space.Options{}); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("no directory: %v", err)
	}
}
