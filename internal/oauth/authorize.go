package oauth

import (
	"errors"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/store"
)

// challengeForm is the hash of a code verifier (RFC 7636, S256).
var challengeForm = regexp.MustCompile(`^[A-Za-z0-9_-]{43}$`)

// request is a valid request for an authorization code.
type request struct {
	client    doze.OAuthClient
	redirect  string
	state     string
	scopes    []string
	challenge string
}

// parse reads a request. An error of the client or its redirect URI must be
// shown to the user, as there is nobody else to trust: then redirect is empty.
// Any other goes back to the client.
func (s *Server) parse(r *http.Request, p params) (request, error) {
	var q request
	c, err := s.client(r.Context(), p["client_id"])
	if err != nil {
		return q, err
	}
	if !redirects(c, p["redirect_uri"]) {
		return q, fail(http.StatusBadRequest, invalidRequest, "the redirect_uri is not one that the client has registered")
	}
	q = request{client: c, redirect: p["redirect_uri"], state: p["state"], challenge: p["code_challenge"]}
	switch {
	case p["response_type"] != "code":
		return q, fail(http.StatusBadRequest, unsupportedResponse, "the response_type must be code")
	case p["code_challenge_method"] != "S256" || !challengeForm.MatchString(q.challenge):
		return q, fail(http.StatusBadRequest, invalidRequest, "a code_challenge with the method S256 is required")
	}
	q.scopes, err = parseScope(p["scope"], []string{access.Admin})
	return q, err
}

// back sends the browser to the client with more parameters.
func (s *Server) back(w http.ResponseWriter, r *http.Request, q request, more map[string]string) {
	u, err := url.Parse(q.redirect)
	if err != nil {
		s.showError(w, r, err)
		return
	}
	v := u.Query()
	for name, value := range more {
		v.Set(name, value)
	}
	if q.state != "" {
		v.Set("state", q.state)
	}
	v.Set("iss", s.Base) // RFC 9207: who answers
	u.RawQuery = v.Encode()
	noStore(w)
	w.Header().Set("Referrer-Policy", "no-referrer")
	http.Redirect(w, r, u.String(), http.StatusSeeOther)
}

// refuseRequest reports an error of a request to the one who should know.
func (s *Server) refuseRequest(w http.ResponseWriter, r *http.Request, q request, err error) {
	f, ok := errors.AsType[*failure](err)
	if q.redirect == "" || !ok {
		s.showError(w, r, err)
		return
	}
	s.back(w, r, q, map[string]string{"error": f.name, "error_description": f.message})
}

// Authorize shows the user which client asks, and what it asks for. The user types their name and
// password there, each time.
func (s *Server) Authorize(w http.ResponseWriter, r *http.Request) {
	v, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		s.showError(w, r, fail(http.StatusBadRequest, invalidRequest, "the query cannot be read"))
		return
	}
	p, err := once(v)
	if err != nil {
		s.showError(w, r, err)
		return
	}
	q, err := s.parse(r, p)
	if err != nil {
		s.refuseRequest(w, r, q, err)
		return
	}
	s.showLogin(w, r, q, p, "")
}

// asked are the parameters of a request, which the form brings back.
var asked = []string{"response_type", "client_id", "redirect_uri", "scope", "state", "code_challenge", "code_challenge_method"}

// Decide takes the user's answer.
func (s *Server) Decide(w http.ResponseWriter, r *http.Request) {
	p, err := readParams(r)
	if err != nil {
		s.showError(w, r, err)
		return
	}
	q, err := s.parse(r, p)
	if err != nil {
		s.refuseRequest(w, r, q, err)
		return
	}
	if p["decision"] != "allow" {
		s.back(w, r, q, map[string]string{"error": accessDenied, "error_description": "the user said no"})
		return
	}
	u, err := s.authenticate(r.Context(), networkOf(r), p["name"], p["password"])
	if err != nil {
		if k := doze.Public(err).Kind; k == doze.Unauthenticated || k == doze.Exhausted {
			s.showLogin(w, r, q, p, doze.Public(err).Message)
			return
		}
		s.showError(w, r, err)
		return
	}
	now, id := time.Now(), store.NewID()
	code := access.NewCode(codePrefix, id)
	err = s.Store.InsertGrant(r.Context(), store.Grant{
		ID: id, Sub: u.Sub, Phase: store.GrantAgreed, Expires: now.Add(codeLife), Client: q.client.ClientID, Scopes: q.scopes,
		Workspace: s.Credentials.Home(u.Sub), Redirect: q.redirect, Challenge: q.challenge, Code: access.HashCode(code),
	}, now)
	if err != nil {
		s.showError(w, r, err)
		return
	}
	s.back(w, r, q, map[string]string{"code": code})
}

// describe is what a list of scopes means to a person.
func describe(scopes []string) []string {
	if slices.Contains(scopes, access.Admin) {
		return []string{"everything that you may do"}
	}
	var lines []string
	for _, scope := range scopes {
		resource, action, _ := strings.Cut(scope, ":")
		lines = append(lines, action+" "+resource)
	}
	return lines
}
