package depot

import (
	"cmp"
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
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze/internal/durable"
)

// The content of a file decides whether a copy can use it. A root file system has hundreds of
// megabytes, and nobody should wait until all are read. So sums outlast the process. What
// sandboxes of other nodes may need is read before their copies come.

const (
	// sumsFile, in the directory of files that came, remembers the sums of all.
	sumsFile = "sums.json"
	// sumsMax bounds it, in bytes, and sumsMost its entries. Beyond that, files are read again.
	sumsMax, sumsMost = 4 << 20, 4096
	// learnEvery is how often the node looks for files that it has not read.
	learnEvery = 30 * time.Second
	// learnMost is how many bytes of them it reads. The others are read when a copy needs them.
	learnMost = 2 << 30
	// rootSuffix is that of root file systems and agents.
	rootSuffix = ".erofs"
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
	now.Sum, err = sumOf(file)
	return now, err
}

// sumOf is the SHA-256 of an open file, hexadecimal.
func sumOf(file *os.File) (string, error) {
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		return "", fmt.Errorf("read %s: %w", file.Name(), err)
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
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

// learn reads the files of this host that copies of other nodes may need, until ctx ends: then a
// copy that comes waits for none. Nobody tells a node what is in the bucket, so it begins with those
// that were used last.
func (f *files) learn(ctx context.Context) {
	for look := time.NewTimer(0); ; look.Reset(learnEvery) {
		select {
		case <-look.C:
		case <-ctx.Done():
			look.Stop()
			return
		}
		for _, path := range lastUsed(f.d.Local, learnMost) {
			if ctx.Err() != nil || f.d.node.Receiving() { // what comes has the processors
				break
			}
			if _, err := f.sum(path); err != nil {
				slog.DebugContext(ctx, "a file that copies may need was not read", "file", path, "err", err)
			}
		}
	}
}

// lastUsed are the files of directories that were read last, which have a number of bytes together
// at most.
func lastUsed(dirs []string, most int64) (paths []string) {
	type file struct {
		path string
		used int64
		size int64
	}
	var all []file
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue // nothing is there yet
		}
		for _, e := range entries {
			path := filepath.Join(dir, e.Name())
			var st unix.Stat_t
			if filepath.Ext(path) == rootSuffix && unix.Lstat(path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG {
				all = append(all, file{path, max(st.Atim.Nano(), st.Mtim.Nano()), st.Size})
			}
		}
	}
	slices.SortFunc(all, func(a, b file) int { return cmp.Compare(b.used, a.used) })
	for _, one := range all {
		if most -= one.size; most < 0 {
			break
		}
		paths = append(paths, one.path)
	}
	return paths
}
