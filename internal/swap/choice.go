package swap

import (
	"fmt"
	"strconv"
	"strings"
)

// What an operator may choose, and what a plan may be: a plan is never Auto.
const (
	Auto      = "auto"      // the first of host, zram, encrypted that this host can do
	Off       = "off"       // none
	Host      = "host"      // the swap that the host has
	Zram      = "zram"      // and compressed memory, which never reaches a disk
	Encrypted = "encrypted" // and an encrypted file of ours
	Plain     = "plain"     // and a file of ours that everyone with access to the disk can read
)

// sized are the choices that take a size, such as encrypted:8G.
var sized = []string{Zram, Encrypted, Plain}

const (
	// Smallest is the least that is worth a file or a device, in bytes.
	Smallest = 64 << 20
	// largest is the most that a file may have. More is a typing error.
	largest = 16 << 40

	// Of the host's own swap, one part in hostShare of its memory is enough, and
	// hostEnough bytes are on every host: sandboxes that sleep are a part of it.
	hostShare  = 4
	hostEnough = 16 << 30

	// Compressed memory takes one part in zramShare of the memory. Sandboxes get
	// that much less, and what sleeps takes about a third of its size there.
	zramShare = 8
	// zramMost bounds it on large hosts: the kernel's table of its pages is in
	// memory from the start.
	zramMost = 16 << 30
	// zramRatio is how much more the device holds than it may take of the memory.
	// Few sandboxes compress better, and each part more makes the table larger.
	zramRatio = 4
	// zramTable is how many bytes of the device have one byte in that table:
	// 16 bytes for each page of 4096.
	zramTable = 256

	// An encrypted file has one part in fileShare of the memory, unless that is
	// more than one part in roomShare of the disk's room: checkpoints need it too.
	fileShare = 2
	roomShare = 4
)

// Choice is what the operator allows.
type Choice struct {
	Kind  string
	Bytes int64 // of the file, or of memory for Zram; 0: as fits the host
}

// Parse reads a choice: auto, off, host, zram, encrypted or plain, the last three
// with a size such as encrypted:8G.
func Parse(text string) (Choice, error) {
	kind, size, hasSize := strings.Cut(text, ":")
	takesSize := false
	for _, k := range sized {
		takesSize = takesSize || k == kind
	}
	switch {
	case kind != Auto && kind != Off && kind != Host && !takesSize:
		return Choice{}, fmt.Errorf("must be %s, %s, %s, %s, %s or %s, the last three with a size such as %s:8G", Auto, Off, Host, Zram, Encrypted, Plain, Encrypted)
	case !hasSize:
		return Choice{Kind: kind}, nil
	case !takesSize:
		return Choice{}, fmt.Errorf("%s takes no size", kind)
	}
	bytes, err := parseBytes(size)
	return Choice{Kind: kind, Bytes: bytes}, err
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

// Facts are what a plan depends on.
type Facts struct {
	Memory int64 // of the host, in bytes
	Host   int64 // swap of the host without ours, in bytes

	// Ours is what an earlier start made and the kernel uses: Zram, Encrypted,
	// Plain, or empty. OursBytes is its size as in a Choice.
	Ours      string
	OursBytes int64

	NoZram       string // why this host has no compressed memory; empty if it has
	NoEncryption string // why it cannot encrypt a file; empty if it can
	ZramMax      int64  // the most of the memory that compressed memory may take, in bytes
	Room         int64  // of the disk above its reserve, in bytes
}

// Plan is the swap that sandboxes get.
type Plan struct {
	Kind  string // Off if there is none
	Bytes int64  // as in a Choice; 0 if we make nothing
	Why   string // a clause that stands alone
}

// Some reports whether there is swap at all.
func (p Plan) Some() bool { return p.Kind != Off }

// Held is how much of the host's memory the plan may take for itself, in bytes.
// Sandboxes in memory cannot have it.
func (p Plan) Held() int64 {
	if p.Kind != Zram {
		return 0
	}
	return p.Bytes + p.Bytes*zramRatio/zramTable
}

// Cost says what it means to be without swap.
const Cost = "a sandbox that sleeps keeps its memory until it moves to disk, from where its wake takes longer"

// Decide returns the plan for a choice on a host.
func Decide(c Choice, f Facts) Plan {
	switch c.Kind {
	case Auto:
		return automatic(f)
	case Host:
		return f.orHost("add some, or allow --swap "+Auto, "the host has none")
	case Zram:
		switch {
		case f.NoZram != "":
			return f.orHost("add some swap to the host, or allow --swap "+Auto, f.NoZram)
		case f.zramBytes() < Smallest/zramRatio || c.Bytes > f.ZramMax:
			return f.orHost("choose less, or lower --sandbox-memory-mb",
				fmt.Sprintf("compressed memory may take %s here", inMB(max(0, f.ZramMax))))
		case c.Bytes == 0:
			c.Bytes = f.zramBytes()
		}
		return Plan{Zram, c.Bytes, "it was chosen"}
	case Encrypted:
		if f.NoEncryption != "" {
			return f.orHost("add some swap to the host, allow --swap "+Auto+", or a file that can be read on disk with --swap "+Plain, f.NoEncryption)
		}
		return Plan{Encrypted, c.fileBytes(f), "it was chosen"}
	case Plain:
		return Plan{Plain, c.fileBytes(f), "it was chosen; everyone with access to the disk can read it"}
	}
	return Plan{Kind: Off, Why: "it is off"}
}

// automatic is the plan if the operator leaves it to us. It only has what is safe:
// memory of sandboxes never reaches a disk in the clear, unless the operator's own
// swap does that.
func automatic(f Facts) Plan {
	if f.Ours == Zram && f.OursBytes <= f.ZramMax || f.Ours == Encrypted {
		return Plan{f.Ours, f.OursBytes, "an earlier start made it"}
	}
	enough := min(f.Memory/hostShare, hostEnough)
	has := "the host has no swap"
	switch {
	case f.Host >= enough && f.Host > 0:
		return Plan{Kind: Host, Why: "the host has " + inMB(f.Host) + " of swap"}
	case f.Host > 0:
		has = fmt.Sprintf("the host has %s of swap, less than the %s that its sandboxes need", inMB(f.Host), inMB(enough))
	}
	zram := f.zramBytes()
	noZram := f.NoZram
	if noZram == "" && zram < Smallest/zramRatio {
		noZram = fmt.Sprintf("compressed memory may take %s here, which is too little", inMB(max(0, f.ZramMax)))
	}
	if noZram == "" {
		return Plan{Zram, zram, has + ", and compressed memory never reaches a disk"}
	}
	file := min(f.Memory/fileShare, f.Room/roomShare) &^ (1<<20 - 1)
	noFile := f.NoEncryption
	if noFile == "" && file < Smallest {
		noFile = fmt.Sprintf("the disk has %s above its reserve, which is too little for a file", inMB(max(0, f.Room)))
	}
	if noFile == "" {
		return Plan{Encrypted, file, has + "; " + noZram}
	}
	why := has + "; " + noZram + "; " + noFile
	if f.Host > 0 {
		return Plan{Kind: Host, Why: why}
	}
	return Plan{Kind: Off, Why: why}
}

// orHost is the plan where nothing of ours can be: the host's swap, or none with
// the advice.
func (f Facts) orHost(advice, why string) Plan {
	if f.Host > 0 {
		return Plan{Kind: Host, Why: "the host has " + inMB(f.Host) + " of swap"}
	}
	return Plan{Kind: Off, Why: why + ": " + advice}
}

// without is f on a host where a kind of swap turned out not to work.
func (f Facts) without(kind string, err error) Facts {
	why := fmt.Sprintf("%s does not work here (%v)", kind, err)
	if kind == Zram {
		f.NoZram = why
	} else {
		f.NoEncryption = why
	}
	if f.Ours == kind {
		f.Ours, f.OursBytes = "", 0
	}
	return f
}

// zramBytes is what compressed memory takes that has no size of its own.
func (f Facts) zramBytes() int64 {
	return min(f.Memory/zramShare, f.ZramMax, zramMost) &^ (1<<20 - 1)
}

// fileBytes is the size of a file that was chosen.
func (c Choice) fileBytes(f Facts) int64 {
	if c.Bytes > 0 {
		return c.Bytes
	}
	return max(Smallest, f.Memory/fileShare) &^ (1<<20 - 1)
}

func inMB(bytes int64) string { return strconv.FormatInt(bytes>>20, 10) + " MB" }
