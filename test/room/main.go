// Command room sees that there is room for the tests on the disk. It removes images of
// earlier runs from the library that all platforms of tests share. Then it says where there
// is too little room, in one line.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze/internal/disk"
	"github.com/dozehq/doze/internal/testkit"
)

const (
	// unused is for how long an image stays that no platform claims, and for how long a
	// claim counts that no platform renews.
	unused = 24 * time.Hour
	// gone is when a claim ends whose platform has no directory any more. One in another mount
	// namespace seems to have none. While it runs, it renews its claim every 10 minutes.
	gone = 15 * time.Minute
	// imagesMax bounds what images of earlier runs take that are not as old. A run builds
	// about 1 GB of them.
	imagesMax = 4 << 30
	// needed is what has to be free where tests write images, backups, checkpoints and
	// binaries. With 5 GB, they failed.
	needed = 8 << 30
	// claimMax keeps a damaged claim from filling memory: an image takes 100 bytes.
	claimMax = 16 << 20
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "room:", err)
		os.Exit(1)
	}
}

func run() error {
	if os.Geteuid() == 0 { // the library is root's
		removed, err := tidy(testkit.Images, time.Now(), imagesMax)
		if err != nil {
			return fmt.Errorf("remove images of earlier runs: %w", err)
		}
		if removed > 0 {
			fmt.Printf("removed %d MB of images of earlier runs\n", removed>>20)
		}
	}
	return enough(needed, filepath.Dir(testkit.Images), os.TempDir())
}

// tidy removes images from a library, and returns how many bytes they took. An image goes
// that is older than unused, or that is among the oldest beyond most bytes. It stays while a
// platform claims it, and so do images that the platform makes itself.
func tidy(dir string, now time.Time, most int64) (removed int64, err error) {
	if err := disown(dir, now); err != nil {
		return 0, err
	}
	l, err := disk.Open(dir, disk.Options{Owner: dir})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	all, err := l.Stored()
	if err != nil {
		return 0, err
	}
	made, sizes, total := map[string]time.Time{}, map[string]int64{}, int64(0)
	all = slices.DeleteFunc(all, func(s disk.Stored) bool {
		info, err := os.Stat(s.Path)
		if s.Platform || err != nil { // the latter was removed just now
			return true
		}
		made[s.Path], sizes[s.Path] = info.ModTime(), s.Allocated
		total += s.Allocated
		return false
	})
	slices.SortFunc(all, func(a, b disk.Stored) int { return made[a.Path].Compare(made[b.Path]) })
	for _, s := range all {
		if total <= most && now.Sub(made[s.Path]) <= unused {
			break
		}
		total -= s.Allocated
		for _, ref := range s.Refs {
			l.Release(ref)
		}
	}
	images, err := l.Collect(nil, nil, unused)
	for _, i := range images {
		removed += sizes[i.Path]
	}
	return removed, err
}

// disown removes the claims of platforms that ended without doing so. What is unreadable
// stays, and the library says so.
func disown(dir string, now time.Time) error {
	files, err := filepath.Glob(filepath.Join(dir, "users", "*.json"))
	if err != nil {
		return err
	}
	var errs []error
	for _, file := range files {
		info, err := os.Stat(file)
		if err != nil || info.Size() > claimMax {
			continue
		}
		var claim struct {
			Data    string    `json:"data"`
			Renewed time.Time `json:"renewed"`
		}
		raw, err := os.ReadFile(file)
		if err != nil || json.Unmarshal(raw, &claim) != nil || claim.Data == dir {
			continue
		}
		_, err = os.Stat(claim.Data)
		if age := now.Sub(claim.Renewed); age > unused || age > gone && errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, disk.Disown(dir, claim.Data))
		}
	}
	return errors.Join(errs...)
}

// enough returns an error in one line if a directory is on a disk with too little room.
func enough(least int64, dirs ...string) error {
	var short []string
	for _, dir := range dirs {
		free, err := room(dir)
		if err != nil {
			return err
		}
		if free < least {
			short = append(short, fmt.Sprintf("%s has %.1f GB", dir, float64(free)/(1<<30)))
		}
	}
	if short == nil {
		return nil
	}
	return fmt.Errorf("the tests need %.0f GB free, and %s: delete what is not needed", float64(least)/(1<<30), strings.Join(short, ", "))
}

// room returns how many bytes are free where a directory is, or will be.
func room(dir string) (int64, error) {
	for {
		var s unix.Statfs_t
		err := unix.Statfs(dir, &s)
		if errors.Is(err, fs.ErrNotExist) && dir != filepath.Dir(dir) {
			dir = filepath.Dir(dir)
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("look at the disk of %s: %w", dir, err)
		}
		return int64(s.Bavail) * s.Bsize, nil //nolint:gosec // G115: no disk has so many bytes
	}
}
