package depot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"sync"

	"golang.org/x/sync/singleflight"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/durable"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/node"
	"github.com/dozehq/doze/internal/vault"
)

const (
	// needsFile, in a copy, says which files it needs.
	needsFile = fleet.NeedsFile
	// needsMax bounds it, in bytes.
	needsMax = 16 << 10
	// fileMode is of files that came: nobody changes them.
	fileMode = 0o444
)

// need is a file that a copy needs.
type need = fleet.FileNeed

// needs are those of a copy.
type needs struct {
	Root    need   `json:"root"`
	Agent   need   `json:"agent"`
	Volumes []held `json:"volumes,omitempty"`
}

// sumForm is that of a SHA-256, hexadecimal.
var sumForm = regexp.MustCompile(`^[0-9a-f]{64}$`)

// files are those that many copies need: root file systems and agents.
type files struct {
	d   *Depot
	one singleflight.Group

	writing sync.Mutex // held while sums are written down

	mu     sync.Mutex
	sums   map[string]string // guarded by mu; by path: the content of a path never changes
	stamps map[string]stamp  // guarded by mu; by path, those of earlier processes too
}

// send has the bucket have what a copy needs, and the copy say so.
func (f *files) send(ctx context.Context, dir string, of node.Files, volumes []held) (n needs, err error) {
	n.Volumes = volumes
	for path, to := range map[string]*need{of.Root: &n.Root, of.Agent: &n.Agent} {
		if *to, err = f.offer(ctx, path); err != nil {
			return n, err
		}
	}
	raw, err := json.Marshal(n)
	if err != nil {
		return n, err
	}
	return n, os.WriteFile(filepath.Join(dir, needsFile), raw, 0o600)
}

// offer has the bucket have a file.
func (f *files) offer(ctx context.Context, path string) (need, error) {
	sum, err := f.sum(path)
	if err != nil {
		return need{}, err
	}
	n := need{Name: filepath.Base(path), Sum: sum}
	if err := n.Check(); err != nil {
		return need{}, err
	}
	if n.Mark, err = f.mark(ctx, n); err != nil {
		return need{}, err
	}
	return n, f.put(ctx, path, n)
}

// put puts a file into the bucket, unless it is there.
func (f *files) put(ctx context.Context, path string, n need) error {
	_, err, _ := f.one.Do("put "+n.Sum+n.Mark, func() (any, error) {
		key, err := f.key(ctx, n)
		if err != nil {
			return nil, err
		}
		object := n.Object(key.Reveal())
		if g, err := f.d.Vault.Head(ctx, object); err == nil && g != (vault.Generation{}) {
			return nil, nil
		}
		info, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		tree := []vault.File{{Name: n.Name, Mode: fileMode, Size: info.Size(), Open: func() (*os.File, error) { return os.Open(path) }}}
		_, err = f.d.Vault.Save(ctx, object, key, vault.Generation{Epoch: fileEpoch, Seq: 1}, tree)
		return nil, err
	})
	return err
}

// mark is that of the upload of a file which copies may rely on. A control of an earlier release drops no
// file, and knows no marks.
func (f *files) mark(ctx context.Context, n need) (string, error) {
	mark, err := f.d.Rights.FileMark(ctx, f.d.ID, n.Label())
	if doze.Public(err).Kind == doze.Unsupported {
		return "", nil
	}
	return mark, err
}

// errDropped is of a copy whose file was dropped from the bucket before control could see the copy.
var errDropped = errors.New("a file that the copy needs was dropped from the bucket meanwhile")

// hold has control drop no file of a copy that may count from now on. If one was dropped already,
// the error is errDropped, and the next copy sends it again. Control must be able to see the copy: see
// [vault.Vault.SaveIf].
func (f *files) hold(ctx context.Context, all ...need) error {
	for _, n := range all {
		mark, err := f.mark(ctx, n)
		if err != nil {
			return err
		}
		if mark != n.Mark {
			return fmt.Errorf("%w: %s", errDropped, n.Name)
		}
	}
	return nil
}

// whole reports whether the bucket has the files of a copy whose save was cut off, and has control drop
// none of them. If one is gone, the save had not come so far that the copy may count.
func (f *files) whole(ctx context.Context, c *vault.Copy) (bool, error) {
	raw, err := small(ctx, c, needsFile, needsMax)
	if err != nil {
		return false, err
	}
	all, err := parseNeeds(raw)
	if err != nil {
		return false, err
	}
	for _, n := range []need{all.Root, all.Agent} {
		err := f.hold(ctx, n)
		switch {
		case err == nil:
			continue
		case !errors.Is(err, errDropped):
			return false, err
		case n.Mark != "":
			return false, nil
		}
		key, err := f.key(ctx, n) // a node of an earlier release made the copy
		if err != nil {
			return false, err
		}
		if has, err := f.d.Vault.Has(ctx, n.Object(key.Reveal())); !has || err != nil {
			return false, err
		}
	}
	return true, nil
}

func (f *files) key(ctx context.Context, n need) (vault.Key, error) {
	raw, err := f.d.Rights.FileKey(ctx, f.d.ID, n.Label())
	if err != nil {
		return vault.Key{}, err
	}
	return vault.KeyOf(raw)
}

// fetch returns what a copy needs, as paths on this host.
func (f *files) fetch(ctx context.Context, n needs) (has node.Files, err error) {
	if has.Root, err = f.get(ctx, n.Root); err != nil {
		return has, err
	}
	has.Agent, err = f.get(ctx, n.Agent)
	return has, err
}

// readNeeds returns what a copy in a directory needs.
func readNeeds(dir string) (n needs, err error) {
	file, err := os.Open(filepath.Join(dir, needsFile))
	if err != nil {
		return n, fmt.Errorf("the copy does not say what it needs: %w", err)
	}
	defer func() { _ = file.Close() }() // it was only read
	raw, err := io.ReadAll(io.LimitReader(file, needsMax))
	if err != nil {
		return n, err
	}
	return parseNeeds(raw)
}

func parseNeeds(raw []byte) (n needs, err error) {
	if err := json.Unmarshal(raw, &n); err != nil {
		return n, fmt.Errorf("what the copy needs cannot be read: %w", err)
	}
	if len(n.Volumes) > volumesMost {
		return n, fmt.Errorf("the copy needs %d volumes", len(n.Volumes))
	}
	errs := []error{n.Root.Check(), n.Agent.Check()}
	for _, h := range n.Volumes {
		errs = append(errs, h.check())
	}
	return n, errors.Join(errs...)
}

// get returns the path of a file on this host, which comes from the bucket if it is not
// here.
func (f *files) get(ctx context.Context, n need) (string, error) {
	for _, dir := range f.d.Local {
		path := filepath.Join(dir, n.Name)
		if sum, err := f.sum(path); err == nil && sum == n.Sum {
			return path, nil
		}
	}
	dir := filepath.Join(f.d.Dir, n.Sum)
	path := filepath.Join(dir, n.Name)
	_, err, _ := f.one.Do("get "+n.Sum+n.Name, func() (any, error) {
		if _, err := os.Lstat(path); err == nil {
			return nil, nil
		}
		next := dir + durable.NewSuffix
		if err := os.RemoveAll(next); err != nil {
			return nil, err
		}
		came, err := f.load(ctx, n, next)
		if err != nil {
			return nil, err
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
		if err := os.Rename(came, path); err != nil {
			return nil, err
		}
		return nil, errors.Join(os.Remove(next), durable.Sync(dir))
	})
	if err != nil {
		return "", err
	}
	sum, err := f.sum(path)
	if err == nil && sum != n.Sum {
		err = errors.Join(fmt.Errorf("%s is damaged", path), os.Remove(path))
	}
	return path, err
}

// load brings a file into a directory of its own, and returns its path: another node may have
// called it by another name.
func (f *files) load(ctx context.Context, n need, dir string) (string, error) {
	key, err := f.key(ctx, n)
	if err != nil {
		return "", err
	}
	// A node of an earlier release called it by its content, and encrypted it for that name.
	_, err = f.d.Vault.Load(ctx, n.Object(key.Reveal()), key, dir)
	if errors.Is(err, vault.ErrNotFound) && n.Mark == "" {
		_, err = f.d.Vault.Load(ctx, n.Label(), key, dir)
	}
	if err != nil {
		return "", fmt.Errorf("get %s, which the copy needs: %w", n.Name, err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		return "", errors.Join(fmt.Errorf("%s has %d files in the bucket", n.Name, len(entries)), err)
	}
	return filepath.Join(dir, entries[0].Name()), nil
}

// into is load for a file that leaves the directory. Its content is proved.
func (f *files) into(ctx context.Context, n need, dir string) (string, error) {
	path, err := f.load(ctx, n, filepath.Join(dir, n.Sum))
	if err != nil {
		return "", err
	}
	came, err := f.read(path, stamp{})
	if err == nil && came.Sum != n.Sum {
		err = fmt.Errorf("%s is damaged in the bucket", n.Name)
	}
	return path, err
}
