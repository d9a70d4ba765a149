package depot

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"sync"

	"golang.org/x/sync/singleflight"

	"github.com/dozehq/doze/internal/durable"
	"github.com/dozehq/doze/internal/node"
	"github.com/dozehq/doze/internal/vault"
)

const (
	// needsFile, in a copy, says which files it needs.
	needsFile = "needs.json"
	// needsMax bounds it, in bytes.
	needsMax = 16 << 10
	// fileMode is of files that came: nobody changes them.
	fileMode = 0o444
)

// need is a file that a copy needs. Its content is the same everywhere, or it is another
// one. The memory of a sandbox has parts of it, by their places in the file.
type need struct {
	Name string `json:"name"` // of the file
	Sum  string `json:"sum"`  // SHA-256, hexadecimal
}

// needs are those of a copy.
type needs struct {
	Root    need   `json:"root"`
	Agent   need   `json:"agent"`
	Volumes []held `json:"volumes,omitempty"`
}

var (
	nameForm = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._-]{0,127}$`)
	sumForm  = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

func (n need) check() error {
	if !nameForm.MatchString(n.Name) || !sumForm.MatchString(n.Sum) {
		return fmt.Errorf("the copy needs a file that nobody can name: %.80q", n.Name)
	}
	return nil
}

// label is what control makes the key of the file of. It names the content, so only a node that has the
// file, or a copy that needs it, can ask for the key.
func (n need) label() string { return "file-" + n.Sum }

// object is the name of the file in the bucket. It follows from the key, so the bucket's list helps
// nobody to ask for one.
func (n need) object(key vault.Key) string {
	name := hmac.New(sha256.New, key.Reveal())
	_, _ = name.Write([]byte("name in the bucket")) // it never fails
	return "file-" + hex.EncodeToString(name.Sum(nil))
}

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
func (f *files) send(ctx context.Context, dir string, of node.Files, volumes []held) error {
	n := needs{Volumes: volumes}
	for path, to := range map[string]*need{of.Root: &n.Root, of.Agent: &n.Agent} {
		var err error
		if *to, err = f.offer(ctx, path); err != nil {
			return err
		}
	}
	raw, err := json.Marshal(n)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, needsFile), raw, 0o600)
}

// offer has the bucket have a file.
func (f *files) offer(ctx context.Context, path string) (need, error) {
	sum, err := f.sum(path)
	if err != nil {
		return need{}, err
	}
	n := need{filepath.Base(path), sum}
	if err := n.check(); err != nil {
		return need{}, err
	}
	return n, f.put(ctx, path, n)
}

// put puts a file into the bucket, unless it is there.
func (f *files) put(ctx context.Context, path string, n need) error {
	_, err, _ := f.one.Do("put "+n.Sum, func() (any, error) {
		key, err := f.key(ctx, n)
		if err != nil {
			return nil, err
		}
		if g, err := f.d.Vault.Head(ctx, n.object(key)); err == nil && g != (vault.Generation{}) {
			return nil, nil
		}
		info, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		tree := []vault.File{{Name: n.Name, Mode: fileMode, Size: info.Size(), Open: func() (*os.File, error) { return os.Open(path) }}}
		_, err = f.d.Vault.Save(ctx, n.object(key), key, vault.Generation{Epoch: fileEpoch, Seq: 1}, tree)
		return nil, err
	})
	return err
}

func (f *files) key(ctx context.Context, n need) (vault.Key, error) {
	raw, err := f.d.Rights.FileKey(ctx, f.d.ID, n.label())
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
	errs := []error{n.Root.check(), n.Agent.check()}
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
	_, err = f.d.Vault.Load(ctx, n.object(key), key, dir)
	if errors.Is(err, vault.ErrNotFound) {
		_, err = f.d.Vault.Load(ctx, n.label(), key, dir)
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
