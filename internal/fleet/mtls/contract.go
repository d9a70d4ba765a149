package mtls

import (
	"net/http"
	"strconv"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/httpx"
)

const (
	// Contract is the version of what the roles say to each other. It grows with each change that
	// the version before does not understand. Roles whose versions are one apart work together,
	// so that a platform can be upgraded one process at a time.
	Contract = 2
	// silent is the version of builds that say none.
	silent = 1
	// contractHeader has the version of the sender, in each request and in each answer.
	contractHeader = "Doze-Contract"
)

// apart is an error unless a peer that says a version works together with this one.
func apart(own int, said string) error {
	theirs := silent
	if said != "" {
		var err error
		if theirs, err = strconv.Atoi(said); err != nil {
			return doze.Errorf(doze.Unsupported, "%.20q is no version of the contract between the roles of a platform", said)
		}
	}
	if theirs < own-1 || theirs > own+1 {
		return doze.Errorf(doze.Unsupported, "this role speaks version %d of the contract between the roles of a platform, and its peer version %d: they work together if they are one apart, so upgrade the older one release by release", own, theirs)
	}
	return nil
}

// A speaker says the version of this role with each request, and refuses answers of peers that do
// not work together with it.
type speaker struct {
	next http.RoundTripper
	own  int
}

// RoundTrip implements [http.RoundTripper].
func (s speaker) RoundTrip(r *http.Request) (*http.Response, error) {
	out := *r // a transport may not change what it was given
	out.Header = r.Header.Clone()
	out.Header.Set(contractHeader, strconv.Itoa(s.own))
	resp, err := s.next.RoundTrip(&out)
	if err != nil {
		return nil, err
	}
	if err := apart(s.own, resp.Header.Get(contractHeader)); err != nil {
		_ = resp.Body.Close()
		return nil, err
	}
	resp.Header.Del(contractHeader) // an edge may pass the answer on
	return resp, nil
}

// CloseIdleConnections is that of [http.Client], which finds it by its name.
func (s speaker) CloseIdleConnections() { (&http.Client{Transport: s.next}).CloseIdleConnections() }

// speaks is the other side of a speaker: it says the version of this role with each answer.
func speaks(own int, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(contractHeader, strconv.Itoa(own))
		if err := apart(own, r.Header.Get(contractHeader)); err != nil {
			httpx.WriteError(w, r, err)
			return
		}
		next.ServeHTTP(w, r)
	})
}
