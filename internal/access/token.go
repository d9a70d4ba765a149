package access

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/dozehq/doze"
)

const (
	// TokenLife is how long an access token is good for. It can be revoked
	// before.
	TokenLife = 2 * time.Hour
	// tokenMax bounds the text of a token: all scopes take less.
	tokenMax = 8 << 10
	// tokenType marks an access token (RFC 9068), so that nothing else that we
	// sign is taken for one.
	tokenType = "at+jwt"
	// DriveTokenLife is how long a token of a drive is good for. Nothing can
	// revoke it before.
	DriveTokenLife = time.Hour
	driveTokenType = "drive+jwt"
)

// Claims are what an access token says.
type Claims struct {
	Issuer   string           `json:"iss"`
	Sub      string           `json:"sub"`
	Audience string           `json:"aud"`
	IssuedAt *jwt.NumericDate `json:"iat"`
	Expiry   *jwt.NumericDate `json:"exp"`
	ID       string           `json:"jti"`
	Client   string           `json:"client_id"`
	Scope    string           `json:"scope"` // separated by spaces

	SubType   string `json:"sub_type"`
	Workspace string `json:"workspace,omitempty"` // in which it is good for a request that names none
	Grant     string `json:"grant,omitempty"`     // by which a user agreed
	Epoch     int64  `json:"epoch,omitempty"`     // of the user; an earlier one is void
}

// DriveClaims are what a token says that proves to others which drive its bearer
// may use. It opens nothing here.
type DriveClaims struct {
	Issuer   string           `json:"iss"`
	Sub      string           `json:"sub"` // who asked for it
	Audience string           `json:"aud"` // the drive: its id
	IssuedAt *jwt.NumericDate `json:"iat"`
	Expiry   *jwt.NumericDate `json:"exp"`
	ID       string           `json:"jti"`

	Workspace string `json:"workspace"`
	Drive     string `json:"drive"` // its name
}

// Tokens signs access tokens and checks them, with a key alone.
type Tokens struct {
	issuer string
	signer jose.Signer // of access tokens
	drives jose.Signer
	public jose.JSONWebKeySet
}

// NewTokens returns the tokens of an issuer, which is the base URL of the
// control API.
func NewTokens(issuer string, key ed25519.PrivateKey) (*Tokens, error) {
	pub, ok := key.Public().(ed25519.PublicKey)
	if !ok {
		return nil, fmt.Errorf("the key that signs tokens has no public half")
	}
	sum := sha256.Sum256(pub)
	id := hex.EncodeToString(sum[:8])
	sign := jose.SigningKey{Algorithm: jose.EdDSA, Key: jose.JSONWebKey{Key: key, KeyID: id}}
	signer, err := jose.NewSigner(sign, (&jose.SignerOptions{}).WithType(tokenType))
	if err != nil {
		return nil, fmt.Errorf("the key that signs tokens: %w", err)
	}
	drives, err := jose.NewSigner(sign, (&jose.SignerOptions{}).WithType(driveTokenType))
	if err != nil {
		return nil, fmt.Errorf("the key that signs tokens of drives: %w", err)
	}
	return &Tokens{issuer, signer, drives, jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{
		Key: pub, KeyID: id, Algorithm: string(jose.EdDSA), Use: "sig",
	}}}}, nil
}

// Issuer is who signs.
func (t *Tokens) Issuer() string { return t.issuer }

// JWKS is what others need to check our tokens.
func (t *Tokens) JWKS() jose.JSONWebKeySet { return t.public }

// Sign makes a token of c that is good from now on. It fills in what is the
// same for all.
func (t *Tokens) Sign(c Claims, now time.Time) (string, error) {
	c.Issuer, c.Audience, c.ID = t.issuer, t.issuer, random(idBytes)
	c.IssuedAt, c.Expiry = jwt.NewNumericDate(now), jwt.NewNumericDate(now.Add(TokenLife))
	return jwt.Signed(t.signer).Claims(c).Serialize()
}

// SignDrive makes a token of c that is good from now on. It fills in what is the
// same for all.
func (t *Tokens) SignDrive(c DriveClaims, now time.Time) (string, error) {
	c.Issuer, c.ID = t.issuer, random(idBytes)
	c.IssuedAt, c.Expiry = jwt.NewNumericDate(now), jwt.NewNumericDate(now.Add(DriveTokenLife))
	return jwt.Signed(t.drives).Claims(c).Serialize()
}

// Verify returns what a token says, if we signed it and it is not over.
func (t *Tokens) Verify(text string, now time.Time) (Claims, error) {
	var c Claims
	if len(text) > tokenMax {
		return c, errWrongToken
	}
	token, err := jwt.ParseSigned(text, []jose.SignatureAlgorithm{jose.EdDSA})
	if err != nil || len(token.Headers) != 1 {
		return c, errWrongToken
	}
	if kind, _ := token.Headers[0].ExtraHeaders[jose.HeaderType].(string); kind != tokenType {
		return c, errWrongToken
	}
	keys := t.public.Key(token.Headers[0].KeyID)
	if len(keys) != 1 || token.Claims(keys[0], &c) != nil {
		return c, errWrongToken
	}
	if c.Issuer != t.issuer || c.Audience != t.issuer || c.Expiry == nil || c.IssuedAt == nil || !now.Before(c.Expiry.Time()) {
		return c, errWrongToken
	}
	return c, nil
}

// looksSigned tells a token from an API key.
func looksSigned(text string) bool { return strings.Count(text, ".") == 2 }

var errWrongToken = doze.Errorf(doze.Unauthenticated, "the access token is wrong, expired or revoked")
