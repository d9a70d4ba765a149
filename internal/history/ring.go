package history

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"iter"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze/internal/durable"
)

const (
	magic = "dozehist1\n"
	// headerMax bounds what is read of a file before it is known to be one of ours.
	headerMax = 256 << 10
	// keyMax is the length of the name of a column.
	keyMax = 255
	// columnsMax bounds the columns of a file that another version wrote.
	columnsMax = 4096
	// slotsMax bounds the records of such a file.
	slotsMax = 1 << 16
	// readRecords is how many records are read at a time.
	readRecords = 256
)

var checksums = crc32.MakeTable(crc32.Castagnoli)

func text(f float64) string { return strconv.FormatFloat(f, 'g', -1, 64) }

// layout is what a file says of itself.
type layout struct {
	step  time.Duration
	slots int
	keys  []string // of the columns
}

// recordSize is in bytes: the start of the step, a number for each column, a checksum.
func (l layout) recordSize() int { return 8 + 4*len(l.keys) + 4 }

// encode is the beginning of a file.
func (l layout) encode() []byte {
	b := []byte(magic)
	b = binary.LittleEndian.AppendUint32(b, uint32(l.step/time.Second)) //nolint:gosec // a constant below 2^32
	b = binary.LittleEndian.AppendUint32(b, uint32(l.slots))            //nolint:gosec // likewise
	b = binary.LittleEndian.AppendUint32(b, uint32(len(l.keys)))        //nolint:gosec // likewise
	for _, k := range l.keys {
		b = append(b, byte(len(k))) //nolint:gosec // a test holds the keys against keyMax
		b = append(b, k...)
	}
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, checksums))
}

var errNoRing = errors.New("the file is no history")

// decode reads the beginning of a file.
func decode(b []byte) (l layout, err error) {
	const numbers = 12
	if len(b) < len(magic)+numbers || string(b[:len(magic)]) != magic {
		return l, errNoRing
	}
	at := len(magic)
	step, slots, n := binary.LittleEndian.Uint32(b[at:]), binary.LittleEndian.Uint32(b[at+4:]), binary.LittleEndian.Uint32(b[at+8:])
	if step == 0 || slots == 0 || slots > slotsMax || n > columnsMax {
		return l, errNoRing
	}
	l.step, l.slots = time.Duration(step)*time.Second, int(slots)
	at += numbers
	for range n {
		if at >= len(b) || at+1+int(b[at]) > len(b) {
			return l, errNoRing
		}
		l.keys = append(l.keys, string(b[at+1:at+1+int(b[at])]))
		at += 1 + int(b[at])
	}
	if at+4 > len(b) || crc32.Checksum(b[:at], checksums) != binary.LittleEndian.Uint32(b[at:]) {
		return l, errNoRing
	}
	return l, nil
}

// encodeRecord is a record of the step that begins at a moment.
func encodeRecord(at time.Time, values []float64) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(at.Unix())) //nolint:gosec // the same bits
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(v)))
	}
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, checksums))
}

// decodeRecord reads a record. It is not ok if the record was written in part, or never.
func decodeRecord(b []byte) (at time.Time, values []float64, ok bool) {
	const least = 12
	if len(b) < least || len(b)%4 != 0 {
		return at, nil, false
	}
	end := len(b) - 4
	if crc32.Checksum(b[:end], checksums) != binary.LittleEndian.Uint32(b[end:]) {
		return at, nil, false
	}
	for i := 8; i < end; i += 4 {
		values = append(values, float64(math.Float32frombits(binary.LittleEndian.Uint32(b[i:]))))
	}
	return time.Unix(int64(binary.LittleEndian.Uint64(b)), 0).UTC(), values, true //nolint:gosec // the same bits
}

// ring is a file of fixed size with a place for each of the last steps. There is one
// writer. Readers may come at any time: a record that is being written is left out.
type ring struct {
	layout

	f     *os.File
	begin int64 // of the records
}

// openRing opens a file, or makes it. A file of other columns becomes one of these, and
// the numbers of columns that both have stay.
func openRing(name string, l layout) (*ring, error) {
	old, err := readRing(name)
	switch {
	case err == nil && old.step == l.step && old.slots == l.slots && slices.Equal(old.keys, l.keys):
		return old, nil
	case err == nil:
		defer func() { _ = old.f.Close() }()
	case !errors.Is(err, errNoRing) && !errors.Is(err, os.ErrNotExist):
		return nil, err
	}
	fresh, err := createRing(name, l)
	if err != nil {
		return nil, fmt.Errorf("make the history: %w", err)
	}
	if old != nil && old.step == l.step {
		if err := old.copyTo(fresh); err != nil {
			return nil, errors.Join(fmt.Errorf("convert the history: %w", err), fresh.f.Close())
		}
	}
	if err := errors.Join(fresh.f.Sync(), os.Rename(fresh.f.Name(), name), durable.Sync(filepath.Dir(name))); err != nil {
		return nil, errors.Join(fmt.Errorf("make the history: %w", err), fresh.f.Close())
	}
	return fresh, nil
}

// readRing opens a file that is there.
func readRing(name string) (*ring, error) {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	head, err := io.ReadAll(io.LimitReader(f, headerMax))
	if err == nil {
		var l layout
		if l, err = decode(head); err == nil {
			return &ring{layout: l, f: f, begin: int64(len(l.encode()))}, nil
		}
	}
	return nil, errors.Join(err, f.Close())
}

// createRing makes a file beside name, which has all its blocks: a full disk later does
// not end the history.
func createRing(name string, l layout) (*ring, error) {
	f, err := os.OpenFile(name+durable.NewSuffix, os.O_CREATE|os.O_RDWR|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	head := l.encode()
	r := &ring{layout: l, f: f, begin: int64(len(head))}
	err = unix.Fallocate(int(f.Fd()), 0, 0, r.begin+int64(l.slots*l.recordSize()))
	if err == nil {
		_, err = f.Write(head)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close(), os.Remove(f.Name()))
	}
	return r, nil
}

// copyTo copies all records to a ring of the same step.
func (r *ring) copyTo(to *ring) error {
	from := make([]int, len(to.keys))
	for i, k := range to.keys {
		from[i] = slices.Index(r.keys, k)
	}
	for at, values := range r.all() {
		moved := fill(make([]float64, len(from)), math.NaN())
		for i, j := range from {
			if j >= 0 {
				moved[i] = values[j]
			}
		}
		if err := to.write(at, moved); err != nil {
			return err
		}
	}
	return nil
}

// slot is the place of a step.
func (r *ring) slot(at time.Time) int64 {
	steps, slots := at.Unix()/int64(r.step/time.Second), int64(r.slots)
	return ((steps % slots) + slots) % slots
}

// write records the step that begins at a moment.
func (r *ring) write(at time.Time, values []float64) error {
	_, err := r.f.WriteAt(encodeRecord(at, values), r.begin+r.slot(at)*int64(r.recordSize()))
	return err
}

// all are the records in the order of their places. A read error ends them.
func (r *ring) all() iter.Seq2[time.Time, []float64] {
	return func(yield func(time.Time, []float64) bool) { r.places(0, r.slots, yield) }
}

// places reads n records from a place on. It reports whether yield wants more.
func (r *ring) places(first int64, n int, yield func(time.Time, []float64) bool) bool {
	size := r.recordSize()
	buffer := make([]byte, min(n, readRecords)*size)
	for n > 0 {
		part := buffer[:min(n, readRecords)*size]
		got, err := r.f.ReadAt(part, r.begin+first*int64(size))
		for record := range slices.Chunk(part[:got-got%size], size) {
			at, values, ok := decodeRecord(record)
			if ok && at.Equal(at.Truncate(r.step)) && !yield(at, values) {
				return false
			}
		}
		if err != nil {
			return false
		}
		first, n = first+int64(len(part)/size), n-len(part)/size
	}
	return true
}

// between are the records of the steps that begin in [from, to), oldest first. They are
// at most as many as the ring has.
func (r *ring) between(from, to time.Time) iter.Seq2[time.Time, []float64] {
	from, to = from.Truncate(r.step), to.Add(r.step-1).Truncate(r.step)
	if least := to.Add(-time.Duration(r.slots) * r.step); from.Before(least) {
		from = least
	}
	return func(yield func(time.Time, []float64) bool) {
		left := int(to.Sub(from) / r.step)
		wanted := func(at time.Time, values []float64) bool {
			if at.Before(from) || !at.Before(to) {
				return true // of another round
			}
			return yield(at, values)
		}
		for at := from; left > 0; {
			first := r.slot(at)
			n := min(left, r.slots-int(first))
			if !r.places(first, n, wanted) {
				return
			}
			at, left = at.Add(time.Duration(n)*r.step), left-n
		}
	}
}

// has reports whether the step that begins at a moment is recorded.
func (r *ring) has(at time.Time) bool {
	for range r.between(at, at.Add(r.step)) {
		return true
	}
	return false
}
