package oauth

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/audit"
	"github.com/dozehq/doze/internal/httpx"
	"github.com/dozehq/doze/internal/store"
)

// tokenAnswer is a successful answer (RFC 6749, section 5.1).
type tokenAnswer struct {
	AccessToken  string `json:"access_token"`
	TokenType    string `json:"token_type"`
	ExpiresIn    int    `json:"expires_in"`
	RefreshToken string `json:"refresh_token,omitempty"`
	Scope        string `json:"scope"`
}

// deviceGrant is the name of the grant of RFC 8628.
const deviceGrant = "urn:ietf:params:oauth:grant-type:device_code"

// grants are the ways to a token, and the parameters that each needs. Those of
// client_credentials may be in a header.
var grants = map[string]struct {
	needs []string
	give  func(*Server, context.Context, *http.Request, params) (tokenAnswer, error)
}{
	"authorization_code": {[]string{"code", "client_id", "redirect_uri", "code_verifier"}, (*Server).exchangeCode},
	"refresh_token":      {[]string{"refresh_token"}, (*Server).refresh},
	"client_credentials": {nil, (*Server).clientCredentials},
	deviceGrant:          {[]string{"device_code", "client_id"}, (*Server).pollDevice},
}

// Token gives out tokens.
func (s *Server) Token(w http.ResponseWriter, r *http.Request) {
	p, err := readParams(r)
	if err == nil {
		err = p.need("grant_type")
	}
	if err != nil {
		writeFailure(w, r, err)
		return
	}
	grant, ok := grants[p["grant_type"]]
	if !ok {
		writeFailure(w, r, fail(http.StatusBadRequest, unsupportedGrant, "the grant_type must be authorization_code, refresh_token, client_credentials or "+deviceGrant))
		return
	}
	if err := p.need(grant.needs...); err != nil {
		writeFailure(w, r, err)
		return
	}
	out, err := grant.give(s, r.Context(), r, p)
	if err != nil {
		writeFailure(w, r, err)
		return
	}
	noStore(w)
	httpx.WriteJSON(w, http.StatusOK, out)
}

// verifierForm is a code verifier (RFC 7636).
var verifierForm = regexp.MustCompile(`^[A-Za-z0-9._~-]{43,128}$`)

// errUsed stands for a code that is wrong in any way: nobody learns which.
var errUsed = fail(http.StatusBadRequest, invalidGrant, "the code is wrong, used or over: begin again")

// exchangeCode turns an authorization code into tokens, once. A second try
// makes the tokens of the first void: one of the two stole the code.
func (s *Server) exchangeCode(ctx context.Context, _ *http.Request, p params) (tokenAnswer, error) {
	id, ok := access.CodeID(codePrefix, p["code"])
	if !ok {
		return tokenAnswer{}, errUsed
	}
	refresh, now := access.NewCode(refreshPrefix, id), time.Now()
	stolen := false
	g, err := s.Store.ChangeGrant(ctx, id, now, func(g *store.Grant) error {
		if !access.SameCode(g.Code, p["code"]) || g.Device {
			return errUsed
		}
		if g.Phase != store.GrantAgreed {
			stolen = true
			g.Phase, g.Expires = store.GrantRevoked, now.Add(access.TokenLife)
			return errUsed
		}
		sum := sha256.Sum256([]byte(p["code_verifier"]))
		challenge := base64.RawURLEncoding.EncodeToString(sum[:])
		if g.Client != p["client_id"] || g.Redirect != p["redirect_uri"] || !verifierForm.MatchString(p["code_verifier"]) ||
			subtle.ConstantTimeCompare([]byte(challenge), []byte(g.Challenge)) != 1 {
			g.Phase = store.GrantRevoked // no second guess
			return errUsed
		}
		g.Phase, g.Refresh, g.Expires = store.GrantActive, access.HashCode(refresh), now.Add(refreshLife)
		return nil
	})
	if stolen {
		s.Credentials.Revoke(id, now)
	}
	if err != nil {
		return tokenAnswer{}, missing(err)
	}
	return s.begin(ctx, g, refresh, now)
}

// grantsMax bounds the programs that act for one user at a time: each is a
// record for 30 days.
const grantsMax = 100

// begin makes the first tokens of a grant. Where the user has too many, those end
// that were not used for the longest time.
func (s *Server) begin(ctx context.Context, g store.Grant, refresh string, now time.Time) (tokenAnswer, error) {
	ended, err := s.Store.TrimGrants(ctx, g.Sub, grantsMax, now.Add(access.TokenLife))
	if err != nil {
		return tokenAnswer{}, err
	}
	for _, id := range ended {
		s.Credentials.Revoke(id, now)
	}
	return s.issue(ctx, g, g.Scopes, refresh, now)
}

// missing makes a grant that is not there look like a wrong one.
func missing(err error) error {
	if doze.Public(err).Kind == doze.NotFound {
		return errUsed
	}
	return err
}

// refresh renews an access token. The refresh token is replaced, and using an
// old one revokes the grant: it was stolen. Clients that cannot keep a new one
// send the device code along, which nobody else has, and keep theirs.
func (s *Server) refresh(ctx context.Context, _ *http.Request, p params) (tokenAnswer, error) {
	id, ok := access.CodeID(refreshPrefix, p["refresh_token"])
	if !ok {
		return tokenAnswer{}, errUsed
	}
	next, now := access.NewCode(refreshPrefix, id), time.Now()
	stolen := false
	var scopes []string
	g, err := s.Store.ChangeGrant(ctx, id, now, func(g *store.Grant) (err error) {
		if g.Phase != store.GrantActive || p["client_id"] != "" && p["client_id"] != g.Client {
			return errUsed
		}
		if !access.SameCode(g.Refresh, p["refresh_token"]) {
			stolen = true
			g.Phase, g.Expires = store.GrantRevoked, now.Add(access.TokenLife)
			return errUsed
		}
		if scopes, err = parseScope(p["scope"], g.Scopes); err == nil {
			err = within(scopes, g.Scopes)
		}
		if err != nil {
			return err
		}
		if g.Device && access.SameCode(g.Code, p["device_code"]) {
			next = p["refresh_token"]
		}
		g.Refresh, g.Expires = access.HashCode(next), now.Add(refreshLife)
		g.Workspace = cmp.Or(g.Workspace, s.Credentials.Home(g.Sub)) // they were in none, or agreed with a version that kept none
		return nil
	})
	if stolen {
		s.Credentials.Revoke(id, now)
	}
	if err != nil {
		return tokenAnswer{}, missing(err)
	}
	return s.issue(ctx, g, scopes, next, now)
}

// issue makes the tokens of a grant.
func (s *Server) issue(ctx context.Context, g store.Grant, scopes []string, refresh string, now time.Time) (tokenAnswer, error) {
	u, err := s.Store.User(ctx, g.Sub)
	if err != nil {
		return tokenAnswer{}, missing(err)
	}
	audit.By(ctx, u.Sub, doze.SubUser, g.Workspace)
	return s.sign(access.Claims{
		Sub: u.Sub, SubType: doze.SubUser, Workspace: g.Workspace, Epoch: u.Epoch, Grant: g.ID, Client: g.Client, Scope: strings.Join(scopes, " "),
	}, refresh, now)
}

func (s *Server) sign(c access.Claims, refresh string, now time.Time) (tokenAnswer, error) {
	text, err := s.Credentials.Tokens.Sign(c, now)
	return tokenAnswer{text, "Bearer", int(access.TokenLife.Seconds()), refresh, c.Scope}, err
}

// clientCredentials gives a service account a token of its own.
func (s *Server) clientCredentials(ctx context.Context, r *http.Request, p params) (tokenAnswer, error) {
	wrong := fail(http.StatusUnauthorized, invalidClient, "the client id or the client secret is wrong")
	id, secret := p["client_id"], p["client_secret"]
	if user, password, ok := r.BasicAuth(); ok {
		if secret != "" || id != "" && id != user {
			return tokenAnswer{}, fail(http.StatusBadRequest, invalidRequest, "give the client secret in one way only")
		}
		id, secret = unescape(user), unescape(password)
	}
	a, err := s.Store.ServiceAccount(ctx, "", id)
	if doze.Public(err).Kind == doze.NotFound || err == nil && !access.SameCode(a.Hash, secret) {
		return tokenAnswer{}, wrong
	}
	if err != nil {
		return tokenAnswer{}, err
	}
	scopes, err := parseScope(p["scope"], a.Scopes)
	if err == nil {
		err = within(scopes, a.Scopes)
	}
	if err != nil {
		return tokenAnswer{}, err
	}
	audit.By(ctx, a.ClientID, doze.SubServiceAccount, a.Workspace)
	return s.sign(access.Claims{
		Sub: a.ClientID, SubType: doze.SubServiceAccount, Workspace: a.Workspace, Client: a.ClientID, Scope: strings.Join(scopes, " "),
	}, "", time.Now())
}

// unescape undoes the encoding that RFC 6749, section 2.3.1, asks for, and that
// some clients leave out. Our ids and secrets are the same in both.
func unescape(text string) string {
	if plain, err := url.QueryUnescape(text); err == nil {
		return plain
	}
	return text
}

// Revoke makes the grant of a token void (RFC 7009), with all of its tokens.
// Nobody learns whether there was one.
func (s *Server) Revoke(w http.ResponseWriter, r *http.Request) {
	p, err := readParams(r)
	if err == nil {
		err = p.need("token")
	}
	if err == nil {
		err = s.revoke(r.Context(), p["token"], time.Now())
	}
	if err != nil {
		writeFailure(w, r, err)
		return
	}
	noStore(w)
	httpx.WriteJSON(w, http.StatusOK, map[string]any{})
}

func (s *Server) revoke(ctx context.Context, token string, now time.Time) error {
	id, refresh := access.CodeID(refreshPrefix, token)
	claims, err := s.Credentials.Tokens.Verify(token, now)
	switch {
	case refresh:
	case err != nil:
		return nil //nolint:nilerr // it is nothing, or void already
	case claims.Grant == "":
		return fail(http.StatusBadRequest, unsupportedToken, "a token of a service account ends by itself; delete the account to end it now")
	default:
		id = claims.Grant
	}
	revoked := false
	_, err = s.Store.ChangeGrant(ctx, id, now, func(g *store.Grant) error {
		if revoked = !refresh || access.SameCode(g.Refresh, token); revoked {
			g.Phase, g.Expires = store.GrantRevoked, now.Add(access.TokenLife)
		}
		return nil
	})
	if err != nil && doze.Public(err).Kind != doze.NotFound {
		return err
	}
	if revoked {
		s.Credentials.Revoke(id, now)
	}
	return nil
}
