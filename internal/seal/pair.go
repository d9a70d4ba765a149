package seal

import (
	"crypto/ecdh"
	"crypto/hpke"
	"fmt"
)

// The suite of RFC 9180 that a pair uses. X25519 adds 48 bytes to a secret.
var (
	pairKEM  = hpke.DHKEM(ecdh.X25519())
	pairKDF  = hpke.HKDFSHA256()
	pairAEAD = hpke.AES256GCM()
)

// Opener opens what was sealed for it. It belongs to the one role that uses the
// secrets. It is safe for concurrent use.
type Opener struct{ key hpke.PrivateKey }

// Sealer seals for an opener, and opens nothing. It is safe for concurrent use.
type Sealer struct{ key hpke.PublicKey }

// NewOpener returns the opener of a key of [Key].
func NewOpener(key []byte) (*Opener, error) {
	private, err := pairKEM.DeriveKeyPair(key)
	if err != nil {
		return nil, fmt.Errorf("key pair of the seal: %w", err)
	}
	return &Opener{private}, nil
}

// NewSealer returns the sealer of a key of [Sealer.Key].
func NewSealer(key []byte) (*Sealer, error) {
	public, err := pairKEM.NewPublicKey(key)
	if err != nil {
		return nil, fmt.Errorf("the key that secrets are sealed for: %w", err)
	}
	return &Sealer{public}, nil
}

// Key is what [NewSealer] makes the same sealer of, in another process. It is no
// secret.
func (s *Sealer) Key() []byte { return s.key.Bytes() }

// Sealer returns what seals for o.
func (o *Opener) Sealer() *Sealer { return &Sealer{o.key.PublicKey()} }

// Seal encrypts plain for one place, such as a workspace. It opens there only.
func (s *Sealer) Seal(plain []byte, place string) ([]byte, error) {
	return hpke.Seal(s.key, pairKDF, pairAEAD, []byte(place), plain)
}

// Unseal decrypts what was sealed for a place.
func (o *Opener) Unseal(sealed []byte, place string) ([]byte, error) {
	plain, err := hpke.Open(o.key, pairKDF, pairAEAD, []byte(place), sealed)
	if err != nil {
		return nil, fmt.Errorf("what is sealed for %s does not open with this key", place)
	}
	return plain, nil
}
