package launcher

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"gvisor.dev/gvisor/pkg/sentry/memmap"

	"github.com/dozehq/doze/internal/machine/checkpoint"
	"github.com/dozehq/doze/internal/machine/gvisor"
)

// watchedChunks is how many chunks of memory the machine of these tests has.
const watchedChunks = 8

// TestOmitted copies memory twice. Of the second copy, what nobody touched is not read. An
// engine that forgets a write is found out, and the copy has every byte all the same.
func TestOmitted(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		bits []byte // what the engine says that was touched
		want int64  // chunks that are not read
	}{
		"the engine tells all":    {[]byte{1 << 3}, watchedChunks - 1},
		"it tells more":           {[]byte{1<<3 | 1<<5}, watchedChunks - 2},
		"it tells too little":     {nil, 0},
		"it forgets the write":    {[]byte{0}, 0},
		"it tells of another one": {[]byte{1 << 4}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			memory := make([]byte, watchedChunks*checkpoint.PageChunk)
			_, _ = rand.NewChaCha8([32]byte{1}).Read(memory)
			copied := func(dir string, base *checkpoint.Base, known *seen) *capture {
				c := capturingOver(t, dir, base, 1<<30)
				c.clock = true
				c.known, c.still = known, known != nil
				at := memmap.FileRange{End: uint64(len(memory))}
				if err := c.put(source{fd: memfd(t, int64(len(memory)), 0, memory)}, at); err != nil {
					t.Fatal(err)
				}
				if err := c.copy(nil, false); err != nil {
					t.Fatal(err)
				}
				return c
			}
			first, second := t.TempDir(), t.TempDir()
			c := copied(first, nil, nil)
			pages := c.all()
			files, err := c.pages.Seal(first)
			if err != nil {
				t.Fatal(err)
			}
			base, err := checkpoint.OpenBase(first, files[1], second)
			if err != nil {
				t.Fatal(err)
			}
			memory[3*checkpoint.PageChunk+99]++
			c = copied(second, base, &seen{pages: pages, touched: tt.bits})
			if got := c.unread.Load(); got != tt.want {
				t.Errorf("%d chunks were not read, want %d", got, tt.want)
			}
			sealed(t, c, second, memory)
		})
	}
}

// TestOmittedPages: a chunk that has other pages than the base is read, whatever the engine
// says.
func TestOmittedPages(t *testing.T) {
	t.Parallel()
	page := uint64(os.Getpagesize())
	named := func(from, to uint64) piece {
		return piece{from: &source{}, at: memmap.FileRange{Start: from * page, End: to * page}}
	}
	base := []chunkPages{{number: 0, pages: 0b1110}, {number: 2, pages: 1}}
	c := &capture{known: &seen{pages: base, touched: []byte{0}}}
	atOnce := named(1, 4)
	atOnce.copy = []byte{}
	for name, tt := range map[string]struct {
		part part
		want bool
	}{
		"the same":          {part{0, []piece{named(1, 4)}}, true},
		"in two pieces":     {part{0, []piece{named(1, 2), named(2, 4)}}, true},
		"a page less":       {part{0, []piece{named(1, 3)}}, false},
		"a page more":       {part{0, []piece{named(0, 4)}}, false},
		"a new chunk":       {part{1, []piece{named(64, 65)}}, false},
		"the next":          {part{2, []piece{named(128, 129)}}, true},
		"copied at once":    {part{0, []piece{atOnce}}, false},
		"a part of a page":  {part{0, []piece{{from: &source{}, at: memmap.FileRange{Start: page + 1, End: 4 * page}}}}, false},
		"behind the bitmap": {part{9, []piece{named(9*64, 9*64+1)}}, false},
	} {
		if got := c.same(tt.part); got != tt.want {
			t.Errorf("%s: it is the same: %v", name, got)
		}
	}
	if (&capture{}).same(part{0, []piece{named(1, 4)}}) {
		t.Error("without a base something is the same")
	}
}

func TestAddPages(t *testing.T) {
	t.Parallel()
	const page, chunk = 4096, checkpoint.PageChunk
	var got []chunkPages
	for _, r := range []checkpoint.Range{
		{At: page, Bytes: 2 * page}, {At: 5 * page, Bytes: page}, // of one chunk
		{At: chunk - page, Bytes: chunk + 2*page}, // of three
	} {
		got = addPages(got, r)
	}
	want := []chunkPages{{0, 0b100110 | 1<<63}, {1, ^uint64(0)}, {2, 1}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(chunkPages{})); diff != "" {
		t.Error(diff)
	}
}

// TestSeen: what was touched is kept over several watches, and a copy is known by its index
// alone.
func TestSeen(t *testing.T) {
	t.Parallel()
	n := &seen{}
	n.since([]byte{1})
	n.since([]byte{2, 4})
	n.since(nil)
	for number, want := range map[uint32]bool{0: true, 1: true, 2: false, 9: false, 10: true, 15: false, 16: true} {
		if bit(n.touched, number) != want {
			t.Errorf("chunk %d was touched: %v", number, !want)
		}
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, checkpoint.FileIndex), []byte("an index"), 0o600); err != nil {
		t.Fatal(err)
	}
	hash, err := indexHash(dir)
	if err != nil {
		t.Fatal(err)
	}
	s := &sandbox{watching: true}
	for i := range seenMost + 3 {
		s.remember([32]byte{byte(i)}, nil)
	}
	s.remember(hash, []chunkPages{{1, 1}})
	if len(s.seen) != seenMost {
		t.Errorf("%d copies are known", len(s.seen))
	}
	c := &capture{}
	if s.omit(c, &gvisor.Base{Dir: dir}); c.known == nil || len(c.known.pages) != 1 {
		t.Errorf("the copy is not known: %v", c.known)
	}
	for name, base := range map[string]*gvisor.Base{"none": nil, "one that is gone": {Dir: dir + "/none"}} {
		c := &capture{}
		if s.omit(c, base); c.known != nil {
			t.Errorf("%s is known", name)
		}
	}
}
