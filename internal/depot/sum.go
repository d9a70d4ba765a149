package depot

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze/internal/durable"
)

// The content of a file decides whether a copy can use it. A root file system has hundreds of
// megabytes, and nobody should wait until all are read. So sums outlast the process. What
// sandboxes of other nodes need is read before their copies come.

const (
	// sumsFile, in the directory of files that came, remembers the sums of all.
	sumsFile = "sums.json"
	// sumsMax bounds it, in bytes, and sumsMost its entries. Beyond that, files are read again.
	sumsMax, sumsMost = 4 << 20, 4096
	// learnEvery is how often the bucket is asked which files copies need.
	learnEvery = 30 * time.Second
	// learnMost is how many of them are looked at. The others are read when a copy needs them.
	learnMost = 1000
)

// A stamp is what a file is known by, and its sum. A file with another stamp has another content.
type stamp struct {
	Size     int64  `json:"size"`     // in bytes
	Modified int64  `json:"modified"` // in nanoseconds since 1970
	Inode    uint64 `json:"inode"`
	Sum      string `json:"sum"` // SHA-256, hexadecimal; empty: nobody read it yet
}

// stampOf is the stamp of an open file, without its sum.
func stampOf(f *os.File) (s stamp, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return s, &fs.PathError{Op: "stat", Path: f.Name(), Err: err}
	}
	return stamp{Size: st.Size, Modified: st.Mtim.Nano(), Inode: st.Ino}, nil
}

// sum is the SHA-256 of a file. Calls that come while the file is read wait for the same read.
func (f *files) sum(path string) (string, error) {
	f.mu.Lock()
	sum, known := f.sums[path]
	f.mu.Unlock()
	if known {
		return sum, nil
	}
	_, err, _ := f.one.Do("sum "+path, func() (any, error) {
		f.mu.Lock()
		was := f.stamps[path]
		f.mu.Unlock()
		now, err := f.read(path, was)
		if err != nil {
			return nil, err
		}
		f.mu.Lock()
		f.sums[path], f.stamps[path] = now.Sum, now
		f.mu.Unlock()
		if now != was {
			f.remember()
		}
		return nil, nil
	})
	if err != nil {
		return "", err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sums[path], nil
}

// read returns the stamp of a file. It reads the file, unless it was the same before.
func (f *files) read(path string, was stamp) (now stamp, err error) {
	file, err := os.Open(path)
	if err != nil {
		return now, err
	}
	defer func() { _ = file.Close() }() // it was only read
	if now, err = stampOf(file); err != nil {
		return now, err
	}
	if now.Sum = was.Sum; now == was && sumForm.MatchString(was.Sum) {
		return now, nil
	}
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		return now, fmt.Errorf("read %s: %w", path, err)
	}
	now.Sum = hex.EncodeToString(hash.Sum(nil))
	return now, nil
}

// remember writes down all sums of files that are there.
func (f *files) remember() {
	f.writing.Lock() // one after the other
	defer f.writing.Unlock()
	f.mu.Lock()
	all := maps.Clone(f.stamps)
	f.mu.Unlock()
	for path := range all {
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) || len(all) > sumsMost {
			delete(all, path)
		}
	}
	raw, err := json.Marshal(all)
	if err == nil {
		err = durable.Replace(filepath.Join(f.d.Dir, sumsFile), raw, 0o600)
	}
	if err != nil {
		slog.Warn("sums of files are not remembered: the next start reads the files again", "err", err)
	}
}

// recall reads what remember wrote. What cannot be read is forgotten.
func (f *files) recall() {
	file, err := os.Open(filepath.Join(f.d.Dir, sumsFile))
	if err != nil {
		return // there is none yet
	}
	defer func() { _ = file.Close() }() // it was only read
	raw, err := io.ReadAll(io.LimitReader(file, sumsMax))
	if err == nil {
		f.stamps, err = parseStamps(raw)
	}
	if err != nil {
		slog.Warn("sums of files are forgotten, and the files are read again", "err", err)
	}
}

// parseStamps reads stamps by path. The map is never nil.
func parseStamps(raw []byte) (map[string]stamp, error) {
	all := map[string]stamp{}
	if err := json.Unmarshal(raw, &all); err != nil || all == nil {
		return map[string]stamp{}, errors.Join(err, errors.New("it has no sums"))
	}
	for path, s := range all {
		if !filepath.IsAbs(path) || !sumForm.MatchString(s.Sum) {
			delete(all, path)
		}
	}
	return all, nil
}

// learn reads the files of this host that copies of other nodes need, until ctx ends: then a copy
// that comes waits for none.
func (f *files) learn(ctx context.Context) {
	learned := map[string]bool{}
	for look := time.NewTimer(0); ; look.Reset(learnEvery) {
		select {
		case <-look.C:
		case <-ctx.Done():
			look.Stop()
			return
		}
		if f.d.node.Receiving() { // what comes has the processors
			continue
		}
		objects, err := f.d.Vault.ListOf(ctx, filePrefix)
		if err != nil {
			slog.DebugContext(ctx, "nobody knows which files copies need", "err", err)
			continue
		}
		before := learned
		learned = map[string]bool{}
		for _, object := range objects[:min(learnMost, len(objects))] {
			if !before[object] && ctx.Err() == nil {
				if err := f.learnOne(ctx, object); err != nil {
					slog.DebugContext(ctx, "a file that copies need was not looked at", "file", object, "err", err)
					continue
				}
			}
			learned[object] = true
		}
	}
}

// learnOne reads a file of this host that may be the one in the bucket.
func (f *files) learnOne(ctx context.Context, object string) error {
	n := need{Sum: object[len(filePrefix):]}
	if !sumForm.MatchString(n.Sum) {
		return fmt.Errorf("%.80q is no file", object)
	}
	key, err := f.key(ctx, n)
	if err != nil {
		return err
	}
	c, err := f.d.Vault.Open(ctx, object, key)
	if err != nil {
		return err
	}
	for _, there := range c.Files() {
		if n.Name = there.Name; n.check() != nil {
			continue
		}
		for _, dir := range append([]string{filepath.Join(f.d.Dir, n.Sum)}, f.d.Local...) {
			path := filepath.Join(dir, n.Name)
			if info, err := os.Stat(path); err != nil || info.Size() != there.Size {
				continue
			}
			if _, err := f.sum(path); err != nil {
				return err
			}
		}
	}
	return nil
}
