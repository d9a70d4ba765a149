package gvisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/machine/checkpoint"
	"github.com/dozehq/doze/internal/machine/machinetest"
	"github.com/dozehq/doze/internal/machine/machinetest/rig"
)

// level fails unless a machine has the share of the processors that all have.
func level(t *testing.T, h *host, id string) {
	t.Helper()
	found := 0
	for _, dir := range h.Groups(id) {
		for name, want := range map[string]string{"cpu.shares": "1024", "cpu.weight": "100"} { // of cgroup v1 and v2
			raw, err := os.ReadFile(filepath.Join(dir, name))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if found++; strings.TrimSpace(string(raw)) != want {
				t.Errorf("%s is %q, %v; want %s", name, raw, err, want)
			}
		}
	}
	if found == 0 {
		t.Error("it has no share of the processors")
	}
}

// written returns how many bytes a process has passed to write calls.
func written(t *testing.T, pid int) int64 {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(raw), "wchar: ")
	line, _, _ := strings.Cut(after, "\n")
	n, err := strconv.ParseInt(line, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestRequestDuringCheckpoint wakes a large machine at any moment of its
// checkpoint. It prints what that takes, next to the whole checkpoint, which a
// request would otherwise wait for.
func TestRequestDuringCheckpoint(t *testing.T) {
	megabytes := *sleeperMemory
	if testing.Short() {
		megabytes = 256
	}
	h := newHost(t)
	d := h.open(t)
	c := h.Config(t, "large")
	c.Memory = int64(megabytes+512) << 20
	m := boot(t, d, c)
	var none any
	ask(t, m, "/alloc", &none, "mb", strconv.Itoa(megabytes))

	sum := func() (n uint32) {
		t.Helper()
		ask(t, m, "/sum", &n)
		return n
	}
	want := sum()
	suspend := func(ctx context.Context, to machine.Tier) error {
		if err := m.Suspend(t.Context(), machine.Paused); err != nil {
			t.Fatal(err)
		}
		return m.Suspend(ctx, to)
	}
	resume := func() {
		t.Helper()
		if err := m.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		ask(t, m, "/count", &none)
	}

	began := time.Now()
	if err := suspend(t.Context(), machine.Saved); err != nil {
		t.Fatal(err)
	}
	whole := time.Since(began)
	resume()

	var worst time.Duration
	stopped := 0
	for part := range 10 { // moments, evenly over the whole
		after := whole * time.Duration(part) / 10
		ctx, cancel := context.WithTimeout(t.Context(), after+time.Millisecond)
		err := suspend(ctx, machine.Saved)
		if err != nil {
			stopped++
		}
		asked := time.Now()
		if deadline, _ := ctx.Deadline(); err != nil && deadline.Before(asked) {
			asked = deadline
		}
		cancel()
		resume()
		waited := time.Since(asked)
		worst = max(worst, waited)
		level(t, h, c.ID) // it may have stood behind all others
		t.Logf("a request after %v: stopped %v, answer %v later", after.Round(time.Millisecond), err != nil, waited.Round(time.Millisecond))
	}
	t.Logf("%d MB: the whole checkpoint %v, the longest wait %v: 1/%.1f", megabytes, whole.Round(time.Millisecond), worst.Round(time.Millisecond), float64(whole)/float64(worst))
	if stopped == 0 {
		t.Error("no checkpoint was stopped")
	}

	// What a stopped checkpoint copied is not written again.
	var err error
	for after := whole / 2; err == nil && after > whole/8; after /= 2 { // the next is faster
		ctx, cancel := context.WithTimeout(t.Context(), after)
		err = suspend(ctx, machine.Saved)
		cancel()
		resume()
	}
	if err != nil {
		rig.Wait(t, "the rest is cleared away", func() bool {
			_, err := os.Stat(checkpoint.Making(checkpoint.Dir(c)))
			return os.IsNotExist(err)
		})
		var copied int64
		if info, err := os.Stat(filepath.Join(c.Dir, "image.begun")); err == nil { // it was stopped before the first byte
			copied = info.Sys().(*syscall.Stat_t).Blocks * 512
		}
		before := written(t, h.launcher())
		if err := suspend(t.Context(), machine.Saved); err != nil {
			t.Fatal(err)
		}
		again := written(t, h.launcher()) - before
		t.Logf("%d MB were copied, and the next checkpoint writes %d of %d MB", copied>>20, again>>20, megabytes)
		// The guest changes a little, and the engine's own state is written anew.
		const slack = 64 << 20
		if again > int64(megabytes)<<20-copied+slack {
			t.Error("the next checkpoint writes again what was copied")
		}
	} else if err := suspend(t.Context(), machine.Saved); err != nil {
		t.Fatal(err)
	}

	// And it is complete: it goes on from it alone.
	if err := m.Suspend(t.Context(), machine.OnDisk); err != nil {
		t.Fatal(err)
	}
	resume()
	if got := sum(); got != want {
		t.Errorf("the sum of its memory is %d and was %d", got, want)
	}
	if err := m.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestLateCopy takes two checkpoints of a machine that stands still, seconds
// apart. Memory that differs is memory that the engine writes to meanwhile, which
// the launcher must copy at once: there is one such page.
func TestLateCopy(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	d := h.open(t)
	c := h.Config(t, "m")
	c.Volumes = []machine.Volume{{Source: t.TempDir(), Path: "/data"}}
	m := boot(t, d, c)
	var none any
	ask(t, m, "/alloc", &none, "mb", "16")
	for _, name := range []string{"/data/file", "/tmp/file", "/file"} {
		ask(t, m, "/write", &none, "name", name, "text", strings.Repeat("some", 1<<10))
	}
	conn, err := m.Dial(t.Context(), machinetest.Port)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := m.Suspend(t.Context(), machine.Paused); err != nil {
		t.Fatal(err)
	}
	var files [2][]byte
	for i := range files {
		dir := filepath.Join(t.TempDir(), "image")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		var made Made
		if err := d.current.client.post(t.Context(), PathCheckpoint, Checkpoint{ID: c.ID, Dir: dir, Layers: true}, &made); err != nil {
			t.Fatal(err)
		}
		var known []string
		for _, f := range made.Files {
			known = append(known, f.Name)
		}
		if slices.Sort(known); !slices.Equal(known, slices.Sorted(slices.Values([]string{FileState, FilePageMeta, checkpoint.FilePages, checkpoint.FileIndex}))) {
			t.Fatalf("the launcher knows of %v", known)
		}
		raw, err := os.ReadFile(filepath.Join(dir, checkpoint.FilePages))
		if err != nil {
			t.Fatal(err)
		}
		if err := checkpoint.Verify(t.Context(), dir, checkpoint.Manifest{Files: made.Files}); err != nil {
			t.Error("it is not what the launcher says:", err)
		}
		files[i] = raw
		// A network that goes on does not reach its memory either.
		if _, err := conn.Write([]byte("GET /count HTTP/1.1\r\n")); err != nil {
			t.Error(err)
		}
		time.Sleep(3 * time.Second) // the engine sets the guest's clock each second
	}
	if len(files[0]) != len(files[1]) {
		t.Fatalf("the first has %d bytes and the second %d", len(files[0]), len(files[1]))
	}
	var differ []int
	for at := 0; at < len(files[0]); at += os.Getpagesize() {
		if end := at + os.Getpagesize(); !bytes.Equal(files[0][at:end], files[1][at:end]) {
			differ = append(differ, at)
		}
	}
	if len(differ) > 1 {
		t.Errorf("%d pages differ, at %v", len(differ), differ)
	}
	if err := m.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
