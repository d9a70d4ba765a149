package access

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"strings"
	"time"

	"golang.org/x/crypto/argon2"

	"github.com/dozehq/doze"
)

// The cost of a hash, as RFC 9106 recommends for where memory is scarce, and
// OWASP at least. A hash says what it costs, so that these can change.
const (
	passwordMemory  = 46 << 10 // KiB
	passwordPasses  = 1
	passwordThreads = 1
	passwordSalt    = 16
	passwordHash    = 32
	// memoryMax bounds what a hash of ours may ask for.
	memoryMax = 1 << 20 // KiB
	passesMax = 16
	// hashers is how many hashes are computed at a time: each takes its memory
	// and a processor.
	hashers = 2
	// hashWait bounds the wait for a place.
	hashWait = 10 * time.Second
)

var places = make(chan struct{}, hashers)

// HashPassword returns the argon2id hash of a password, in the PHC form.
func HashPassword(ctx context.Context, password string) (string, error) {
	salt := make([]byte, passwordSalt)
	_, _ = rand.Read(salt) // it never fails
	hash, err := derive(ctx, password, salt, passwordPasses, passwordMemory, passwordThreads, passwordHash)
	if err != nil {
		return "", err
	}
	b64 := base64.RawStdEncoding.EncodeToString
	return fmt.Sprintf("$argon2id$v=%d$m=%d,t=%d,p=%d$%s$%s",
		argon2.Version, passwordMemory, passwordPasses, passwordThreads, b64(salt), b64(hash)), nil
}

// CheckPassword reports whether a password is that of a hash. An empty hash
// fits none, and takes as long.
func CheckPassword(ctx context.Context, hash, password string) (bool, error) {
	exists := hash != ""
	if !exists {
		hash = nobody
	}
	parts := strings.Split(hash, "$")
	if len(parts) != 6 || parts[0] != "" || parts[1] != "argon2id" || parts[2] != fmt.Sprintf("v=%d", argon2.Version) {
		return false, fmt.Errorf("the hash of a password is damaged")
	}
	var memory, passes uint32
	var threads uint8
	if _, err := fmt.Sscanf(parts[3], "m=%d,t=%d,p=%d", &memory, &passes, &threads); err != nil {
		return false, fmt.Errorf("the cost of a password is damaged: %w", err)
	}
	salt, err1 := base64.RawStdEncoding.DecodeString(parts[4])
	want, err2 := base64.RawStdEncoding.DecodeString(parts[5])
	if err1 != nil || err2 != nil || len(want) != passwordHash || memory > memoryMax || passes < 1 || passes > passesMax || threads < 1 {
		return false, fmt.Errorf("the hash of a password is damaged")
	}
	got, err := derive(ctx, password, salt, passes, memory, threads, passwordHash)
	if err != nil {
		return false, err
	}
	return subtle.ConstantTimeCompare(got, want) == 1 && exists, nil
}

// nobody is a hash of the usual cost that no password is known to have.
const nobody = "$argon2id$v=19$m=47104,t=1,p=1$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"

func derive(ctx context.Context, password string, salt []byte, passes, memory uint32, threads uint8, length uint32) ([]byte, error) {
	wait := time.NewTimer(hashWait)
	defer wait.Stop()
	select {
	case places <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-wait.C:
		return nil, doze.Errorf(doze.Exhausted, "too many logins at once: try again in a moment")
	}
	defer func() { <-places }()
	return argon2.IDKey([]byte(password), salt, passes, memory, threads, length), nil
}
