package intercept

import (
	"crypto/rand"
	"encoding/hex"
	"math/big"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

// randomBytes is 128 bits, which nobody guesses or meets twice.
const randomBytes = 16

// functions are those of [doze.Functions]. Times are UTC.
var functions = map[string]func(now time.Time) string{
	"date":         layout(time.DateOnly),
	"datetime":     layout(time.DateTime),
	"iso8601":      layout("2006-01-02T15:04:05.000Z"),
	"nonce":        func(time.Time) string { return randomHex() },
	"randhex":      func(time.Time) string { return randomHex() },
	"randint":      func(time.Time) string { return randomInt() },
	"randstr":      func(time.Time) string { return strings.ToLower(rand.Text()) },
	"time":         layout(time.TimeOnly),
	"timestamp":    func(now time.Time) string { return strconv.FormatInt(now.Unix(), 10) },
	"timestamp_ms": func(now time.Time) string { return strconv.FormatInt(now.UnixMilli(), 10) },
	"timestamp_ns": func(now time.Time) string { return strconv.FormatInt(now.UnixNano(), 10) },
	"uuid":         func(time.Time) string { return uuid.NewString() },
	"uuidv4":       func(time.Time) string { return uuid.NewString() },
	"uuidv7":       uuidV7,
}

func layout(form string) func(time.Time) string {
	return func(now time.Time) string { return now.UTC().Format(form) }
}

func randomHex() string {
	b := make([]byte, randomBytes)
	_, _ = rand.Read(b) // it never fails
	return hex.EncodeToString(b)
}

// randomInt is below 2³¹, so that every language can read it.
func randomInt() string {
	n, _ := rand.Int(rand.Reader, big.NewInt(1<<31)) // it never fails
	return n.String()
}

// uuidV7 begins with the time, so that later ones sort behind.
func uuidV7(time.Time) string { return uuid.Must(uuid.NewV7()).String() }
