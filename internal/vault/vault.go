// Package vault stores trees of large files in a bucket of an S3 service, and brings
// them back. A tree is what one sandbox needs to wake on another node.
//
// A file is stored in chunks. Each is named by its content, compressed, and encrypted with
// the key of its sandbox. Chunks that are zero are left out, and those that the bucket has
// are not sent again. A manifest names the chunks of a tree. It is written last.
//
// Trees have a [Generation], which begins with the epoch of a lease. Once a node has
// claimed an epoch, nobody reads what a node with an older one writes. What counts, and what
// a save may rely on, depends on no clock. See docs/design/0131.
package vault

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/minio/minio-go/v7"
	"golang.org/x/time/rate"
)

// Errors that callers tell apart.
var (
	// ErrSuperseded is of a node whose lease is over: a newer epoch was claimed, or a
	// newer generation saved, or the sandbox dropped. The newer epoch may have gone on
	// from what the node wrote last.
	ErrSuperseded = errors.New("superseded")
	// ErrTaken is of a generation that was saved with another content.
	ErrTaken = errors.New("generation taken")
	// ErrNotFound is of a sandbox that has nothing in the bucket, or was dropped.
	ErrNotFound = errors.New("not in the vault")
	// ErrChanged is of a file that changed while it was read.
	ErrChanged = errors.New("file changed")
	// ErrDamaged is of an object that is missing, altered, or of somebody else.
	ErrDamaged = errors.New("damaged in the vault")
	// ErrKey is of a key that is not the one that a tree was saved with.
	ErrKey = errors.New("wrong key")
	// ErrNewer is of an object that a newer version of this program wrote.
	ErrNewer = errors.New("written by a newer version")
	// ErrBusy is of a directory that somebody else loads into.
	ErrBusy = errors.New("busy")
	// ErrAway is of a bucket that does not answer, or is out of service.
	ErrAway = errors.New("the bucket is away")
	// ErrUnconditional is of a bucket whose server knows no conditional writes.
	ErrUnconditional = errors.New("no conditional writes")
)

// ParallelDefault is how many chunks are sent at a time, and how many are read. A chunk takes
// up to 4 MiB of memory meanwhile.
const ParallelDefault = 8

// EpochMost is the highest epoch of a lease. What is above it says that a sandbox was
// dropped.
const EpochMost = 1<<63 - 1

// dropped is the epoch that no lease has.
const dropped = 1<<64 - 1

// Options say how a vault uses its bucket.
type Options struct {
	// Prefix is what all keys begin with: empty, or a path that ends with a slash.
	Prefix string
	// Bandwidth bounds what all saves together send, in bytes per second. 0 is no bound.
	Bandwidth int64
	// Parallel is how many chunks all calls together send at a time, and how many they
	// read. 0 is ParallelDefault.
	Parallel int
}

// Vault is one bucket. It is safe for concurrent use.
type Vault struct {
	core   minio.Core
	bucket string
	prefix string

	parallel int
	// One for each chunk that is under way. A load does not wait for saves.
	sending, loading slots
	sends            *rate.Limiter // nil: no bound
	cache            cache
	pack             *zstd.Encoder
	unpack           *zstd.Decoder
}

// New returns the vault in a bucket that a client reaches. It asks nobody.
func New(client *minio.Client, bucket string, o Options) (*Vault, error) {
	if o.Parallel == 0 {
		o.Parallel = ParallelDefault
	}
	switch {
	case o.Parallel < 1 || o.Bandwidth < 0:
		return nil, errors.New("a vault needs a bandwidth of 0 or more, and at least one chunk at a time")
	case o.Prefix != "" && (!strings.HasSuffix(o.Prefix, "/") || !fs.ValidPath(strings.TrimSuffix(o.Prefix, "/"))):
		return nil, fmt.Errorf("the prefix %q of a vault must be a relative path that ends with a slash", o.Prefix)
	}
	v := &Vault{core: minio.Core{Client: client}, bucket: bucket, prefix: o.Prefix, parallel: o.Parallel, sending: make(slots, o.Parallel), loading: make(slots, o.Parallel)}
	if o.Bandwidth > 0 {
		// A request waits for all its bytes before it is sent. The burst lets the
		// largest chunk pass.
		v.sends = rate.NewLimiter(rate.Limit(o.Bandwidth), 2*ChunkBytes)
	}
	var err1, err2 error
	v.pack, err1 = zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(o.Parallel), zstd.WithWindowSize(ChunkBytes), zstd.WithEncoderCRC(false))
	v.unpack, err2 = zstd.NewReader(nil, zstd.WithDecoderConcurrency(o.Parallel), zstd.WithDecoderMaxMemory(ChunkBytes))
	return v, errors.Join(err1, err2)
}

// Generation is one state of a tree. Of two, the one with the higher epoch is newer, and
// of one epoch the one with the higher number. The zero Generation is none.
type Generation struct {
	Epoch uint64 // of the lease of the node that wrote it; from 1 to EpochMost
	Seq   uint64 // of one epoch; the caller counts
}

// digits of a number in a key: keys are in the order of their numbers.
const digits = 16

func hexOf(n uint64) string { return fmt.Sprintf("%0*x", digits, n) }

func parseHex(text string) (uint64, bool) {
	n, err := strconv.ParseUint(text, 16, 64)
	return n, err == nil && hexOf(n) == text
}

func (g Generation) String() string { return hexOf(g.Epoch) + "-" + hexOf(g.Seq) }

// Before reports whether g is older than o.
func (g Generation) Before(o Generation) bool {
	return g.Epoch < o.Epoch || g.Epoch == o.Epoch && g.Seq < o.Seq
}

// compare is negative if a is older than b.
func compare(a, b Generation) int {
	switch {
	case a.Before(b):
		return -1
	case b.Before(a):
		return 1
	}
	return 0
}

// parseGeneration is the inverse of [Generation.String].
func parseGeneration(text string) (g Generation, ok bool) {
	epoch, seq, _ := strings.Cut(text, "-")
	e, ok1 := parseHex(epoch)
	s, ok2 := parseHex(seq)
	return Generation{e, s}, ok1 && ok2 && e > 0 && e <= EpochMost
}

// idForm is what an id may be: it is a part of each key.
var idForm = regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`)

func checkID(id string) error {
	if !idForm.MatchString(id) {
		return fmt.Errorf("%q is no id: it needs 1 to 128 letters, digits, - or _", id)
	}
	return nil
}

func checkEpoch(epoch uint64) error {
	if epoch < 1 || epoch > EpochMost {
		return fmt.Errorf("the epoch %d of a lease is not between 1 and %d", epoch, uint64(EpochMost))
	}
	return nil
}

// Kinds of objects. Each key is <prefix><id>/<kind>/<rest>.
const (
	kindChunk    = "c" // <name>-<mark>
	kindClaim    = "e" // <epoch>: a node claimed it
	kindBase     = "b" // <epoch>: the generation that the epoch goes on from
	kindManifest = "m" // <epoch>-<seq>
	kindPending  = "p" // <epoch>-<seq>-<random>: a manifest that is about to be written
	kindDoomed   = "x" // <random>: the chunks that a sweep is about to remove
)

// key returns the key of an object, or what the keys of a kind begin with.
func (v *Vault) key(id, kind, rest string) string { return v.prefix + id + "/" + kind + "/" + rest }

// checkMost bounds what Check reads, in bytes.
const checkMost = 64

// Check writes to the bucket, reads, and removes it again. It says whether the bucket is there,
// the credentials open it, and its server knows the conditional writes that a vault relies on.
func (v *Vault) Check(ctx context.Context) error {
	key := v.prefix + "check"
	for range 2 {
		err := v.put(ctx, key, []byte("check"), true)
		switch {
		case errors.Is(err, errExists):
			_, err := v.get(ctx, key, checkMost)
			return errors.Join(err, v.remove(ctx, []string{key}))
		case err != nil:
			return err
		}
	}
	return errors.Join(fmt.Errorf("%w: the server of bucket %s ignores If-None-Match: use another one, or a newer version", ErrUnconditional, v.bucket), v.remove(ctx, []string{key}))
}

// List returns the ids of all that is in the bucket, in order. A sandbox that was dropped
// is among them until a burial or a sweep after the grace period.
func (v *Vault) List(ctx context.Context) (ids []string, err error) {
	err = try(ctx, "list", v.prefix, func() error {
		ids = nil
		for o, err := range v.page(ctx, v.prefix, "", false) {
			if err != nil {
				return err
			}
			if id, ok := strings.CutSuffix(o.Key[len(v.prefix):], "/"); ok && checkID(id) == nil {
				ids = append(ids, id)
			}
		}
		return nil
	})
	slices.Sort(ids)
	return ids, err
}

// Head returns the newest generation of a sandbox. There is none before the first save:
// the error is ErrNotFound.
func (v *Vault) Head(ctx context.Context, id string) (Generation, error) {
	if err := checkID(id); err != nil {
		return Generation{}, err
	}
	g, err := v.head(ctx, id)
	if err == nil && g == (Generation{}) {
		err = fmt.Errorf("%w: %s has no generation yet", ErrNotFound, id)
	}
	return g, err
}

// Has reports whether a sandbox has a generation that counts.
func (v *Vault) Has(ctx context.Context, id string) (bool, error) {
	_, err := v.Head(ctx, id)
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// Names are the files at the top of the newest generation of a sandbox. Without one there are none.
func (v *Vault) Names(ctx context.Context, id string, key Key) (names []string, err error) {
	c, err := v.Open(ctx, id, key)
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, f := range c.Files() {
		if !strings.Contains(f.Name, "/") {
			names = append(names, f.Name)
		}
	}
	return names, nil
}

// Dropped reports whether the bucket knows that a sandbox was dropped.
func (v *Vault) Dropped(ctx context.Context, id string) (bool, error) {
	if err := checkID(id); err != nil {
		return false, err
	}
	claims, err := v.claims(ctx, id)
	return len(claims) > 0 && claims[len(claims)-1] == dropped, err
}

// Bytes is what a sandbox takes in the bucket.
func (v *Vault) Bytes(ctx context.Context, id string) (sum int64, err error) {
	if err := checkID(id); err != nil {
		return 0, err
	}
	err = v.listAll(ctx, v.prefix+id+"/", func(o object) error {
		sum += o.size
		return nil
	})
	return sum, err
}

// Now is what the bucket takes for the present. It writes an object, and removes it. One that a call
// left which was cut off goes with the next one.
func (v *Vault) Now(ctx context.Context) (time.Time, error) {
	key := v.prefix + "now"
	for range racesMost {
		if err := v.put(ctx, key, nil, false); err != nil {
			return time.Time{}, err
		}
		if at, err := v.modified(ctx, key); err != nil || !at.IsZero() {
			return at, errors.Join(err, v.remove(ctx, []string{key}))
		}
		// Another call removed it.
	}
	return time.Time{}, errors.New("the bucket does not say what time it is: what is written is removed")
}

// Drop removes what a sandbox has in the bucket. Nobody can save under the id again.
// Something small is left, until a burial or a sweep after the grace period: it refuses nodes
// that have not heard of it. One that claims an epoch after that begins the id anew. To drop
// again makes what is left no younger.
func (v *Vault) Drop(ctx context.Context, id string) error {
	if err := checkID(id); err != nil {
		return err
	}
	if err := v.condemn(ctx, id); err != nil {
		return err
	}
	_, err := v.clear(ctx, id)
	return err
}

// condemn writes down that a sandbox is dropped, unless that is there.
func (v *Vault) condemn(ctx context.Context, id string) error {
	v.cache.forget(id)
	claims, err := v.claims(ctx, id)
	if err != nil || len(claims) > 0 && claims[len(claims)-1] == dropped {
		return err
	}
	return v.put(ctx, v.key(id, kindClaim, hexOf(dropped)), nil, false)
}

// clear removes all that a dropped sandbox has, but what says that it was dropped. It
// returns how many objects there were.
func (v *Vault) clear(ctx context.Context, id string) (int, error) {
	stays := v.key(id, kindClaim, hexOf(dropped))
	var keys []string
	err := v.listAll(ctx, v.prefix+id+"/", func(o object) error {
		if o.key != stays {
			keys = append(keys, o.key)
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	return len(keys), v.remove(ctx, keys)
}
