// Package seal encrypts what must not be readable in a copy of the database:
// values of secrets, and keys that sign. A key is a file of its own. A [Cipher]
// opens what it sealed; what a [Sealer] sealed, only its [Opener] opens.
package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/dozehq/doze/internal/durable"
)

// keyBytes is the length of a key of AES-256.
const keyBytes = 32

// Cipher seals and opens. It is safe for concurrent use.
type Cipher struct{ aead cipher.AEAD }

// New returns a cipher with a random key that nobody else will ever have.
func New() (*Cipher, error) {
	key := make([]byte, keyBytes)
	_, _ = rand.Read(key) // it never fails
	return withKey(key)
}

func withKey(key []byte) (*Cipher, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	return &Cipher{aead}, err
}

// Open returns the cipher whose key is in file, which it makes if it is not
// there. Only the owner may read it.
func Open(file string) (*Cipher, error) {
	key, err := Key(file)
	if err != nil {
		return nil, err
	}
	return withKey(key)
}

// Key returns the 32 random bytes of a file, which it makes if it is not there.
// Only the owner may read it.
func Key(file string) ([]byte, error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		text, err = create(file)
	}
	if err != nil {
		return nil, fmt.Errorf("read the sealing key: %w", err)
	}
	key, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil || len(key) != keyBytes {
		return nil, fmt.Errorf("the sealing key in %s is damaged: restore the file", file)
	}
	return key, nil
}

// create writes a fresh key and makes sure that it survives a crash before
// anything is sealed with it.
func create(file string) ([]byte, error) {
	key := make([]byte, keyBytes)
	_, _ = rand.Read(key) // it never fails
	text := []byte(hex.EncodeToString(key) + "\n")
	dir := filepath.Dir(file)
	f, err := os.CreateTemp(dir, filepath.Base(file)+"-*") // mode 0600
	if err != nil {
		return nil, err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		return nil, errors.Join(err, os.Remove(f.Name()))
	}
	return text, durable.Sync(dir)
}

// Seal encrypts plain for one place, such as a record. It opens there only.
func (c *Cipher) Seal(plain []byte, place string) []byte {
	return c.aead.Seal(nil, nil, plain, []byte(place)) //nolint:gosec // this kind makes its own random nonces
}

// Unseal decrypts what was sealed for a place.
func (c *Cipher) Unseal(sealed []byte, place string) ([]byte, error) {
	plain, err := c.aead.Open(nil, nil, sealed, []byte(place))
	if err != nil {
		return nil, fmt.Errorf("cannot decrypt %s with this key", place)
	}
	return plain, nil
}
