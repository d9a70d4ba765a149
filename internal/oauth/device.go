package oauth

import (
	"context"
	"crypto/rand"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/httpx"
	"github.com/dozehq/doze/internal/ratelimit"
	"github.com/dozehq/doze/internal/store"
)

const (
	// interval is how long a device waits between two questions.
	interval = 3 * time.Second
	// early is how much sooner a question may come: networks are uneven.
	early = time.Second
	// userCodeHalf is half of the letters of a user code: 40 random bits in
	// all, for ten minutes, behind a password.
	userCodeHalf = 4
	// userLetters cannot be mistaken for each other, and make no words.
	userLetters = "BCDFGHJKLMNPQRSTVWXZ23456789BCDF" // 32, so that a byte has no bias
)

const (
	// devicesPerSource bounds the devices of one network that wait: an office
	// shares one address. A new one takes the place of its oldest.
	devicesPerSource = 20
	// devicesMax bounds those of all, in a few MB of records. When they are as
	// many, the network that has the most loses one.
	devicesMax = 10_000
)

// deviceRate bounds how often a network asks for a code: each is a write.
var deviceRate = ratelimit.Limit{PerSecond: 0.5, Burst: 30}

// networkOf is what limits count by.
func networkOf(r *http.Request) netip.Prefix { return httpx.SourceNetwork(httpx.Source(r)) }

// Device begins the device flow (RFC 8628).
func (s *Server) Device(w http.ResponseWriter, r *http.Request) {
	verdict := s.devices.Take(networkOf(r), 1)
	verdict.Header(w.Header(), "device")
	err := verdict.Err("devices ask for a code from this address")
	var out deviceAnswer
	if err == nil {
		out, err = s.device(r)
	}
	if err != nil {
		writeFailure(w, r, err)
		return
	}
	noStore(w)
	httpx.WriteJSON(w, http.StatusOK, out)
}

// deviceAnswer is what a device shows to its user, and asks with (RFC 8628,
// section 3.2).
type deviceAnswer struct {
	DeviceCode string `json:"device_code"`
	UserCode   string `json:"user_code"`
	Verify     string `json:"verification_uri"`
	Complete   string `json:"verification_uri_complete"` // with the user code
	ExpiresIn  int    `json:"expires_in"`                // seconds
	Interval   int    `json:"interval"`                  // seconds
}

func (s *Server) device(r *http.Request) (out deviceAnswer, err error) {
	ctx, now := r.Context(), time.Now()
	p, err := readParams(r)
	if err != nil {
		return out, err
	}
	c, err := s.client(ctx, p["client_id"])
	if err != nil {
		return out, err
	}
	scopes, err := parseScope(p["scope"], []string{access.Admin})
	if err != nil {
		return out, err
	}
	id := store.NewID()
	code, user := access.NewCode(devicePrefix, id), newUserCode()
	err = s.Store.InsertDevice(ctx, store.Grant{
		ID: id, UserCode: user, Expires: now.Add(deviceLife), Source: networkOf(r).String(),
		Client: c.ClientID, Scopes: scopes, Code: access.HashCode(code), Device: true,
	}, store.Waiting{PerSource: devicesPerSource, All: devicesMax}, now)
	verify := s.Base + "/login/verify"
	return deviceAnswer{
		code, user, verify, verify + "?user_code=" + user, int(deviceLife.Seconds()), int(interval.Seconds()),
	}, err
}

func newUserCode() string {
	b := make([]byte, 2*userCodeHalf)
	_, _ = rand.Read(b) // it never fails
	for i := range b {
		b[i] = userLetters[int(b[i])%len(userLetters)]
	}
	return string(b[:userCodeHalf]) + "-" + string(b[userCodeHalf:])
}

// plainUserCode is a user code as people type it.
func plainUserCode(text string) string {
	text = strings.Map(func(r rune) rune {
		if r == '-' || r == ' ' {
			return -1
		}
		return r
	}, strings.ToUpper(text))
	if len(text) != 2*userCodeHalf {
		return ""
	}
	return text[:userCodeHalf] + "-" + text[userCodeHalf:]
}

// pollDevice answers the question of a device whether its user agreed.
func (s *Server) pollDevice(ctx context.Context, _ *http.Request, p params) (tokenAnswer, error) {
	expired := fail(http.StatusBadRequest, expiredToken, "the device code is unknown, used or over: begin again")
	id, ok := access.CodeID(devicePrefix, p["device_code"])
	if !ok {
		return tokenAnswer{}, expired
	}
	refresh, now := access.NewCode(refreshPrefix, id), time.Now()
	g, err := s.Store.ChangeGrant(ctx, id, now, func(g *store.Grant) error {
		if !g.Device || !access.SameCode(g.Code, p["device_code"]) || p["client_id"] != g.Client {
			return expired
		}
		switch g.Phase {
		case store.GrantPending:
			soon := now.Sub(time.UnixMilli(g.Polled)) < interval-early
			g.Polled = now.UnixMilli()
			if soon {
				return fail(http.StatusBadRequest, slowDown, "ask less often")
			}
			return fail(http.StatusBadRequest, authorizationPending, "the user has not agreed yet")
		case store.GrantAgreed:
			g.Phase, g.Refresh, g.Expires = store.GrantActive, access.HashCode(refresh), now.Add(refreshLife)
			return nil
		case store.GrantRevoked:
			return fail(http.StatusBadRequest, accessDenied, "the user said no")
		}
		return expired
	})
	if doze.Public(err).Kind == doze.NotFound {
		err = expired
	}
	if err != nil {
		return tokenAnswer{}, err
	}
	return s.begin(ctx, g, refresh, now)
}

// Verify asks the user for the code that their device shows.
func (s *Server) Verify(w http.ResponseWriter, r *http.Request) {
	s.showDevice(w, r, plainUserCode(r.URL.Query().Get("user_code")), "", "")
}

// Confirm takes the user's answer.
func (s *Server) Confirm(w http.ResponseWriter, r *http.Request) {
	ctx, now := r.Context(), time.Now()
	p, err := readParams(r)
	if err != nil {
		s.showError(w, r, err)
		return
	}
	code := plainUserCode(p["user_code"])
	u, err := s.authenticate(ctx, networkOf(r), p["name"], p["password"])
	if err != nil {
		if k := doze.Public(err).Kind; k == doze.Unauthenticated || k == doze.Exhausted {
			s.showDevice(w, r, code, p["name"], doze.Public(err).Message)
			return
		}
		s.showError(w, r, err)
		return
	}
	g, err := s.Store.GrantByUserCode(ctx, code, now)
	if doze.Public(err).Kind == doze.NotFound {
		s.showDevice(w, r, "", p["name"], "There is no such code, or it is over.")
		return
	}
	if err == nil {
		_, err = s.Store.ChangeGrant(ctx, g.ID, now, func(g *store.Grant) error {
			if g.Phase != store.GrantPending {
				return errUsed
			}
			g.Sub, g.Workspace, g.Phase = u.Sub, s.Credentials.Home(u.Sub), store.GrantRevoked
			if p["decision"] == "allow" {
				g.Phase = store.GrantAgreed
			}
			return nil
		})
	}
	if err != nil {
		s.showError(w, r, err)
		return
	}
	s.showDone(w, r, p["decision"] == "allow")
}
