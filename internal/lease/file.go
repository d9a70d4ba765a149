package lease

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// fileMode lets root alone say until when sandboxes may run.
	fileMode = 0o600
	// look is how often a guard looks at the end of a lease, and lookIdle where there is
	// none.
	look, lookIdle = 200 * time.Millisecond, 2 * time.Second
	// forever is in a file that needs no guard.
	forever = "never"
)

// A File says until when a lease is good, by the clock of this host that also counts
// while the host is suspended. It belongs in a directory that a restart of the host
// empties. The guards are other processes than the holder: a holder that hangs, or was
// stopped, cannot stop what it runs.
type File string

// FileOf returns the file of the node whose run state is in a directory.
func FileOf(run string) File { return File(filepath.Join(run, "lease")) }

// since is the clock of files.
func since() (time.Duration, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return 0, fmt.Errorf("read the clock of the host: %w", err)
	}
	return time.Duration(t.Nano()), nil
}

// Write says until when the lease is good. The zero time is for ever.
func (f File) Write(until time.Time) error {
	text := forever
	if !until.IsZero() {
		now, err := since()
		if err != nil {
			return err
		}
		text = strconv.FormatInt(int64(now+time.Until(until)), 10)
	}
	next := string(f) + ".next"
	if err := os.WriteFile(next, []byte(text+"\n"), fileMode); err != nil {
		return fmt.Errorf("tell the end of the lease: %w", err)
	}
	return os.Rename(next, string(f))
}

// Left returns how long the lease is still good. ok is false if there is none. A file that
// nobody can read is a lease that is over.
func (f File) Left() (left time.Duration, ok bool) {
	raw, err := os.ReadFile(string(f))
	text := strings.TrimSpace(string(raw))
	if errors.Is(err, fs.ErrNotExist) || text == forever {
		return 0, false
	}
	until, err := strconv.ParseInt(text, 10, 64)
	now, unknown := since()
	if err != nil || unknown != nil {
		return 0, true
	}
	return time.Duration(until) - now, true
}

// Guard calls stop when the lease in a file is over, again and again while that is so,
// until ctx ends. It never undoes that: the holder does, when it has a lease.
func Guard(ctx context.Context, f File, stop func(context.Context) error) {
	said := false
	for {
		wait := lookIdle
		left, ok := f.Left()
		switch over := ok && left <= 0; {
		case over:
			if err := stop(ctx); err != nil && ctx.Err() == nil {
				slog.ErrorContext(ctx, "sandboxes run on without a lease", "err", err)
			} else if !said {
				slog.WarnContext(ctx, "the lease of this node is over: its sandboxes stand still")
			}
			said, wait = true, look
		case ok:
			said, wait = false, min(left, look)
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return
		}
	}
}
