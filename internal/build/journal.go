package build

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/dozehq/doze"
)

const (
	// progressEvery is how often the progress of a transfer has a line.
	progressEvery = time.Second
	// lineMax bounds a line of a file: 20 lines of output in a failure, each byte of which
	// may be six in JSON.
	lineMax = 1 << 20
	// tailMax is how much of a file is read to find its last line.
	tailMax = 64 << 10
)

// journal is the log of a build: a file with a line of JSON for each event. No two lines have
// the same time, in the milliseconds that the API shows: readers tell lines apart by it.
type journal struct {
	file string

	mu       sync.Mutex
	opened   *os.File      // guarded by mu; nil before the first line
	last     time.Time     // guarded by mu; of the last line
	size     int64         // guarded by mu; bytes of whole lines
	lines    int           // guarded by mu
	full     bool          // guarded by mu; only how it ended is added
	ended    bool          // guarded by mu
	progress time.Time     // guarded by mu; when a transfer had its last line
	changed  chan struct{} // guarded by mu; closed and replaced with each line
	broken   error         // guarded by mu; the file cannot be written, which is no reason to fail
}

func openJournal(file string) *journal { return &journal{file: file, changed: make(chan struct{})} }

// say adds a word of the platform.
func (l *journal) say(text string) { l.append(doze.BuildEvent{Text: text}) }

// append adds an event. A log that cannot be written is no reason to end a build.
func (l *journal) append(e doze.BuildEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended || l.broken != nil || !l.wantsLocked(&e) {
		return
	}
	if err := l.addLocked(e); err != nil {
		l.broken = err
		slog.Warn("the log of a build ends early", "file", l.file, "err", err)
	}
}

// wantsLocked reports whether there is room for an event. Preconditions: mu is held.
func (l *journal) wantsLocked(e *doze.BuildEvent) bool {
	if e.State == "" && e.Status == "" && (e.Current > 0 || e.Total > 0) { // of a transfer
		now := time.Now()
		if now.Sub(l.progress) < progressEvery {
			return false
		}
		l.progress = now
	}
	return !l.full || e.Status != ""
}

// addLocked writes an event. Preconditions: mu is held.
func (l *journal) addLocked(e doze.BuildEvent) error {
	if err := l.openLocked(); err != nil {
		return err
	}
	if !l.full && (l.size > doze.BuildLogMax || l.lines >= doze.BuildLogLinesMax) {
		l.full = true
		if err := l.writeLocked(doze.BuildEvent{Text: "the log is full: the build goes on, and the log has only its end"}); err != nil || e.Status == "" {
			return err
		}
	}
	return l.writeLocked(e)
}

func (l *journal) writeLocked(e doze.BuildEvent) error {
	at := e.At.Time
	if at.IsZero() {
		at = time.Now()
	}
	if at = at.Truncate(time.Millisecond); !at.After(l.last) {
		at = l.last.Add(time.Millisecond)
	}
	e.At, l.last = doze.Time{Time: at}, at
	raw, err := json.Marshal(e)
	if err != nil {
		return err
	}
	raw = append(raw, '\n')
	if _, err := l.opened.Write(raw); err != nil {
		return err
	}
	l.size += int64(len(raw))
	l.lines++
	close(l.changed)
	l.changed = make(chan struct{})
	return nil
}

// openLocked opens the file, where the process before may have ended in the middle of a
// line. Preconditions: mu is held.
func (l *journal) openLocked() error {
	if l.opened != nil {
		return nil
	}
	f, err := os.OpenFile(l.file, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600) //nolint:gosec // G703: the name is that of a record, which we made
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return errors.Join(err, f.Close())
	}
	tail := make([]byte, min(info.Size(), tailMax))
	if _, err := f.ReadAt(tail, info.Size()-int64(len(tail))); err != nil && !errors.Is(err, io.EOF) {
		return errors.Join(err, f.Close())
	}
	whole := bytes.LastIndexByte(tail, '\n') + 1
	if err := f.Truncate(info.Size() - int64(len(tail)-whole)); err != nil {
		return errors.Join(err, f.Close())
	}
	tail = bytes.TrimSuffix(tail[:whole], []byte("\n"))
	var e doze.BuildEvent
	if json.Unmarshal(tail[bytes.LastIndexByte(tail, '\n')+1:], &e) == nil {
		l.last = e.At.Time
	}
	l.opened, l.size = f, info.Size()-min(info.Size(), tailMax)+int64(whole)
	return nil
}

// end says that no line follows.
func (l *journal) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return
	}
	l.ended = true
	close(l.changed)
	if l.opened != nil {
		if err := l.opened.Close(); err != nil {
			slog.Warn("the log of a build was not closed", "file", l.file, "err", err)
		}
	}
}

// state returns how many bytes of whole lines there are, what is closed when there are
// more, and whether none follows.
func (l *journal) state() (size int64, changed <-chan struct{}, ended bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.opened == nil && !l.ended && l.broken == nil { // after a start, before the first line of this process
		if _, err := os.Stat(l.file); err == nil {
			l.broken = l.openLocked()
		}
	}
	return l.size, l.changed, l.ended
}

// copyLog writes the lines of a log to w, from an offset up to another one, and returns how
// far it came. To the end of the file is -1. A line that is not whole is left out.
func copyLog(w io.Writer, file string, from, to int64) (int64, error) {
	f, err := os.Open(file)
	if errors.Is(err, os.ErrNotExist) { // nothing was said yet
		return from, nil
	}
	if err != nil {
		return from, err
	}
	defer func() { _ = f.Close() }() // it was only read
	if to < 0 {
		info, err := f.Stat()
		if err != nil {
			return from, err
		}
		to = info.Size()
	}
	lines := bufio.NewReaderSize(io.NewSectionReader(f, from, max(to-from, 0)), tailMax)
	for {
		line, err := lines.ReadSlice('\n')
		for errors.Is(err, bufio.ErrBufferFull) {
			if _, err := w.Write(line); err != nil {
				return from, err
			}
			from += int64(len(line))
			line, err = lines.ReadSlice('\n')
		}
		if err != nil { // the end, or half a line
			return from, nil
		}
		if _, err := w.Write(line); err != nil {
			return from, err
		}
		from += int64(len(line))
	}
}

// readLog calls fn with each event of a log, as long as fn wants more. A line that is
// damaged is left out.
func readLog(file string, fn func(doze.BuildEvent) bool) error {
	f, err := os.Open(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // it was only read
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, lineMax)
	for lines.Scan() {
		var e doze.BuildEvent
		if json.Unmarshal(lines.Bytes(), &e) == nil && !fn(e) {
			return nil
		}
	}
	return lines.Err()
}
