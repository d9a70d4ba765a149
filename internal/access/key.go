package access

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base32"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/dozehq/doze"
)

// A key reads dz_<id>_<secret><checksum> in the letters of base32, in lower
// case. The id is public and finds the hash; the checksum tells a typing
// mistake, and a scanner of leaked secrets, what is no key of ours.
const (
	keyPrefix   = "dz_"
	idBytes     = 10 // 16 letters
	secretBytes = 32 // 52 letters
	sumBytes    = 4  // 7 letters
)

var (
	letters   = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)
	idLen     = letters.EncodedLen(idBytes)
	secretLen = letters.EncodedLen(secretBytes)
	sumLen    = letters.EncodedLen(sumBytes)
)

// Secret is the text of an API key. It prints, logs and encodes as "[hidden]":
// behind a pointer not even a formatter that ignores methods finds it.
type Secret struct{ text *string }

// Reveal returns the text. Every call to it is worth a look in review.
func (s Secret) Reveal() string {
	if s.text == nil {
		return ""
	}
	return *s.text
}

const hidden = "[hidden]"

// Format implements fmt.Formatter for every verb.
func (Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, hidden) }

func (Secret) String() string               { return hidden }
func (Secret) LogValue() slog.Value         { return slog.StringValue(hidden) }
func (Secret) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// Key is what is kept of an API key.
type Key struct {
	ID        string
	Workspace string // where it was made
	Sub       string
	SubType   string
	Scopes    []string
	Hash      [sha256.Size]byte // of the whole text
	Expires   time.Time         // zero is never
}

// ClientPrefix begins the secret of a service account.
const ClientPrefix = "dzs_"

// NewCode returns a random secret of its own kind, such as a code or a client
// secret: prefix, the id of what it belongs to, and 256 random bits.
func NewCode(prefix, id string) string { return prefix + id + "_" + random(secretBytes) }

// CodeID returns the id in what [NewCode] made, or false.
func CodeID(prefix, text string) (string, bool) {
	rest, ok := strings.CutPrefix(text, prefix)
	id, secret, found := strings.Cut(rest, "_")
	return id, ok && found && id != "" && len(secret) == secretLen
}

// HashCode is what is kept of a secret with enough random bits.
func HashCode(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// SameCode compares a secret with what was kept of it, in constant time.
func SameCode(hash, text string) bool {
	return hash != "" && subtle.ConstantTimeCompare([]byte(hash), []byte(HashCode(text))) == 1
}

// NewSecret makes the text of a key, its id and its hash.
func NewSecret() (s Secret, id string, hash [sha256.Size]byte) {
	id = random(idBytes)
	text := keyPrefix + id + "_" + random(secretBytes)
	text += checksum(text)
	return Secret{&text}, id, sha256.Sum256([]byte(text))
}

func random(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // it never fails
	return letters.EncodeToString(b)
}

func checksum(text string) string {
	return letters.EncodeToString(binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE([]byte(text))))
}

// parse returns the id in the text of a key, or false if it is none.
func parse(text string) (id string, ok bool) {
	rest, ok := strings.CutPrefix(text, keyPrefix)
	if !ok || len(rest) != idLen+1+secretLen+sumLen || rest[idLen] != '_' {
		return "", false
	}
	body, sum := text[:len(text)-sumLen], text[len(text)-sumLen:]
	return rest[:idLen], checksum(body) == sum
}

// Keys knows every API key, in memory, so that a check needs no I/O and a
// deletion works at once. It is safe for concurrent use.
type Keys struct {
	mu   sync.RWMutex
	byID map[string]Key           // guarded by mu
	used map[string]time.Time     // guarded by mu; since we began
	tell func(id string, key any) // guarded by mu
}

func newKeys() *Keys {
	return &Keys{byID: map[string]Key{}, used: map[string]time.Time{}, tell: func(string, any) {}}
}

// LoadKeys returns the keys that load returns.
func LoadKeys(ctx context.Context, load func(context.Context) ([]Key, error)) (*Keys, error) {
	all, err := load(ctx)
	if err != nil {
		return nil, fmt.Errorf("load API keys: %w", err)
	}
	k := newKeys()
	for _, key := range all {
		k.byID[key.ID] = key
	}
	return k, nil
}

// Add lets key in from now on.
func (k *Keys) Add(key Key) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.byID[key.ID] = key
	k.tell(key.ID, key)
}

// Remove keeps the key of an id out from now on.
func (k *Keys) Remove(id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.byID, id)
	delete(k.used, id)
	k.tell(id, nil)
}

// Used returns when keys were last used, by id, of those that were used after a
// moment and since the start.
func (k *Keys) Used(after time.Time) map[string]time.Time {
	k.mu.RLock()
	defer k.mu.RUnlock()
	used := maps.Clone(k.used)
	maps.DeleteFunc(used, func(_ string, at time.Time) bool { return !at.After(after) })
	return used
}

// errWrongKey says the same for every key that does not fit, so that nobody
// learns which ids exist.
var errWrongKey = doze.Errorf(doze.Unauthenticated, "the API key is wrong, expired or deleted")

// check finds the key of a text.
func (k *Keys) check(text string, now time.Time) (Key, error) {
	id, ok := parse(text)
	if !ok {
		return Key{}, errWrongKey
	}
	hash := sha256.Sum256([]byte(text))
	k.mu.RLock()
	key, known := k.byID[id]
	seen := k.used[id]
	k.mu.RUnlock()

	// The comparison takes as long for an unknown id, whose hash is zero.
	same := subtle.ConstantTimeCompare(hash[:], key.Hash[:]) == 1
	if !known || !same || !key.Expires.IsZero() && !now.Before(key.Expires) {
		return Key{}, errWrongKey
	}
	if now.Sub(seen) > UsedStep {
		k.Touch(id, now)
	}
	return key, nil
}

// UsedStep is how exactly the use of a key is known; it keeps callers of one
// key from waiting for each other.
const UsedStep = time.Second

// Touch takes note that a key was used. One that is gone is forgotten.
func (k *Keys) Touch(id string, at time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, known := k.byID[id]; known && at.After(k.used[id]) {
		k.used[id] = at
	}
}
