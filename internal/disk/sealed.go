package disk

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze"
)

// The format of EROFS, as far as [seal] makes it: extended inodes, nothing compressed,
// no extended attributes. All numbers are little-endian.
const (
	superBlockBits = 12 // of the size of a block, as a power of 2
	superRoot      = 14 // 2 bytes: the number of the root directory
	superInodes    = 16 // 8 bytes: how many there are
	superMeta      = 40 // 4 bytes: the block from which inodes are counted
	superLen       = 128

	inodeSlot    = 32 // the unit in which inodes are counted
	inodeLen     = 64
	inodeFormat  = 0 // 2 bytes: bit 0 is an extended inode, bits 1 to 3 are where its data are
	inodeAttrs   = 2 // 2 bytes
	inodeMode    = 4 // 2 bytes, as of stat
	inodeSize    = 8 // 8 bytes
	inodeBlock   = 16
	inodeUID     = 24
	inodeGID     = 28
	inodeTime    = 32 // seconds in 8 bytes, nanoseconds in 4
	inodeTimeSub = 40
	inodeLinks   = 44

	dataPlain  = 0 // all data in blocks
	dataInline = 2 // whole blocks in blocks, and the rest beside the inode

	entryLen  = 12 // of a directory: number in 8 bytes, and
	entryName = 8  // where the name begins, in 2 bytes
)

// directoryMax bounds a directory of an image in memory. A million names of twenty
// letters have half of that.
const directoryMax = 64 << 20

// errDamaged is in errors about an image that seal did not write like this.
var errDamaged = errors.New("the file of the image is damaged, or another version made it")

// A sealed is the root file system in a file that [seal] wrote.
type sealed struct {
	file   io.ReaderAt
	size   int64  // of the file
	meta   int64  // where inode 0 would be
	root   uint64 // number of the root directory
	inodes int64
	close  func() error
}

// openSealed opens the file of an image. The caller closes it.
func openSealed(name string) (*sealed, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("open the image: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the image: %w", err), f.Close())
	}
	s, err := readSealed(f, info.Size())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the image: %w", err), f.Close())
	}
	s.close = f.Close
	return s, nil
}

// readSealed reads the superblock.
func readSealed(file io.ReaderAt, size int64) (*sealed, error) {
	super := make([]byte, superLen)
	if _, err := file.ReadAt(super, superOffset); err != nil {
		return nil, fmt.Errorf("%w: %w", errDamaged, err)
	}
	if binary.LittleEndian.Uint32(super) != superMagic || 1<<super[superBlockBits] != blockSize {
		return nil, errDamaged
	}
	inodes := binary.LittleEndian.Uint64(super[superInodes:])
	if inodes > uint64(size)/inodeSlot { //nolint:gosec // G115: sizes are not negative
		return nil, errDamaged
	}
	return &sealed{
		file: file, size: size, meta: int64(binary.LittleEndian.Uint32(super[superMeta:])) * blockSize,
		root: uint64(binary.LittleEndian.Uint16(super[superRoot:])), inodes: int64(inodes), //nolint:gosec // G115: see above
		close: func() error { return nil },
	}, nil
}

// An inode is a file of an image.
type inode struct {
	number uint64
	mode   uint32 // as of stat
	size   int64
	uid    uint32
	gid    uint32
	links  uint32
	time   time.Time
	data   int64 // where its blocks begin in the file
	tail   int64 // where the rest behind whole blocks is; 0 if that is in a block too
}

// kind is the type of a file, as of stat.
func (i inode) kind() uint32 { return i.mode & unix.S_IFMT }

// inode reads an inode by its number.
func (s *sealed) inode(number uint64) (inode, error) {
	if number > uint64(s.size)/inodeSlot { //nolint:gosec // G115: sizes are not negative
		return inode{}, errDamaged
	}
	at := s.meta + int64(number)*inodeSlot //nolint:gosec // G115: see above
	b := make([]byte, inodeLen)
	if _, err := s.file.ReadAt(b, at); err != nil {
		return inode{}, fmt.Errorf("%w: %w", errDamaged, err)
	}
	format, le := binary.LittleEndian.Uint16(b[inodeFormat:]), binary.LittleEndian
	i := inode{
		number: number, mode: uint32(le.Uint16(b[inodeMode:])), size: int64(le.Uint64(b[inodeSize:])), //nolint:gosec // G115: compared below
		uid: le.Uint32(b[inodeUID:]), gid: le.Uint32(b[inodeGID:]), links: le.Uint32(b[inodeLinks:]),
		time: time.Unix(int64(le.Uint64(b[inodeTime:])), int64(le.Uint32(b[inodeTimeSub:]))), //nolint:gosec // G115: any time is one
		data: int64(le.Uint32(b[inodeBlock:])) * blockSize,
	}
	if format&1 == 0 || le.Uint16(b[inodeAttrs:]) != 0 || i.size < 0 {
		return inode{}, errDamaged
	}
	switch format >> 1 & 7 {
	case dataPlain:
	case dataInline:
		i.tail = at + inodeLen
	default:
		return inode{}, errDamaged
	}
	return i, nil
}

// open reads the content of a file, of a directory or of a symbolic link.
func (s *sealed) open(i inode) (io.Reader, error) {
	whole, rest := i.size, int64(0)
	if i.tail != 0 {
		rest = i.size % blockSize
		whole -= rest
	}
	if whole > 0 && (i.data > s.size || whole > s.size-i.data) || rest > 0 && rest > s.size-i.tail {
		return nil, errDamaged
	}
	return io.MultiReader(io.NewSectionReader(s.file, i.data, whole), io.NewSectionReader(s.file, i.tail, rest)), nil
}

// read reads a content that is at most so many bytes long.
func (s *sealed) read(i inode, most int64) ([]byte, error) {
	if i.size > most {
		return nil, errDamaged
	}
	r, err := s.open(i)
	if err != nil {
		return nil, err
	}
	b := make([]byte, i.size)
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, fmt.Errorf("%w: %w", errDamaged, err)
	}
	return b, nil
}

// A child is an entry of a directory.
type child struct {
	name   string
	number uint64
}

// children returns what a directory has but for itself and its parent, by name: that
// is the order in which they are stored.
func (s *sealed) children(dir inode) (all []child, err error) {
	b, err := s.read(dir, directoryMax)
	if err != nil {
		return nil, err
	}
	last := ""
	for len(b) > 0 {
		block := b[:min(blockSize, len(b))]
		b = b[len(block):]
		if len(block) < entryLen {
			return nil, errDamaged
		}
		names := int(binary.LittleEndian.Uint16(block[entryName:])) // of the first one: where entries end
		if names == 0 || names%entryLen != 0 || names > len(block) {
			return nil, errDamaged
		}
		for at := 0; at < names; at += entryLen {
			from, to := int(binary.LittleEndian.Uint16(block[at+entryName:])), len(block)
			if at+entryLen < names {
				to = int(binary.LittleEndian.Uint16(block[at+entryLen+entryName:]))
			}
			if from < names || from > to || to > len(block) {
				return nil, errDamaged
			}
			name, _, _ := bytes.Cut(block[from:to], []byte{0})
			c := child{string(name), binary.LittleEndian.Uint64(block[at:])}
			if c.name == "" || len(c.name) > nameMax || strings.Contains(c.name, "/") || c.name <= last {
				return nil, errDamaged
			}
			if last = c.name; c.name != "." && c.name != ".." {
				all = append(all, c)
			}
		}
	}
	return all, nil
}

// target is what a symbolic link leads to.
func (s *sealed) target(i inode) (string, error) {
	b, err := s.read(i, pathMax)
	return string(b), err
}

// damaged says what an operator can do about an error of a sealed file.
func damaged(i Image, err error) error {
	if !errors.Is(err, errDamaged) {
		return err
	}
	return doze.Wrap(err, doze.Internal, "the image %s is damaged on this host", i.Ref)
}
