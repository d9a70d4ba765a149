package swap

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Where the memory of sleeping sandboxes may be moved.
const (
	Off       = "off"       // nowhere
	Host      = "host"      // to the swap that the host has
	Encrypted = "encrypted" // there, and to a file of ours, encrypted
	Plain     = "plain"     // there, and to a file of ours, which anybody reads who gets hold of the disk
)

// Smallest is the least that is worth a file, and largest what a file may be: it
// is a typing error.
const (
	Smallest = 64 << 20
	largest  = 16 << 40
)

// Choice is what somebody allows.
type Choice struct {
	Kind  string
	Bytes int64 // of the file; 0 is half of the host's memory
}

// Parse reads a choice: off, host, encrypted or plain, the latter two with a
// size such as encrypted:8G.
func Parse(text string) (Choice, error) {
	kind, size, sized := strings.Cut(text, ":")
	switch kind {
	case Off, Host:
		if sized {
			return Choice{}, fmt.Errorf("%s takes no size", kind)
		}
		return Choice{Kind: kind}, nil
	case Encrypted, Plain:
		if !sized {
			return Choice{Kind: kind}, nil
		}
		bytes, err := parseBytes(size)
		return Choice{Kind: kind, Bytes: bytes}, err
	}
	return Choice{}, fmt.Errorf("must be %s, %s, %s or %s, the last two with a size such as %s:8G", Off, Host, Encrypted, Plain, Encrypted)
}

// units are what sizes may end in.
var units = map[string]int64{"M": 1 << 20, "G": 1 << 30, "T": 1 << 40}

func parseBytes(text string) (int64, error) {
	if text != "" {
		digits, unit := text[:len(text)-1], units[text[len(text)-1:]]
		n, err := strconv.ParseInt(digits, 10, 32)
		if bytes := n * unit; err == nil && unit > 0 && bytes >= Smallest && bytes <= largest {
			return bytes, nil
		}
	}
	return 0, fmt.Errorf("the size must be between %dM and %dT", Smallest>>20, int64(largest>>40))
}

// Cost says what it means to be without swap.
const Cost = "a sandbox that sleeps keeps its memory until it moves to disk, from where its wake takes longer"

// Provide makes sure of the swap that c allows, with a file at path if it comes
// to that. If there is none, why says so in one clause, and what to do about it.
func Provide(ctx context.Context, c Choice, path string) (why string, err error) {
	if c.Kind == Off || c.Kind == Host {
		// A file of an earlier choice is one that nobody wants any more.
		if err := Remove(ctx, path); err != nil {
			return "", err
		}
	}
	if c.Kind == Off {
		return "it is off", nil
	}
	host, err := Look()
	if err != nil {
		return "", err
	}
	if makes, why := decide(c.Kind, host.Total > 0, Encrypts()); !makes {
		return why, nil
	}
	if c.Bytes == 0 {
		c.Bytes = halfOfMemory()
	}
	return "", Make(ctx, path, c.Bytes, c.Kind == Plain)
}

// decide says whether a file is to be made, or else why there is no swap, which
// is empty if there is some.
func decide(kind string, some, encrypts bool) (makes bool, why string) {
	switch {
	case kind == Plain || kind == Encrypted && encrypts:
		return true, ""
	case some:
		return false, ""
	case kind == Encrypted:
		return false, "the host has none, and its kernel no device mapper to encrypt a file: add some, or allow a readable file with --swap " + Plain
	}
	return false, "the host has none: add some, or allow a file with --swap " + Encrypted
}

// halfOfMemory is the size of a file that nobody gave a size.
func halfOfMemory() int64 {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return Smallest
	}
	return max(Smallest, int64(info.Totalram)*int64(info.Unit)/2) &^ (1<<20 - 1) //nolint:gosec // G115: memory is far less
}
