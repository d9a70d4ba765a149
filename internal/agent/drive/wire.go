package drive

import (
	"bytes"
	"encoding/binary"
	"syscall"

	"github.com/dozehq/doze/internal/drive/op"
)

// The version of FUSE that the engine speaks.
const (
	major = 7
	minor = 31
)

// Requests of the kernel (linux/fuse.h).
const (
	opLookup     = 1
	opForget     = 2
	opGetattr    = 3
	opSetattr    = 4
	opMkdir      = 9
	opUnlink     = 10
	opRmdir      = 11
	opRename     = 12
	opOpen       = 14
	opRead       = 15
	opWrite      = 16
	opStatfs     = 17
	opRelease    = 18
	opFsync      = 20
	opSetxattr   = 21
	opGetxattr   = 22
	opListxattr  = 23
	opDelxattr   = 24
	opFlush      = 25
	opInit       = 26
	opOpendir    = 27
	opReaddir    = 28
	opReleasedir = 29
	opFsyncdir   = 30
	opAccess     = 34
	opCreate     = 35
	opForgets    = 42
)

const (
	headerIn  = 40
	headerOut = 16
	pageBytes = 4096

	flagAtomicTrunc = 1 << 3  // an open may empty a file
	flagBigWrites   = 1 << 5  // a write may have more than a page
	flagMaxPages    = 1 << 22 // the pages of a request are ours to say

	attrSize   = 1 << 3 // of a setattr: the size changes
	attrHandle = 1 << 6 // of a setattr: it is of an open file
	getHandle  = 1 << 0 // of a getattr: likewise

	// validSeconds is how long the kernel believes what it was told of a file:
	// it keeps a listing from asking the host twice for each name.
	validSeconds = 1

	modeDir  = syscall.S_IFDIR | 0o755
	modeFile = syscall.S_IFREG | 0o755 // S3 knows no modes: what is a program runs
	nameMax  = 255
)

var le = binary.LittleEndian

// request is one of the kernel.
type request struct {
	op     uint32
	unique uint64
	node   uint64
	body   []byte
}

// parseRequest reads what came from the device.
func parseRequest(b []byte) (request, error) {
	if len(b) < headerIn || int(le.Uint32(b)) != len(b) {
		return request{}, syscall.EIO
	}
	return request{le.Uint32(b[4:]), le.Uint64(b[8:]), le.Uint64(b[16:]), b[headerIn:]}, nil
}

// fields are those of a body of fixed size, of which at least n bytes are there.
func (r *request) fields(n int) ([]byte, error) {
	if len(r.body) < n {
		return nil, syscall.EIO
	}
	return r.body, nil
}

// names are the texts behind n bytes of fields.
func (r *request) names(n, count int) ([]string, error) {
	if len(r.body) < n {
		return nil, syscall.EIO
	}
	var all []string
	for _, part := range bytes.SplitN(r.body[n:], []byte{0}, count+1) {
		all = append(all, string(part))
	}
	if len(all) < count+1 {
		return nil, syscall.EIO
	}
	return all[:count], nil
}

// reply appends an answer to a request.
func reply(b []byte, unique uint64, errno syscall.Errno, body []byte) []byte {
	if errno != 0 {
		body = nil
	}
	b = le.AppendUint32(b, uint32(headerOut+len(body))) //nolint:gosec // G115: DataMax and a header
	b = le.AppendUint32(b, uint32(-int32(errno)))       //nolint:gosec // G115: an errno has 12 bits
	b = le.AppendUint64(b, unique)
	return append(b, body...)
}

// initReply says how we speak.
func initReply() []byte {
	b := make([]byte, 64)
	le.PutUint32(b, major)
	le.PutUint32(b[4:], minor)
	le.PutUint32(b[12:], flagAtomicTrunc|flagBigWrites|flagMaxPages)
	le.PutUint32(b[20:], op.DataMax)
	le.PutUint32(b[24:], 1) // times in nanoseconds
	le.PutUint16(b[28:], op.DataMax/pageBytes)
	return b
}

// attr are the attributes of a file.
func attr(id uint64, n op.Node, o Owner) []byte {
	b := make([]byte, 88)
	mode, links := uint32(modeFile), uint32(1)
	if n.Dir {
		mode, links = modeDir, 2
	}
	le.PutUint64(b, id)
	le.PutUint64(b[8:], uint64(n.Size))          //nolint:gosec // G115: sizes are not negative
	le.PutUint64(b[16:], uint64(n.Size+511)/512) //nolint:gosec // G115: as above
	for i, at := range []int{24, 32, 40} {       // accessed, modified, changed
		le.PutUint64(b[at:], uint64(n.Modified/1e9))     //nolint:gosec // G115: after 1970
		le.PutUint32(b[48+4*i:], uint32(n.Modified%1e9)) //nolint:gosec // G115: below 1e9
	}
	le.PutUint32(b[60:], mode)
	le.PutUint32(b[64:], links)
	le.PutUint32(b[68:], o.UID)
	le.PutUint32(b[72:], o.GID)
	le.PutUint32(b[80:], pageBytes)
	return b
}

// attrReply tells of a file that the kernel knows.
func attrReply(id uint64, n op.Node, o Owner) []byte {
	b := make([]byte, 16, 104)
	le.PutUint64(b, validSeconds)
	return append(b, attr(id, n, o)...)
}

// entryReply tells of a file that the kernel looked for.
func entryReply(id uint64, n op.Node, o Owner) []byte {
	b := make([]byte, 40, 144)
	le.PutUint64(b, id)
	le.PutUint64(b[16:], validSeconds)
	le.PutUint64(b[24:], validSeconds)
	return append(b, attr(id, n, o)...)
}

// openReply names an open file.
func openReply(handle uint64) []byte {
	b := make([]byte, 16)
	le.PutUint64(b, handle)
	return b
}

// statfsReply tells of the file system. A bucket has no end: it is shown as
// large, so that nothing refuses to begin a copy.
func statfsReply() []byte {
	const blocks = 1 << 38 // of a page: a petabyte
	b := make([]byte, 80)
	for _, at := range []int{0, 8, 16} {
		le.PutUint64(b[at:], blocks)
	}
	le.PutUint32(b[40:], pageBytes)
	le.PutUint32(b[44:], nameMax)
	le.PutUint32(b[48:], pageBytes)
	return b
}

// dirReply is a part of a directory, from an entry on, in at most size bytes.
func dirReply(all []entry, from uint64, size uint32) []byte {
	var b []byte
	for i := from; i < uint64(len(all)); i++ {
		e := all[i]
		entry := make([]byte, (24+len(e.name)+7)/8*8)
		if len(b)+len(entry) > int(size) {
			break
		}
		le.PutUint64(entry, e.id)
		le.PutUint64(entry[8:], i+1)
		le.PutUint32(entry[16:], uint32(len(e.name))) //nolint:gosec // G115: a name of at most nameMax
		le.PutUint32(entry[20:], e.kind)
		copy(entry[24:], e.name)
		b = append(b, entry...)
	}
	return b
}
