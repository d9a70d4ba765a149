package launcher

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dozehq/doze/internal/machine/checkpoint"
	"github.com/dozehq/doze/internal/machine/gvisor"
	"github.com/dozehq/doze/internal/machine/gvisor/launcher/patch"
	"github.com/dozehq/doze/internal/machine/hostproc"
)

// An engine can be watched: it notes which memory the guest can write to from then on.
// For that it removes all mappings first, and each new one is of one chunk. A copy of
// the memory then reads what was touched since the copy that it shares files with, and
// nothing else. So it takes as long as what changed, and not as long as the memory is
// large. An engine that wakes from a large checkpoint is watched from its first
// instruction on.
//
// What the engine says is looked at by samples. If one of them is wrong, everything is
// read.

// The engine has a bit for each chunk.
var _ [checkpoint.PageChunk]struct{} = [patch.WatchUnit]struct{}{}

const (
	// samples is how many chunks that are taken to be the same are read all the same:
	// 16 MB are read in 2 ms.
	samples = 64
	// watchFrom is how many bytes a checkpoint reads in vain until the engine is to note
	// anew what is touched. The guest pays for that with a fault for each chunk.
	watchFrom = 64 << 20
	// loadFrom is how large a checkpoint is of which the engine notes from the first
	// instruction on what is touched. With a smaller one, the wake is 5 ms shorter without,
	// and the next checkpoint reads its memory in less than 100 ms.
	loadFrom = 256 << 20
	// seenMost is how many copies of a machine's memory are known.
	seenMost = 8
	// usageWatch is a method that the changed gVisor has.
	usageWatch = "Usage.Watch"
)

// watchOpts and watched are as package patch has them.
type watchOpts struct{ Ahead, Begin, Load bool }

type watched struct {
	Known      bool
	Bits, Held []byte
}

// seen is a copy of the memory of a machine whose engine is watched since then, or longer.
type seen struct {
	index   [sha256.Size]byte // hash of the copy's index
	pages   []chunkPages      // in order
	touched []byte            // since then, until it was watched anew: a bit for each chunk
}

// chunkPages says which pages of a chunk have a content, by a bit for each.
type chunkPages struct {
	number uint32
	pages  uint64
}

// since notes that memory was touched.
func (n *seen) since(bits []byte) {
	if more := len(bits) - len(n.touched); more > 0 {
		n.touched = append(n.touched, make([]byte, more)...)
	}
	for i, b := range bits {
		n.touched[i] |= b
	}
}

// bit reports whether a chunk has its bit, or is behind all of them.
func bit(bits []byte, number uint32) bool {
	i := int(number / 8)
	return i >= len(bits) || bits[i]&(1<<(number%8)) != 0
}

// indexHash returns the hash of the index in a directory.
func indexHash(dir string) ([sha256.Size]byte, error) {
	raw, err := os.ReadFile(filepath.Join(dir, checkpoint.FileIndex))
	return sha256.Sum256(raw), err
}

// Watch has the engine of a machine that is awake note from now on which memory is
// touched. The machine stands still for some milliseconds: the mappings are removed while it
// runs, and those that it needed meanwhile are removed again.
func (l *Launcher) Watch(ctx context.Context, id string) error {
	return l.with(id, func(s *sandbox) error {
		s.mu.Lock()
		standing := s.paused || s.doubtful
		s.mu.Unlock()
		if standing {
			return errors.New("a machine must be awake before it is watched")
		}
		if err := s.watchAhead(ctx); err != nil {
			return err
		}
		if err := s.pause(ctx); err != nil {
			return err
		}
		return errors.Join(s.watchAnew(ctx), s.resume(ctx, false))
	})
}

// watchAhead has the engine do before a watch what it can do while its guest runs.
func (s *sandbox) watchAhead(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.container == nil {
		return fmt.Errorf("%s: %w", s.id, errGone)
	}
	_, err := s.watch(ctx, watchOpts{Ahead: true})
	return err
}

// watchAnew begins to watch the paused machine, for the copy that comes next.
func (s *sandbox) watchAnew(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.container == nil {
		return fmt.Errorf("%s: %w", s.id, errGone)
	}
	err := s.begin(ctx)
	s.fresh = err == nil
	return err
}

// begin has the engine note anew what is touched. When ctx ends, it fails, and the engine
// goes on to note what it did. Preconditions: mu is held, the machine is paused.
func (s *sandbox) begin(ctx context.Context) error {
	_, err := s.beginHeld(ctx)
	return err
}

// beginHeld is begin, and returns a bit for each chunk that may be written to without a note.
// There is none if that is not known.
func (s *sandbox) beginHeld(ctx context.Context) ([]byte, error) {
	heard := s.stops(ctx)
	w, err := s.watch(ctx, watchOpts{Begin: true})
	heard()
	if err != nil && strings.Contains(err.Error(), patch.Stopped) {
		return nil, cmp.Or(context.Cause(ctx), errLate)
	}
	s.watches++
	if s.watching = err == nil; !s.watching || !w.Known {
		s.seen = nil
	}
	for _, n := range s.seen {
		n.since(w.Bits)
	}
	return w.Held, err
}

// watch asks the engine. Preconditions: mu is held.
func (s *sandbox) watch(ctx context.Context, o watchOpts) (w watched, err error) {
	err = hostproc.Watch(ctx, gvisor.LimitCheckpoint, s.shoot, func() error { return s.ask(usageWatch, &o, &w) })
	if err != nil && !strings.Contains(err.Error(), patch.Stopped) {
		s.hangUp()
	}
	return w, err
}

// omit lets a capture leave out what nobody touched since the copy that is its base, until
// the last watch began. Preconditions: mu is held.
func (s *sandbox) omit(c *capture, base *gvisor.Base) {
	if base == nil || len(s.seen) == 0 {
		return
	}
	hash, err := indexHash(base.Dir)
	if err != nil {
		return // the copy is whole
	}
	for _, n := range s.seen {
		if n.index == hash {
			c.known = &seen{pages: n.pages, touched: slices.Clone(n.touched)}
		}
	}
}

// omitStill is omit until now, while the machine stands still. For a machine that is to run
// on, it begins a watch, and returns what beginHeld does.
func (s *sandbox) omitStill(ctx context.Context, c *capture, what gvisor.Checkpoint) (held []byte) {
	if what.Runs {
		var err error
		if held, err = s.beginHeld(ctx); err != nil && ctx.Err() == nil {
			slog.WarnContext(ctx, "an engine does not watch its memory", "sandbox", s.id, "err", err)
		}
		s.omit(c, what.Base)
		c.still = c.known != nil
		return held
	}
	if s.omit(c, what.Base); c.known == nil {
		return nil
	}
	w, err := s.watch(ctx, watchOpts{})
	if err != nil || !w.Known {
		slog.WarnContext(ctx, "an engine does not say which memory was touched", "sandbox", s.id, "err", err)
		s.seen, c.known = nil, nil
		return nil
	}
	c.known.since(w.Bits)
	c.still = true
	return nil
}

// took notes a checkpoint that was made while the machine stood still. A machine that
// falls asleep is watched anew if the next checkpoint would read much. Preconditions: mu is
// held.
func (s *sandbox) took(ctx context.Context, c *capture, what gvisor.Checkpoint) {
	if read := c.total - uint64(c.unread.Load())*checkpoint.PageChunk; what.Yields && read >= watchFrom { //nolint:gosec // G115: a count
		if err := s.begin(ctx); err != nil && ctx.Err() == nil {
			slog.WarnContext(ctx, "an engine does not watch its memory", "sandbox", s.id, "err", err)
		}
	}
	if hash, err := indexHash(what.Dir); err == nil {
		s.remember(hash, c.all())
	}
}

// remember notes a copy of the memory. The engine was watched since then, or longer.
// Preconditions: mu is held.
func (s *sandbox) remember(index [sha256.Size]byte, pages []chunkPages) {
	if !s.watching {
		return
	}
	s.seen = append(s.seen, &seen{index: index, pages: pages})
	s.seen = slices.Delete(s.seen, 0, max(0, len(s.seen)-seenMost))
}

// watchLoaded has the engine note what is touched of the memory that it is about to load, if
// that is much. It returns the index of the checkpoint then, and nil otherwise.
// Preconditions: mu is held.
func (s *sandbox) watchLoaded(ctx context.Context, r gvisor.Restore) *os.File {
	i := slices.IndexFunc(r.Files, func(f checkpoint.File) bool { return f.Name == checkpoint.FilePages })
	if i < 0 || r.Files[i].Bytes < loadFrom {
		return nil
	}
	index, err := os.Open(filepath.Join(r.Dir, checkpoint.FileIndex))
	if err != nil {
		return nil // an older launcher wrote the checkpoint, or the wake fails
	}
	if err := s.ask(usageWatch, &watchOpts{Load: true}, new(watched)); err != nil {
		s.hangUp()
		slog.WarnContext(ctx, "an engine does not watch its memory", "sandbox", s.id, "err", err)
		_ = index.Close() // it was only read
		return nil
	}
	return index
}

// woke notes the checkpoint that the machine woke from. Its engine is watched since then.
func (s *sandbox) woke(index *os.File) {
	if index == nil {
		return
	}
	raw, err := io.ReadAll(index)
	if err != nil {
		return // the next checkpoint reads all memory
	}
	x, err := checkpoint.ParseIndex(raw)
	if err != nil || x.Size != checkpoint.PageChunk {
		return
	}
	var pages []chunkPages
	for _, r := range x.Ranges {
		pages = addPages(pages, r)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watches == 0 {
		s.watching = true
		s.remember(sha256.Sum256(raw), pages)
	}
}

// addPages adds the pages of a range that is behind all that are there. Pages of which a
// part is in the range make their chunk unknown.
func addPages(all []chunkPages, r checkpoint.Range) []chunkPages {
	page := int64(os.Getpagesize())
	for at := r.At; at < r.End(); {
		number := at / checkpoint.PageChunk
		end := min(r.End(), (number+1)*checkpoint.PageChunk)
		var pages uint64
		for ; at < end; at += page - at%page {
			pages |= 1 << (at % checkpoint.PageChunk / page)
		}
		at = end
		if last := len(all) - 1; last < 0 || int64(all[last].number) != number {
			all = append(all, chunkPages{number: uint32(number)}) //nolint:gosec // G115: below checkpoint.MemoryMost
		}
		all[len(all)-1].pages |= pages
	}
	return all
}

// pages returns which pages of a chunk a part has. It reports false if the part cannot be
// compared with one of another copy.
func (p part) pages() (pages uint64, ok bool) {
	var all []chunkPages
	for _, piece := range p.pieces {
		at := piece.from.place(piece.at)
		if piece.copy != nil || at.At%int64(os.Getpagesize()) != 0 || at.Bytes%int64(os.Getpagesize()) != 0 {
			return 0, false
		}
		all = addPages(all, at)
	}
	return all[0].pages, len(all) == 1
}

// same reports whether the base has a part as it is now.
func (c *capture) same(p part) bool {
	if c.known == nil || bit(c.known.touched, p.number) {
		return false
	}
	i, known := slices.BinarySearchFunc(c.known.pages, p.number, func(have chunkPages, n uint32) int { return cmp.Compare(have.number, n) })
	now, ok := p.pages()
	return known && ok && c.known.pages[i].pages == now
}

// sample looks at some of what is taken to be the same, and omits nothing if that is
// wrong. Preconditions: the machine stands still.
func (c *capture) sample() error {
	var omitted []part
	for _, p := range c.named {
		if c.same(p) {
			omitted = append(omitted, p)
		}
	}
	rand.Shuffle(len(omitted), func(i, j int) { omitted[i], omitted[j] = omitted[j], omitted[i] }) //nolint:gosec // G404: samples
	room := checkpoint.NewScratch()
	defer room.Release()
	for _, p := range omitted[:min(samples, len(omitted))] {
		same, err := c.pages.Same(p.number, room, c.filler(p))
		if err != nil {
			return err
		}
		if !same {
			slog.Error("an engine does not know which memory was touched: all of it is read", "chunk", p.number)
			c.known = nil
			return nil
		}
	}
	return nil
}

// all returns the pages of each part, for the next copy.
func (c *capture) all() []chunkPages {
	pages := make([]chunkPages, 0, len(c.named))
	for _, p := range c.named {
		if these, ok := p.pages(); ok {
			pages = append(pages, chunkPages{p.number, these})
		}
	}
	return pages
}
