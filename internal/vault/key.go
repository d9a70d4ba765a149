package vault

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
)

// keyBytes is the length of a key of AES-256, and of what others follow from.
const keyBytes = 32

// Key encrypts what one sandbox has in the bucket. It prints, logs and encodes as
// "[hidden]".
type Key struct{ raw [keyBytes]byte }

const hidden = "[hidden]"

// Format prints nothing of the key, whatever the verb.
func (Key) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, hidden) }

// LogValue, MarshalText and String are as Format.
func (Key) LogValue() slog.Value { return slog.StringValue(hidden) }

// MarshalText is as Format.
func (Key) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// String is as Format.
func (Key) String() string { return hidden }

// Derive returns the key of one sandbox. It follows from the id and the master key, which
// has at least 32 random bytes.
func Derive(master []byte, id string) (Key, error) {
	if len(master) < keyBytes {
		return Key{}, fmt.Errorf("the master key has %d bytes, and needs %d", len(master), keyBytes)
	}
	if err := checkID(id); err != nil {
		return Key{}, err
	}
	raw, err := hkdf.Key(sha256.New, master, nil, "doze vault of "+id, keyBytes)
	if err != nil {
		return Key{}, err
	}
	return Key{[keyBytes]byte(raw)}, nil
}

// A name is the keyed hash of the content of a chunk. Nobody without the key can tell
// whether two sandboxes have the same content.
type name [sha256.Size]byte

// A mark is one upload of a chunk: the epoch of the node, and eight random bytes. No two
// uploads have the same, so what was removed never comes back under its mark.
type mark [16]byte

func newMark(epoch uint64) (m mark) {
	binary.BigEndian.PutUint64(m[:], epoch)
	_, _ = rand.Read(m[8:]) // it never fails
	return m
}

// A chunk is the object that has the content of a name.
type chunk struct {
	name name
	mark mark
}

const chunkText = 2*len(name{}) + 1 + 2*len(mark{}) // bytes of a chunk as text

func (c chunk) String() string {
	return hex.EncodeToString(c.name[:]) + "-" + hex.EncodeToString(c.mark[:])
}

// parseChunk is the inverse of [chunk.String].
func parseChunk(text string) (c chunk, ok bool) {
	if len(text) != chunkText {
		return c, false
	}
	_, err1 := hex.Decode(c.name[:], []byte(text[:2*len(c.name)]))
	_, err2 := hex.Decode(c.mark[:], []byte(text[2*len(c.name)+1:]))
	return c, err1 == nil && err2 == nil && c.String() == text
}

// A sealer has what follows from the key of one sandbox.
type sealer struct {
	id        string
	names     []byte  // key of the hash
	proof     [8]byte // tells a wrong key from a damaged object
	chunks    cipher.AEAD
	manifests cipher.AEAD
}

func newSealer(id string, k Key) (*sealer, error) {
	if k == (Key{}) {
		return nil, fmt.Errorf("%w: %s needs one that was derived", ErrKey, id)
	}
	follow := func(use string, n int) ([]byte, error) { return hkdf.Expand(sha256.New, k.raw[:], use, n) }
	aead := func(use string) (cipher.AEAD, error) {
		raw, err := follow(use, keyBytes)
		if err != nil {
			return nil, err
		}
		block, err := aes.NewCipher(raw)
		if err != nil {
			return nil, err
		}
		return cipher.NewGCMWithRandomNonce(block)
	}
	s := &sealer{id: id}
	var errs [4]error
	var proof []byte
	s.names, errs[0] = follow("names", keyBytes)
	proof, errs[1] = follow("proof", len(s.proof))
	s.chunks, errs[2] = aead("chunks")
	s.manifests, errs[3] = aead("manifests")
	copy(s.proof[:], proof)
	return s, errors.Join(errs[:]...)
}

// name returns the name of the content of a chunk.
func (s *sealer) name(plain []byte) (n name) {
	h := hmac.New(sha256.New, s.names)
	_, _ = h.Write(plain) // it never fails
	h.Sum(n[:0])
	return n
}

// sealChunk encrypts a packed chunk for its place. The memory is fresh: a request that was
// given up may still read it.
func (s *sealer) sealChunk(packed []byte, c chunk) []byte {
	return s.chunks.Seal(nil, nil, packed, []byte(s.id+"/"+c.String())) //nolint:gosec // this kind makes its own random nonces
}

func (s *sealer) openChunk(sealed []byte, c chunk) ([]byte, error) {
	packed, err := s.chunks.Open(sealed[:0], nil, sealed, []byte(s.id+"/"+c.String()))
	if err != nil {
		return nil, fmt.Errorf("%w: chunk %s of %s was altered", ErrDamaged, c, s.id)
	}
	return packed, nil
}

// version is the first byte of a manifest in the bucket.
const version = 1

// sealManifest encrypts a manifest. The version and the proof of the key come before it.
func (s *sealer) sealManifest(m *manifest) ([]byte, error) {
	raw, err := m.encode()
	if err != nil {
		return nil, err
	}
	head := append([]byte{version}, s.proof[:]...)
	return s.manifests.Seal(head, nil, raw, s.place(head, m.generation)), nil //nolint:gosec // this kind makes its own random nonces
}

func (s *sealer) place(head []byte, g Generation) []byte {
	return append(append([]byte{}, head...), s.id+"/"+g.String()...)
}

func (s *sealer) openManifest(sealed []byte, g Generation) (*manifest, error) {
	headBytes := 1 + len(s.proof)
	switch {
	case len(sealed) > 0 && sealed[0] > version:
		return nil, fmt.Errorf("%w: %s of %s has version %d, and this program knows %d: update it", ErrNewer, g, s.id, sealed[0], version)
	case len(sealed) < headBytes || sealed[0] != version:
		return nil, fmt.Errorf("%w: the manifest %s of %s is none", ErrDamaged, g, s.id)
	case !hmac.Equal(sealed[1:headBytes], s.proof[:]):
		return nil, fmt.Errorf("%w: %s of %s was saved with another one", ErrKey, g, s.id)
	}
	head := sealed[:headBytes:headBytes]
	raw, err := s.manifests.Open(nil, nil, sealed[headBytes:], s.place(head, g))
	if err != nil {
		return nil, fmt.Errorf("%w: the manifest %s of %s was altered", ErrDamaged, g, s.id)
	}
	m, err := parseManifest(raw)
	if err == nil && m.generation != g {
		err = fmt.Errorf("%w: the manifest %s of %s is that of %s", ErrDamaged, g, s.id, m.generation)
	}
	return m, err
}

// KeyOf is a key whose bytes came from somewhere else: see [Key.Reveal].
func KeyOf(raw []byte) (Key, error) {
	if len(raw) != keyBytes {
		return Key{}, fmt.Errorf("a key has %d bytes, and this one %d", keyBytes, len(raw))
	}
	return Key{[keyBytes]byte(raw)}, nil
}

// Reveal returns the bytes of a key, for another process. Every call to it is worth a look
// in review.
func (k Key) Reveal() []byte { return k.raw[:] }
