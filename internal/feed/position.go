package feed

import (
	"strconv"
	"strings"
)

// epochLetters is how many letters an epoch has: 60 bits at random.
const epochLetters = 12

// Position is where a reader is in the feed of a workspace. It is the id of a message.
type Position struct {
	Epoch string // of a board: a new one begins with each process, and after a pause
	Seq   uint64 // 0 in a state: nobody can resume there
}

// String is the position as an id.
func (p Position) String() string { return p.Epoch + "." + strconv.FormatUint(p.Seq, 10) }

// ParsePosition reads an id. One that this package did not write is the zero Position, from
// which a reader begins anew.
func ParsePosition(text string) Position {
	epoch, number, _ := strings.Cut(text, ".")
	seq, err := strconv.ParseUint(number, 10, 64)
	if p := (Position{epoch, seq}); err == nil && len(epoch) == epochLetters && p.String() == text {
		return p
	}
	return Position{}
}
