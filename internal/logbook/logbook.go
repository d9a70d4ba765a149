// Package logbook has what the sandboxes of one host wrote, for a time, in files of
// the host. It outlives the sandboxes. It trusts no sandbox: what comes from one is
// bounded in size and in time, and shows only in its own log.
//
// It does its best and no more. Lines may be lost with the power of the host, when its
// disk is full, or when a process writes too fast.
package logbook

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/dozehq/doze/internal/agentapi"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/keylock"
)

const (
	// LogMax bounds the log of one sandbox on the disk, in bytes. The oldest lines go
	// first.
	LogMax = 32 << 20
	// LogsMax bounds the logs of a workspace, of which each has a directory.
	LogsMax = 5000
	// segmentMax is how much text a file has before it is compressed.
	segmentMax = 256 << 10
	// segmentsMax bounds the files of a log, and with them the text that a search reads:
	// text that compresses well takes next to no disk.
	segmentsMax = 256
	// batchMax bounds the text that is taken at once, in bytes. Each chunk counts for
	// headMin more.
	batchMax = 256 << 10
	headMin  = 128
	// expandMax bounds what a segment expands to, in bytes.
	expandMax = 8 << 20
	// block is what the smallest file takes.
	block = 4 << 10
	// slack is what is freed beyond a full quota, as one part of so many. To look
	// for the oldest segments of a workspace takes time.
	slack = 16
	// sweepEvery is how often lines are removed that are too old.
	sweepEvery = time.Minute
)

const (
	metaName   = "log.json"
	tailName   = "tail"
	eventsName = "events"
	packed     = ".zst"
	// packedForm has the times of the first and the last line, and the newest stamp.
	packedForm = "%d-%d-%d" + packed
)

// Options are the settings of a book.
type Options struct {
	Dir       string
	Retention time.Duration // lines are removed after this time
	Quota     int64         // bytes on the disk for each workspace
	// Room takes bytes of the disk until release is called, or says why not.
	Room func(bytes int64) (release func(), err error)
}

// Book has the logs of a host.
type Book struct {
	o       Options
	writers *keylock.Locks // by machine: who changes its log
	loaded  chan struct{}  // closed when what is on the disk is known
	pack    *zstd.Encoder
	unpack  *zstd.Decoder
	asking  *keylock.Locks // by workspace
	scans   chan struct{}  // holds a token for each search

	mu     sync.Mutex
	logs   map[string]*log   // guarded by mu; by machine
	named  map[name][]*log   // guarded by mu
	shares map[string]*share // guarded by mu; by workspace
	full   time.Time         // guarded by mu; when the last line was dropped for want of disk
}

// name is what callers know a sandbox by.
type name struct{ workspace, name string }

// share is what a workspace takes.
type share struct {
	logs  int
	bytes int64
}

// log is what one machine wrote. The lock of the book guards it. The turn of the machine
// is needed to change more than the list of segments.
type log struct {
	machine  string
	of       name
	segments []segment // the oldest first; that of the events is the last
	last     int64     // time of the newest line
	stamp    int64     // of the newest line
}

// segment is a file with lines.
type segment struct {
	file        string
	first, last int64 // times of lines
	bytes       int64
}

// cost is what a file takes of the disk.
func (s *segment) cost() int64 { return (s.bytes + block - 1) / block * block }

// meta is what a directory says of its log.
type meta struct {
	Workspace string `json:"workspace"`
	Name      string `json:"name"`
}

// Open returns the book of a directory. It answers once it runs.
func Open(o Options) (*Book, error) {
	b := &Book{
		o: o, writers: keylock.New(), asking: keylock.New(), loaded: make(chan struct{}), scans: make(chan struct{}, scansMax),
		logs: map[string]*log{}, named: map[name][]*log{}, shares: map[string]*share{},
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of logs: %w", err)
	}
	var err1, err2 error
	b.pack, err1 = zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(segmentMax), zstd.WithLowerEncoderMem(true))
	b.unpack, err2 = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(expandMax))
	return b, errors.Join(err1, err2)
}

// Run learns what is on the disk, and removes what is too old, until ctx ends.
func (b *Book) Run(ctx context.Context) error {
	if err := b.load(ctx); err != nil {
		slog.ErrorContext(ctx, "read the logs of sandboxes", "err", err)
	}
	close(b.loaded)
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		b.sweep(ctx, time.Now())
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// ready waits until the book knows what it has.
func (b *Book) ready(ctx context.Context) error {
	select {
	case <-b.loaded:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Stamp is that of the newest line of a machine, or 0.
func (b *Book) Stamp(ctx context.Context, machine string) (int64, error) {
	if err := b.ready(ctx); err != nil {
		return 0, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if l := b.logs[machine]; l != nil {
		return l.stamp, nil
	}
	return 0, nil
}

// Append takes what an agent said. What is not after [Book.Stamp] is known already.
func (b *Book) Append(ctx context.Context, machine, workspace, of string, c agentapi.Collected) error {
	if err := b.ready(ctx); err != nil {
		return err
	}
	_, release, err := b.writers.Take(ctx, machine)
	if err != nil {
		return err
	}
	defer release()
	b.mu.Lock()
	var last, stamp int64
	if l := b.logs[machine]; l != nil {
		last, stamp = l.last, l.stamp
	}
	b.mu.Unlock()
	entries, stamp := entriesOf(c, last, stamp, time.Now())
	if len(entries) == 0 {
		return nil
	}
	l, err := b.obtain(machine, name{workspace, of})
	if err != nil {
		return err
	}
	if err := b.write(l, tailName, entries, stamp); err != nil {
		return err
	}
	b.bound(ctx, l)
	return nil
}

// Notice begins the log of a machine with a warning, unless it has one.
func (b *Book) Notice(ctx context.Context, machine, workspace, of, message string) error {
	if err := b.ready(ctx); err != nil {
		return err
	}
	_, release, err := b.writers.Take(ctx, machine)
	if err != nil {
		return err
	}
	defer release()
	b.mu.Lock()
	begun := b.logs[machine] != nil
	b.mu.Unlock()
	if begun {
		return nil
	}
	l, err := b.obtain(machine, name{workspace, of})
	if err != nil {
		return err
	}
	now := time.Now().UnixNano()
	return b.write(l, tailName, []entry{{at: now, stamp: 0, kind: warning, text: lines(message)}}, 0)
}

// entriesOf are the entries of what an agent said, and its newest stamp. The times are
// after the last one and not in the future, whatever the agent says.
func entriesOf(c agentapi.Collected, last, stamp int64, now time.Time) (all []entry, newest int64) {
	left, lost := batchMax, c.Lost
	add := func(e entry) {
		e.at = max(last+1, min(e.at, now.UnixNano()))
		last = e.last()
		all = append(all, e)
	}
	newest = stamp
	for _, chunk := range c.Chunks {
		if chunk.At <= newest {
			continue
		}
		newest = chunk.At
		if size := len(chunk.Text) + headMin; size > left {
			lost += int64(len(chunk.Text))
			continue
		}
		k := stdout
		if chunk.Stream != kinds[stdout].Stream {
			k = stderr
		}
		if text := lines(chunk.Text); len(text) > 0 {
			left -= len(chunk.Text) + headMin
			add(entry{at: chunk.At, stamp: chunk.At, kind: k, process: clip(chunk.Process), text: text})
		}
	}
	if lost > 0 {
		add(entry{at: newest, stamp: newest, kind: warning, text: fmt.Appendf(nil, "%d bytes of output are missing here: processes wrote faster than the platform stores\n", lost)})
	}
	return all, newest
}

// End takes the events of machines whose records are about to be deleted.
func (b *Book) End(ctx context.Context, all []fleet.EndedLog) error {
	if err := b.ready(ctx); err != nil {
		return err
	}
	var errs []error
	for _, ended := range all {
		errs = append(errs, b.end(ctx, ended))
	}
	return errors.Join(errs...)
}

func (b *Book) end(ctx context.Context, ended fleet.EndedLog) error {
	var entries []entry
	for _, e := range ended.Events {
		if text := lines(e.Text); len(text) > 0 && e.At >= 0 && e.At < timeMax {
			entries = append(entries, entry{at: e.At, kind: kindOf(e.Severity), text: text})
		}
	}
	if len(entries) == 0 {
		return nil
	}
	_, release, err := b.writers.Take(ctx, ended.Machine)
	if err != nil {
		return err
	}
	defer release()
	l, err := b.obtain(ended.Machine, name{ended.Workspace, ended.Name})
	if err != nil {
		return err
	}
	b.removeSegments(l, func(s segment) bool { return s.file == eventsName }) // an earlier attempt
	if err := b.write(l, eventsName, entries, 0); err != nil {
		return err
	}
	b.bound(ctx, l)
	return nil
}

// Drop removes the logs of a workspace.
func (b *Book) Drop(ctx context.Context, workspace string) error {
	if err := b.ready(ctx); err != nil {
		return err
	}
	var errs []error
	for _, l := range b.list(func(l *log) bool { return l.of.workspace == workspace }) {
		_, release, err := b.writers.Take(ctx, l.machine)
		if err != nil {
			return err
		}
		errs = append(errs, b.remove(l))
		release()
	}
	return errors.Join(errs...)
}

// Uses returns what each log takes of the disk.
func (b *Book) Uses() (all []fleet.DiskUse) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, l := range b.logs {
		all = append(all, fleet.DiskUse{Kind: fleet.DiskLog, ID: l.machine, Workspace: l.of.workspace, Bytes: l.bytes()})
	}
	return all
}

// bytes is what a log takes. Preconditions: mu of the book is held.
func (l *log) bytes() int64 {
	total := int64(2 * block) // the directory and what it says of itself
	for _, s := range l.segments {
		total += s.cost()
	}
	return total
}

func (b *Book) dir(machine string) string { return filepath.Join(b.o.Dir, machine) }

// list returns logs.
func (b *Book) list(which func(*log) bool) (all []*log) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, l := range b.logs {
		if which(l) {
			all = append(all, l)
		}
	}
	return all
}

// obtain returns the log of a machine, and makes it if there is none. Preconditions:
// the turn is held.
func (b *Book) obtain(machine string, of name) (*log, error) {
	b.mu.Lock()
	l := b.logs[machine]
	b.mu.Unlock()
	if l != nil {
		return l, nil
	}
	dir := b.dir(machine)
	raw, err := json.Marshal(meta{of.workspace, of.name})
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, metaName), raw, 0o600)
	}
	if err != nil {
		return nil, fmt.Errorf("begin a log: %w", err)
	}
	l = &log{machine: machine, of: of}
	b.put(l)
	return l, nil
}

// put makes a log known.
func (b *Book) put(l *log) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.logs[l.machine] = l
	b.named[l.of] = append(b.named[l.of], l)
	s := b.shares[l.of.workspace]
	if s == nil {
		s = &share{}
		b.shares[l.of.workspace] = s
	}
	s.logs++
	s.bytes += l.bytes()
}

// remove removes a log. Preconditions: the turn is held.
func (b *Book) remove(l *log) error {
	b.mu.Lock()
	if b.logs[l.machine] == l {
		delete(b.logs, l.machine)
		b.named[l.of] = slices.DeleteFunc(b.named[l.of], func(other *log) bool { return other == l })
		if len(b.named[l.of]) == 0 {
			delete(b.named, l.of)
		}
		s := b.shares[l.of.workspace]
		s.bytes -= l.bytes()
		if s.logs--; s.logs == 0 {
			delete(b.shares, l.of.workspace)
		}
	}
	b.mu.Unlock()
	return os.RemoveAll(b.dir(l.machine))
}

// write adds entries to a file of a log. Preconditions: the turn is held.
func (b *Book) write(l *log, file string, entries []entry, stamp int64) error {
	var raw []byte
	for _, e := range entries {
		raw = e.append(raw)
	}
	done, err := b.o.Room(int64(len(raw)))
	if err != nil {
		b.drop(err)
		return err
	}
	defer done()
	if err := appendTo(filepath.Join(b.dir(l.machine), file), raw); err != nil {
		return fmt.Errorf("write a log: %w", err)
	}
	first, last := entries[0].at, entries[len(entries)-1].last()
	whole := b.add(l, segment{file, first, last, int64(len(raw))}, stamp)
	if file != tailName || whole.bytes < segmentMax {
		return nil
	}
	return b.compress(l, whole, stamp)
}

// drop says now and then that the disk has no room for lines.
func (b *Book) drop(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now := time.Now(); now.Sub(b.full) > sweepEvery {
		b.full = now
		slog.Warn("output of sandboxes is not stored", "err", err)
	}
}

// add takes note of what was added to a file, and returns the whole of it.
func (b *Book) add(l *log, s segment, stamp int64) segment {
	b.mu.Lock()
	defer b.mu.Unlock()
	before := l.bytes()
	i := slices.IndexFunc(l.segments, func(other segment) bool { return other.file == s.file })
	if i < 0 {
		l.segments = append(l.segments, s)
		i = len(l.segments) - 1
	} else {
		l.segments[i].last = s.last
		l.segments[i].bytes += s.bytes
	}
	if s.file != eventsName {
		l.last, l.stamp = s.last, stamp
	}
	b.shares[l.of.workspace].bytes += l.bytes() - before
	return l.segments[i]
}

// compress makes a segment of its own of the tail of a log. Preconditions: the turn is
// held.
func (b *Book) compress(l *log, tail segment, stamp int64) error {
	dir := b.dir(l.machine)
	raw, err := os.ReadFile(filepath.Join(dir, tailName))
	if err != nil {
		return fmt.Errorf("read a log: %w", err)
	}
	small := b.pack.EncodeAll(raw, nil)
	s := segment{fmt.Sprintf(packedForm, tail.first, tail.last, stamp), tail.first, tail.last, int64(len(small))}
	done, err := b.o.Room(s.bytes)
	if err != nil { // the next write tries again
		b.drop(err)
		return nil
	}
	defer done()
	// A crash in between leaves both, and load removes the tail.
	whole := filepath.Join(dir, s.file)
	if err := os.WriteFile(whole+".new", small, 0o600); err != nil { //nolint:gosec // G703: the machine is an id that control made
		return errors.Join(fmt.Errorf("write a log: %w", err), os.Remove(whole+".new"))
	}
	if err := os.Rename(whole+".new", whole); err != nil {
		return fmt.Errorf("write a log: %w", err)
	}
	b.mu.Lock()
	before := l.bytes()
	l.segments = append(l.segments, s)
	b.shares[l.of.workspace].bytes += l.bytes() - before
	b.mu.Unlock()
	b.removeSegments(l, func(other segment) bool { return other.file == tailName })
	return nil
}

// removeSegments removes some segments of a log. Preconditions: the turn is held, or
// none of them is the tail.
func (b *Book) removeSegments(l *log, which func(segment) bool) {
	b.mu.Lock()
	before := l.bytes()
	var gone []segment
	l.segments = slices.DeleteFunc(l.segments, func(s segment) bool {
		if which(s) {
			gone = append(gone, s)
			return true
		}
		return false
	})
	if s := b.shares[l.of.workspace]; s != nil && b.logs[l.machine] == l {
		s.bytes += l.bytes() - before
	}
	b.mu.Unlock()
	for _, s := range gone {
		if err := os.Remove(filepath.Join(b.dir(l.machine), s.file)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			slog.Warn("a part of a log could not be removed", "sandbox", l.machine, "err", err)
		}
	}
}

// bound removes the oldest lines of a log that is too large, and those of a workspace
// that has too many. Preconditions: the turn is held.
func (b *Book) bound(ctx context.Context, l *log) {
	b.mu.Lock()
	var old []string
	total, n := l.bytes(), 0
	for _, s := range slices.SortedFunc(slices.Values(l.segments), func(x, y segment) int { return cmp.Compare(x.last, y.last) }) {
		if left := len(l.segments) - n; total <= LogMax && left <= segmentsMax {
			break
		}
		old, total, n = append(old, s.file), total-s.cost(), n+1
	}
	share := *b.shares[l.of.workspace]
	b.mu.Unlock()
	if len(old) > 0 {
		b.removeSegments(l, func(s segment) bool { return slices.Contains(old, s.file) })
	}
	if share.bytes > b.o.Quota || share.logs > LogsMax {
		b.free(ctx, l)
	}
}

// free removes the oldest lines of a workspace, until its quota has room again. The
// turn of mine is held.
func (b *Book) free(ctx context.Context, mine *log) {
	type part struct {
		l *log
		s segment
	}
	all := b.list(func(l *log) bool { return l.of.workspace == mine.of.workspace })
	var parts []part
	b.mu.Lock()
	more, logs := int64(0), len(all)-LogsMax
	if s := b.shares[mine.of.workspace]; s != nil {
		more = s.bytes - (b.o.Quota - b.o.Quota/slack)
	}
	if logs > 0 {
		logs += LogsMax / slack
	}
	for _, l := range all {
		for _, s := range l.segments {
			parts = append(parts, part{l, s})
		}
	}
	b.mu.Unlock()
	slices.SortFunc(parts, func(x, y part) int { return cmp.Compare(x.s.last, y.s.last) })
	for _, p := range parts {
		if more <= 0 && logs <= 0 {
			return
		}
		if p.l != mine {
			_, release, busy := b.writers.Try(ctx, p.l.machine)
			if busy != nil {
				continue // it is being written: not the oldest
			}
			if b.shrink(p.l, p.s) {
				more, logs = more-2*block, logs-1
			}
			release()
		} else {
			b.shrink(p.l, p.s)
		}
		more -= p.s.cost()
	}
}

// shrink removes a segment of a log, and the log if that was the last. It reports
// whether it was. Preconditions: the turn is held.
func (b *Book) shrink(l *log, s segment) bool {
	b.removeSegments(l, func(other segment) bool { return other.file == s.file })
	b.mu.Lock()
	empty := len(l.segments) == 0
	b.mu.Unlock()
	if empty {
		if err := b.remove(l); err != nil {
			slog.Warn("a log could not be removed", "sandbox", l.machine, "err", err)
		}
	}
	return empty
}

// sweep removes lines that are too old.
func (b *Book) sweep(ctx context.Context, now time.Time) {
	until := now.Add(-b.o.Retention).UnixNano()
	old := func(s segment) bool { return s.last < until }
	b.mu.Lock()
	var due []*log
	for _, l := range b.logs {
		if len(l.segments) == 0 || slices.ContainsFunc(l.segments, old) {
			due = append(due, l)
		}
	}
	b.mu.Unlock()
	for _, l := range due {
		_, release, err := b.writers.Take(ctx, l.machine)
		if err != nil {
			return
		}
		b.mu.Lock()
		parts := slices.Clone(l.segments)
		b.mu.Unlock()
		for _, s := range parts {
			if old(s) {
				b.shrink(l, s)
			}
		}
		if len(parts) == 0 {
			b.shrink(l, segment{})
		}
		release()
	}
}

// appendTo adds bytes to a file.
func appendTo(file string, raw []byte) error {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(raw)
	return errors.Join(err, f.Close())
}

// load learns what is on the disk. What cannot be read is removed.
func (b *Book) load(ctx context.Context) error {
	entries, err := os.ReadDir(b.o.Dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		l, err := b.read(e.Name())
		if err != nil {
			slog.WarnContext(ctx, "a log is damaged and is removed", "sandbox", e.Name(), "err", err)
			if err := os.RemoveAll(b.dir(e.Name())); err != nil {
				return err
			}
			continue
		}
		b.put(l)
	}
	return nil
}

// read learns what a directory has.
func (b *Book) read(machine string) (*log, error) {
	l, dir := &log{machine: machine}, b.dir(machine)
	raw, err := os.ReadFile(filepath.Join(dir, metaName))
	if err != nil {
		return nil, err
	}
	var m meta
	if err := json.Unmarshal(raw, &m); err != nil {
		return nil, err
	}
	l.of = name{m.Workspace, m.Name}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		file := filepath.Join(dir, e.Name())
		var s segment
		switch {
		case e.Name() == metaName:
			continue
		case e.Name() == tailName, e.Name() == eventsName:
			if s, err = measure(file, l); err != nil {
				return nil, err
			}
		case strings.HasSuffix(e.Name(), packed):
			s = segment{file: e.Name()}
			var stamp int64
			if _, err := fmt.Sscanf(e.Name(), packedForm, &s.first, &s.last, &stamp); err == nil {
				if i, err := e.Info(); err == nil {
					s.bytes = i.Size()
				}
				l.last, l.stamp = max(l.last, s.last), max(l.stamp, stamp)
			}
		}
		if s.bytes == 0 { // what a crash left
			if err := os.Remove(file); err != nil {
				return nil, err
			}
			continue
		}
		l.segments = append(l.segments, s)
	}
	return l, l.settle(dir)
}

// settle removes the tail of a log that is in a segment already, after a crash.
func (l *log) settle(dir string) error {
	slices.SortFunc(l.segments, func(a, b segment) int { return cmp.Compare(a.last, b.last) })
	tail := slices.IndexFunc(l.segments, func(s segment) bool { return s.file == tailName })
	if tail < 0 || !slices.ContainsFunc(l.segments, func(s segment) bool {
		return strings.HasSuffix(s.file, packed) && s.first == l.segments[tail].first
	}) {
		return nil
	}
	l.segments = slices.Delete(l.segments, tail, tail+1)
	return os.Remove(filepath.Join(dir, tailName))
}

// measure reads a file of a log that is not compressed. It cuts off what is no whole
// entry, since a process may have ended as it wrote.
func measure(file string, l *log) (s segment, err error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return s, err
	}
	s.file = filepath.Base(file)
	rest := raw
	for len(rest) > 0 {
		e, left, ok := parse(rest)
		if !ok {
			break
		}
		if s.bytes == 0 {
			s.first = e.at
		}
		s.last = max(s.last, e.last())
		s.bytes += int64(len(rest) - len(left))
		if rest = left; s.file == tailName {
			l.last, l.stamp = max(l.last, e.last()), max(l.stamp, e.stamp)
		}
	}
	if len(rest) > 0 {
		err = os.Truncate(file, s.bytes)
	}
	return s, err
}
