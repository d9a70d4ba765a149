package drive

import (
	"sync"

	"github.com/dozehq/doze/internal/drive/op"
)

// roomBytes is what one request of the kernel has at most, or its answer.
const roomBytes = op.DataMax + pageBytes

// rooms is memory that no request uses at the moment. In a sandbox, the first use of fresh
// memory takes longer than what is copied into it.
var rooms = sync.Pool{New: func() any { return new([roomBytes]byte) }}

func newRoom() *[roomBytes]byte {
	room, _ := rooms.Get().(*[roomBytes]byte) // nothing else is ever put there
	return room
}
