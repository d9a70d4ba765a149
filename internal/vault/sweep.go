package vault

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"
)

// doomedMost bounds what one sweep removes, so that a save can read what that is.
const doomedMost = chunksMost

// Swept says what a sweep removed.
type Swept struct {
	Generations int
	Chunks      int
	Bytes       int64 // of those chunks
}

// Sweep removes all generations but the newest, and the chunks that no other one has. At
// least as many that count stay as generations says. What it removes is older than the grace
// period, by the clock of the bucket. That long, a load may use a generation that is no longer
// the newest, and a save that was interrupted finds what it sent. What a save relies on is
// safe without it. Of a sandbox that was dropped, nothing is left after the grace period.
func (v *Vault) Sweep(ctx context.Context, id string, key Key, generations int, grace time.Duration) (Swept, error) {
	if err := checkID(id); err != nil {
		return Swept{}, err
	}
	if generations < 1 || grace < 0 {
		return Swept{}, errors.New("a sweep leaves one generation at least, and its grace period is not negative")
	}
	sealer, err := newSealer(id, key)
	if err != nil {
		return Swept{}, err
	}
	claims, err := v.claims(ctx, id)
	if err != nil || len(claims) == 0 {
		return Swept{}, err
	}
	s := v.newSweep(id)
	s.sealer, s.claims = sealer, claims
	if err := s.begin(ctx, grace); err != nil {
		return Swept{}, err
	}
	if s.epoch() == dropped {
		_, err := s.bury(ctx)
		return Swept{}, err
	}
	return s.run(ctx, generations)
}

// Bury is Drop, and removes what says that the sandbox was dropped, when that is older than the
// grace period. The clock of the bucket counts. Bury reports whether nothing is left. If something came
// from nodes that had not heard of the drop, it removes that alone: call it again later.
func (v *Vault) Bury(ctx context.Context, id string, grace time.Duration) (gone bool, err error) {
	if err := checkID(id); err != nil {
		return false, err
	}
	if grace < 0 {
		return false, errors.New("the grace period of a burial is not negative")
	}
	if err := v.condemn(ctx, id); err != nil {
		return false, err
	}
	s := v.newSweep(id)
	if err := s.begin(ctx, grace); err != nil {
		return false, err
	}
	return s.bury(ctx)
}

// A sweep is one call of [Vault.Sweep].
type sweep struct {
	v         *Vault
	id        string
	sealer    *sealer
	claims    []uint64
	announced string    // key of what it is about to remove
	before    time.Time // what is younger stays, by the clock of the bucket

	newest   Generation
	obsolete map[Generation]bool // manifests that it removes
	lowest   uint64              // the oldest epoch that a manifest is of
	used     map[chunk]bool      // by what stays
	read     map[Generation]bool // manifests that are in used
	doomed   []chunk             // what it removes
	leftover []string            // keys of what earlier sweeps announced, all of which is gone after this one
	swept    Swept
}

func (v *Vault) newSweep(id string) *sweep {
	var random [8]byte
	_, _ = rand.Read(random[:]) // it never fails
	return &sweep{v: v, id: id, announced: v.key(id, kindDoomed, hex.EncodeToString(random[:])), used: map[chunk]bool{}}
}

// begin says what stays for its age.
func (s *sweep) begin(ctx context.Context, grace time.Duration) error {
	now, err := s.now(ctx)
	s.before = now.Add(-grace)
	return err
}

// now returns what the bucket takes for the present. It writes what the sweep announces, which
// is nothing yet.
func (s *sweep) now(ctx context.Context) (time.Time, error) {
	for range racesMost {
		if err := s.v.put(ctx, s.announced, nil, false); err != nil {
			return time.Time{}, err
		}
		// A drop, or a sweep with a shorter grace period, may have removed it.
		if at, err := s.v.modified(ctx, s.announced); err != nil || !at.IsZero() {
			return at, err
		}
	}
	return time.Time{}, fmt.Errorf("sweep %s: what it writes is removed: sweep again later", s.id)
}

// epoch is the newest one that was claimed.
func (s *sweep) epoch() uint64 { return s.claims[len(s.claims)-1] }

// over reports whether a generation is none that may become the newest.
func (s *sweep) over(g Generation) bool { return !s.newest.Before(g) || g.Epoch < s.epoch() }

// bury removes what a dropped sandbox got from nodes that had not heard of it. After the
// grace period it removes what says that it was dropped, and reports that. That goes last: if
// this ends anywhere, the next burial finds it.
func (s *sweep) bury(ctx context.Context) (gone bool, err error) {
	n, err := s.v.clear(ctx, s.id)
	if err != nil || n > 1 { // it wrote one itself
		return false, err
	}
	stone := s.v.key(s.id, kindClaim, hexOf(dropped))
	at, err := s.v.modified(ctx, stone)
	if err != nil || at.After(s.before) {
		return false, err
	}
	err = s.v.remove(ctx, []string{stone})
	return err == nil, err
}

func (s *sweep) run(ctx context.Context, generations int) (Swept, error) {
	var err error
	if s.newest, err = s.v.standing(ctx, s.id, s.claims); err != nil {
		return Swept{}, err
	}
	if err := s.choose(ctx, generations); err != nil {
		return Swept{}, err
	}
	if err := s.markAll(ctx); err != nil {
		return Swept{}, err
	}
	sizes, err := s.find(ctx)
	if err != nil {
		return Swept{}, err
	}
	if len(s.doomed) > 0 {
		if err := s.announce(ctx, sizes); err != nil {
			return Swept{}, err
		}
	}
	err = s.clear(ctx, sizes)
	return s.swept, err
}

// dated is a generation, and when it was written.
type dated struct {
	Generation
	at time.Time
}

// choose decides which manifests are obsolete: those that do not count, and those that are
// older than enough others. While its successor is young, a manifest stays, since a
// load may be reading it.
func (s *sweep) choose(ctx context.Context, generations int) error {
	var all []dated
	err := s.v.list(ctx, s.id, kindManifest, "", func(o object) error {
		if g, ok := parseGeneration(o.rest); ok && s.over(g) {
			all = append(all, dated{g, o.modified})
		}
		return nil
	})
	if err != nil {
		return err
	}
	slices.SortFunc(all, func(a, b dated) int { return compare(b.Generation, a.Generation) })
	s.obsolete, s.lowest = map[Generation]bool{}, s.epoch()
	stay, last, bound := 0, time.Time{}, s.newest
	for _, g := range all {
		for g.Epoch < s.lowest { // what does the newer epoch go on from?
			if s.lowest, bound, err = s.older(ctx, s.lowest); err != nil {
				return err
			}
		}
		switch {
		case bound.Before(g.Generation): // it was written too late, and never counted
			s.obsolete[g.Generation] = true
		case stay >= generations && !last.After(s.before):
			s.obsolete[g.Generation] = true
		default:
			stay, last = stay+1, g.at
		}
	}
	return nil
}

// older returns the generation that an epoch goes on from, and its epoch.
func (s *sweep) older(ctx context.Context, epoch uint64) (uint64, Generation, error) {
	g, err := s.v.readBase(ctx, s.id, epoch)
	if errors.Is(err, errAbsent) { // an earlier sweep removed it, with all that was older
		return 0, Generation{}, nil
	}
	return g.Epoch, g, err
}

// markAll adds the chunks of all manifests that stay, and of those that may be written soon.
// It may be called again, and reads what is new.
func (s *sweep) markAll(ctx context.Context) error {
	if s.read == nil {
		s.read = map[Generation]bool{}
	}
	// The manifest of a save is pending until it is written. So it is in one of the two
	// lists, if the pending ones are read first.
	var pending, written []Generation
	var keys []string
	err := s.v.list(ctx, s.id, kindPending, "", func(o object) error {
		if g, ok := pendingOf(o.rest); ok && !s.over(g) {
			pending, keys = append(pending, g), append(keys, o.key)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for i, g := range pending {
		raw, err := s.v.get(ctx, keys[i], sealedManifestMost)
		if errors.Is(err, errAbsent) {
			continue
		}
		if err == nil {
			err = s.mark(s.sealer.openManifest(raw, g))
		}
		if err != nil {
			return err
		}
	}
	err = s.v.list(ctx, s.id, kindManifest, "", func(o object) error {
		if g, ok := parseGeneration(o.rest); ok && !s.obsolete[g] && !s.read[g] {
			written = append(written, g)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, g := range written {
		m, err := s.v.manifest(ctx, s.sealer, g)
		if errors.Is(err, errAbsent) {
			continue // another sweep removed it
		}
		if err := s.mark(m, err); err != nil {
			return err
		}
		s.read[g] = true
	}
	return nil
}

// mark adds the chunks of a manifest.
func (s *sweep) mark(m *manifest, err error) error {
	if err != nil {
		return fmt.Errorf("sweep %s: %w", s.id, err)
	}
	for _, c := range m.chunks {
		s.used[c] = true
	}
	return nil
}

// find decides which chunks to remove, and returns their sizes: what nothing uses that stays,
// and is not young. What an earlier sweep announced and did not remove goes with it.
func (s *sweep) find(ctx context.Context) (map[chunk]int64, error) {
	announced := map[string][]chunk{}
	earlier := map[chunk]bool{}
	err := s.v.eachDoomed(ctx, s.id, func(o object, chunks []chunk) {
		if o.key == s.announced || o.modified.After(s.before) {
			return // that sweep may be under way
		}
		announced[o.key] = chunks
		for _, c := range chunks {
			earlier[c] = true
		}
	})
	if err != nil {
		return nil, err
	}
	sizes, there := map[chunk]int64{}, map[chunk]bool{}
	err = s.v.eachChunk(ctx, s.id, func(c chunk, o object) {
		if earlier[c] {
			there[c] = true
		}
		if !s.used[c] && len(s.doomed) < doomedMost && (earlier[c] || !o.modified.After(s.before)) {
			s.doomed, sizes[c] = append(s.doomed, c), o.size
		}
	})
	if err != nil {
		return nil, err
	}
	for key, chunks := range announced {
		// One that something uses stays announced, so that no save relies on it: the
		// earlier sweep may still remove it.
		if !slices.ContainsFunc(chunks, func(c chunk) bool { _, goes := sizes[c]; return there[c] && !goes }) {
			s.leftover = append(s.leftover, key)
		}
	}
	return sizes, nil
}

// announce tells all saves what goes, and then spares what one of them relies on that had
// not read it.
func (s *sweep) announce(ctx context.Context, sizes map[chunk]int64) error {
	raw := make([]byte, 0, len(s.doomed)*chunkBytes)
	for _, c := range s.doomed {
		raw = append(append(raw, c.name[:]...), c.mark[:]...)
	}
	if err := s.v.put(ctx, s.announced, raw, false); err != nil {
		return err
	}
	if err := s.markAll(ctx); err != nil {
		return err
	}
	s.doomed = slices.DeleteFunc(s.doomed, func(c chunk) bool {
		if s.used[c] {
			delete(sizes, c)
			s.leftover = nil // one of them may have it
		}
		return s.used[c]
	})
	return nil
}

// clear removes manifests first, so that nobody begins to load what is no longer whole.
func (s *sweep) clear(ctx context.Context, sizes map[chunk]int64) error {
	var keys []string
	for g := range s.obsolete {
		keys = append(keys, s.v.key(s.id, kindManifest, g.String()))
	}
	err := s.v.list(ctx, s.id, kindPending, "", func(o object) error {
		if g, ok := pendingOf(o.rest); ok && s.over(g) {
			keys = append(keys, o.key)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, epoch := range s.claims {
		if epoch < s.lowest {
			keys = append(keys, s.v.key(s.id, kindClaim, hexOf(epoch)), s.v.key(s.id, kindBase, hexOf(epoch)))
		}
	}
	if err := s.v.remove(ctx, keys); err != nil {
		return err
	}
	s.swept.Generations = len(s.obsolete)
	keys = nil
	for _, c := range s.doomed {
		keys = append(keys, s.v.key(s.id, kindChunk, c.String()))
	}
	if err := s.v.remove(ctx, keys); err != nil {
		return err
	}
	s.swept.Chunks = len(s.doomed)
	for _, size := range sizes {
		s.swept.Bytes += size
	}
	// All requests to remove chunks have their answers.
	return s.v.remove(ctx, append(s.leftover, s.announced))
}

// eachDoomed calls found for all that sweeps announced.
func (v *Vault) eachDoomed(ctx context.Context, id string, found func(object, []chunk)) error {
	var all []object
	err := v.list(ctx, id, kindDoomed, "", func(o object) error {
		all = append(all, o)
		return nil
	})
	if err != nil {
		return err
	}
	for _, o := range all {
		if o.size == 0 { // nobody knows yet
			found(o, nil)
			continue
		}
		raw, err := v.get(ctx, o.key, doomedMost*int64(chunkBytes))
		if errors.Is(err, errAbsent) {
			continue // that sweep is over
		}
		if err != nil {
			return err
		}
		chunks, err := parseDoomed(raw)
		if err != nil {
			return fmt.Errorf("%w: %s", err, o.key)
		}
		found(o, chunks)
	}
	return nil
}

// parseDoomed reads what a sweep announced.
func parseDoomed(raw []byte) ([]chunk, error) {
	if len(raw)%chunkBytes != 0 {
		return nil, fmt.Errorf("%w: what a sweep announced has %d bytes", ErrDamaged, len(raw))
	}
	chunks := make([]chunk, len(raw)/chunkBytes)
	for i := range chunks {
		copy(chunks[i].name[:], raw[i*chunkBytes:])
		copy(chunks[i].mark[:], raw[i*chunkBytes+len(name{}):])
	}
	return chunks, nil
}

// doomed returns the chunks that sweeps are about to remove.
func (v *Vault) doomed(ctx context.Context, id string) (map[chunk]bool, error) {
	all := map[chunk]bool{}
	err := v.eachDoomed(ctx, id, func(_ object, chunks []chunk) {
		for _, c := range chunks {
			all[c] = true
		}
	})
	return all, err
}
