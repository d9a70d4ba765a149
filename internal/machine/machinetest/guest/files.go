package main

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/dozehq/doze/internal/machine/machinetest"
)

// fileCalls are what the guest does with files, besides what all worlds can do. Each answers
// in JSON, and how long it took is in the header.
var fileCalls = map[string]func(url.Values) (any, error){
	"/grow": func(q url.Values) (any, error) {
		return nil, grow(q.Get("name"), machinetest.Number(q, "mb"), uint64(machinetest.Number(q, "seed")))
	},
	"/change-file": func(q url.Values) (any, error) {
		return nil, change(q.Get("name"), machinetest.Number(q, "mb"), uint64(machinetest.Number(q, "seed")))
	},
	"/sumfile": func(q url.Values) (any, error) { return sum(q.Get("name")) },
	"/tree":    func(q url.Values) (any, error) { return nil, tree(q.Get("dir"), machinetest.Number(q, "n")) },
	"/walk":    func(q url.Values) (any, error) { return walk(q.Get("dir")) },
	"/remove":  func(q url.Values) (any, error) { return nil, os.RemoveAll(q.Get("name")) },
	"/room":    func(q url.Values) (any, error) { return room(q.Get("name")) },
	"/map":     func(q url.Values) (any, error) { return nil, mapped(q.Get("name"), machinetest.Number(q, "mb")) },
}

// took is the header that says how long a call took, in nanoseconds.
const took = "Doze-Took"

// withFiles serves fileCalls, and everything else as before.
func withFiles(other http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		call, ok := fileCalls[r.URL.Path]
		if !ok {
			other.ServeHTTP(rw, r)
			return
		}
		began := time.Now()
		out, err := call(r.URL.Query())
		rw.Header().Set(took, strconv.FormatInt(int64(time.Since(began)), 10))
		machinetest.Reply(rw, out, err)
	})
}

// block returns a megabyte that no other seed and number give.
func block(seed, number uint64) []byte {
	r := rand.New(rand.NewPCG(seed, number)) //nolint:gosec // G404: it is content, and no secret
	b := make([]byte, 1<<20)
	for i := 0; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], r.Uint64())
	}
	return b
}

// grow writes a new file of so many megabytes.
func grow(name string, megabytes int, seed uint64) error {
	f, err := os.Create(name) //nolint:gosec // G703: the test named it
	if err != nil {
		return err
	}
	for i := range megabytes {
		if _, err := f.Write(block(seed, uint64(i))); err != nil {
			_ = f.Close()
			return err
		}
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return f.Close()
}

// change writes to every fourth megabyte of a file, in its middle.
func change(name string, megabytes int, seed uint64) error {
	f, err := os.OpenFile(name, os.O_RDWR, 0) //nolint:gosec // G703: likewise
	if err != nil {
		return err
	}
	for i := 0; i < megabytes; i += 4 {
		if _, err := f.WriteAt(block(seed, uint64(i))[:64<<10], int64(i)<<20+300<<10); err != nil {
			_ = f.Close()
			return err
		}
	}
	return f.Close()
}

func sum(name string) (uint32, error) {
	f, err := os.Open(name) //nolint:gosec // G703: likewise
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }() // it was read
	h := crc32.NewIEEE()
	_, err = io.Copy(h, f)
	return h.Sum32(), err
}

// tree does what a version control system does with many small files: directories, a file
// under another name first, its mode, and a rename.
func tree(dir string, n int) error {
	all := block(1, 1)
	for i := range n {
		at := filepath.Join(dir, fmt.Sprintf("%02x", i%256))
		if err := os.MkdirAll(at, 0o755); err != nil { //nolint:gosec // G301, G703: likewise
			return err
		}
		name := filepath.Join(at, strconv.Itoa(i))
		content := all[i%1000:][:1+i*997%12_000]
		if err := os.WriteFile(name+".lock", content, 0o600); err != nil { //nolint:gosec // G703: likewise
			return err
		}
		if err := os.Chmod(name+".lock", 0o444); err != nil { //nolint:gosec // G302, G703: likewise
			return err
		}
		if err := os.Rename(name+".lock", name); err != nil { //nolint:gosec // G703: likewise
			return err
		}
	}
	return nil
}

// walk returns a checksum of the names and the content of all files below a directory.
func walk(dir string) (uint32, error) {
	h := crc32.NewIEEE()
	err := filepath.WalkDir(dir, func(name string, d os.DirEntry, err error) error { //nolint:gosec // G703: likewise
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		raw, err := os.ReadFile(name) //nolint:gosec // G122, G703: likewise
		_, _ = h.Write([]byte(name))  // never fails
		_, _ = h.Write(raw)
		return err
	})
	return h.Sum32(), err
}

// room returns the size of a file system and what is free, in bytes.
func room(name string) ([2]int64, error) {
	var st syscall.Statfs_t
	err := syscall.Statfs(name, &st)
	return [2]int64{int64(st.Blocks) * st.Bsize, int64(st.Bavail) * st.Bsize}, err //nolint:gosec // G115: sizes
}

// mapped writes a file of so many megabytes through a mapping, and reads it again as a file.
func mapped(name string, megabytes int) error {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600) //nolint:gosec // G703: likewise
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // it was synced
	if err := f.Truncate(int64(megabytes) << 20); err != nil {
		return err
	}
	at, err := syscall.Mmap(int(f.Fd()), 0, megabytes<<20, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return err
	}
	for i := range megabytes {
		copy(at[i<<20:], block(7, uint64(i)))
	}
	return syscall.Munmap(at)
}
