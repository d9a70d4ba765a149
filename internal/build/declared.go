package build

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
)

// What an archive says of itself is enough to refuse most of those that no builder can unpack.
// Names and contents stay unread: the builder reads them, in its machine, and counts.

const (
	// The sizes of records of a zip without their variable parts, in bytes.
	zipEnd, zipEnd64, zipLocator, zipEntry = 22, 56, 20, 46
	// zipCommentMax is how far the last record of a zip is from its end.
	zipCommentMax = 1<<16 - 1
	// zipLarge and zipMany stand for a number that is elsewhere, in 8 bytes.
	zipLarge, zipMany = 1<<32 - 1, 1<<16 - 1
	// gzipTail is the last record of a gzip.
	gzipTail = 8
	// zeroBlock is what a tar without entries begins with.
	zeroBlock = 512
)

var (
	zipEndMagic     = []byte("PK\x05\x06")
	zipEnd64Magic   = []byte("PK\x06\x06")
	zipLocatorMagic = []byte("PK\x06\x07")
	zipEntryMagic   = []byte("PK\x01\x02")
	zipMagic        = []byte("PK\x03\x04")
	gzipMagic       = []byte("\x1f\x8b")
)

// declaration is what an archive says of itself. Zeros are not known.
type declaration struct {
	bytes int64 // of its files, unpacked
	files int
	empty bool // it has no entries
}

// declared reads what an archive says of itself, at most so many entries of it. One that is
// broken says nothing: its builder names what is wrong.
func declared(f io.ReaderAt, size int64, most int) (d declaration, err error) {
	head := make([]byte, min(size, headMax))
	if _, err := f.ReadAt(head, 0); err != nil && !errors.Is(err, io.EOF) {
		return d, err
	}
	switch {
	case bytes.HasPrefix(head, zipMagic), bytes.HasPrefix(head, zipEndMagic):
		d, err = declaredZip(f, size, most)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return declaration{}, nil
		}
		return d, err
	case bytes.HasPrefix(head, gzipMagic) && size >= gzipTail:
		tail := make([]byte, 4) // the bytes of its last part, modulo 2^32
		_, err := f.ReadAt(tail, size-int64(len(tail)))
		return declaration{bytes: int64(binary.LittleEndian.Uint32(tail))}, err
	}
	d.empty = emptyTar(head)
	return d, nil
}

// emptyTar reports whether a file begins as a tar without entries.
func emptyTar(head []byte) bool {
	return len(head) >= zeroBlock && len(bytes.Trim(head[:zeroBlock], "\x00")) == 0
}

// declaredZip adds up the sizes in the directory of a zip.
func declaredZip(f io.ReaderAt, size int64, most int) (d declaration, err error) {
	begin, length, err := zipDirectory(f, size)
	if err != nil || begin < 0 || length < 0 || begin+length > size {
		return d, err
	}
	in := bufio.NewReader(io.NewSectionReader(f, begin, length))
	header := make([]byte, zipEntry)
	for d.files <= most {
		_, err := io.ReadFull(in, header)
		if errors.Is(err, io.EOF) {
			d.empty = d.files == 0
			return d, nil
		}
		if err != nil {
			return d, err
		}
		if !bytes.HasPrefix(header, zipEntryMagic) {
			return declaration{}, nil
		}
		n := int64(binary.LittleEndian.Uint32(header[24:]))
		name, extra, comment := binary.LittleEndian.Uint16(header[28:]), binary.LittleEndian.Uint16(header[30:]), binary.LittleEndian.Uint16(header[32:])
		if _, err := in.Discard(int(name)); err != nil {
			return d, err
		}
		fields := make([]byte, extra)
		if _, err := io.ReadFull(in, fields); err != nil {
			return d, err
		}
		if _, err := in.Discard(int(comment)); err != nil {
			return d, err
		}
		if n == zipLarge {
			n = large(fields)
		}
		d.files++
		if d.bytes += n; d.bytes < 0 { // it says more than there can be
			d.bytes = 1<<63 - 1
			return d, nil
		}
	}
	return d, nil
}

// large is the size of a file in the additional fields of its entry.
func large(fields []byte) int64 {
	const id64, header = 1, 4
	for len(fields) >= header {
		id, length := binary.LittleEndian.Uint16(fields), int(binary.LittleEndian.Uint16(fields[2:]))
		fields = fields[header:]
		if length > len(fields) {
			break
		}
		if id == id64 && length >= 8 {
			return int64(min(binary.LittleEndian.Uint64(fields), 1<<62))
		}
		fields = fields[length:]
	}
	return zipLarge
}

// lastRecord finds the last record of a zip, whose comment goes to the end of the archive. A
// comment may have the same letters.
func lastRecord(tail []byte) int {
	for at := bytes.LastIndex(tail, zipEndMagic); at >= 0; at = bytes.LastIndex(tail[:at], zipEndMagic) {
		if left := len(tail) - at - zipEnd; left >= 0 && int(binary.LittleEndian.Uint16(tail[at+zipEnd-2:])) == left {
			return at
		}
	}
	return -1
}

// zipDirectory finds the directory of a zip, by its last record. It ends where that record
// begins. A begin of -1 is none.
func zipDirectory(f io.ReaderAt, size int64) (begin, length int64, err error) {
	tail := make([]byte, min(size, zipEnd+zipCommentMax))
	from := size - int64(len(tail))
	if _, err := f.ReadAt(tail, from); err != nil {
		return -1, 0, err
	}
	at := lastRecord(tail)
	if at < 0 {
		return -1, 0, nil
	}
	record, end := tail[at:], from+int64(at)
	length = int64(binary.LittleEndian.Uint32(record[12:]))
	if length != zipLarge && binary.LittleEndian.Uint16(record[10:]) != zipMany {
		return end - length, length, nil
	}
	locator := make([]byte, zipLocator)
	if _, err := f.ReadAt(locator, max(end-zipLocator, 0)); err != nil {
		return -1, 0, err
	}
	if !bytes.HasPrefix(locator, zipLocatorMagic) {
		return end - length, length, nil // it has exactly so many
	}
	end -= zipLocator + zipEnd64
	record = make([]byte, zipEnd64)
	if end < 0 {
		return -1, 0, nil
	}
	if _, err := f.ReadAt(record, end); err != nil {
		return -1, 0, err
	}
	if !bytes.HasPrefix(record, zipEnd64Magic) {
		return -1, 0, nil
	}
	length = int64(min(binary.LittleEndian.Uint64(record[40:]), 1<<62))
	return end - length, length, nil
}
