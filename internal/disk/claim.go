package disk

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/durable"
)

// A library may be shared by several dozed, of which some do not run: their
// sandboxes sleep. So each says in a file of its own which images it needs, before
// it uses them, and nobody removes what somebody else claims.

const (
	// userDir has the claims, one file for each owner.
	userDir = "users"
	// claimBytesMax keeps a damaged file from filling memory: an image takes 100 bytes.
	claimBytesMax = 16 << 20
	// startTime is for how long an image stays that was given to somebody who starts
	// a sandbox with it: longer than a start takes until the sandbox is on record.
	startTime = 15 * time.Minute
)

// claim is what one owner needs.
type claim struct {
	Data    string               `json:"data"`    // directory of the owner
	Renewed time.Time            `json:"renewed"` // when the owner last said so
	Files   map[string]time.Time `json:"files"`   // by the name of an image's file: when it was last used
}

func (l *Library) userDir() string { return filepath.Join(l.dir, userDir) }

func claimName(owner string) string { return sumOf(owner)[:16] + recordSuffix }

// openClaim reads the claim of the owner. One who claims for the first time claims
// all that is there: nobody knows since when it is unused. Preconditions: the
// library is locked.
func (l *Library) openClaim() error {
	if l.o.Owner == "" {
		return nil
	}
	if err := os.MkdirAll(l.userDir(), 0o700); err != nil {
		return err
	}
	c, err := readClaim(filepath.Join(l.userDir(), claimName(l.o.Owner)))
	switch {
	case err == nil && c.Data == l.o.Owner:
	case err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, errClaim):
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			slog.Warn("the claim of this dozed to its images is damaged: it claims all", "err", err)
		}
		c = claim{Data: l.o.Owner, Files: map[string]time.Time{}}
		records, _, err := read(l.imageDir())
		if err != nil {
			return err
		}
		for _, r := range records {
			c.Files[filepath.Base(r.Path)] = time.Now().UTC()
		}
	default:
		return err
	}
	return l.writeClaim(c)
}

var errClaim = errors.New("the claim is damaged")

func readClaim(file string) (c claim, err error) {
	info, err := os.Stat(file)
	if err != nil {
		return c, err
	}
	if info.Size() > claimBytesMax {
		return c, fmt.Errorf("%w: it has %d bytes", errClaim, info.Size())
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return c, err
	}
	if err := json.Unmarshal(b, &c); err != nil || c.Data == "" {
		return c, fmt.Errorf("%w: %w", errClaim, errors.Join(err, errClaim))
	}
	if c.Files == nil {
		c.Files = map[string]time.Time{}
	}
	return c, nil
}

// writeClaim writes the claim of the owner, and remembers it. Preconditions: the
// library is locked.
func (l *Library) writeClaim(c claim) error {
	c.Renewed = time.Now().UTC()
	b, err := json.Marshal(c)
	if err != nil {
		return err
	}
	file := filepath.Join(l.userDir(), claimName(l.o.Owner))
	if err := durable.Replace(file, b, recordMode); err != nil {
		return fmt.Errorf("claim images: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.claimed = map[string]bool{}
	for f := range c.Files {
		l.claimed[f] = true
	}
	return nil
}

// hold claims an image that was found, and reports whether it is still there. For
// one that is claimed already this touches no disk.
func (l *Library) hold(i Image, starting bool) (bool, error) {
	file := filepath.Base(i.Path)
	l.mu.Lock()
	if starting {
		l.started[file] = time.Now()
	}
	delete(l.released, file)
	known := l.o.Owner == "" || l.claimed[file]
	l.mu.Unlock()
	if known {
		return true, nil
	}
	unlock, err := l.lock()
	if err != nil {
		return false, err
	}
	defer unlock()
	return l.claim(file)
}

// Hold keeps an image for a sandbox that begins as a snapshot: its caller has the
// file of the image alone.
func (l *Library) Hold(path string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.started[filepath.Base(path)] = time.Now()
}

// claim adds a file to the claim, if its image is there. Preconditions: the library
// is locked.
func (l *Library) claim(file string) (bool, error) {
	if l.o.Owner == "" {
		return true, nil
	}
	if _, err := readRecord(l.imageDir(), strings.TrimSuffix(file, imageSuffix)); err != nil {
		return false, nil //nolint:nilerr // it is made anew
	}
	c, err := readClaim(filepath.Join(l.userDir(), claimName(l.o.Owner)))
	if err != nil {
		return false, fmt.Errorf("claim an image: %w", err)
	}
	c.Files[file] = time.Now().UTC()
	return true, l.writeClaim(c)
}

// Release says that no record names a reference any more. The next Collect removes its
// image, unless something needs it, however short it was unused.
func (l *Library) Release(ref string) {
	r, err := parse(ref)
	if err != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, i := range l.images {
		if plain, _, _ := strings.Cut(key, ownerMark); plain == r.key {
			l.released[filepath.Base(i.Path)] = true
		}
	}
}

// Collect removes images of registries that nobody needs, and returns them. No file
// of used, no reference of named and no claim of another owner may be about such an
// image. It must be released, or unused for the retention. A retention of 0 has no
// end. Images that were made on this host stay.
func (l *Library) Collect(used, named []string, retention time.Duration) (gone []Image, err error) {
	if l.o.Owner == "" {
		return nil, doze.Errorf(doze.Internal, "a library without an owner collects nothing")
	}
	unlock, err := l.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	c, err := readClaim(filepath.Join(l.userDir(), claimName(l.o.Owner)))
	if err != nil {
		return nil, err
	}
	others, err := l.others(retention)
	if err != nil {
		return nil, err
	}
	records, _, err := read(l.imageDir()) // damaged images stay, for the operator to look into
	if err != nil {
		return nil, err
	}
	now := time.Now()
	names := map[string]bool{}
	for _, n := range named {
		if r, err := parse(n); err == nil {
			names[r.key] = true
		}
	}
	inUse := map[string]bool{}
	for _, f := range used {
		inUse[filepath.Base(f)] = true
	}
	there := map[string]time.Time{}
	var unneeded []record
	for _, r := range records {
		file := filepath.Base(r.Path)
		last, mine := c.Files[file]
		needed := inUse[file] || r.namedBy(names)
		if needed {
			last, mine = now, true
		}
		if !mine { // somebody else's once, or made by a command
			for _, at := range r.Refs {
				if at.After(last) {
					last = at
				}
			}
		}
		switch old := retention > 0 && now.Sub(last) > retention; {
		case needed, r.platform(), others[file], !l.letGo(file, old, now):
			if mine {
				there[file] = last.UTC()
			}
		default:
			unneeded = append(unneeded, r)
		}
	}
	var errs []error
	for _, r := range unneeded {
		if err := l.remove(r); err != nil {
			errs = append(errs, fmt.Errorf("remove %s: %w", r.Ref, err))
			continue
		}
		gone = append(gone, r.Image)
	}
	c.Files = there
	return gone, errors.Join(append(errs, l.writeClaim(c), l.load())...)
}

// letGo decides whether an image that nothing needs may go, and if so, has the next
// caller look on the disk for it.
func (l *Library) letGo(file string, old bool, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !old && !l.released[file] || now.Sub(l.started[file]) < startTime {
		return false
	}
	delete(l.claimed, file)
	delete(l.started, file)
	delete(l.released, file)
	return true
}

// remove removes an image: the record first, for a file without one is swept.
// Preconditions: the library is locked.
func (l *Library) remove(r record) error {
	file := filepath.Join(l.imageDir(), r.hex()+recordSuffix)
	return errors.Join(os.Remove(file), durable.Sync(l.imageDir()), os.Remove(r.Path))
}

// others are the files that other owners claim. An owner whose directory is gone,
// and who said nothing for as long as images are kept, claims nothing any more. If a
// claim cannot be read, nobody knows.
func (l *Library) others(retention time.Duration) (map[string]bool, error) {
	entries, err := os.ReadDir(l.userDir())
	if err != nil {
		return nil, err
	}
	files := map[string]bool{}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), recordSuffix) || e.Name() == claimName(l.o.Owner) {
			continue
		}
		name := filepath.Join(l.userDir(), e.Name())
		c, err := readClaim(name)
		if err != nil {
			return nil, fmt.Errorf("read who needs which images: %s: %w", name, err)
		}
		if _, err := os.Stat(c.Data); errors.Is(err, fs.ErrNotExist) && retention > 0 && time.Since(c.Renewed) > retention {
			slog.Warn("a dozed that shared the images is gone", "data", c.Data)
			if err := os.Remove(name); err != nil {
				return nil, err
			}
			continue
		}
		for f := range c.Files {
			files[f] = true
		}
	}
	return files, nil
}

// namedBy reports whether one of some references leads to the image.
func (r record) namedBy(names map[string]bool) bool {
	for ref := range r.Refs {
		if plain, _, _ := strings.Cut(ref, ownerMark); names[plain] {
			return true
		}
	}
	return false
}

// platform reports whether the operator of this host imported the image, or this release
// made it.
func (r record) platform() bool {
	for ref := range r.Refs {
		plain, _, _ := strings.Cut(ref, ownerMark)
		known, err := parse(plain)
		if err != nil || known.remote == nil && known.key == plain && !known.retired() && !isBuilt(plain) {
			return true
		}
	}
	return false
}

// Disown takes the claim of an owner who is gone back from a library that others may
// have.
func Disown(dir, owner string) error {
	err := os.Remove(filepath.Join(dir, userDir, claimName(owner)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
